use std::pin::pin;
use std::task::{Context, Poll, Waker};

use manx_datastore::memory::{MemoryWrites, annotated};
use manx_datastore::{ServedKey, ServedKind};
use serde_json::{Value, json};

use super::*;
use crate::handle::Tunnel;
use crate::memory::pool;
use crate::tunnels::set_tunnel_address;

const V1: &str = "crd.projectcalico.org/v1";
const V3: &str = "projectcalico.org/v3";
const NOW: Time = Time(1_764_378_000_000_000_000);

fn done<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("a server in memory never waits"),
    }
}

/// Returns a cluster with the pods `web/a` to `web/h`, which have these annotations.
fn cluster(version: &'static str, annotations: &Value) -> Objects<MemoryWrites> {
    let writes = MemoryWrites::new(version);
    for name in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        writes.put(ServedKey::new(Kind::Pod, "web", name), annotated(annotations, &json!({})));
    }
    writes.put(ServedKey::new(Kind::Namespace, "", "web"), annotated(&json!({}), &json!({})));
    Objects::new(writes)
}

fn ask(
    objects: &Objects<MemoryWrites>,
    node: &str,
    name: &str,
    pools: &[Pool],
) -> Result<Vec<IpAddr>, PodError> {
    let taken = BTreeMap::from([("10.65.0.1".parse().unwrap(), "Node \"n1\"".to_owned())]);
    let labels = Labels::new();
    let place = Place { node, node_labels: &labels, pools, taken: &taken };
    let handle = format!("k8s-pod-network.{node}-{name}");
    let pod = Pod { namespace: "web", name, handle: &handle, addresses: &[] };
    done(assign_pod(objects, pod, place, NOW))
}

fn addresses(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|it| it.parse().unwrap()).collect()
}

#[test]
fn pods_get_addresses_of_their_nodes_blocks_in_both_versions_of_the_api() {
    for version in [V1, V3] {
        let objects = cluster(version, &json!({}));
        let pools = [pool("10.65.0.0/29", 30), pool("fd00::/120", 122)];
        let first = ask(&objects, "n1", "a", &pools).unwrap();
        assert_eq!(first.len(), 2, "one of each family");
        assert_eq!(ask(&objects, "n1", "a", &pools), Ok(first.clone()), "the same request again");
        let second = ask(&objects, "n2", "b", &pools).unwrap();
        let block = |address: &IpAddr| IpNet::new(*address, 30).unwrap().trunc();
        assert_ne!(block(&first[0]), block(&second[0]));
        let others = ["c", "d", "e", "f", "g"];
        let rest = others.map(|pod| ask(&objects, "n1", pod, &pools).unwrap());
        assert!(ask(&objects, "n1", "h", &pools).unwrap_err().is_exhausted());
        let of_node: IpAddr = "10.65.0.1".parse().unwrap();
        let all = [&first, &second].into_iter().chain(&rest).flatten();
        assert!(all.clone().all(|address| *address != of_node), "seven of eight, and not that one");
        assert_eq!(all.collect::<std::collections::BTreeSet<_>>().len(), 14);
        let all = objects.writes().objects();
        let affinities = all.keys().filter(|key| key.kind == Kind::BlockAffinity.into());
        assert_eq!(affinities.count(), 4);
        let (_, deleted) = all
            .iter()
            .find(|(key, _)| key.kind == Kind::BlockAffinity.into())
            .map(|(key, it)| (key, it["spec"]["deleted"].clone()))
            .unwrap();
        assert_eq!(deleted.is_string(), version == V1);
        let rest = Rest { now: NOW, cooldown: std::time::Duration::ZERO };
        let handle = "k8s-pod-network.n1-a";
        assert_eq!(done(release_by_handle(&objects, handle, rest)).unwrap().len(), 2);
        let left = objects.writes().objects();
        let left = left.keys().filter(|key| key.kind == ServedKind::IpamHandle);
        let expected = others.map(|pod| format!("k8s-pod-network.n1-{pod}"));
        let expected = expected.into_iter().chain(["k8s-pod-network.n2-b".to_owned()]);
        assert!(left.map(|key| key.name.clone()).eq(expected));
    }
}

