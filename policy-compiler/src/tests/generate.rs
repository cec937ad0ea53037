//! Small, dense models with few labels and few addresses, so that every object interacts with every other.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ipnet::IpNet;
use proptest::collection::{btree_map, btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use crate::model::*;
use crate::selector::Selector;

const NAMESPACES: [&str; 2] = ["blue", "red"];

fn text(values: &'static [&'static str]) -> impl Strategy<Value = String> + Clone {
    select(values).prop_map(str::to_owned)
}

fn some_labels() -> impl Strategy<Value = Labels> {
    btree_map(text(&["app", "tier"]), text(&["x", "y"]), 0..3)
}

fn term() -> impl Strategy<Value = Selector> {
    let key = || text(&["app", "tier", "pcns.app", "pcsa.tier"]);
    let values = || btree_set(text(&["x", "y"]), 1..3);
    prop_oneof![
        4 => (key(), text(&["x", "y"])).prop_map(|(key, value)| Selector::equals(key, value)),
        1 => (key(), values()).prop_map(|(key, values)| Selector::is_in(key, values)),
        1 => (key(), values()).prop_map(|(key, values)| Selector::not_in(key, values)),
        1 => key().prop_map(Selector::has),
        1 => key().prop_map(Selector::not_has),
        2 => select(&NAMESPACES[..]).prop_map(|name| Selector::equals(NAMESPACE, name)),
        1 => Just(Selector::equals(ORCHESTRATOR, KUBERNETES)),
        1 => text(&["robot", "default"]).prop_map(|name| Selector::equals(SERVICE_ACCOUNT, name)),
    ]
}

fn selector() -> impl Strategy<Value = Selector> {
    prop_oneof![
        1 => Just(Selector::all()),
        3 => term(),
        2 => vec(term(), 2..3).prop_map(Selector::and),
    ]
}

fn nets() -> impl Strategy<Value = BTreeSet<IpNet>> {
    let v4 = select(&["0.0.0.0/0", "10.0.0.0/24", "10.0.0.0/28", "10.0.0.8/29", "10.0.0.3/32"][..]);
    let v6 = select(&["::/0", "fd00::/64", "fd00::/126", "fd00::3/128"][..]);
    prop_oneof![
        6 => Just(BTreeSet::new()),
        2 => btree_set(v4.clone(), 1..3).prop_map(parsed),
        1 => btree_set(v6.clone(), 1..3).prop_map(parsed),
        1 => (v4, v6).prop_map(|(a, b)| parsed(BTreeSet::from([a, b]))),
    ]
}

fn parsed(nets: BTreeSet<&'static str>) -> BTreeSet<IpNet> {
    nets.into_iter().map(|net| net.parse().unwrap()).collect()
}

fn service_name() -> impl Strategy<Value = ObjectName> {
    text(&["s", "t", "missing"]).prop_map(|name| ObjectName::new("blue", name))
}

fn entity() -> impl Strategy<Value = Entity> {
    (
        option::weighted(0.5, selector()),
        option::weighted(0.15, selector()),
        nets(),
        prop_oneof![3 => Just(BTreeSet::new()), 1 => nets()],
        option::weighted(0.1, service_name()),
    )
        .prop_map(|(selector, not_selector, nets, not_nets, service)| {
            // Calico's validation requires that a service stands alone.
            if service.is_some() {
                return Entity { service, ..Entity::default() };
            }
            Entity { selector, not_selector, nets, not_nets, service }
        })
}

fn ports() -> impl Strategy<Value = Vec<PortMatch>> {
    let number = || select(&[0u16, 1, 79, 80, 81, 8080, 65_535][..]);
    let port = prop_oneof![
        3 => (number(), number())
            .prop_map(|(a, b)| PortMatch::Range { first: a.min(b), last: a.max(b) }),
        3 => text(&["http", "dns", "nobody"]).prop_map(PortMatch::Named),
    ];
    prop_oneof![2 => Just(Vec::new()), 2 => vec(port.clone(), 1), 1 => vec(port, 2..3)]
}

