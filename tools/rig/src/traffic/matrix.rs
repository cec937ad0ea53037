//! All probes of a rig, with the oracle's expectations.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::IpAddr;

use manx_policy_compiler::model::Protocol;
use serde::{Deserialize, Serialize};

use super::crossings::Crossings;
use super::policy_ports::PolicyPorts;
use crate::plan::Plan;
use crate::plan::addresses::Addresses;
use crate::plan::port::Port;
use crate::plan::prober::Prober;
use crate::world::service::Service;
use manx_oracle::Packet;

/// The expected or observed result of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The destination answers the probe.
    Allowed,
    /// Policy drops the probe, and an agent recorded that.
    Denied,
    /// The probe arrives, and nothing listens there.
    Refused,
}

impl Outcome {
    /// The word in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::Refused => "refused",
        }
    }
}

/// One cell of the truth table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cell {
    /// The prober that sends.
    pub source: Prober,
    /// The prober that receives.
    pub destination: Prober,
    pub address: IpAddr,
    /// The address that the destination sees as the source, if it is not the source's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen_as: Option<IpAddr>,
    /// The service to which the probe is sent.
    pub service: Service,
    /// Whether the destination listens there.
    pub listening: bool,
    pub expected: Outcome,
    /// The reason for the expected result.
    pub because: String,
}

/// All cells: to each pod from every other pod, from its own node and from outside; and from each pod to the pods on
/// hosts' network, to its own node and to the outside. Each pair has a cell for every port of the destination, for each
/// port that policies name there, and for an echo. It also has a cell for one closed port of each protocol of the
/// destination (TCP always). All this holds in every family that both have. No pod is probed from itself, because that
/// traffic never leaves its namespace; nor are hosts from hosts, because that traffic does not pass Manx.
pub(crate) fn cells(crossings: &Crossings<'_>, policy_ports: &PolicyPorts) -> Vec<Cell> {
    let mut cells = Vec::new();
    for (source, destination) in pairs(crossings.plan) {
        let services = services(crossings.plan, &destination, policy_ports);
        for (from, to) in families(crossings.addresses, &source, &destination) {
            for (service, listening) in &services {
                let ends = ((&source, from), (&destination, to));
                cells.extend(cell(crossings, ends, *service, *listening));
            }
        }
    }
    cells
}

/// A prober with the address that it uses.
type Using<'a> = (&'a Prober, IpAddr);

/// A cell with the expected result and the reason. `None` if there would be no answer.
fn cell(
    crossings: &Crossings<'_>,
    ((sender, from), (receiver, to)): (Using<'_>, Using<'_>),
    service: Service,
    listening: bool,
) -> Option<Cell> {
    let (source, destination) = (crossings.plan.acting(sender), crossings.plan.acting(receiver));
    let from = crossings.source_address((&source, from), (&destination, to))?;
    let packet = packet(service, to.is_ipv4());
    let judgement =
        crossings.oracle.judge(&judged(&source, from), &judged(&destination, to), packet);
    let passed = crossings.judge((&source, from), (&destination, to), packet);
    let refusal = passed.iter().find(|verdict| !verdict.allows());
    let mut because = format!("egress: {}; ingress: {}", judgement.egress, judgement.ingress);
    if let Some(refusal) = refusal {
        let _ = write!(because, "; at a node's interface: {refusal}");
    }
    let expected = match (judgement.allowed() && refusal.is_none(), listening) {
        (true, true) => Outcome::Allowed,
        (true, false) => Outcome::Refused,
        (false, _) => Outcome::Denied,
    };
    Some(Cell {
        source: sender.clone(),
        destination: receiver.clone(),
        address: to,
        seen_as: crossings.masquerade((&source, from), (&destination, to)),
        service,
        listening,
        expected,
        because,
    })
}

/// A note about the number of pairs that are not probed because there would be no answer.
pub(crate) fn note_of_unanswered(crossings: &Crossings<'_>) -> Option<String> {
    let unanswered = pairs(crossings.plan).into_iter().filter(|(source, destination)| {
        let acting = (crossings.plan.acting(source), crossings.plan.acting(destination));
        families(crossings.addresses, source, destination).any(|(from, to)| {
            crossings.source_address((&acting.0, from), (&acting.1, to)).is_none()
        })
    });
    let count = unanswered.count();
    (count > 0).then(|| {
        format!(
            "{count} pairs are not probed: from a pod to one on another node's network, where the answer would go through a \
             tunnel and come from the node's own address, which tunnels do not carry"
        )
    })
}

