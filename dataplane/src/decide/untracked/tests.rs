use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ahash::RandomState;
use manx_policy_compiler::compile::Compiler;
use manx_policy_compiler::image::ChainId;
use manx_policy_compiler::model::{
    Action, Direction, Endpoint as Pod, Entity, Hook, HostEndpoint, Model, ObjectName, Order,
    Policy, PolicyKind, PolicyName, PortMatch, Protocol, Rule,
};
use manx_policy_compiler::prefix_map::PrefixMap;
use manx_policy_compiler::resolve::Stage;
use manx_policy_compiler::selector::Selector;
use proptest::array::uniform2;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::super::untracked_hook::{UntrackedHook, UntrackedHookCache};
use super::*;
use crate::decide::{Arrival, Decision, PacketRef, Refusal, ServiceBudgets, decide};
use crate::encapsulation::Outer;
use crate::fate::Fate;
use crate::flow::{FlowTable, HashSeed, WorkerId};
use crate::fragment::FragmentTracker;
use crate::packet::Pool;
use crate::parse::parse;
use crate::policy::FlowEnds;
use crate::services::SessionAffinities;
use crate::tables::{
    Endpoint, HostPolicy, InterfaceChains, Link, NextHop, OwnedChains, PortId, Role, Tunnel,
};
use crate::wire::{ipv4, ipv6, put, vxlan};

/// A pod with policy, a pod without policy, an outside address, the node, an address that is not forwardable, and
/// another node's pod.
const WHO: [(Ipv4Addr, u16, NextHop); 6] = [
    (Ipv4Addr::new(10, 0, 0, 1), 1, NextHop::Endpoint(0)),
    (Ipv4Addr::new(10, 0, 0, 2), 2, NextHop::Endpoint(1)),
    (Ipv4Addr::new(192, 0, 2, 9), 9, NextHop::World),
    (Ipv4Addr::new(198, 51, 100, 1), 3, NextHop::Node),
    (Ipv4Addr::LOCALHOST, 4, NextHop::World),
    (Ipv4Addr::new(10, 0, 1, 1), 5, NextHop::Tunnel(0)),
];
const NOW: u32 = 100;

fn v6(of: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, of)
}

/// A policy with these rules, by direction. Each has an action for TCP and UDP to a port, and peers by their index in
/// `WHO`.
fn policy(label: &str, hook: Hook, rules: [&[(Action, u16, &[usize])]; 2]) -> Policy {
    let rule = |direction, (action, port, peers): &(Action, u16, &[usize])| {
        let nets = peers.iter().flat_map(|who| [IpAddr::from(WHO[*who].0), v6(WHO[*who].1).into()]);
        let peers = Entity { nets: nets.map(ipnet::IpNet::from).collect(), ..Entity::default() };
        [Protocol::Tcp, Protocol::Udp].map(|protocol| {
            let mut rule = Rule::every_packet(0, *action);
            rule.protocol = Some(protocol.number());
            rule.destination.ports = vec![PortMatch::Range { first: *port, last: *port }];
            let peer = match direction {
                Direction::Ingress => &mut rule.source,
                Direction::Egress => &mut rule.destination,
            };
            peer.entities = Some(vec![peers.clone()]);
            rule
        })
    };
    let [ingress, egress] = Direction::ALL.map(|direction| {
        let rules = rules[direction as usize].iter().flat_map(|it| rule(direction, it));
        let numbered = rules.enumerate().map(|(at, rule)| Rule { index: at as u32, ..rule });
        Some(numbered.collect())
    });
    Policy {
        tier: "default".to_owned(),
        order: Order::KUBERNETES,
        selector: Selector::equals("name", label),
        hook,
        ingress,
        egress,
        broken: false,
    }
}

