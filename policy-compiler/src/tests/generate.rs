//! Models that are small and dense: few labels, few addresses, so that everything meets everything.

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::collection::{btree_map, btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::build::labels;
use crate::model::*;

const NAMESPACES: [&str; 3] = ["blue", "green", "red"];

fn text(values: &'static [&'static str]) -> impl Strategy<Value = String> + Clone {
    select(values).prop_map(str::to_owned)
}

fn some_labels() -> impl Strategy<Value = Labels> {
    btree_map(text(&["app", "tier"]), text(&["x", "y"]), 0..3)
}

fn requirement() -> impl Strategy<Value = Requirement> {
    let key = || text(&["app", "tier"]);
    let values = || btree_set(text(&["x", "y"]), 1..3);
    prop_oneof![
        4 => (key(), values()).prop_map(|(key, values)| Requirement::In(key, values)),
        1 => (key(), values()).prop_map(|(key, values)| Requirement::NotIn(key, values)),
        1 => key().prop_map(Requirement::Exists),
        1 => key().prop_map(Requirement::DoesNotExist),
    ]
}

fn selector() -> impl Strategy<Value = LabelSelector> {
    prop_oneof![
        3 => Just(LabelSelector::default()),
        2 => btree_set(requirement(), 1..3).prop_map(LabelSelector),
    ]
}

fn block() -> impl Strategy<Value = IpBlock> {
    let v4 = (
        select(&["0.0.0.0/0", "10.0.0.0/24", "10.0.0.0/28", "10.0.0.8/29", "10.0.0.3/32"][..]),
        btree_set(select(&["10.0.0.8/29", "10.0.0.0/30", "10.0.0.9/32", "10.0.0.3/32"][..]), 0..3),
    );
    let v6 = (
        select(&["::/0", "fd00::/64", "fd00::/124", "fd00::3/128"][..]),
        btree_set(select(&["fd00::/126", "fd00::8/125", "fd00::9/128"][..]), 0..3),
    );
    prop_oneof![3 => v4, 2 => v6].prop_map(|(cidr, except)| {
        let cidr: ipnet::IpNet = cidr.parse().unwrap();
        let except = except.iter().map(|net| net.parse::<ipnet::IpNet>().unwrap());
        let inside: Vec<_> = except.filter(|net| cidr.contains(net) && *net != cidr).collect();
        IpBlock::new(cidr, inside).unwrap()
    })
}

fn peer() -> impl Strategy<Value = Peer> {
    prop_oneof![
        selector().prop_map(Peer::PodsHere),
        (selector(), selector()).prop_map(|(namespaces, pods)| Peer::PodsIn { namespaces, pods }),
        block().prop_map(Peer::Block),
    ]
}

fn protocol() -> impl Strategy<Value = Protocol> {
    prop_oneof![3 => Just(Protocol::Tcp), 1 => Just(Protocol::Udp), 1 => Just(Protocol::Sctp)]
}

fn service() -> impl Strategy<Value = Service> {
    let number = || prop_oneof![select(&[0u16, 1, 79, 80, 81, 8080, 65_535][..])];
    let port = prop_oneof![
        1 => Just(PortMatch::All),
        3 => (number(), number())
            .prop_map(|(a, b)| PortMatch::Range { first: a.min(b), last: a.max(b) }),
        3 => text(&["http", "http", "dns", "nobody"]).prop_map(PortMatch::Named),
    ];
    (protocol(), port).prop_map(|(protocol, port)| Service { protocol, port })
}

fn rule() -> impl Strategy<Value = Rule> {
    let peers = prop_oneof![
        2 => Just(None),
        5 => vec(peer(), 1).prop_map(Some),
        2 => vec(peer(), 0..4).prop_map(Some),
    ];
    let services = prop_oneof![
        2 => Just(None),
        6 => vec(service(), 1).prop_map(Some),
        2 => vec(service(), 0..4).prop_map(Some),
    ];
    (peers, services).prop_map(|(peers, services)| Rule { peers, services })
}

fn policy() -> impl Strategy<Value = PolicyState> {
    let rules = || option::weighted(0.7, vec(rule(), 0..4));
    let valid = (selector(), rules(), rules()).prop_map(|(selector, ingress, egress)| {
        PolicyState::Valid(Arc::new(Policy { selector, ingress, egress }))
    });
    prop_oneof![12 => valid, 1 => selector().prop_map(PolicyState::Invalid)]
}

fn endpoint() -> impl Strategy<Value = Endpoint> {
    let address = prop_oneof![
        (0u32..14).prop_map(|low| std::net::Ipv4Addr::from(0x0a00_0000 + low).into()),
        (0u128..14).prop_map(|low| std::net::Ipv6Addr::from((0xfd00 << 112) + low).into()),
    ];
    let named_port = (text(&["http", "http", "dns"]), protocol(), select(&[53u16, 80, 8080][..]))
        .prop_map(|(name, protocol, port)| NamedPort { name, protocol, port });
    (some_labels(), btree_set(address, 0..4), btree_set(named_port, 0..5))
        .prop_map(|(labels, addresses, named_ports)| Endpoint { labels, addresses, named_ports })
}

fn object(names: &'static [&'static str]) -> impl Strategy<Value = ObjectName> {
    (select(&NAMESPACES[..]), select(names))
        .prop_map(|(namespace, name)| ObjectName::new(namespace, name))
}

/// A model, in which some namespaces may be missing.
pub(super) fn model() -> impl Strategy<Value = Model> {
    let namespaces = btree_map(text(&NAMESPACES), some_labels(), 0..=3);
    let endpoints = btree_map(object(&["a", "b", "c"]), endpoint().prop_map(Arc::new), 2..9);
    let policies = btree_map(object(&["p", "q", "r"]), policy(), 0..9);
    (namespaces, endpoints, policies).prop_map(|(namespaces, endpoints, policies)| Model {
        namespaces,
        endpoints,
        policies,
    })
}

/// The endpoints of a model that are local to one node: more than half of them, and one that does not exist.
pub(super) fn some_local(model: &Model) -> BTreeSet<ObjectName> {
    let every_third_remote = model.endpoints.keys().enumerate().filter(|(i, _)| i % 3 != 2);
    let ghost = ObjectName::new("blue", "ghost");
    every_third_remote.map(|(_, name)| name.clone()).chain([ghost]).collect()
}

/// The model with one pod that carries labels that no other carries.
pub(super) fn relabelled(model: &Model, name: &ObjectName) -> Model {
    let mut model = model.clone();
    if let Some(endpoint) = model.endpoints.get_mut(name) {
        Arc::make_mut(endpoint).labels = labels(&[("app", "relabelled")]);
    }
    model
}
