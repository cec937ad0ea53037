//! Whether a connection passes: who asks whom, with what packet, and the answer, by the objects alone.

mod traversal;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::manifest::State;
use crate::manifest::object::{Kind, Object, ObjectKey};
use crate::oracle::explain::Trace;
use crate::oracle::{Oracle, Packet, Party, Shown};
use crate::store::Contents;
use traversal::Traversal;

/// A request: whether a connection passes, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainRequest {
    /// Who asks: `NAMESPACE/POD`, `POD`, `node/NAME` or an address.
    pub from: String,
    /// Who is asked.
    pub to: String,
    /// With what.
    pub packet: PacketSpec,
    /// From which port.
    pub source_port: u16,
    /// By the IPv6 addresses of parties that have both.
    pub ipv6: bool,
    /// The nodes' uplink, by which host endpoints find it; else as the agent has it, or `eth0`.
    pub uplink: Option<String>,
}

/// The answer to an [`ExplainRequest`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// What decides, and how it comes to it.
    #[serde(flatten)]
    pub story: Trace,
    /// The parties whose address is assumed, because the manifests give them none.
    pub assumed: Vec<String>,
}

impl ExplainRequest {
    /// Asks the oracle of these objects. `assumed` holds the addresses that the caller has made up for objects without one.
    /// `uplink` is the name of the nodes' uplink if the request names none. `Err` says which party is unknown or ambiguous.
    pub fn explain(
        &self,
        contents: &Contents,
        assumed: &BTreeMap<ObjectKey, Vec<IpAddr>>,
        uplink: &str,
    ) -> Result<Explanation, String> {
        let oracle = Oracle::new(&contents.objects);
        let from = parties(&self.from, contents, &oracle)?;
        let to = parties(&self.to, contents, &oracle)?;
        let Some((from, to)) = in_one_family(&from, &to, self.ipv6) else {
            return Err(format!(
                "{} and {} have no addresses of {} family",
                self.from,
                self.to,
                if self.ipv6 { "the IPv6" } else { "one" }
            ));
        };
        let packet = self.packet.packet(to.address().is_ipv4(), self.source_port);
        let given: Vec<_> = assumed.values().flatten().copied().collect();
        let mut unsure: Vec<String> = [&from, &to]
            .into_iter()
            .filter(|party| given.contains(&party.address()))
            .map(ToString::to_string)
            .collect();
        unsure.dedup();
        let uplink = self.uplink.as_deref().unwrap_or(uplink);
        let traversal = Traversal::new(contents, &oracle, &from, &to, uplink)?;
        let [leaving, arriving] = traversal.crossings(packet);
        let story = oracle.explain((&from, leaving), (&to, arriving), packet);
        let story = match traversal.no_route() {
            Some(why) => story.without_route(why.to_owned()),
            None => story,
        };
        Ok(Explanation { story, assumed: unsure })
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.story.fmt(f)?;
        if self.assumed.is_empty() {
            return Ok(());
        }
        writeln!(f, "\nno address in the manifests, assumed: {}", self.assumed.join(", "))
    }
}

/// A packet whose family is not known yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PacketSpec {
    /// This protocol by number, to this port if there is one.
    Protocol(u8, Option<u16>),
    /// ICMP, or in IPv6 `ICMPv6`: of this type and code, else an echo request.
    Icmp(Option<(u8, u8)>),
}

impl PacketSpec {
    /// Reads `tcp/80`, `icmp`, `icmp/3/1`, `protocol/47`. A number alone would be taken for a port, so it is refused.
    pub fn parse(text: &str) -> Result<Self, String> {
        let expected = || {
            format!(
                "{text:?} is no packet: expected tcp/80, udp/53, sctp/9, icmp, icmp/TYPE/CODE or protocol/NUMBER"
            )
        };
        let byte = |text: &str| text.parse::<u8>().map_err(|_| expected());
        let lower = text.to_ascii_lowercase();
        let (name, numbers) = match lower.split_once('/') {
            Some((name, numbers)) => (name, Some(numbers)),
            None => (lower.as_str(), None),
        };
        let number = match (name, numbers) {
            ("tcp", _) => 6,
            ("udp", _) => 17,
            ("sctp", _) => 132,
            ("protocol", Some(number)) => return Ok(Self::Protocol(byte(number)?, None)),
            ("icmp" | "icmpv6", None) => return Ok(Self::Icmp(None)),
            ("icmp" | "icmpv6", Some(numbers)) => {
                let (kind, code) = numbers.split_once('/').unwrap_or((numbers, "0"));
                return Ok(Self::Icmp(Some((byte(kind)?, byte(code)?))));
            }
            _ => return Err(expected()),
        };
        let port = numbers.map(str::parse).transpose().map_err(|_| expected())?;
        Ok(Self::Protocol(number, port))
    }

