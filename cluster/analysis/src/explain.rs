//! Explains whether the objects allow a connection. It finds the parties of a request, their packet and the interfaces
//! on its path, and asks the oracle.

mod backends;
mod connections;
mod ends;
mod parties;
mod published;
mod services;
mod translated;
mod traversal;

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::rc::Rc;

use crate::routes::Routes;
use crate::services::{ServiceTables, Translates};
use manx_api::explain::{ExplainRequest, Explanation, PacketSpec};
use manx_api::trace::Trace;
use manx_calculation::import::{Ipam, assumed_ipam, policy_name};
use manx_calculation::services::Frontends;
use manx_objects::contents::{Contents, Stored};
use manx_objects::object::{Kind, ObjectKey};
use manx_oracle::verdict::name;
use manx_oracle::{BlockSource, L4Header, Oracle, Packet, Party};
use parties::Parties;
use traversal::Traversal;

pub use connections::{Asked, Connections};
pub use services::{Destination, Destinations};
pub(crate) use services::{number, services};

/// Returns whether these objects allow a connection, and why. `assumed` holds the addresses that the caller assumed for
/// objects without one. `uplink` is the name of the nodes' uplink if the request does not name one. Returns `Err` if a
/// party is unknown or ambiguous.
pub fn explain(
    request: &ExplainRequest,
    contents: &Contents,
    assumed: &BTreeMap<ObjectKey, Vec<IpAddr>>,
    uplink: &str,
) -> Result<Explanation, String> {
    Explainer::new(contents, assumed, uplink).explain(request)
}

/// Returns the objects from which an oracle reads the nodes' blocks, for this IPAM of pod addresses.
pub const fn block_source(ipam: Ipam) -> BlockSource {
    match ipam {
        Ipam::HostLocal => BlockSource::PodCidrs,
        Ipam::Calico => BlockSource::Affinities,
    }
}

/// The objects, prepared for several requests.
#[derive(Debug)]
pub struct Explainer<'a> {
    contents: &'a Contents,
    assumed: BTreeSet<IpAddr>,
    uplink: &'a str,
    oracle: Oracle,
    parties: Parties<'a>,
    routes: Rc<Routes<'a>>,
    /// The services as the nodes translate them, calculated at first use.
    services: OnceCell<ServiceTables<'a>>,
    translates: Translates,
    /// For each node, the table with the host ports of its pods, calculated at first use.
    host_ports: RefCell<BTreeMap<String, Option<Rc<Frontends>>>>,
    /// The file and line of each policy, by the policy's name in traces.
    places: BTreeMap<String, String>,
}

impl<'a> Explainer<'a> {
    /// The parameters are those of [`explain`].
    pub fn new(
        contents: &'a Contents,
        assumed: &BTreeMap<ObjectKey, Vec<IpAddr>>,
        uplink: &'a str,
    ) -> Self {
        Self::with_ipam(contents, assumed, uplink, assumed_ipam(contents))
    }

    /// Like [`Explainer::new`], for a known IPAM of pod addresses.
    pub fn with_ipam(
        contents: &'a Contents,
        assumed: &BTreeMap<ObjectKey, Vec<IpAddr>>,
        uplink: &'a str,
        ipam: Ipam,
    ) -> Self {
        let policies = contents.objects.iter().filter(|(key, _)| policy_name(key).is_some());
        let place = |(key, stored): (_, &Stored)| (name(key), stored.place.to_string());
        let places = policies.map(place).collect();
        let assumed = assumed.values().flatten().copied().collect();
        let oracle = Oracle::with_blocks(&contents.objects, block_source(ipam));
        let parties = Parties::new(contents, &oracle);
        let routes = Rc::new(Routes::with_ipam(contents, ipam));
        Self {
            contents,
            assumed,
            uplink,
            oracle,
            parties,
            routes,
            services: OnceCell::new(),
            translates: Translates::default(),
            host_ports: RefCell::default(),
            places,
        }
    }

    /// Sets the component that translates services. The default is Manx with its default settings.
    #[must_use]
    pub fn translated_by(self, translates: Translates) -> Self {
        Self { translates, services: OnceCell::new(), host_ports: RefCell::default(), ..self }
    }

