//! The manifests of a world, the attachments of its pods, and the changes of both.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::rc::Rc;

use fastrand::Rng;
use manx_dataplane::packet::Capabilities;
use manx_dataplane::tables::PortId;
use manx_fixtures::cluster::{AddressField, Cluster, Labels};
use manx_fixtures::generate;
use manx_policy_compiler::model::ObjectName;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::services::{ServiceChange, Services};
use crate::fabric::NODES;

/// The number of pods of a world. Every second pod is on the second node.
pub const PODS: usize = 8;
/// The first port of a pod.
const FIRST_PORT: u16 = 2;

/// A pod and its attachment.
#[derive(Debug, Clone)]
pub struct PlannedPod {
    pub name: ObjectName,
    pub node: usize,
    /// The pod's addresses while it is attached.
    pub addresses: Vec<IpAddr>,
    pub attachment: Option<Attachment>,
    pub device: Device,
}

/// A pod's device.
#[derive(Debug, Clone, Copy)]
pub struct Device {
    pub mtu: u32,
    pub takes: Capabilities,
    /// The size of its queues in packets.
    pub queue: usize,
}

/// The attachment of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attachment {
    pub port: PortId,
    pub index: u32,
    /// The attachment's number, which is never used again.
    pub number: u32,
}

/// A policy as text, and whether it exists.
struct Extra {
    text: String,
    is_there: bool,
}

/// See the module.
pub struct Plan {
    cluster: Cluster,
    /// The labels of each pod at the beginning.
    labels: Vec<Labels>,
    /// Whether each of the cluster's policies exists.
    policies: Vec<bool>,
    extras: Vec<Extra>,
    drops_to_node: bool,
    pub planned_pods: Vec<PlannedPod>,
    attachments: u32,
    /// The index of a policy that the oracle has, and that is missing in the input of the tables.
    pub hidden: Option<usize>,
    numbers: Rc<[u16]>,
    /// The services, if the nodes translate.
    pub services: Rc<Services>,
}

/// The kind of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Change {
    Policy,
    Labels,
    /// Two pods have exchanged their addresses; their attachments stay.
    Addresses,
    /// A pod has lost its device.
    Detached,
    /// A pod without a device has got one.
    Attached,
    /// A pod has replaced another, with the same port and address.
    Replaced,
    /// A pod has got another device at the same port.
    Device,
    /// Nothing has changed: new tables have the same content.
    Nothing,
    /// The services have changed.
    Services(ServiceChange),
}

impl Plan {
    pub fn new(rng: &mut Rng) -> Self {
        let mut cluster = sampled(rng);
        let samples = cluster.pods.clone();
        cluster.pods = (0..PODS).map(|at| samples[at % samples.len()].clone()).collect();
        let mut planned_pods = Vec::new();
        for (at, pod) in cluster.pods.iter_mut().enumerate() {
            let node = at % 2;
            pod.name = format!("pod-{at}");
            pod.node = Some(NODES[node].to_owned());
            (pod.valid, pod.host_network, pod.phase) = (true, false, None);
            pod.addresses_in = AddressField::PodIps;
            pod.addresses = vec![v4(at)];
            if rng.u8(..3) > 0 {
                pod.addresses.push(v6(at));
            }
            planned_pods.push(PlannedPod {
                name: ObjectName::new(pod.namespace.as_str(), pod.name.as_str()),
                node,
                addresses: pod.addresses.clone(),
                attachment: None,
                device: device(rng),
            });
        }
        let policies = cluster.policies.iter().map(|_| rng.u8(..4) > 0).collect();
        let extras = (0..rng.usize(0..5)).map(|at| extra(rng, at)).collect();
        let drops_to_node = rng.u8(..4) == 0;
        let hidden = None;
        let numbers = Rc::default();
        let labels = cluster.pods.iter().map(|pod| pod.labels.clone()).collect();
        let mut plan = Self {
            cluster,
            labels,
            policies,
            extras,
            drops_to_node,
            planned_pods,
            attachments: 0,
            hidden,
            numbers,
            services: Rc::default(),
        };
        plan.numbers = plan.read_numbers();
        plan
    }

    /// The manifests. If `is_hidden`, the hidden policy is left out.
    pub fn manifests(&self, is_hidden: bool) -> String {
        let mut cluster = self.cluster.clone();
        let hidden = self.hidden.filter(|_| is_hidden);
        let mut at = 0;
        cluster.policies.retain(|_| {
            at += 1;
            self.policies[at - 1] && hidden != Some(at - 1)
        });
        let mut text = cluster.to_yaml();
        for extra in self.extras.iter().filter(|extra| extra.is_there) {
            let _ = write!(text, "---\n{}\n", extra.text);
        }
        let _ = write!(text, "---\n{TIER}\n");
        text.push_str(&self.services.manifests());
        if self.drops_to_node {
            let _ = write!(text, "---\n{FELIX}\n");
        }
        text
    }

