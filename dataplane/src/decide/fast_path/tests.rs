use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ahash::RandomState;
use manx_policy_compiler::image::ChainId;
use proptest::prelude::*;

use super::*;
use crate::decide::{
    Arrival, Decision, Entrance, PacketRef, Refusal, ServiceBudgets, SourceCache,
    UntrackedHookCache, decide, translated, translated_fast_path,
};
use crate::fate::Fate;
use crate::flow::RuleCounters;
use crate::flow::{
    DirectedKey, FlowDirection, FlowEntry, FlowKey, FlowMut, FlowTable, HashSeed, Orientation,
    Owner, TcpFlags, TwoKeys,
};
use crate::fragment::FragmentTracker;
use crate::packet::Pool;
use crate::parse::parse;
use crate::rewrite::Translation;
use crate::services::{ServiceTable, SessionAffinities};
use crate::tables::Link;
use crate::tables::{EncodedNextHop, Endpoint, NextHop, PortId};
use crate::wire::address::Address;
use crate::wire::{ipv4, ipv6, protocol, put, vxlan};

/// The client, the server, and the backend of a service at the server's address.
const ADDRESSES: [Ipv4Addr; 3] =
    [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2), Ipv4Addr::new(10, 0, 0, 3)];
const ADDRESSES6: [Ipv6Addr; 3] = [
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1),
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2),
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 3),
];
const BACKEND_PORT: u16 = 8080;
/// The time when the packet arrives, in seconds.
const NOW: u32 = 10_000;

/// A flow in a state in which earlier packets may have left it, and a packet that may belong to it.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is so or not by itself")]
struct Case {
    /// The earlier packets: whether the responder sent it, and its flags.
    before: Vec<(bool, u8)>,
    silent: u32,
    verdict: Verdict,
    is_current: bool,
    hops: [u32; 2],
    is_v6: bool,
    is_tcp: bool,
    /// The port of the responder.
    port: u16,
    flags: u8,
    is_reply: bool,
    ttl: u8,
    len: usize,
    dont_fragment: bool,
    entrance: u32,
    is_translated: bool,
    /// Whether the packet has the key of the other side of the translation.
    has_other_key: bool,
}

impl Case {
    /// The ends of the packet, as indexes into the lists of addresses and ports.
    fn ends(&self) -> [usize; 2] {
        let server = 1 + usize::from(self.is_translated && (self.is_reply ^ self.has_other_key));
        if self.is_reply { [server, 0] } else { [0, server] }
    }

    fn ports(&self) -> [u16; 3] {
        [1000, self.port, BACKEND_PORT]
    }

    fn addresses(&self) -> [Address; 3] {
        if self.is_v6 {
            ADDRESSES6.map(|address| Address::v6(address.octets()))
        } else {
            ADDRESSES.map(Address::from)
        }
    }

    /// The key of packets between the client and this end.
    fn key(&self, server: usize) -> DirectedKey {
        let (addresses, ports) = (self.addresses(), self.ports());
        let (key, original) =
            FlowKey::new(addresses[0], addresses[server], ports[0], ports[server], upper(self));
        DirectedKey { key, original }
    }
}

/// Usually `usual`, and sometimes a value of `other`.
fn mostly<T: Clone + std::fmt::Debug + 'static>(
    usual: T,
    other: impl Strategy<Value = T> + 'static,
) -> impl Strategy<Value = T> {
    prop_oneof![9 => Just(usual), 1 => other]
}

prop_compose! {
    fn case()(
        before in mostly(
            vec![(false, TcpFlags::SYN.0), (true, 0x12), (false, 0x10)],
            prop::collection::vec((any::<bool>(), 0u8..0x20), 1..5),
        ),
        silent in mostly(0, prop_oneof![0u32..100, Just(4_000)]),
        verdict in mostly(Verdict::Allow, prop_oneof![Just(Verdict::DenyEgress), Just(Verdict::DenyIngress)]),
        is_current in mostly(true, Just(false)),
        hops in mostly([0, 1], [0u32..4, 0u32..4]),
        is_v6: bool,
        is_tcp: bool,
        port in mostly(80, Just(vxlan::PORT)),
        flags in mostly(0x10, 0u8..0x40),
        is_reply: bool,
        ttl in mostly(64, 1u8..3),
        len in mostly(100, 60usize..1600),
        dont_fragment: bool,
        entrance in mostly(2, 0u32..2),
        is_translated: bool,
        has_other_key in mostly(false, Just(true)),
    ) -> Case {
        let entrance = if entrance == 2 { hops[usize::from(is_reply)] } else { entrance };
        Case {
            before, silent, verdict, is_current, hops, is_v6, is_tcp, port, flags, is_reply, ttl, len, dont_fragment, entrance,
            is_translated, has_other_key,
        }
    }
}