/// A model with policy of the first pod and untracked policy of the node's interfaces. Both depend on the peer, and on
/// different peers in each direction. Packets that the interfaces' policy does not match are tracked. The second pod
/// has no policy.
fn model() -> Model {
    use Action::{Allow, Deny};
    let mut model = Model::default();
    model.namespaces.insert("a".to_owned(), BTreeMap::new());
    let labels = |name: &str| BTreeMap::from([("name".to_owned(), name.to_owned())]);
    for ((v4, low, _), name) in WHO.iter().zip(["first", "second"]) {
        let addresses = [IpAddr::from(*v4), v6(*low).into()].into();
        let pod = Pod { addresses, labels: Arc::new(labels(name)), ..Pod::default() };
        model.endpoints.insert(ObjectName::new("a", name), Arc::new(pod));
    }
    let node = HostEndpoint { labels: labels("node"), broken: false, ..HostEndpoint::broken() };
    model.host_endpoints.insert("node".to_owned(), Arc::new(node));
    let first = policy(
        "first",
        Hook::Endpoint,
        [&[(Allow, 80, &[2, 5]), (Allow, 81, &[5])], &[(Allow, 80, &[2, 5]), (Allow, 81, &[2])]],
    );
    let node = policy(
        "node",
        Hook::Untracked,
        [
            &[(Allow, 80, &[2, 5]), (Allow, 81, &[5]), (Deny, 81, &[2])],
            &[(Allow, 80, &[2, 5]), (Allow, 81, &[2]), (Deny, 81, &[5])],
        ],
    );
    model.policies.insert(PolicyName::new(PolicyKind::Kubernetes, "a", "first"), Arc::new(first));
    model.policies.insert(PolicyName::new(PolicyKind::Global, "", "node"), Arc::new(node));
    model
}

/// Tables with outside addresses behind the uplink, and untracked policy at both interfaces in both directions.
fn tables() -> Tables {
    let pods = ["first", "second"].map(|name| ObjectName::new("a", name));
    let node = ObjectName::new("", "node");
    let image = Compiler::new().compile(&model(), &pods.iter().chain([&node]).cloned().collect());
    let chains =
        |of, stage| Direction::ALL.map(|direction| image.chain_at(of, stage, direction).unwrap());
    let endpoint = |pod: usize| {
        let link = Link::native(PortId(pod as u16), 1500);
        let [ingress, egress] = chains(&pods[pod], Stage::Pod);
        Some(Endpoint { attachment: 1, link, ingress, egress, revision: 1 })
    };
    let routes = WHO.iter().flat_map(|(v4, low, next_hop)| {
        let nets = [IpAddr::from(*v4), v6(*low).into()].map(ipnet::IpNet::from);
        nets.map(|net| (net, next_hop.encode().0))
    });
    let everything = chains(&pods[1], Stage::Pod);
    let untracked = chains(&node, Stage::Untracked).map(Some);
    let owned = OwnedChains { local: everything, pre_dnat: None, untracked };
    let interface = Some(InterfaceChains { forward: everything, owned: Some(owned) });
    let here_and_there = [1, 2].map(|low| Ipv4Addr::new(172, 16, 0, low));
    let tunnel = Tunnel {
        remote: here_and_there[1],
        outer: Outer::ipip(here_and_there[0], here_and_there[1], None),
        link: Link { tunnel: Some(0), ..Link::native(PortId(7), 1480) },
    };
    Tables {
        version: 7,
        endpoints: vec![endpoint(0), endpoint(1)],
        tunnels: [Some(tunnel)].into(),
        routes: Arc::new(PrefixMap::build(0, routes)),
        host: Some(Link::native(PortId(8), 1500)),
        uplink: Some(Link::native(PortId(9), 1400)),
        roles: vec![Role::Endpoint(0), Role::Endpoint(1)],
        host_policy: HostPolicy {
            native: interface,
            tunnelled: interface,
            ..HostPolicy::default()
        },
        image: Arc::new(image),
        ..Tables::closed()
    }
}

/// The untracked chain of an interface in a direction.
#[derive(Debug, Clone, Copy)]
enum ChainCase {
    Nothing,
    Policy,
    /// The image does not have the chain.
    Missing,
}

/// The parts of the tables that remain: the untracked chains by interface and direction, and the uplink.
#[derive(Debug, Clone)]
struct Part {
    untracked: [[ChainCase; 2]; 2],
    uplink: bool,
}

