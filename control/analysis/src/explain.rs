//! Whether a connection passes by the objects alone: finds the parties of a request, their packet and the interfaces on
//! its path, and calls the oracle.

mod ends;
mod published;
mod services;
mod traversal;

use std::collections::BTreeMap;
use std::net::IpAddr;

use manx_api::explain::{ExplainRequest, Explanation, PacketSpec};
use manx_api::trace::Trace;
use manx_calculation::import::policy_name;
use manx_objects::State;
use manx_objects::contents::{Contents, Stored};
use manx_objects::object::{Kind, Object, ObjectKey, Phase};
use manx_oracle::verdict::name;
use manx_oracle::{Oracle, Packet, Party, Shown};
use traversal::Traversal;

pub use published::{Asked, Connections};
pub use services::Destinations;
pub(crate) use services::{number, services};

use crate::matrix::unnamed_addresses;

/// Names an address that no object names.
const OUTSIDE: &str = "outside";

/// Whether a connection passes by these objects, and why. `assumed` holds the addresses that the caller assumed for
/// objects without one. `uplink` is the name of the nodes' uplink if the request names none. `Err` says which party is
/// unknown or ambiguous.
pub fn explain(
    request: &ExplainRequest,
    contents: &Contents,
    assumed: &BTreeMap<ObjectKey, Vec<IpAddr>>,
    uplink: &str,
) -> Result<Explanation, String> {
    Explainer::new(contents, assumed, uplink).explain(request)
}

/// The objects, prepared for several requests.
#[derive(Debug)]
pub struct Explainer<'a> {
    contents: &'a Contents,
    assumed: &'a BTreeMap<ObjectKey, Vec<IpAddr>>,
    uplink: &'a str,
    oracle: Oracle,
    /// Where each policy is written, by the name that traces have.
    places: BTreeMap<String, String>,
}

impl<'a> Explainer<'a> {
    /// See [`explain`].
    pub fn new(
        contents: &'a Contents,
        assumed: &'a BTreeMap<ObjectKey, Vec<IpAddr>>,
        uplink: &'a str,
    ) -> Self {
        let policies = contents.objects.iter().filter(|(key, _)| policy_name(key).is_some());
        let place = |(key, stored): (_, &Stored)| (name(key), stored.place.to_string());
        let places = policies.map(place).collect();
        Self { contents, assumed, uplink, oracle: Oracle::new(&contents.objects), places }
    }

    /// The ends that a text names, one by one, in the form of requests: the endpoints of `svc/NAMESPACE/NAME`, the pods
    /// or nodes that fit a pattern with `*` or `?`, and otherwise the text itself. `Err`: there are none.
    pub fn ends(&self, text: &str) -> Result<Vec<String>, String> {
        ends::ends(text, self.contents, &self.oracle)
    }

    /// Whether a connection passes, and why.
    pub fn explain(&self, request: &ExplainRequest) -> Result<Explanation, String> {
        let Self { contents, assumed, uplink, oracle, .. } = self;
        let mut stand_ins = Vec::new();
        let from = parties(&request.from, contents, oracle, &mut stand_ins)?;
        let to = parties(&request.to, contents, oracle, &mut stand_ins)?;
        let Some((from, to)) = in_one_family(&from, &to, request.ipv6) else {
            return Err(format!(
                "{} and {} have no addresses of {} family",
                request.from,
                request.to,
                if request.ipv6 { "the IPv6" } else { "one" }
            ));
        };
        let packet = packet(request.packet, to.address().is_ipv4(), request.source_port);
        let given: Vec<_> = assumed.values().flatten().copied().collect();
        let mut unsure: Vec<String> = [&from, &to]
            .into_iter()
            .filter(|party| given.contains(&party.address()))
            .map(ToString::to_string)
            .collect();
        unsure.dedup();
        let uplink = request.uplink.as_deref().unwrap_or(uplink);
        let traversal = Traversal::new(contents, oracle, &from, &to, uplink)?;
        let [leaving, arriving] = traversal.crossings(packet);
        let mut story = oracle.explain((&from, leaving), (&to, arriving), packet);
        self.cite(&mut story);
        let story = match traversal.no_route() {
            Some(why) => story.without_route(why.to_owned(), request.routes),
            None => story,
        };
        Ok(Explanation { story, assumed: unsure, stand_ins })
    }

    /// Adds where each policy is written.
    fn cite(&self, story: &mut Trace) {
        for side in story.sides_mut() {
            if let Some(rule) = &mut side.rule {
                let is_its = |kind: &Kind| {
                    kind.name() == rule.kind && kind.api_versions()[0] == rule.api_version
                };
                if let Some(kind) = Kind::ALL.into_iter().find(is_its) {
                    let (namespace, called) = (rule.namespace.clone(), rule.name.clone());
                    let key = ObjectKey { kind, namespace, name: called };
                    rule.place = self.places.get(&name(&key)).cloned();
                }
            }
            for policy in side.tiers.iter_mut().flat_map(|tier| &mut tier.policies) {
                policy.place = self.places.get(&policy.name).cloned();
            }
        }
    }
}