fn tables() -> Tables {
    let endpoint = |attachment: u32| {
        let (ingress, egress) = (ChainId::MISSING, ChainId::MISSING);
        let link = Link::native(PortId(attachment as u16), 1500);
        Some(Endpoint { attachment, link, ingress, egress, revision: 1 })
    };
    let host = Some(Link::native(PortId(9), 1400));
    let mut services = ServiceTable::default();
    services.set_address(ADDRESSES[2].into(), true);
    services.set_address(Address::v6(ADDRESSES6[2].octets()), true);
    Tables {
        version: 7,
        endpoints: vec![endpoint(1), endpoint(2)],
        host,
        services: Some(Arc::new(services)),
        ..Tables::closed()
    }
}

fn hop(number: u32) -> EncodedNextHop {
    [NextHop::Endpoint(0), NextHop::Endpoint(1), NextHop::Node, NextHop::Unreachable]
        [number as usize]
        .encode()
}

fn upper(case: &Case) -> u8 {
    if case.is_tcp { protocol::TCP } else { protocol::UDP }
}

fn packet(case: &Case) -> Vec<u8> {
    let mut bytes = vec![0; case.len];
    let [from, to] = case.ends();
    let start = if case.is_v6 { ipv6::HEADER_LEN } else { ipv4::HEADER_LEN };
    let upper_len = (case.len - start) as u16;
    if case.is_v6 {
        bytes[0] = 0x60;
        bytes[4..6].copy_from_slice(&upper_len.to_be_bytes());
        (bytes[6], bytes[7]) = (upper(case), case.ttl);
        bytes[8..24].copy_from_slice(&ADDRESSES6[from].octets());
        bytes[24..40].copy_from_slice(&ADDRESSES6[to].octets());
    } else {
        bytes[..2].copy_from_slice(&[0x45, 0]);
        bytes[2..4].copy_from_slice(&(case.len as u16).to_be_bytes());
        bytes[6] = if case.dont_fragment { 0x40 } else { 0 };
        (bytes[8], bytes[9]) = (case.ttl, upper(case));
        bytes[12..16].copy_from_slice(&ADDRESSES[from].octets());
        bytes[16..20].copy_from_slice(&ADDRESSES[to].octets());
    }
    let ports = case.ports().map(u16::to_be_bytes);
    let header = &mut bytes[start..];
    put(header, 0..4, &[ports[from], ports[to]].concat());
    if case.is_tcp {
        (header[12], header[13]) = (5 << 4, case.flags);
    } else {
        put(header, 4..6, &upper_len.to_be_bytes());
    }
    if let Ok(ip) = ipv4::View::new_checked_mut(&mut bytes[..]) {
        ip.fill_checksum();
    }
    bytes
}

fn state(case: &Case, tables: &Tables) -> DecisionState {
    let seed = HashSeed::fixed(1);
    let mut flows = FlowTable::new(16, seed).unwrap();
    let first = case.key(1);
    let DirectedKey { key, original } = first;
    let then = NOW - case.silent;
    let flags = |flags| TcpFlags(if case.is_tcp { flags } else { 0 });
    let mut entry = FlowEntry::open(key, original, flags(case.before[0].1), then);
    for &(is_reply, sent) in &case.before {
        let direction = if is_reply { FlowDirection::Reply } else { FlowDirection::Original };
        entry.as_mut().record_packet(direction, flags(sent), 1, 100, then);
    }
    entry.verdict = case.verdict;
    entry.next_hops = [hop(case.hops[1]), hop(case.hops[0])];
    entry.counters = RuleCounters { egress: 3, ingress: 4 };
    let keys = TwoKeys { first, second: case.key(2) };
    entry.epoch = if case.is_translated {
        translated::epoch(tables, &keys)
    } else {
        current_epoch(tables, key.v4_addresses())
    };
    entry.epoch.version ^= u32::from(!case.is_current);
    let hash = flows.hash(&key);
    let found = flows.find(hash, &key);
    let write = |place: &mut FlowMut<'_>| place.replace(entry);
    let evicted = if case.is_translated {
        let reserved = flows.reserve_second_key(keys.second, found, then).unwrap();
        flows.insert_with_second_key((hash, found, Owner::NODE), reserved, then, write)
    } else {
        [flows.insert(hash, found, Owner::NODE, then, write), None]
    };
    assert_eq!(evicted, [None; 2]);
    let next = (crate::flow::WorkerId(0), 0);
    let fragments = FragmentTracker::new(1);
    DecisionState {
        flows,
        source_cache: SourceCache::default(),
        untracked_hooks: UntrackedHookCache::default(),
        fragments,
        service_budgets: ServiceBudgets::default(),
        affinities: Arc::new(SessionAffinities::new().unwrap()),
        random: (RandomState::with_seed(1), 0),
        evictions: 0,
        refusal: Refusal::default(),
        next_worker: next,
    }
}

