use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use manx_policy_compiler::compile::Compiler;
use manx_policy_compiler::model::{
    Action, Direction, Endpoint as Pod, Hook, Model, ObjectName, Order, Policy, PolicyKind,
    PolicyName, PortMatch, Protocol, Rule,
};
use manx_policy_compiler::prefix_map::PrefixMap;
use manx_policy_compiler::selector::Selector;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::*;
use crate::decide::{Arrival, Decision, Subject, decide};
use crate::encapsulation::Outer;
use crate::fate::Fate;
use crate::flow::{FlowTable, HashSeed, WorkerId};
use crate::fragment::FragmentTracker;
use crate::packet::Pool;
use crate::parse::parse;
use crate::tables::{
    Endpoint, HostPolicy, InterfaceChains, Link, OwnedChains, PortId, Role, Tunnel, Via,
};
use crate::wire::{ipv4, ipv6, put, vxlan};

/// A pod, one of whom nobody speaks, the world, the node, one to whom nothing is forwarded, and another node's pod.
const WHO: [(Ipv4Addr, u16, Via); 6] = [
    (Ipv4Addr::new(10, 0, 0, 1), 1, Via::Endpoint(0)),
    (Ipv4Addr::new(10, 0, 0, 2), 2, Via::Endpoint(1)),
    (Ipv4Addr::new(192, 0, 2, 9), 9, Via::Host),
    (Ipv4Addr::new(198, 51, 100, 1), 3, Via::Node),
    (Ipv4Addr::LOCALHOST, 4, Via::Host),
    (Ipv4Addr::new(10, 0, 1, 1), 5, Via::Tunnel(0)),
];
const NOW: u32 = 100;

fn v6(of: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, of)
}

/// Policy of the first pod lets port 80 through, either way; nobody speaks of the second one.
fn model() -> Model {
    let mut model = Model::default();
    model.namespaces.insert("a".to_owned(), BTreeMap::new());
    for (at, (v4, low, _)) in WHO[..2].iter().enumerate() {
        let addresses = BTreeSet::from([IpAddr::from(*v4), v6(*low).into()]);
        let pod = Pod { addresses, ..Pod::default() };
        model.endpoints.insert(ObjectName::new("a", format!("{at}")), Arc::new(pod));
    }
    let named = |name: &str| Pod {
        labels: Arc::new(BTreeMap::from([("name".to_owned(), name.to_owned())])),
        ..Pod::default()
    };
    let first = ObjectName::new("a", "0");
    let addresses = model.endpoints[&first].addresses.clone();
    model.endpoints.insert(first, Arc::new(Pod { addresses, ..named("first") }));
    let rule = |at, protocol: Protocol| {
        let mut rule = Rule::every_packet(at, Action::Allow);
        rule.protocol = Some(protocol.number());
        rule.destination.ports = vec![PortMatch::Range { first: 80, last: 80 }];
        rule
    };
    let rules = vec![rule(0, Protocol::Tcp), rule(1, Protocol::Udp)];
    let policy = Policy {
        tier: "default".to_owned(),
        order: Order::KUBERNETES,
        selector: Selector::equals("name", "first"),
        hook: Hook::Endpoint,
        ingress: Some(rules.clone()),
        egress: Some(rules),
        broken: false,
    };
    let name = PolicyName::new(PolicyKind::Kubernetes, "a", "80");
    model.policies.insert(name, Arc::new(policy));
    model
}