fn pairs(plan: &Plan) -> Vec<(Prober, Prober)> {
    let mut pairs = Vec::new();
    for (name, pod) in &plan.pods {
        let here = Prober::Pod(name.clone());
        let node = Prober::Node(pod.node.clone());
        let others = plan.pods.keys().filter(|other| *other != name);
        let others = others.chain(plan.host_pods.keys()).cloned().map(Prober::Pod);
        for source in others.chain([node.clone(), Prober::Outside]) {
            pairs.push((source, here.clone()));
        }
        let hosts = plan.host_pods.keys().cloned().map(Prober::Pod);
        for host in hosts.chain([node, Prober::Outside]) {
            pairs.push((here.clone(), host));
        }
    }
    pairs
}

/// The addresses of both probers in each family that both have.
fn families<'a>(
    addresses: &'a Addresses,
    source: &Prober,
    destination: &Prober,
) -> impl Iterator<Item = (IpAddr, IpAddr)> + 'a {
    let of = |prober| addresses.get(prober).map(Vec::as_slice).unwrap_or_default();
    let (from, to) = (of(source), of(destination));
    to.iter().filter_map(move |to| {
        from.iter().find(|from| from.is_ipv4() == to.is_ipv4()).map(|from| (*from, *to))
    })
}

/// The services to probe at a prober, and whether it will answer. The services of another prober with the same address
/// are left out, because they are probed there.
fn services(plan: &Plan, prober: &Prober, policy_ports: &PolicyPorts) -> BTreeMap<Service, bool> {
    let (ports, there) = (plan.listening(prober), plan.listening_there(prober));
    let named = policy_ports.probed.get(&plan.acting(prober)).into_iter().flatten();
    let has = |protocol| ports.iter().any(|port| port.protocol == protocol);
    let closed = Protocol::ALL
        .into_iter()
        .filter(|protocol| *protocol == Protocol::Tcp || has(*protocol))
        .filter_map(|protocol| closed_port(&there, protocol));
    let named = named.copied().filter(|port| !there.contains(port));
    let closed = named.chain(closed).map(|port| (Service::Port(port), false));
    let open = ports.iter().map(|port| (Service::Port(*port), true));
    open.chain(closed).chain([(Service::Echo, true)]).collect()
}

/// A port of the protocol on which nothing listens: 9 (discard), or the next free one.
fn closed_port(ports: &BTreeSet<Port>, protocol: Protocol) -> Option<Port> {
    (9..u16::MAX).map(|number| Port { protocol, number }).find(|port| !ports.contains(port))
}

/// The first packet of a probe.
fn packet(service: Service, v4: bool) -> Packet {
    match service {
        Service::Port(port) => Packet::to_port(port.protocol.number(), Some(port.number)),
        Service::Echo => Packet::echo(v4),
    }
}