fn part() -> impl Strategy<Value = Part> {
    let asked = prop_oneof![3 => Just(ChainCase::Nothing), 3 => Just(ChainCase::Policy), 1 => Just(ChainCase::Missing)];
    (uniform2(uniform2(asked)), any::<bool>())
        .prop_map(|(untracked, uplink)| Part { untracked, uplink })
}

fn part_of(whole: &Tables, part: &Part) -> Tables {
    let mut tables = whole.clone();
    let HostPolicy { native, tunnelled, .. } = &mut tables.host_policy;
    let interfaces = [native, tunnelled].into_iter().flatten().flat_map(|it| &mut it.owned);
    for (owned, asked) in interfaces.zip(part.untracked) {
        for (chain, asked) in owned.untracked.iter_mut().zip(asked) {
            match asked {
                ChainCase::Nothing => *chain = None,
                ChainCase::Policy => {}
                ChainCase::Missing => *chain = Some(ChainId::MISSING),
            }
        }
    }
    tables.uplink = tables.uplink.filter(|_| part.uplink);
    tables
}

/// The same tables without untracked policy.
fn silent(asking: &Tables) -> Tables {
    let mut silent = asking.clone();
    let HostPolicy { native, tunnelled, .. } = &mut silent.host_policy;
    for owned in [native, tunnelled].into_iter().flatten().flat_map(|it| &mut it.owned) {
        owned.untracked = [None; 2];
    }
    silent
}

/// A packet between two of the addresses, and where it enters.
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
        port in prop_oneof![6 => Just(80), 3 => Just(81), 1 => Just(vxlan::PORT)],
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
    if let Ok(ip) = ipv4::View::new_checked_mut(&mut bytes[..]) {
        ip.fill_checksum();
    }
    bytes
}

fn state() -> DecisionState {
    DecisionState {
        flows: FlowTable::new(16, HashSeed::fixed(1)).unwrap(),
        source_cache: SourceCache::default(),
        untracked_hooks: UntrackedHookCache::default(),
        fragments: FragmentTracker::new(1),
        service_budgets: ServiceBudgets::default(),
        affinities: Arc::new(SessionAffinities::new().unwrap()),
        random: (RandomState::with_seed(1), 0),
        evictions: 0,
        refusal: Refusal::default(),
        next_worker: (WorkerId(0), 0),
    }
}

fn entrance(who: usize) -> Entrance {
    match WHO[who].2 {
        NextHop::Endpoint(index) => Entrance::endpoint(index),
        NextHop::Node => Entrance::NODE,
        NextHop::Tunnel(index) => Entrance::tunnel(index),
        _ => Entrance::UPLINK,
    }
}

/// The number of times that each case occurred which the laws of the fast path need.
#[derive(Debug, Default)]
struct CaseCounts {
    goes: Cell<u32>,
    tracked: Cell<u32>,
    other: Cell<u32>,
    /// Only one interface has untracked policy; it allows the packet, but the packet is transit.
    transit: Cell<u32>,
    /// Only one interface has untracked policy, in this direction, and its verdict would be different if the ends were
    /// exchanged.
    by_end: [Cell<u32>; 2],
}