    /// All numbers in the manifests: every port that an object may name, and others. They do not change.
    pub fn numbers(&self) -> Rc<[u16]> {
        Rc::clone(&self.numbers)
    }

    fn read_numbers(&self) -> Rc<[u16]> {
        let mut text = self.cluster.to_yaml();
        self.extras.iter().for_each(|extra| text.push_str(&extra.text));
        let numbers = text.split(|it: char| !it.is_ascii_digit()).filter_map(|it| it.parse().ok());
        let mut numbers: Vec<u16> = numbers.collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers.into()
    }

    /// Gives a pod a port, an index and a number.
    pub fn attach(&mut self, at: usize) {
        let node = self.planned_pods[at].node;
        let used: Vec<u32> = self
            .planned_pods
            .iter()
            .filter(|planned| planned.node == node)
            .filter_map(|planned| Some(planned.attachment?.index))
            .collect();
        // The lowest free index, so that indices are reused.
        let Some(index) = (0..).find(|index| !used.contains(index)) else { return };
        self.attachments += 1;
        let port = PortId(FIRST_PORT + index as u16);
        self.planned_pods[at].attachment =
            Some(Attachment { port, index, number: self.attachments });
    }

    /// Makes a random change; returns its kind and its pods.
    pub fn change(&mut self, rng: &mut Rng) -> (Change, Vec<usize>) {
        let at = rng.usize(..PODS);
        // The other pod is on the same node.
        let other = (at + 2 * rng.usize(1..PODS / 2)) % PODS;
        match rng.u8(..16) {
            0..4 => self.change_policy(rng),
            4 | 5 => self.relabel(rng),
            6 | 7 => {
                let labels = std::mem::take(&mut self.cluster.pods[at].labels);
                self.cluster.pods[at].labels = if labels.is_empty() {
                    Labels::from([("app".to_owned(), "a".to_owned())])
                } else {
                    std::mem::replace(&mut self.cluster.pods[other].labels, labels)
                };
                (Change::Labels, vec![at, other])
            }
            8..10 => {
                let node = rng.usize(..PODS);
                let other = if rng.bool() { other } else { node };
                self.swap_addresses(at, other);
                (Change::Addresses, vec![at, other])
            }
            10..12 if self.planned_pods[at].attachment.is_some() => {
                self.planned_pods[at].attachment = None;
                (Change::Detached, vec![at])
            }
            10..12 => {
                self.attach(at);
                (Change::Attached, vec![at])
            }
            12 => self.replace(at, other),
            13 | 14 => self.renew(rng, at),
            15 => {
                // A detached pod is attached again, so that a world does not become empty.
                let away = (0..PODS).find(|at| self.planned_pods[*at].attachment.is_none());
                let Some(away) = away else { return (Change::Nothing, Vec::new()) };
                self.attach(away);
                (Change::Attached, vec![away])
            }
            _ => unreachable!("of 16"),
        }
    }

    fn change_policy(&mut self, rng: &mut Rng) -> (Change, Vec<usize>) {
        let of = rng.usize(..self.policies.len() + self.extras.len() + 1);
        if let Some(is_there) = self.policies.get_mut(of) {
            *is_there = !*is_there;
        } else if let Some(extra) = self.extras.get_mut(of - self.policies.len()) {
            extra.is_there = !extra.is_there;
        } else {
            self.drops_to_node = !self.drops_to_node;
        }
        (Change::Policy, Vec::new())
    }

    /// Gives a pod labels that another pod had at the beginning. A node may make this change in the tables in use if
    /// the pod is on the other node and has only an IPv4 address. So a pod with only an IPv4 address is chosen if there
    /// is one.
    fn relabel(&mut self, rng: &mut Rng) -> (Change, Vec<usize>) {
        let pods = &self.cluster.pods;
        let of_v4: Vec<usize> = (0..PODS).filter(|at| pods[*at].addresses.len() == 1).collect();
        let at = of_v4.get(rng.usize(..of_v4.len().max(1))).copied().unwrap_or_default();
        self.cluster.pods[at].labels = self.labels[rng.usize(..PODS)].clone();
        (Change::Labels, vec![at])
    }

    /// Gives a pod another device.
    pub fn renew(&mut self, rng: &mut Rng, at: usize) -> (Change, Vec<usize>) {
        self.planned_pods[at].device = device(rng);
        (Change::Device, vec![at])
    }

    fn swap_addresses(&mut self, one: usize, other: usize) {
        let addresses = self.planned_pods[one].addresses.clone();
        self.planned_pods[one].addresses =
            std::mem::replace(&mut self.planned_pods[other].addresses, addresses);
        for at in [one, other] {
            self.cluster.pods[at].addresses.clone_from(&self.planned_pods[at].addresses);
        }
    }