    /// The packet in one family, from this port.
    pub fn packet(self, v4: bool, source: u16) -> Packet {
        match self {
            Self::Protocol(protocol, Some(destination)) => {
                Packet { protocol, shown: Shown::Ports { source, destination } }
            }
            Self::Protocol(protocol, None) => Packet::bare(protocol),
            Self::Icmp(None) => Packet::echo(v4),
            Self::Icmp(Some((kind, code))) => Packet::icmp(if v4 { 1 } else { 58 }, kind, code),
        }
    }
}

/// Everybody that a text may mean: a pod or node once for each of its addresses. An address means the pod or node that has
/// it. `Err` says why there is nobody.
fn parties(text: &str, contents: &Contents, oracle: &Oracle) -> Result<Vec<Party>, String> {
    if let Ok(address) = text.parse::<IpAddr>() {
        let everybody = oracle.pods().chain(nodes(contents, |_| true));
        let mut having: Vec<Party> = everybody.filter(|party| party.address() == address).collect();
        return match having.len() {
            0 => Ok(vec![Party::Address(address)]),
            1 => Ok(having),
            _ => {
                having.dedup();
                let names: Vec<String> = having.iter().map(ToString::to_string).collect();
                Err(format!(
                    "{address} belongs to {}; name the one that is meant",
                    names.join(" and ")
                ))
            }
        };
    }
    if let Some(name) = text.strip_prefix("node/") {
        let addresses: Vec<Party> = nodes(contents, |node| node == name).collect();
        return if addresses.is_empty() {
            Err(format!("there is no node {name} with an InternalIP in the manifests"))
        } else {
            Ok(addresses)
        };
    }
    let (namespace, name) = text.split_once('/').unwrap_or(("default", text));
    let of_pod: Vec<Party> = oracle
        .pods()
        .filter(|party| {
            matches!(party, Party::Pod { namespace: of, name: called, .. } if of == namespace && called == name)
        })
        .collect();
    if of_pod.is_empty() { Err(no_pod(namespace, name, contents)) } else { Ok(of_pod) }
}

/// The nodes that are wanted, once for each of their addresses.
fn nodes(contents: &Contents, wanted: impl Fn(&str) -> bool) -> impl Iterator<Item = Party> {
    let valid = contents.objects.iter().filter_map(|(key, stored)| match &stored.state {
        State::Valid(object) => Some((key, object)),
        State::Invalid(_) => None,
    });
    valid
        .filter_map(move |(key, object)| match &**object {
            Object::Node(node) if wanted(&key.name) => Some((&key.name, node)),
            _ => None,
        })
        .flat_map(|(name, node)| {
            let mut addresses = node.internal_ips.clone();
            addresses.extend(node.calico_address.map(|net| net.addr()));
            addresses.sort();
            addresses.dedup();
            addresses.into_iter().map(|address| Party::Node { name: name.clone(), address })
        })
        .collect::<Vec<_>>()
        .into_iter()
}

fn no_pod(namespace: &str, name: &str, contents: &Contents) -> String {
    let (kind, namespace, name) = (Kind::Pod, namespace.to_owned(), name.to_owned());
    let key = ObjectKey { kind, namespace, name };
    match contents.objects.get(&key).map(|stored| &stored.state) {
        None => format!(
            "{key} is not in the manifests; expected NAMESPACE/POD, POD of the namespace default, node/NAME or an address"
        ),
        Some(State::Invalid(_)) => {
            format!("{key} is not valid, so it is no endpoint and nothing passes")
        }
        Some(State::Valid(_)) => format!(
            "{key} is no endpoint: it is on the host's network, finished, in a namespace or of a service account that \
             is not valid, or has no address"
        ),
    }
}

/// The two parties in one family: that which both have, IPv4 first unless IPv6 is asked for.
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
