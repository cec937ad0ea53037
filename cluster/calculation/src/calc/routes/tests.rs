use std::cell::Cell;

use manx_dataplane::tables::{PortId, TrackingSettings};
use manx_policy_compiler::model::ObjectName;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;
use crate::calc::{Calculation, LocalPod, ServiceMode};
use crate::import::Cluster;
use crate::interfaces::Interfaces;
use crate::overlay::Overlay;
use crate::topology::{NoRoute, Peer, Topology};

const PEERS: [Peer; 2] = [
    Peer { address: Ipv4Addr::new(172, 18, 0, 3), overlay: Overlay::Ipip },
    Peer { address: Ipv4Addr::new(172, 18, 0, 4), overlay: Overlay::Ipip },
];

/// A prefix that gets a route or loses it.
type Step = (IpNet, Option<Route>);

fn step() -> impl Strategy<Value = Step> {
    let v4 = (0u32..1 << 12, prop::sample::select(vec![16u8, 18, 20, 23, 24, 25, 26, 28, 31, 32]));
    let v4 = v4.prop_map(|(host, length)| {
        let address = Ipv4Addr::from_bits(0x0a00_0000 | host);
        IpNet::V4(Ipv4Net::new_assert(address, length).trunc())
    });
    let v6 = prop::sample::select(vec!["fd00::/64", "fd00::/80"]);
    let prefix = prop_oneof![20 => v4, 1 => v6.prop_map(|text| text.parse().unwrap())];
    let route = prop::sample::select(vec![
        Route::Local,
        Route::Node,
        Route::World,
        Route::NoRoute(NoRoute::Unclaimed),
        Route::Tunnel(PEERS[0]),
        Route::Tunnel(PEERS[1]),
        // A tunnel to a node that the tables may not know.
        Route::Tunnel(Peer { address: Ipv4Addr::new(172, 18, 0, 5), overlay: Overlay::Ipip }),
    ]);
    (prefix, prop::option::weighted(0.7, route))
}

/// An address that an attached pod has, within blocks that change.
const ATTACHED: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 7);

fn with_inputs<T>(topology: &Topology, then: impl FnOnce(&Inputs<'_>) -> T) -> T {
    let (name, addresses) = (ObjectName::new("shop", "web"), vec![ATTACHED.into()]);
    let local =
        LocalPod { index: 0, attachment: 1, port: PortId(5), host: None, addresses, mtu: 1480 };
    then(&Inputs {
        cluster: &Cluster::default(),
        topology,
        locals: &BTreeMap::from([(&name, &local)]),
        underlay: &Underlay::new(1500, PortId(1)),
        host: Link::native(PortId(0), 1500),
        forwarded: None,
        own_addresses: &BTreeSet::new(),
        uplink: None,
        services: ServiceMode::Nobody,
        connections: TrackingSettings::default(),
        interfaces: Interfaces { node: "node", uplink: None, addresses: &[] },
    })
}

/// Returns the addresses on both sides of both bounds of these prefixes.
fn edges<'a>(prefixes: impl IntoIterator<Item = &'a IpNet>) -> Vec<IpAddr> {
    let edges = |prefix: &IpNet| match prefix {
        IpNet::V4(prefix) => {
            let [first, last] = [prefix.network(), prefix.broadcast()].map(Ipv4Addr::to_bits);
            [first - 1, first, last, last + 1].map(|bits| Ipv4Addr::from_bits(bits).into()).to_vec()
        }
        IpNet::V6(prefix) => vec![prefix.network().into(), prefix.broadcast().into()],
    };
    prefixes.into_iter().flat_map(edges).collect()
}

#[test]
fn routes_stored_in_place_are_those_made_anew_and_every_change_is_counted() {
    let (in_place, anew) = (Cell::new(0), Cell::new(0));
    let config = Config { cases: 48, failure_persistence: None, ..Config::default() };
    let law = |steps: Vec<Vec<Step>>| {
        let attached = IpNet::from(IpAddr::from(ATTACHED));
        let changed = steps.iter().flatten().map(|(prefix, _)| prefix);
        let addresses = edges(changed.chain([&attached]));
        let mut topology = Topology {
            underlay: Some(Ipv4Addr::new(172, 18, 0, 2)),
            senders: PEERS.into(),
            ..Topology::default()
        };
        let mut calculation = Calculation::default();
        let mut tables = with_inputs(&topology, |inputs| calculation.tables(inputs));
        for changes in steps {
            for (prefix, route) in changes {
                match route {
                    Some(route) => _ = topology.prefixes.insert(prefix, route),
                    None => _ = topology.prefixes.remove(&prefix),
                }
            }
            let seen = |tables: &Tables| -> Vec<_> {
                let seen = |address: &IpAddr| {
                    let bits = match address {
                        IpAddr::V4(v4) => v4.to_bits(),
                        IpAddr::V6(_) => 0,
                    };
                    (tables.next_hop((*address).into()), tables.changes([bits; 2]))
                };
                addresses.iter().map(seen).collect()
            };
            let before = seen(&tables);
            let stored = with_inputs(&topology, |it| {
                calculation.change_routes(&tables, it, None) != InPlace::Refused
            });
            if stored {
                in_place.set(in_place.get() + 1);
                for (address, (was, is)) in addresses.iter().zip(before.iter().zip(seen(&tables))) {
                    prop_assert!(was.0 == is.0 || was.1 != is.1, "{} is not counted", address);
                }
            } else {
                anew.set(anew.get() + 1);
                tables = with_inputs(&topology, |inputs| calculation.tables(inputs));
            }
            // Tunnels keep their numbers. So the comparison with newly calculated tables uses the meaning of the
            // numbers.
            let fresh = with_inputs(&topology, |inputs| Calculation::default().tables(inputs));
            let meaning = |tables: &Tables, address: &IpAddr| {
                let next_hop = tables.next_hop((*address).into());
                let NextHop::Tunnel(index) = next_hop else { return Err(next_hop) };
                Ok(tables.tunnel(index).map(|tunnel| tunnel.remote))
            };
            prop_assert_eq!(tables.next_hop(IpAddr::from(ATTACHED).into()), NextHop::Endpoint(0));
            for address in &addresses {
                prop_assert_eq!(meaning(&tables, address), meaning(&fresh, address), "{}", address);
            }
        }
        Ok(())
    };
    TestRunner::new(config).run(&vec(vec(step(), 1..3), 1..24), law).unwrap();
    let least = (in_place.get() + anew.get()) / 10;
    assert!(in_place.get() > least && anew.get() > least, "{in_place:?} {anew:?}");
}