    /// Exchanges the addresses of two pods of a node. Then `other` gets the port and the device index that `one` had,
    /// and `one`, if `other` was attached, gets new ones.
    fn replace(&mut self, one: usize, other: usize) -> (Change, Vec<usize>) {
        if one == other
            || self.planned_pods[one].attachment.is_none()
            || self.planned_pods[one].node != self.planned_pods[other].node
        {
            return (Change::Nothing, Vec::new());
        }
        let before = self.planned_pods[other].attachment.take();
        let freed = self.planned_pods[one].attachment.take();
        self.swap_addresses(one, other);
        self.attachments += 1;
        let number = self.attachments;
        self.planned_pods[other].attachment = freed.map(|freed| Attachment { number, ..freed });
        if before.is_some() {
            self.attach(one);
        }
        (Change::Replaced, vec![one, other])
    }

    /// The number of Kubernetes policies.
    pub fn policies(&self) -> usize {
        self.policies.len()
    }
}

/// A cluster of the generator that all tests share.
fn sampled(rng: &mut Rng) -> Cluster {
    let seed: [u8; 32] = std::array::from_fn(|_| rng.u8(..));
    let source = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let config = Config { failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, source);
    generate::cluster().new_tree(&mut runner).unwrap().current()
}

/// Addresses that the generator's policies name.
pub fn v4(at: usize) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, 1 + at as u8).into()
}

pub fn v6(at: usize) -> IpAddr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1 + at as u16).into()
}

fn device(rng: &mut Rng) -> Device {
    let takes = match rng.u8(..8) {
        0 => Capabilities::default(),
        1 => Capabilities { partial_checksum: true, ..Capabilities::default() },
        2 => Capabilities { udp_segmentation: false, ..Capabilities::ALL },
        _ => Capabilities::ALL,
    };
    let mtu = if rng.u8(..4) == 0 { 1400 } else { 1500 };
    let queue = if rng.u8(..16) == 0 { 8 } else { 1024 };
    Device { mtu, takes, queue }
}

const TIER: &str =
    "{apiVersion: projectcalico.org/v3, kind: Tier, metadata: {name: first}, spec: {order: 10}}";
const FELIX: &str = "{apiVersion: projectcalico.org/v3, kind: FelixConfiguration, metadata: {name: default}, spec: {defaultEndpointToHostAction: Drop}}";

/// A Calico policy, with features that Kubernetes policies lack.
fn extra(rng: &mut Rng, at: usize) -> Extra {
    let pick = |rng: &mut Rng, of: &[&'static str]| of[rng.usize(..of.len())];
    let selector = |rng: &mut Rng| {
        pick(
            rng,
            &[
                "all()",
                "app == 'a'",
                "app != 'a'",
                "has(app)",
                "!has(app)",
                "projectcalico.org/namespace == 'shop'",
            ],
        )
    };
    let rules = |rng: &mut Rng| {
        let rule = |rng: &mut Rng| {
            let action = pick(rng, &["Allow", "Allow", "Deny", "Pass", "Log"]);
            let what = pick(
                rng,
                &[
                    "",
                    ", protocol: TCP, destination: {ports: [80, 443, '8000:8100']}",
                    ", protocol: TCP, source: {ports: [81]}",
                    ", protocol: UDP, destination: {notPorts: [53]}",
                    ", protocol: ICMP, icmp: {type: 8}",
                    ", protocol: ICMPv6, notICMP: {type: 128, code: 0}",
                    ", protocol: SCTP",
                    ", notProtocol: TCP",
                    ", source: {nets: [10.0.0.0/29]}",
                    ", destination: {notNets: [10.0.0.4/31]}",
                    ", source: {selector: \"app == 'a'\"}",
                    ", destination: {notSelector: \"app == 'b'\"}",
                    ", ipVersion: 6",
                ],
            );
            format!("{{action: {action}{what}}}")
        };
        let rules: Vec<String> = (0..rng.usize(1..4)).map(|_| rule(rng)).collect();
        format!("[{}]", rules.join(", "))
    };
    let tier = if rng.bool() { "tier: first, " } else { "" };
    let order = rng.u8(..100);
    let mut types = String::new();
    for (direction, kind) in [("ingress", "Ingress"), ("egress", "Egress")] {
        if rng.bool() {
            let _ = write!(types, ", {direction}: {}", rules(rng));
        } else if rng.u8(..8) == 0 {
            let _ = write!(types, ", types: [{kind}]");
            break;
        }
    }
    let of = selector(rng);
    let text = format!(
        "{{apiVersion: projectcalico.org/v3, kind: GlobalNetworkPolicy, metadata: {{name: extra-{at}}}, spec: {{{tier}order: {order}, selector: \"{of}\"{types}}}}}"
    );
    Extra { text, is_there: rng.bool() }
}