/// The world is behind the uplink, whose interface asks what the first pod does, before connection tracking. That of the tunnels
/// asks so of what arrives, and of what leaves a chain that nobody has.
fn tables() -> Tables {
    let pods = [0, 1].map(|at| ObjectName::new("a", format!("{at}")));
    let image = Compiler::new().compile(&model(), &pods.iter().cloned().collect());
    let chains =
        |pod: usize| Direction::ALL.map(|direction| image.chain(&pods[pod], direction).unwrap());
    let endpoint = |pod: usize| {
        let link = Link::native(PortId(pod as u16), 1500);
        let [ingress, egress] = chains(pod);
        Some(Endpoint { attachment: 1, link, ingress, egress, revision: 1 })
    };
    let routes = WHO.iter().flat_map(|(v4, low, via)| {
        let nets = [IpAddr::from(*v4), v6(*low).into()].map(ipnet::IpNet::from);
        nets.map(|net| (net, via.encode().0))
    });
    let owned = OwnedChains { local: chains(1), pre_dnat: None, untracked: chains(0).map(Some) };
    let native = Some(InterfaceChains { forward: chains(1), owned: Some(owned) });
    let untracked = [owned.untracked[0], Some(ChainId::MISSING)];
    let owned = OwnedChains { untracked, ..owned };
    let tunnelled = Some(InterfaceChains { forward: chains(1), owned: Some(owned) });
    let here_and_there = [1, 2].map(|low| Ipv4Addr::new(172, 16, 0, low));
    let tunnel = Tunnel {
        remote: here_and_there[1],
        outer: Outer::ipip(here_and_there[0], here_and_there[1], None),
        link: Link { tunnel: Some(0), ..Link::native(PortId(7), 1480) },
    };
    Tables {
        version: 7,
        endpoints: vec![endpoint(0), endpoint(1)],
        tunnels: vec![Some(tunnel)],
        routes: Arc::new(PrefixMap::build(0, routes)),
        host: Some(Link::native(PortId(8), 1500)),
        uplink: Some(Link::native(PortId(9), 1400)),
        roles: vec![Role::Endpoint(0), Role::Endpoint(1)],
        host_policy: HostPolicy { native, tunnelled, ..HostPolicy::default() },
        image: Arc::new(image),
        ..Tables::closed()
    }
}

/// The same where nobody is asked before connection tracking.
fn silent(asking: &Tables) -> Tables {
    let mut silent = asking.clone();
    let HostPolicy { native, tunnelled, .. } = &mut silent.host_policy;
    for owned in [native, tunnelled].into_iter().flatten().flat_map(|it| &mut it.owned) {
        owned.untracked = [None; 2];
    }
    silent
}

/// A packet between two of them, and where it enters.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is so or not by itself")]
struct Case {
    ends: [usize; 2],
    entrance: usize,
    is_v6: bool,
    is_tcp: bool,
    port: u16,
    ttl: u8,
    len: usize,
    dont_fragment: bool,
    is_part: bool,
}

prop_compose! {
    fn case()(
        ends in [0usize..6, 0usize..6],
        other in prop_oneof![9 => Just(None), 1 => (0usize..6).prop_map(Some)],
        is_v6: bool,
        is_tcp: bool,
        port in prop_oneof![8 => Just(80), 2 => Just(81), 1 => Just(vxlan::PORT)],
        ttl in prop_oneof![9 => Just(64), 1 => 1u8..3],
        len in prop_oneof![9 => Just(100), 1 => 1390usize..1600],
        dont_fragment: bool,
        is_part in prop_oneof![9 => Just(false), 1 => Just(true)],
    ) -> Case {
        Case { ends, entrance: other.unwrap_or(ends[0]), is_v6, is_tcp, port, ttl, len, dont_fragment, is_part }
    }
}

fn packet(case: &Case) -> Vec<u8> {
    let mut bytes = vec![0; case.len];
    let start = if case.is_v6 { ipv6::HEADER_LEN } else { ipv4::HEADER_LEN };
    let upper = if case.is_tcp { Protocol::Tcp } else { Protocol::Udp }.number();
    let upper_len = ((case.len - start) as u16).to_be_bytes();
    let [from, to] = case.ends.map(|end| WHO[end]);
    if case.is_v6 {
        put(&mut bytes, 0..8, &[0x60, 0, 0, 0, upper_len[0], upper_len[1], upper, case.ttl]);
        put(&mut bytes, 8..24, &v6(from.1).octets());
        put(&mut bytes, 24..40, &v6(to.1).octets());
    } else {
        bytes[0] = 0x45;
        put(&mut bytes, 2..4, &(case.len as u16).to_be_bytes());
        bytes[6] =
            u8::from(case.dont_fragment) << 6 | u8::from(case.is_part && !case.dont_fragment) << 5;
        (bytes[8], bytes[9]) = (case.ttl, upper);
        put(&mut bytes, 12..16, &from.0.octets());
        put(&mut bytes, 16..20, &to.0.octets());
    }
    let header = &mut bytes[start..];
    put(header, 0..4, &[1000u16.to_be_bytes(), case.port.to_be_bytes()].concat());
    if case.is_tcp {
        (header[12], header[13]) = (5 << 4, 2);
    } else {
        put(header, 4..6, &upper_len);
    }
    if let Ok(mut ip) = ipv4::View::new_checked(&mut bytes[..]) {
        ip.fill_checksum();
    }
    bytes
}