fn end(destination: bool) -> impl Strategy<Value = RuleEnd> {
    let entities = prop_oneof![
        4 => Just(None),
        5 => vec(entity(), 1).prop_map(Some),
        1 => vec(entity(), 0..3).prop_map(Some),
    ];
    let (often, rarely) = if destination { (1, 1) } else { (0, 8) };
    let ports = prop_oneof![rarely => Just(Vec::new()), 1 + often => ports()];
    let not_ports = prop_oneof![6 => Just(Vec::new()), 1 => super::generate::ports()];
    (entities, ports, not_ports).prop_map(|(entities, ports, not_ports)| {
        let with_service = |entity: &Entity| entity.service.is_some();
        if entities.iter().flatten().any(with_service) {
            return RuleEnd { entities, ports: Vec::new(), not_ports: Vec::new() };
        }
        RuleEnd { entities, ports, not_ports }
    })
}

fn icmp() -> impl Strategy<Value = Option<IcmpMatch>> {
    let kind = || select(&[0u8, 3, 8, 128, 254][..]);
    let match_ = prop_oneof![
        Just(IcmpMatch { kind: None, code: None }),
        kind().prop_map(|kind| IcmpMatch { kind: Some(kind), code: None }),
        (kind(), select(&[0u8, 1, 255][..]))
            .prop_map(|(kind, code)| IcmpMatch { kind: Some(kind), code: Some(code) }),
    ];
    option::of(match_)
}

fn rule() -> impl Strategy<Value = Rule> {
    let action = prop_oneof![
        4 => Just(Action::Allow),
        2 => Just(Action::Deny),
        1 => Just(Action::Pass),
        1 => Just(Action::Log),
    ];
    let protocol = prop_oneof![
        3 => Just((None, None)),
        5 => select(&[6u8, 6, 6, 17, 132][..]).prop_map(|number| (Some(number), None)),
        1 => select(&[1u8, 58, 4, 50][..]).prop_map(|number| (Some(number), None)),
        1 => select(&[6u8, 1, 47][..]).prop_map(|number| (None, Some(number))),
    ];
    let family = prop_oneof![
        6 => Just(None), 1 => Just(Some(Family::V4)), 1 => Just(Some(Family::V6)),
    ];
    (action, family, protocol, icmp(), icmp(), end(false), end(true)).prop_map(
        |(action, family, (protocol, not_protocol), icmp, not_icmp, source, destination)| {
            let is_icmp = matches!(protocol, Some(ICMP | ICMPV6));
            Rule {
                index: 0,
                action,
                family,
                protocol,
                not_protocol,
                icmp: icmp.filter(|_| is_icmp),
                not_icmp: not_icmp.filter(|_| is_icmp),
                source,
                destination,
            }
        },
    )
}

fn rules() -> impl Strategy<Value = Vec<Rule>> {
    vec(rule(), 0..4).prop_map(|mut rules| {
        (0..).zip(&mut rules).for_each(|(index, rule)| rule.index = index);
        rules
    })
}