fn judged(prober: &Prober, address: IpAddr) -> manx_oracle::Party {
    match prober {
        Prober::Pod(pod) => manx_oracle::Party::Pod {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            address,
        },
        Prober::Node(name) => manx_oracle::Party::Node { name: name.clone(), address },
        Prober::Outside => manx_oracle::Party::Address(address),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::plan::addresses::addresses;
    use crate::plan::input::{self, Input};
    use crate::plan::make::plan;
    use crate::plan::objects::Objects;
    use crate::plan::settings::Settings;
    use crate::plan::spec::{NodeSpec, PodSpec};
    use crate::world::slices;
    use manx_analysis::explain::explain;
    use manx_api::PodName;
    use manx_api::explain::{ExplainRequest, PacketSpec};
    use manx_datastore::Store;
    use manx_objects::contents::Contents;
    use manx_oracle::Oracle;

    fn pod(name: &str) -> PodName {
        PodName { namespace: "default".to_owned(), name: name.to_owned() }
    }

    fn port(protocol: Protocol, number: u16) -> Port {
        Port { protocol, number }
    }

    fn two_pods() -> (Plan, Addresses) {
        let node = NodeSpec {
            addresses: vec!["172.18.0.2/24".parse().unwrap()],
            pod_cidrs: vec!["10.1.1.0/24".parse().unwrap()],
        };
        let web = PodSpec {
            ports: [port(Protocol::Tcp, 9), port(Protocol::Udp, 53)].into(),
            ..PodSpec::default()
        };
        let pods = [(pod("a"), PodSpec::default()), (pod("web"), web)].into();
        let plan = plan(&[("n1".to_owned(), node)].into(), &pods, &Settings::default()).unwrap();
        let given = [
            (pod("a"), vec!["10.1.1.2".parse().unwrap(), "fd00::2".parse().unwrap()]),
            (pod("web"), vec!["10.1.1.3".parse().unwrap()]),
        ];
        let addresses = addresses(&plan, &given.into());
        (plan, addresses)
    }

    const OBJECTS: &str = "
{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {nodeName: n1, containers: [{name: c}]}, status: {podIPs: [{ip: 10.1.1.2}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web}, spec: {nodeName: n1, containers: [{name: c}]}, status: {podIPs: [{ip: 10.1.1.3}]}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: dns-only}
spec: {podSelector: {}, ingress: [{ports: [{protocol: UDP, port: 53}]}]}
";

    fn named_ports(crossings: &Crossings<'_>) -> PolicyPorts {
        let Crossings { plan, addresses, contents, .. } = crossings;
        PolicyPorts::find(contents, plan, addresses)
    }

    #[test]
    fn every_pair_is_asked_for_every_port_a_closed_one_and_an_echo() {
        let (plan, addresses) = two_pods();
        let contents = Contents::from_texts([("objects", OBJECTS)]);
        let oracle = Oracle::new(&contents.objects);
        let crossings =
            Crossings { plan: &plan, addresses: &addresses, contents: &contents, oracle: &oracle };
        let cells = cells(&crossings, &named_ports(&crossings));
        let lines: Vec<String> = cells
            .iter()
            .map(|cell| {
                format!(
                    "{} -> {} {}{}: {}",
                    cell.source,
                    cell.destination,
                    cell.service,
                    if cell.listening { "" } else { " (closed)" },
                    cell.expected.name()
                )
            })
            .collect();
        insta::assert_snapshot!(lines.join("\n"));
    }

    #[test]
    fn the_closed_port_is_one_that_nobody_has() {
        let ports = [port(Protocol::Tcp, 9), port(Protocol::Tcp, 10)].into();
        assert_eq!(closed_port(&ports, Protocol::Tcp), Some(port(Protocol::Tcp, 11)));
        assert_eq!(closed_port(&ports, Protocol::Udp), Some(port(Protocol::Udp, 9)));
    }

    /// A rig of `fixtures/rigs`, in the state when its pods are attached.
    fn fixture(folder: &Path) -> (Plan, Addresses, Contents) {
        let Input { mut objects, settings, .. } =
            input::read(folder, false, manx_assume::Options::default()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let load = |objects: &Objects| {
            objects.write(folder.path()).unwrap();
            Store::load(folder.path())
        };
        let contents = load(&objects);
        let plan = Plan::make(&contents, &settings).unwrap();
        let mut pods = BTreeMap::new();
        for (name, pod) in &plan.pods {
            objects.place(name, &pod.node, &pod.addresses);
            pods.insert(name.clone(), pod.addresses.clone());
        }
        let (slices, _) = slices::endpoint_slices(&objects);
        objects.0.extend(slices.0);
        let contents = load(&objects);
        (plan.clone(), addresses(&plan, &pods), contents)
    }

    #[test]
    fn explain_says_of_every_probe_of_every_rig_what_the_rig_expects() {
        let rigs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/rigs");
        let (mut rig_count, mut at_interfaces) = (0, 0);
        for rig in fs::read_dir(rigs).unwrap() {
            let (plan, addresses, contents) = fixture(&rig.unwrap().path());
            let oracle = Oracle::new(&contents.objects);
            let crossings = Crossings {
                plan: &plan,
                addresses: &addresses,
                contents: &contents,
                oracle: &oracle,
            };
            for cell in cells(&crossings, &named_ports(&crossings)) {
                let (packet, source_port) = match cell.service {
                    Service::Port(port) => {
                        (PacketSpec::Protocol(port.protocol.number(), Some(port.number)), 49152)
                    }
                    Service::Echo => (PacketSpec::Icmp(None), 0),
                };
                let ipv6 = cell.address.is_ipv6();
                let called = |prober: &Prober| match prober {
                    Prober::Pod(pod) => pod.to_string(),
                    Prober::Node(name) => format!("node/{name}"),
                    Prober::Outside => {
                        let outside = &addresses[&Prober::Outside];
                        outside.iter().find(|it| it.is_ipv6() == ipv6).unwrap().to_string()
                    }
                };
                let (from, to) = (called(&cell.source), called(&cell.destination));
                let request = ExplainRequest {
                    from,
                    to,
                    packet,
                    source_port,
                    ipv6,
                    uplink: None,
                    routes: true,
                };
                let answer = explain(&request, &contents, &BTreeMap::new(), "eth0").unwrap();
                let story = &answer.story;
                assert_eq!(story.allowed, cell.expected != Outcome::Denied, "{answer}");
                at_interfaces += u32::from(story.arriving.is_some());
            }
            rig_count += 1;
        }
        assert!(rig_count > 10 && at_interfaces > 10, "{rig_count} {at_interfaces}");
    }
}
