//! The connections that policy decides about when a client connects to a service.
//!
//! Manx or kube-proxy translates a service's address. The translation determines which endpoints a client may get, and
//! which source address these endpoints see. Policy judges the resulting connections. `published` describes the
//! translation by kube-proxy, and `translated` the translation by Manx.

use manx_api::explain::{ExplainRequest, Explanation, PacketSpec};
use manx_oracle::Party;

use super::Explainer;
use super::services::{Destination, Destinations};
use crate::services::Translates;

/// A connection to judge, in the form of requests.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Asked {
    /// The source.
    pub from: String,
    /// The destination.
    pub to: String,
    /// The packet that arrives at the destination.
    pub packet: PacketSpec,
    /// The node through whose tunnel the packet comes, if the source is a client outside the cluster. The packet then
    /// gets none of the node's rights, although it comes from the node's address.
    pub brought_by: Option<String>,
    /// The reason why the packet is dropped independently of policy, if it is.
    pub dropped: Option<String>,
}

impl Asked {
    pub(super) fn new(from: &str, to: &str, packet: PacketSpec) -> Self {
        Self { from: from.to_owned(), to: to.to_owned(), packet, brought_by: None, dropped: None }
    }
}

/// The connections that one connection results in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connections {
    /// The connections. All of them must pass, so that the connection passes with every endpoint.
    pub asked: Vec<Asked>,
    /// Notes about the translations of services.
    pub notes: Vec<String>,
}

impl Explainer<'_> {
    /// Returns the connections that policy decides about when `from`, a single end, connects to `to`. `to` may be any
    /// text that [`Explainer::destinations`] accepts.
    pub fn connections(
        &self,
        from: &str,
        to: &str,
        packet: PacketSpec,
    ) -> Result<Connections, String> {
        if let PacketSpec::Protocol(protocol, Some(port)) = packet {
            let asked_for = (to, protocol, port);
            let found = match &self.translates {
                Translates::Manx(_) => self.by_manx(from, asked_for)?,
                Translates::KubeProxy => self.by_kube_proxy(from, asked_for)?,
            };
            if let Some(found) = found {
                return Ok(found);
            }
        }
        let node = self.node_of(from);
        let Destinations { ends, notes } = self.destinations(to, packet, node.as_deref())?;
        let client = self.parties.named(from, &mut Vec::new())?.into_iter().next();
        let is_process = matches!(client, Some(Party::Node { .. }))
            && matches!(self.translates, Translates::Manx(_))
            && self.is_translated(to);
        let mut found = Connections { asked: Vec::new(), notes };
        for Destination { end, packet, dropped } in ends {
            let mut asked = Asked { dropped, ..Asked::new(from, &end, packet) };
            if let Some(node) = node.as_deref().filter(|_| is_process)
                && let Some(seen) = self.process_seen_as(node, &end)?
                && client.as_ref().map(Party::address) != Some(seen)
            {
                asked.from = seen.to_string();
            }
            found.asked.push(asked);
        }
        Ok(found)
    }

    /// Like [`Explainer::explain`], for one of the [connections](Explainer::connections) that result from the request.
    pub fn explain_asked(
        &self,
        request: &ExplainRequest,
        asked: &Asked,
    ) -> Result<Explanation, String> {
        let Asked { from, to, packet, brought_by, dropped } = asked.clone();
        let request = ExplainRequest { from, to, packet, ..request.clone() };
        let mut one = self.explain_brought(&request, brought_by.as_deref())?;
        if let Some(why) = dropped {
            one.story = one.story.without_route(why, true);
        }
        Ok(one)
    }

    /// Like [`Explainer::explain`], for all connections that result from one connection. Returns the explanation of the
    /// first one that does not pass, or of the last one if all pass. The first lines of the other explanations are
    /// added as notes.
    pub fn explain_all(&self, request: &ExplainRequest) -> Result<Explanation, String> {
        let ExplainRequest { from, to, packet, .. } = request;
        let Connections { asked, notes } = self.connections(from, to, *packet)?;
        let all = asked.iter().map(|it| self.explain_asked(request, it));
        let mut all: Vec<Explanation> = all.collect::<Result<_, _>>()?;
        let at = all.iter().position(|one| !one.story.allowed);
        let at = at.unwrap_or(all.len().saturating_sub(1));
        if at >= all.len() {
            return Err(format!("nobody is reached at {to}"));
        }
        let mut one = all.remove(at);
        one.stand_ins.extend(notes);
        let others = all.iter().map(ToString::to_string);
        one.stand_ins.extend(others.filter_map(|it| Some(format!("also: {}", it.lines().next()?))));
        Ok(one)
    }

    /// Returns the node of an end: the node of a pod, or the node itself.
    pub(super) fn node_of(&self, end: &str) -> Option<String> {
        let found = self.parties.named(end, &mut Vec::new()).ok()?;
        Some(self.oracle.node(found.first()?)?.to_owned())
    }
}