#[test]
fn named_addresses_are_given_as_they_are_named_or_not_at_all() {
    let named = "cni.projectcalico.org/ipAddrs";
    let pools = [pool("10.65.0.0/24", 26), pool("fd00::/116", 122)];
    let objects = cluster(V3, &json!({ named: "[\"10.65.0.77\", \"fd00::7\"]" }));
    let got = ask(&objects, "n1", "a", &pools);
    assert_eq!(got, Ok(addresses(&["10.65.0.77", "fd00::7"])));
    let error = ask(&objects, "n2", "b", &pools).unwrap_err();
    assert_eq!(error.to_string(), "address 10.65.0.77 is taken by pod web/a");
    for (address, expected) in [
        ("10.65.0.1", "address 10.65.0.1 is that of Node \"n1\": name another"),
        (
            "10.66.0.1",
            "address 10.66.0.1 lies in no IPPool that is enabled: name an address of a pool",
        ),
    ] {
        let objects = cluster(V3, &json!({ named: format!("[\"fd00::9\", \"{address}\"]") }));
        let error = ask(&objects, "n1", "a", &pools).unwrap_err();
        assert_eq!(error.to_string(), expected);
        let left = objects.writes().objects();
        let handles = left.keys().filter(|key| key.kind == ServedKind::IpamHandle);
        assert_eq!(handles.count(), 0, "the other family's address is given back");
    }
}

#[test]
fn settings_and_reservations_of_the_cluster_count() {
    let objects = cluster(V1, &json!({}));
    let spec = json!({ "spec": { "strictAffinity": true, "autoAllocateBlocks": true } });
    objects.writes().put(ServedKey::new(ServedKind::IpamConfig, "", "default"), spec);
    let spec = json!({ "spec": { "reservedCIDRs": ["10.65.0.0/31", "10.65.0.2"] } });
    objects.writes().put(ServedKey::new(ServedKind::IpReservation, "", "mine"), spec);
    let pools = [pool("10.65.0.0/30", 30)];
    assert_eq!(ask(&objects, "n1", "a", &pools), Ok(addresses(&["10.65.0.3"])));
    let error = ask(&objects, "n2", "b", &pools).unwrap_err();
    assert!(error.is_exhausted());
    assert_eq!(
        error.to_string(),
        "no free address in 10.65.0.0/30, of blocks of this node or free ones (strictAffinity): add an IPPool, or \
         release addresses (`manx ipam check` finds those that nobody uses)"
    );
    let spec = json!({ "spec": { "strictAffinity": false, "autoAllocateBlocks": false } });
    objects.writes().put(ServedKey::new(ServedKind::IpamConfig, "", "default"), spec);
    let error = ask(&objects, "n2", "b", &pools).unwrap_err().to_string();
    assert!(error.contains("no node would get an address; set one of them"), "{error}");
}

#[test]
fn a_server_that_goes_away_fails_the_request_and_the_next_one_gets_the_same_address() {
    let objects = cluster(V3, &json!({}));
    let pools = [pool("10.65.0.0/24", 26)];
    objects.writes().set_down(true);
    let error = ask(&objects, "n1", "a", &pools).unwrap_err();
    assert!(error.is_passing(), "{error}");
    objects.writes().set_down(false);
    let first = ask(&objects, "n1", "a", &pools).unwrap();
    assert_eq!(ask(&objects, "n1", "a", &pools), Ok(first));
    let error = ask(&objects, "n1", "gone", &pools).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the API server has no Pod web/gone: it was deleted before it got addresses"
    );
}

#[test]
fn a_tunnel_address_stays_while_its_pool_is_encapsulated() {
    let objects = cluster(V3, &json!({}));
    let labels = Labels::new();
    let set = |pools: &[Pool]| {
        let node = ("n1", &labels);
        done(set_tunnel_address(&objects, Tunnel::Ipip, node, pools, &[], NOW)).unwrap()
    };
    let (old, new) = (pool("10.65.0.0/24", 26), pool("10.66.0.0/24", 26));
    let first = set(std::slice::from_ref(&old)).unwrap();
    assert!(old.cidr.contains(&first));
    assert_eq!(set(&[old.clone(), new.clone()]), Some(first));
    let second = set(std::slice::from_ref(&new)).unwrap();
    assert!(new.cidr.contains(&second));
    assert_eq!(set(&[]), None);
    let left = objects.writes().objects();
    assert_eq!(left.keys().filter(|key| key.kind == ServedKind::IpamHandle).count(), 0);
    let pod = ask(&objects, "n1", "a", &[new]).unwrap();
    assert!(pod[0] != second, "what was given back comes last");
}