/// The packet in one family, from this source port.
pub fn packet(spec: PacketSpec, v4: bool, source: u16) -> Packet {
    match spec {
        PacketSpec::Protocol(protocol, Some(destination)) => {
            Packet { protocol, shown: Shown::Ports { source, destination } }
        }
        PacketSpec::Protocol(protocol, None) => Packet::bare(protocol),
        PacketSpec::Icmp(None) => Packet::echo(v4),
        PacketSpec::Icmp(Some((kind, code))) => Packet::icmp(if v4 { 1 } else { 58 }, kind, code),
    }
}

/// The parties that a text names: a pod or node, once for each of its addresses. An address names the pod or node that
/// has it; `outside` is an address of each family that no object names. A pod on the host's network is its node, which
/// `stand_ins` then says. `Err` says why the text names no party.
fn parties(
    text: &str,
    contents: &Contents,
    oracle: &Oracle,
    stand_ins: &mut Vec<String>,
) -> Result<Vec<Party>, String> {
    if text == OUTSIDE {
        let outside = unnamed_addresses(contents);
        return if outside.is_empty() {
            Err(format!("{OUTSIDE} is nowhere: the manifests name every address"))
        } else {
            Ok(outside.into_iter().map(Party::Address).collect())
        };
    }
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
    let key = ObjectKey { kind: Kind::Pod, namespace: namespace.to_owned(), name: name.to_owned() };
    let of_pod: Vec<Party> = oracle
        .pods()
        .filter(|party| {
            matches!(party, Party::Pod { namespace: of, name: called, .. } if of == namespace && called == name)
        })
        .collect();
    if !of_pod.is_empty() {
        return Ok(of_pod);
    }
    if let Some(node) = host_of(&key, contents) {
        let addresses: Vec<Party> = nodes(contents, |name| name == node).collect();
        if !addresses.is_empty() {
            stand_ins.push(format!("{key} is on its host's network: judged as node {node}"));
            return Ok(addresses);
        }
    }
    Err(no_pod(&key, contents))
}

/// The node of a pod that is on its host's network.
fn host_of<'a>(key: &ObjectKey, contents: &'a Contents) -> Option<&'a str> {
    let State::Valid(object) = &contents.objects.get(key)?.state else { return None };
    let Object::Pod(pod) = &**object else { return None };
    pod.node_name.as_deref().filter(|_| pod.host_network)
}

/// The wanted nodes, once for each of their addresses.
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

/// Why a text that may name a pod names no party.
fn no_pod(key: &ObjectKey, contents: &Contents) -> String {
    let State::Valid(object) = (match contents.objects.get(key) {
        None => {
            return format!(
                "{key} is not in the manifests; expected NAMESPACE/POD, POD of the namespace default, node/NAME, svc/NAMESPACE/NAME, outside or an address"
            );
        }
        Some(stored) => &stored.state,
    }) else {
        return format!("{key} is not valid, so it is no endpoint and nothing passes");
    };
    let Object::Pod(pod) = &**object else { return format!("{key} is no endpoint") };
    let is_invalid = |kind: Kind, namespace: &str, name: &str| {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let stored = contents.objects.get(&ObjectKey { kind, namespace, name });
        stored.is_some_and(|stored| matches!(stored.state, State::Invalid(_)))
    };
    let account = pod.service_account.as_deref().unwrap_or("default");
    let why = match &pod.node_name {
        _ if matches!(pod.phase, Some(Phase::Succeeded | Phase::Failed)) => {
            "it is finished, so its addresses are another's".to_owned()
        }
        Some(node) if pod.host_network => {
            format!("it is on the network of node {node}, which has no InternalIP in the manifests")
        }
        None if pod.host_network => "it is on its host's network, and has no node".to_owned(),
        _ if is_invalid(Kind::Namespace, "", &key.namespace) => {
            format!("Namespace {} is not valid, so nothing passes its pods", key.namespace)
        }
        _ if is_invalid(Kind::ServiceAccount, &key.namespace, account) => {
            format!(
                "ServiceAccount {account} is not valid, so nothing passes the pods that run as it"
            )
        }
        _ if pod.deleting => "it is being deleted and has released its addresses".to_owned(),
        _ => "it has no address: status.podIPs is empty".to_owned(),
    };
    format!("{key} is no endpoint: {why}")
}

/// The two parties in a family that both have: IPv4 first, unless IPv6 is requested.
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
