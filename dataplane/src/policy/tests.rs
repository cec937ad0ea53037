use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use manx_policy_compiler::compile::Compiler;
use manx_policy_compiler::model::{
    Action, Endpoint as Pod, Entity, Hook, HostEndpoint, L4Header, Model, ObjectName, Order,
    Policy, PolicyKind, PolicyName, PortMatch, Protocol, Rule,
};
use manx_policy_compiler::resolve::Stage;
use manx_policy_compiler::selector::Selector;

use super::*;
use crate::tables::{Endpoint, HostPolicy, InterfaceChains, Link, OwnedChains, PortId};

const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 9));
const NODE: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1));
const POD: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const NODE_PORT: u16 = 30_080;
const POD_PORT: u16 = 8080;

/// An ingress policy for the pods with `label`: it denies TCP to one port of one address and allows all else.
fn denies(label: &str, hook: Hook, (address, port): (IpAddr, u16)) -> Policy {
    let mut deny = Rule::every_packet(0, Action::Deny);
    deny.protocol = Some(Protocol::Tcp.number());
    let nets = [address.into()].into();
    deny.destination.entities = Some(vec![Entity { nets, ..Entity::default() }]);
    deny.destination.ports = vec![PortMatch::Range { first: port, last: port }];
    Policy {
        tier: "default".to_owned(),
        order: Order::KUBERNETES,
        selector: Selector::equals("name", label),
        hook,
        ingress: Some(vec![deny, Rule::every_packet(1, Action::Allow)]),
        egress: None,
        broken: false,
    }
}

/// Tables with a pod, the node's uplink, and these policies.
fn tables(policies: Vec<Policy>) -> Tables {
    let labels = |name: &str| BTreeMap::from([("name".to_owned(), name.to_owned())]);
    let mut model = Model::default();
    model.namespaces.insert("a".to_owned(), BTreeMap::new());
    let pod = Pod { addresses: [POD].into(), labels: Arc::new(labels("pod")), ..Pod::default() };
    model.endpoints.insert(ObjectName::new("a", "pod"), Arc::new(pod));
    let node = HostEndpoint { labels: labels("node"), broken: false, ..HostEndpoint::broken() };
    model.host_endpoints.insert("node".to_owned(), Arc::new(node));
    for (number, policy) in policies.into_iter().enumerate() {
        let name = PolicyName::new(PolicyKind::Global, "", format!("policy-{number}"));
        model.policies.insert(name, Arc::new(policy));
    }
    let [pod, node] = [ObjectName::new("a", "pod"), ObjectName::new("", "node")];
    let image = Compiler::new().compile(&model, &[pod.clone(), node.clone()].into());
    let chain = |of, stage, direction| image.chain_at(of, stage, direction).unwrap();
    let both = |of, stage| Direction::ALL.map(|direction| chain(of, stage, direction));
    let [ingress, egress] = both(&pod, Stage::Pod);
    let link = Link::native(PortId(0), 1500);
    let owned = OwnedChains {
        local: both(&node, Stage::Host),
        pre_dnat: Some(chain(&node, Stage::PreDnat, Direction::Ingress)),
        untracked: [None; 2],
    };
    let forward = both(&node, Stage::Forward);
    let native = Some(InterfaceChains { forward, owned: Some(owned) });
    Tables {
        endpoints: vec![Some(Endpoint { attachment: 1, link, ingress, egress, revision: 1 })],
        uplink: Some(Link::native(PortId(1), 1500)),
        host_policy: HostPolicy { native, ..HostPolicy::default() },
        image: Arc::new(image),
        ..Tables::closed()
    }
}

/// TCP from the world to a port of an address behind this next hop.
fn view(tables: &Tables, to: NextHop, (address, port): (IpAddr, u16)) -> PolicyView {
    let identities = [CLIENT, address].map(|address| tables.image.identity(address));
    let l4 = L4Header::Ports { source: 40_000, destination: port };
    let transport = Transport { protocol: Protocol::Tcp.number(), l4 };
    PolicyView { ends: FlowEnds { from: NextHop::World, to, identities }, transport }
}

#[test]
fn policy_before_destination_nat_sees_the_original_flow_and_all_other_policy_the_translated_one() {
    let node_port = (NODE, NODE_PORT);
    let pod_port = (POD, POD_PORT);
    let cases = [
        (Hook::PreDnat, "node", node_port, Some(DropReason::PolicyIngress)),
        (Hook::PreDnat, "node", pod_port, None),
        (Hook::Forward, "node", node_port, None),
        (Hook::Forward, "node", pod_port, Some(DropReason::PolicyIngress)),
        (Hook::Endpoint, "pod", node_port, None),
        (Hook::Endpoint, "pod", pod_port, Some(DropReason::PolicyIngress)),
    ];
    for (hook, label, denied, expected) in cases {
        let tables = tables(vec![denies(label, hook, denied)]);
        let original = view(&tables, NextHop::Node, node_port);
        let translated = view(&tables, NextHop::Endpoint(0), pod_port);
        let views = PolicyViews { original, translated };
        let verdict = evaluate_policy(&tables, views, UntrackedAllows::NONE);
        assert_eq!(verdict.denied, expected, "{hook:?} {denied:?}");
    }
}