fn flow_of(state: &DecisionState) -> String {
    format!("{:?}", state.flows.iter().collect::<Vec<_>>())
}

fn metadata(bytes: &[u8], case: &Case, flows: &FlowTable) -> PacketMetadata {
    let parsed = parse(bytes).unwrap();
    let back = NextHop::decode(hop(case.entrance));
    let entrance = match back {
        NextHop::Endpoint(index) => Entrance::endpoint(index),
        _ => Entrance::NODE,
    };
    let arrival = Arrival { entrance, port: PortId(1), handoffs: 0 };
    let mut metadata = PacketMetadata::new(&parsed, (1, bytes.len() as u32), true, &arrival, flows);
    metadata.flow.guess = flows.guess(metadata.flow.hash);
    metadata
}

/// The fast path that such a packet takes.
fn fast<'a>(
    tables: &'a Tables,
    state: &mut DecisionState,
    metadata: &PacketMetadata,
) -> Option<(Forwarding<'a>, Option<Translation>, RuleCounters)> {
    if let Some((forwarding, rules)) = fast_path(tables, state, metadata, NOW) {
        return Some((forwarding, None, rules));
    }
    let (forwarding, translation, rules) = translated_fast_path(tables, state, metadata, NOW)?;
    Some((forwarding, Some(translation), rules))
}

#[test]
fn a_packet_of_a_live_flow_takes_the_fast_path_in_both_directions() {
    let tables = tables();
    let all =
        [(false, false, false), (true, true, false), (false, true, true), (true, false, true)];
    let all = all.into_iter().flat_map(|it| [(it, false), (it, true)]);
    for ((is_reply, is_tcp, is_v6), is_translated) in all {
        let case = Case {
            before: vec![(false, TcpFlags::SYN.0), (true, 0x12), (false, 0x10)],
            silent: 1,
            verdict: Verdict::Allow,
            is_current: true,
            hops: [0, 1],
            is_v6,
            is_tcp,
            port: 80,
            flags: 0x10,
            is_reply,
            ttl: 64,
            len: 1500,
            dont_fragment: true,
            entrance: u32::from(is_reply),
            is_translated,
            has_other_key: false,
        };
        let mut state = state(&case, &tables);
        let metadata = metadata(&packet(&case), &case, &state.flows);
        assert_eq!(metadata.flow.orientation == Orientation::LowToHigh, !is_reply);
        let (forwarding, translation, _) = fast(&tables, &mut state, &metadata).unwrap();
        assert_eq!(translation.is_some(), is_translated);
        assert_eq!(
            (forwarding.link.port, forwarding.rewrite.decrements_ttl),
            (PortId(2 - u16::from(is_reply)), true)
        );
    }
}

proptest! {
    #[test]
    fn the_fast_path_equals_the_slow_path_and_leaves_the_same_state(case in case()) {
        let tables = tables();
        let bytes = packet(&case);
        let (mut quick, mut slow) = (state(&case, &tables), state(&case, &tables));
        let before = flow_of(&quick);
        let metadata = metadata(&bytes, &case, &quick.flows);
        let forwarding = fast(&tables, &mut quick, &metadata);
        let Some((forwarding, translation, counted)) = forwarding else {
            prop_assert_eq!(flow_of(&quick), before, "the fast path changed a flow that it did not decide");
            return Ok(());
        };
        let packet = Pool::new(1).take_filled(&bytes).unwrap();
        let packet = PacketRef { packet: &packet, metadata: &metadata };
        let Decision { fate, rules } = decide(&tables, &mut slow, &packet, NOW);
        prop_assert!(metadata.unit <= forwarding.link.mtu);
        let expected = match translation {
            None => Fate::Forward(forwarding),
            Some(translation) => Fate::Translate(forwarding, translation),
        };
        prop_assert_eq!((fate, rules), (expected, counted));
        prop_assert!(!case.has_other_key || !case.is_translated);
        prop_assert_eq!(flow_of(&quick), flow_of(&slow));
    }
}