fn policy() -> impl Strategy<Value = (PolicyName, Policy)> {
    let kind = prop_oneof![
        3 => Just(PolicyKind::Kubernetes),
        1 => Just(PolicyKind::Cluster),
        3 => Just(PolicyKind::Calico),
        4 => Just(PolicyKind::Global),
        1 => Just(PolicyKind::StagedGlobal),
        1 => Just(PolicyKind::StagedCalico),
    ];
    let name = (kind, select(&NAMESPACES[..]), text(&["p", "q", "r"]));
    let hook = prop_oneof![
        6 => Just(Hook::Endpoint),
        2 => Just(Hook::Forward),
        1 => Just(Hook::PreDnat),
        1 => Just(Hook::Untracked),
    ];
    let tier = text(&["default", "default", "first", "second", "missing", "kube-admin"]);
    let order = select(&[None, None, Some(-1.5), Some(10.0)][..]);
    let rules = || option::weighted(0.8, rules());
    (name, hook, tier, order, selector(), rules(), rules(), prop::bool::weighted(0.05)).prop_map(
        |((kind, namespace, name), hook, tier, order, selector, ingress, egress, broken)| {
            let namespaced = matches!(
                kind,
                PolicyKind::Kubernetes | PolicyKind::Calico | PolicyKind::StagedCalico
            );
            let namespace = if namespaced { namespace } else { "" };
            let selector = if namespaced {
                Selector::and([Selector::equals(NAMESPACE, namespace), selector])
            } else {
                selector
            };
            let global = matches!(kind, PolicyKind::Global | PolicyKind::StagedGlobal);
            let policy = Policy {
                tier,
                order: order.and_then(Order::new).unwrap_or(Order::LAST),
                selector,
                hook: if global { hook } else { Hook::Endpoint },
                ingress,
                egress,
                broken,
            };
            (PolicyName::new(kind, namespace, name), policy)
        },
    )
}

fn address() -> impl Strategy<Value = std::net::IpAddr> {
    prop_oneof![
        (0u32..14).prop_map(|low| std::net::Ipv4Addr::from(0x0a00_0000 + low).into()),
        (0u128..14).prop_map(|low| std::net::Ipv6Addr::from((0xfd00 << 112) + low).into()),
    ]
}

fn protocol() -> impl Strategy<Value = Protocol> {
    prop_oneof![3 => Just(Protocol::Tcp), 1 => Just(Protocol::Udp), 1 => Just(Protocol::Sctp)]
}

fn named_ports() -> impl Strategy<Value = BTreeSet<NamedPort>> {
    let named_port = (text(&["http", "http", "dns"]), protocol(), select(&[53u16, 80, 8080][..]))
        .prop_map(|(name, protocol, port)| NamedPort { name, protocol, port });
    btree_set(named_port, 0..4)
}

pub(super) fn endpoint() -> impl Strategy<Value = Endpoint> {
    (
        some_labels(),
        option::of(text(&["robot", "default"])),
        btree_set(address(), 0..4),
        named_ports(),
    )
        .prop_map(|(labels, service_account, addresses, named_ports)| Endpoint {
            labels: labels.into(),
            service_account: service_account.map(Into::into),
            addresses: addresses.into(),
            named_ports,
        })
}

/// Pods; those with equal labels share them.
fn endpoints() -> impl Strategy<Value = BTreeMap<ObjectName, Arc<Endpoint>>> {
    btree_map(object(&NAMESPACES, &["a", "b", "c"]), endpoint(), 2..6).prop_map(|pods| {
        let mut label_sets = Interner::default();
        let shared = pods.into_iter().map(|(name, mut pod)| {
            pod.labels = label_sets.intern(Cow::Borrowed(&*pod.labels));
            (name, Arc::new(pod))
        });
        shared.collect()
    })
}

fn host_endpoint() -> impl Strategy<Value = HostEndpoint> {
    let profiles = vec(text(&["open", "odd", "missing"]), 0..3);
    let inherited = vec(some_labels().prop_map(Arc::new), 0..3);
    let broken = prop::bool::weighted(0.2);
    let labels = (some_labels(), inherited);
    (labels, btree_set(address(), 1..3), named_ports(), profiles, broken).prop_map(
        |((labels, inherited), addresses, named_ports, profiles, broken)| HostEndpoint {
            labels,
            node: "n1".to_owned(),
            interface: Interface::All,
            addresses: addresses.into(),
            named_ports,
            profiles,
            inherited,
            broken,
        },
    )
}

fn network_set() -> impl Strategy<Value = NetworkSet> {
    (some_labels(), nets(), nets()).prop_map(|(labels, mut nets, more)| {
        nets.extend(more);
        NetworkSet { labels, nets }
    })
}