    /// Returns the ends that a text names, each as a text in the form of requests. `svc/NAMESPACE/NAME` names the
    /// endpoints of a service, a pattern with `*` or `?` names the pods or nodes that match it, and any other text
    /// names itself. Returns `Err` if there are none.
    pub fn ends(&self, text: &str) -> Result<Vec<String>, String> {
        ends::ends(text, self.contents, &self.parties)
    }

    /// Returns whether a connection passes, and why.
    pub fn explain(&self, request: &ExplainRequest) -> Result<Explanation, String> {
        self.explain_brought(request, None)
    }

    /// Like [`Explainer::explain`]. `brought_by` is set if the source is a client outside the cluster whose packets
    /// come through the tunnel of this node.
    fn explain_brought(
        &self,
        request: &ExplainRequest,
        brought_by: Option<&str>,
    ) -> Result<Explanation, String> {
        let Self { assumed, uplink, oracle, parties, .. } = self;
        let mut stand_ins = Vec::new();
        let from = parties.named(&request.from, &mut stand_ins)?;
        let to = parties.named(&request.to, &mut stand_ins)?;
        let Some((from, to)) = in_one_family(&from, &to, request.ipv6) else {
            return Err(format!(
                "{} and {} have no addresses of {} family",
                request.from,
                request.to,
                if request.ipv6 { "the IPv6" } else { "one" }
            ));
        };
        let from = if brought_by.is_some() { Party::Address(from.address()) } else { from };
        let packet = packet(request.packet, to.address().is_ipv4(), request.source_port);
        let mut unsure: Vec<String> = [&from, &to]
            .into_iter()
            .filter(|party| assumed.contains(&party.address()))
            .map(ToString::to_string)
            .collect();
        unsure.dedup();
        let uplink = request.uplink.as_deref().unwrap_or(uplink);
        let traversal = Traversal::new(self, [&from, &to], uplink, brought_by)?;
        let [leaving, arriving] = traversal.crossings(packet);
        let mut story = oracle.explain((&from, leaving), (&to, arriving), packet);
        self.cite(&mut story);
        let story = match traversal.no_route() {
            Some(why) => story.without_route(why.to_owned(), request.routes),
            None => story,
        };
        Ok(Explanation { story, assumed: unsure, stand_ins })
    }

    /// Adds the file and the line of each policy to a trace.
    fn cite(&self, story: &mut Trace) {
        for side in story.sides_mut() {
            if let Some(rule) = &mut side.rule {
                let is_its = |kind: &Kind| {
                    kind.name() == rule.kind && kind.api_versions()[0] == rule.api_version
                };
                if let Some(kind) = Kind::ALL.into_iter().find(is_its) {
                    let key = ObjectKey::new(kind, &rule.namespace, &rule.name);
                    rule.place = self.places.get(&name(&key)).cloned();
                }
            }
            for policy in side.tiers.iter_mut().flat_map(|tier| &mut tier.policies) {
                policy.place = self.places.get(&policy.name).cloned();
            }
        }
    }
}

/// Returns the packet that `spec` describes, with this source port. It is an IPv4 packet if `v4` is set, and otherwise
/// an IPv6 packet.
pub fn packet(spec: PacketSpec, v4: bool, source: u16) -> Packet {
    match spec {
        PacketSpec::Protocol(protocol, Some(destination)) => {
            Packet { protocol, l4: L4Header::Ports { source, destination } }
        }
        PacketSpec::Protocol(protocol, None) => Packet::bare(protocol),
        PacketSpec::Icmp(None) => Packet::echo(v4),
        PacketSpec::Icmp(Some((kind, code))) => Packet::icmp(if v4 { 1 } else { 58 }, kind, code),
    }
}

/// Returns a party of each side, both with addresses of the same family. The family is IPv6 if `v6` is set, and
/// otherwise IPv4 if both sides have it. Returns `None` if there are no such parties.
fn in_one_family(from: &[Party], to: &[Party], v6: bool) -> Option<(Party, Party)> {
    let families = if v6 { &[false][..] } else { &[true, false] };
    families.iter().find_map(|v4| {
        let of_family = |parties: &[Party]| {
            parties.iter().find(|party| party.address().is_ipv4() == *v4).cloned()
        };
        of_family(from).zip(of_family(to))
    })
}

#[cfg(test)]
mod tests;