impl CaseCounts {
    fn note(
        &self,
        tables: &Tables,
        metadata: &PacketMetadata,
        said: &UntrackedVerdict<(Forwarding<'_>, RuleCounters)>,
    ) {
        let once = |counter: &Cell<u32>| counter.update(|count| count + 1);
        once(match said {
            UntrackedVerdict::Allow(_) => &self.goes,
            UntrackedVerdict::Tracked => &self.tracked,
            UntrackedVerdict::SlowPath => &self.other,
        });
        let [source, destination] = metadata.flow.addresses();
        let (pair, ends) = SourceCache::default().lookup_ends(tables, source, destination);
        if !(metadata.is_plain && metadata.entrance.admits(pair.from)) {
            return;
        }
        let asked =
            |next_hop, direction| tables.host_policy.untracked(next_hop, direction).is_some();
        let direction =
            match (asked(ends.from, Direction::Ingress), asked(ends.to, Direction::Egress)) {
                (true, false) => Direction::Ingress,
                (false, true) => Direction::Egress,
                _ => return,
            };
        let transport = transport(&metadata.flow.key, metadata.flow.orientation);
        let answer = |identities| {
            policy::evaluate_untracked(tables, &FlowEnds { identities, ..ends }, transport)
        };
        let [from, to] = ends.identities;
        if !connects(tables, ends.from, ends.to) {
            if answer([from, to]).is_ok_and(|it| it.allows()) {
                once(&self.transit);
            }
        } else if answer([from, to]) != answer([to, from]) {
            once(&self.by_end[direction as usize]);
        }
    }

    /// Whether each case occurred often enough for the laws to be meaningful.
    fn is_enough(&self) -> bool {
        let Self { goes, tracked, other, transit, by_end: [ingress, egress] } = self;
        [goes, tracked, other].iter().all(|it| it.get() > 400)
            && [transit, ingress, egress].iter().all(|it| it.get() > 100)
    }
}

#[test]
fn the_fast_path_equals_the_slow_path_and_tracked_packets_are_decided_as_without_untracked_policy()
{
    let whole = tables();
    let met = CaseCounts::default();
    let drawn = (part(), prop::collection::vec(case(), 4));
    let mut runner = TestRunner::new(ProptestConfig::with_cases(2000));
    let outcome = runner.run(&drawn, |(part, cases)| {
        let asking = part_of(&whole, &part);
        let silent = silent(&asking);
        // The state that earlier packets leave must not matter.
        let (mut fast, mut slow) = (state(), state());
        for case in cases {
            let bytes = packet(&case);
            let Ok(parsed) = parse(&bytes) else { continue };
            let arrival =
                Arrival { entrance: entrance(case.entrance), port: PortId(1), handoffs: 0 };
            let metadata =
                PacketMetadata::new(&parsed, (1, bytes.len() as u32), true, &arrival, &fast.flows);
            let packet = Pool::new(1).take_filled(&bytes).unwrap();
            let packet = PacketRef { packet: &packet, metadata: &metadata };
            let said = untracked_fast_path(&asking, &mut fast, &metadata);
            prop_assert!(fast.flows.is_empty());
            let mut fresh = state();
            let decision = decide(&asking, &mut fresh, &packet, NOW);
            prop_assert_eq!(decision, decide(&asking, &mut slow, &packet, NOW));
            met.note(&asking, &metadata, &said);
            match said {
                UntrackedVerdict::Allow((forwarding, rules)) => {
                    prop_assert!(metadata.unit <= forwarding.link.mtu && fresh.flows.is_empty());
                    let going = Decision { fate: Fate::Forward(forwarding), rules };
                    prop_assert_eq!(decision, going);
                }
                UntrackedVerdict::Tracked => {
                    let mut unasked = state();
                    prop_assert_eq!(decision, decide(&silent, &mut unasked, &packet, NOW));
                    prop_assert_eq!(fresh.flows.is_empty(), unasked.flows.is_empty());
                }
                UntrackedVerdict::SlowPath => {}
            }
        }
        Ok(())
    });
    outcome.unwrap();
    assert!(met.is_enough(), "some case occurred too seldom: {met:?}");
}

#[test]
fn the_cached_hook_equals_a_lookup_in_the_same_tables() {
    let asking = tables();
    let silent = Tables { version: 8, ..silent(&asking) };
    let again = Tables { version: 9, ..asking.clone() };
    let others = [NextHop::NoRoute, NextHop::Unreachable];
    let hops: Vec<_> = WHO.iter().map(|who| who.2).chain(others).map(NextHop::encode).collect();
    let mut last = UntrackedHookCache::default();
    for (from, to) in hops.iter().flat_map(|from| hops.iter().map(move |to| (*from, *to))) {
        let pair = NextHopPair { from, to };
        for tables in [&asking, &asking, &silent, &again] {
            assert_eq!(*last.lookup(tables, pair), UntrackedHook::lookup(tables, pair), "{pair:?}");
        }
        assert_eq!(UntrackedHook::lookup(&silent, pair), UntrackedVerdict::Tracked);
    }
}
