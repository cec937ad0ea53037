//! The table of services and the oracle agree on generated clusters: for clients on every node, at every address,
//! protocol and port.
//!
//! The table follows two clusters, one after the other, so that leftovers of a change are seen,
//! too. A comparison whose answers never differ proves nothing, so the run also counts in how many
//! clusters each rule affected an answer ([`ablation`]).

mod ablation;
mod clusters;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use manx_calculation::services::{Frontends, NodePorts};
use manx_dataplane::services::{FrontendKey, ServiceTable, WithoutBackend};
use manx_dataplane::wire::protocol::UDP;
use manx_objects::contents::{Changes, Contents, Stored};
use manx_objects::object::ObjectKey;
use manx_oracle::{ServiceBackends, ServiceOracle};
use proptest::prelude::*;

use ablation::Feature;
use clusters::{ADDRESSES, EXTERNAL, NODES, OF_PODS_OR_NODES, PORTS, PROTOCOLS};

/// A node, and whether the client is an outside host whose packets arrive at it.
type Asks = (&'static str, bool);

/// The clients, and the addresses, protocols and ports to which they connect.
fn questions() -> impl Iterator<Item = (Asks, IpAddr, u8, u16)> {
    let addresses = ADDRESSES.into_iter().map(|text| text.parse::<IpAddr>().unwrap());
    let nodes = NODES.into_iter().flat_map(|node| [(node, false), (node, true)]);
    let named = addresses.flat_map(move |address| nodes.clone().map(move |it| (it, address)));
    let named = named.flat_map(|(node, address)| PROTOCOLS.map(|it| (node, address, it)));
    named.flat_map(|(node, address, protocol)| PORTS.map(|it| (node, address, protocol, it)))
}

fn external() -> [IpNet; EXTERNAL.len()] {
    EXTERNAL.map(|net| net.parse().unwrap())
}

fn by_oracle(objects: &BTreeMap<ObjectKey, Stored>) -> Vec<ServiceBackends> {
    let external = external();
    let oracle = ServiceOracle::new(objects).with_external_ips(&external);
    let judge = |(node, address, protocol, port)| oracle.backends(node, address, protocol, port);
    questions().map(judge).collect()
}

/// Whether no pod and no node has an address.
fn admits(address: IpAddr) -> bool {
    let nets = OF_PODS_OR_NODES.map(|text| text.parse::<IpNet>().unwrap());
    nets.iter().all(|net| !net.contains(&address))
}

/// The table's answer. `None`: the table has no such frontend.
fn by_table(
    table: &ServiceTable,
    key: &FrontendKey,
    from_outside: bool,
) -> Option<ServiceBackends> {
    let frontend = table.frontend(key)?.of(from_outside);
    let backends: BTreeSet<_> =
        frontend.backends.iter().map(|it| (it.address.to_ip(), it.port)).collect();
    assert_eq!(backends.len(), frontend.backends.len(), "{key:?} has a backend twice");
    if !backends.is_empty() {
        return Some(ServiceBackends::OneOf { backends, affinity: frontend.affinity });
    }
    Some(match frontend.without_backend {
        WithoutBackend::Refuse => ServiceBackends::Refused,
        WithoutBackend::Drop => ServiceBackends::Dropped,
    })
}

/// What changed from one cluster to the next.
fn changes(before: &Contents, after: &Contents) -> Changes {
    let keys = before.objects.keys().chain(after.objects.keys());
    let changed = keys.filter(|key| before.objects.get(key) != after.objects.get(key));
    Changes::Objects(changed.map(|key| (key.clone(), before.objects.get(key).cloned())).collect())
}

/// Compares the backends that keep UDP clients, and those that accept visitors, with the oracle's.
fn compare_all_backends(
    tables: &BTreeMap<&str, Frontends>,
    objects: &BTreeMap<ObjectKey, Stored>,
) -> Result<(), TestCaseError> {
    let external = external();
    let oracle = ServiceOracle::new(objects).with_external_ips(&external);
    for (node, frontends) in tables {
        for (key, frontend) in frontends.table().frontends() {
            let found: Vec<_> =
                frontend.all_backends.iter().map(|it| (it.address.to_ip(), it.port)).collect();
            let expected = if key.protocol == UDP || frontend.takes_visitors {
                oracle.all_backends(key.address.to_ip(), key.protocol, key.port)
            } else {
                BTreeSet::new()
            };
            let expected: Vec<_> = expected.into_iter().collect();
            prop_assert_eq!(found, expected, "{} on {}", shown(key), node);
        }
    }
    Ok(())
}

/// Compares the tables of all nodes with the oracle.
fn compare(
    tables: &BTreeMap<&str, Frontends>,
    answers: &[ServiceBackends],
) -> Result<(), TestCaseError> {
    let mut asked = BTreeSet::new();
    for (((node, outside), address, protocol, port), expected) in questions().zip(answers) {
        let key = FrontendKey { address: address.into(), protocol, port };
        asked.insert(key);
        let frontends = &tables[node];
        match by_table(frontends.table(), &key, outside) {
            Some(found) => {
                prop_assert_eq!(&found, expected, "{} from {} {}", shown(&key), node, outside)
            }
            // Either the address has no such port but others, or no service has the address.
            None => prop_assert!(
                *expected == ServiceBackends::NotAService
                    || *expected == ServiceBackends::Refused
                        && frontends.addresses().contains(&address),
                "{} from {}: not in the table, and the oracle says {:?}",
                shown(&key),
                node,
                expected
            ),
        }
    }
    let taken: BTreeSet<IpAddr> = questions()
        .zip(answers)
        .filter(|(_, answer)| **answer != ServiceBackends::NotAService)
        .map(|((_, address, ..), _)| address)
        .collect();
    for frontends in tables.values() {
        prop_assert_eq!(frontends.addresses(), &taken);
        let unasked = frontends.table().frontends().find(|(key, _)| !asked.contains(key));
        prop_assert!(unasked.is_none(), "{:?} is in the table", unasked);
    }
    Ok(())
}

fn shown(key: &FrontendKey) -> String {
    format!("{} protocol {} port {}", key.address, key.protocol, key.port)
}

#[test]
fn the_table_of_services_says_what_the_oracle_says_and_every_rule_decides_something() {
    let decided: RefCell<BTreeMap<Feature, u32>> = RefCell::default();
    let kinds: RefCell<BTreeMap<&'static str, u32>> = RefCell::default();
    let config = super::config(1);
    let cases = config.cases;
    let clusters = (clusters::cluster(), clusters::cluster());
    let result = super::counting_runner(config).run(&clusters, |(first, second)| {
        let [first, second] =
            [first, second].map(|text| Contents::from_texts([("cluster.yaml", &*text)]));
        let mut tables: BTreeMap<&str, Frontends> = NODES
            .into_iter()
            .map(|node| {
                let frontends = Frontends::new(node, NodePorts::default());
                (node, frontends.with_external_ips(&external()))
            })
            .collect();
        let steps = [(&first, Changes::Everything), (&second, changes(&first, &second))];
        for (contents, changes) in steps {
            prop_assert!(contents.in_sync, "not YAML");
            for frontends in tables.values_mut() {
                frontends.follow(contents, &changes, admits);
            }
            let answers = by_oracle(&contents.objects);
            compare(&tables, &answers)?;
            compare_all_backends(&tables, &contents.objects)?;
            for answer in &answers {
                let kind = match answer {
                    ServiceBackends::NotAService => "not a service",
                    ServiceBackends::Refused => "refused",
                    ServiceBackends::Dropped => "dropped",
                    ServiceBackends::OneOf { .. } => "one of",
                };
                *kinds.borrow_mut().entry(kind).or_default() += 1;
            }
            for feature in Feature::ALL {
                if by_oracle(&feature.removed_from(&contents.objects)) != answers {
                    *decided.borrow_mut().entry(feature).or_default() += 1;
                }
            }
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let (decided, kinds) = (decided.into_inner(), kinds.into_inner());
    println!("{kinds:?}\n{decided:?}");
    let rare = Feature::ALL.map(|it| (it, decided.get(&it).copied().unwrap_or_default()));
    let rare: Vec<_> = rare.into_iter().filter(|(_, count)| *count < cases / 20).collect();
    assert!(rare.is_empty(), "in {} clusters these decide too seldom: {rare:?}", 2 * cases);
    assert!(kinds.len() == 4 && kinds.values().all(|count| *count >= cases), "{kinds:?}");
}