fn memory() -> Memory {
    Memory {
        flows: FlowTable::new(16, HashSeed::fixed(1)).unwrap(),
        last_source: LastSource::default(),
        last_course: LastCourse::default(),
        fragments: FragmentTracker::new(1),
        evictions: 0,
        next: (WorkerId(0), 0),
    }
}

fn entrance(who: usize) -> Entrance {
    match WHO[who].2 {
        Via::Endpoint(index) => Entrance::endpoint(index),
        Via::Node => Entrance::NODE,
        Via::Tunnel(index) => Entrance::tunnel(index),
        _ => Entrance::UPLINK,
    }
}

#[test]
fn the_short_way_is_the_long_one_and_what_is_tracked_is_as_if_nobody_had_been_asked() {
    let asking = tables();
    let silent = silent(&asking);
    let went = [const { Cell::new(0) }; 3];
    let cases = prop::collection::vec(case(), 4);
    let mut runner = TestRunner::new(ProptestConfig::with_cases(2000));
    let outcome = runner.run(&cases, |cases| {
        // What the one before has left behind must not matter.
        let (mut short, mut long) = (memory(), memory());
        for case in cases {
            let bytes = packet(&case);
            let Ok(parsed) = parse(&bytes) else { continue };
            let arrival = Arrival { entrance: entrance(case.entrance), port: PortId(1), times: 0 };
            let glance = Glance::at(&parsed, (1, bytes.len() as u32), true, &arrival, &short.flows);
            let packet = Pool::new(1).take_filled(&bytes).unwrap();
            let subject = Subject { packet: &packet, glance: &glance };
            let said = untracked(&asking, &mut short, &glance);
            prop_assert!(short.flows.is_empty());
            let mut fresh = memory();
            let decision = decide(&asking, &mut fresh, &subject, NOW);
            prop_assert_eq!(decision, decide(&asking, &mut long, &subject, NOW));
            let at = match said {
                BeforeTracking::Goes(Passage { link, hop, rules }) => {
                    prop_assert!(glance.unit <= link.mtu && fresh.flows.is_empty());
                    let going = Decision { fate: Fate::Forward { link, hop }, rules };
                    prop_assert_eq!(decision, going);
                    0
                }
                BeforeTracking::Tracked => {
                    let fate = decide(&silent, &mut memory(), &subject, NOW).fate;
                    prop_assert_eq!(format!("{:?}", decision.fate), format!("{fate:?}"));
                    1
                }
                BeforeTracking::Other => 2,
            };
            went[at].update(|count| count + 1);
        }
        Ok(())
    });
    outcome.unwrap();
    assert!(went.iter().all(|count| count.get() > 500), "of each enough: {went:?}");
}

#[test]
fn the_last_course_is_that_of_these_tables_and_this_way() {
    let asking = tables();
    let silent = Tables { version: 8, ..silent(&asking) };
    let again = Tables { version: 9, ..asking.clone() };
    let others = [Via::NoRoute, Via::Unreachable];
    let hops: Vec<_> = WHO.iter().map(|who| who.2).chain(others).map(Via::encode).collect();
    let mut last = LastCourse::default();
    for (from, to) in hops.iter().flat_map(|from| hops.iter().map(move |to| (*from, *to))) {
        let way = Way { from, to };
        for tables in [&asking, &asking, &silent, &again] {
            assert_eq!(*last.of(tables, way), Course::of(tables, way), "{way:?}");
        }
        assert_eq!(Course::of(&silent, way), Said::Tracked);
    }
}