fn service() -> impl Strategy<Value = BTreeSet<ServiceEndpoints>> {
    let ports = btree_set((protocol(), select(&[80u16, 8080][..])), 0..3);
    let some = (btree_set(address(), 0..3), ports)
        .prop_map(|(addresses, ports)| ServiceEndpoints { addresses, ports });
    btree_set(some, 0..3)
}

fn profile() -> impl Strategy<Value = Profile> {
    (rules(), rules()).prop_map(|(ingress, egress)| Profile { ingress, egress })
}

fn tiers() -> impl Strategy<Value = BTreeMap<String, Tier>> {
    let tier = (
        select(&[1.0, 2.0, 2_000_000.0][..]),
        prop_oneof![Just(DefaultAction::Deny), Just(DefaultAction::Pass)],
    )
        .prop_map(|(order, default_action)| Tier {
            order: Order::new(order).unwrap(),
            default_action,
        });
    btree_map(text(&["first", "second", "default"]), tier, 0..4)
}

fn object(
    namespaces: &'static [&'static str],
    names: &'static [&'static str],
) -> impl Strategy<Value = ObjectName> {
    (select(namespaces), select(names))
        .prop_map(|(namespace, name)| ObjectName::new(namespace, name))
}

/// A model, in which some namespaces may be missing.
pub(super) fn model() -> impl Strategy<Value = Model> {
    let names = (
        btree_map(text(&NAMESPACES), some_labels(), 0..=2),
        btree_map(object(&NAMESPACES, &["robot", "default"]), some_labels(), 0..3),
    );
    let members = (
        endpoints(),
        btree_map(text(&["h1", "h2"]), host_endpoint().prop_map(Arc::new), 0..3),
        btree_map(
            object(&["", "blue", "red"], &["n", "m"]),
            network_set().prop_map(Arc::new),
            0..4,
        ),
        btree_map(object(&["blue"], &["s", "t"]), service().prop_map(Arc::new), 0..3),
        btree_set(address(), 0..2),
    );
    let policies = (
        tiers(),
        vec(policy(), 0..9),
        btree_map(text(&["open", "odd"]), profile().prop_map(Arc::new), 0..3),
    );
    let failsafe = btree_set(
        (protocol(), select(&[22u16, 80][..]), option::of(select(&["10.0.0.0/29"][..]))),
        0..2,
    );
    (names, members, policies, failsafe).prop_map(|(names, members, policies, failsafe)| {
        let (tiers, policies, profiles) = policies;
        let failsafe: BTreeSet<FailsafePort> = failsafe
            .into_iter()
            .map(|(protocol, port, net)| (protocol, port, net.map(|net| net.parse().unwrap())))
            .collect();
        let of_name = |(name, policy)| (name, Arc::new(policy));
        let policies: BTreeMap<_, _> = policies.into_iter().map(of_name).collect();
        Model {
            namespaces: names.0.into(),
            service_accounts: names.1.into(),
            endpoints: members.0.into(),
            host_endpoints: members.1.into(),
            network_sets: members.2.into(),
            services: members.3.into(),
            unknown: members.4.into(),
            tiers,
            policies: policies.into(),
            profiles: profiles.into(),
            failsafe: Failsafe { ports: [failsafe.clone(), failsafe] },
        }
    })
}

/// The endpoints of a model that are local to one node: more than half of the pods, one pod that does not exist, and
/// the host endpoints.
pub(super) fn some_local(model: &Model) -> BTreeSet<ObjectName> {
    let every_third_remote = model.endpoints.keys().enumerate().filter(|(i, _)| i % 3 != 2);
    let hosts = model.host_endpoints.keys().map(|name| ObjectName::new("", name.as_str()));
    let ghost = ObjectName::new("blue", "ghost");
    every_third_remote.map(|(_, name)| name.clone()).chain([ghost]).chain(hosts).collect()
}
