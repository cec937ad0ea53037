use serde_json::{Value, json};

use super::fields::{Version, config, mark_deleted, read, write, write_config};
use super::names::{labels_of, name, selector_of};
use super::*;
use crate::affinity::State;
use crate::block::{Attributes, Block, Rest, Time};
use std::time::Duration;

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn host(name: &str) -> Owner {
    Owner::Host(name.to_owned())
}

#[test]
fn names_and_labels_are_those_of_calico() {
    assert_eq!(name(&Key::Block(net("10.65.0.0/26"))), "10-65-0-0-26");
    assert_eq!(name(&Key::Block(net("fd00:1::40/122"))), "fd00-1--40-122");
    assert_eq!(name(&Key::Handle("k8s-pod-network.ABC".to_owned())), "k8s-pod-network.abc");
    let affinity = Key::Affinity(host("node-a"), net("10.65.0.0/26"));
    assert_eq!(name(&affinity), "node-a-10-65-0-0-26");
    let long = "n".repeat(250);
    let name = name(&Key::Affinity(host(&long), net("10.65.0.0/26")));
    assert_eq!(name.len(), 252);
    assert!(name.contains("-10-65-0-0-26-"), "{name}");
    let labels = labels_of(&host("node-a"), net("10.65.0.0/26"));
    // Calico's own code computes this value for the name.
    let hash = "PY3TQE2E3XMTETLM2MJO3UITKPFB27YUJ4T4E5XGPEJON3SM4QAA";
    assert_eq!(labels[0], ("projectcalico.org/hostname-hash", hash.to_owned()));
    let selector =
        format!("projectcalico.org/hostname-hash={hash},projectcalico.org/affinity-type=host");
    assert_eq!(selector_of(&host("node-a")), selector);
}

/// Returns a block as Calico 3.32 writes it: a tunnel address and two pods, one of which is on
/// another node.
fn calicos_block() -> Value {
    let mut allocations = vec![Value::Null; 64];
    for (at, attribute) in [(0, 0), (1, 1), (7, 2), (8, 1)] {
        allocations[at] = attribute.into();
    }
    let free: Vec<u32> = (2..64).filter(|at| ![7, 8].contains(at)).collect();
    json!({
        "metadata": { "name": "10-65-0-0-26", "annotations": { "kept": "yes" } },
        "spec": {
            "cidr": "10.65.0.0/26",
            "affinity": "host:node-a",
            "affinityClaimTime": "2026-11-29T01:02:03Z",
            "allocations": allocations,
            "unallocated": free,
            "attributes": [
                { "handle_id": "ipip-tunnel-addr-node-a",
                  "secondary": { "node": "node-a", "type": "ipipTunnelAddress" } },
                { "handle_id": "k8s-pod-network.1",
                  "secondary": { "namespace": "default", "node": "node-a", "pod": "web" } },
                { "handle_id": "k8s-pod-network.2",
                  "secondary": { "namespace": "default", "node": "node-b", "pod": "db" } },
            ],
            "sequenceNumber": 1_764_378_123_000_000_005_u64,
            "sequenceNumberForAllocation": { "0": 3, "1": 4, "7": 5, "8": 4 },
            "strictAffinity": false,
            "deleted": false,
            "ofTheFuture": [1],
        },
    })
}

fn read_block(object: &Value) -> Block {
    match read(ServedKind::IpamBlock, object) {
        Ok(Some(Record::Block(block))) => block,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_block_of_calicos_is_read_and_written_back_as_it_was() {
    let object = calicos_block();
    let block = read_block(&object);
    assert_eq!(block.owner, Some(host("node-a")));
    assert_eq!(block.allocations.len(), 4);
    assert_eq!(block.addresses_of("k8s-pod-network.1").count(), 2);
    let written = write(&Record::Block(block), Version::V1, object.clone());
    assert_eq!(written, object);
}

#[test]
fn a_changed_block_is_read_as_it_was_meant() {
    let mut block = read_block(&calicos_block());
    let rest = Rest { now: Time(1_764_378_200_000_000_000), cooldown: Duration::from_mins(1) };
    block.release_handle("k8s-pod-network.2", rest);
    for allocation in block.allocations.values_mut().take(1) {
        allocation.alternate = Attributes::from([("pod".to_owned(), "other".to_owned())]);
    }
    let owner = Attributes::from([("pod".to_owned(), "new".to_owned())]);
    let given = block.allocate_next("k8s-pod-network.3", &owner, &[net("10.65.0.2/31")]);
    assert_eq!(given, Some("10.65.0.4".parse().unwrap()));
    for version in [Version::V1, Version::V3] {
        let written = write(&Record::Block(block.clone()), version, calicos_block());
        assert_eq!(read_block(&written), block);
        assert_eq!(written["metadata"], calicos_block()["metadata"]);
        assert_eq!(written["spec"]["ofTheFuture"], json!([1]));
    }
    block.owner = None;
    block.claimed_at = None;
    let written = write(&Record::Block(block.clone()), Version::V3, calicos_block());
    assert_eq!(written["spec"].get("affinity"), None, "a null would be refused");
    assert_eq!(read_block(&written), block);
}

#[test]
fn a_block_that_says_something_twice_is_mended_and_one_without_meaning_is_refused() {
    let mut object = calicos_block();
    object["spec"]["unallocated"] = json!([5, 5, 7, 99, 2]);
    let block = read_block(&object);
    assert_eq!(block.free.iter().take(3).collect::<Vec<_>>(), [&5, &2, &3]);
    assert_eq!(block.free.len() + block.allocations.len(), 64);
    for (field, value, expected) in [
        (
            "cidr",
            json!("10.65.0.0"),
            "spec.cidr: found \"10.65.0.0\", expected a net as 10.65.0.0/26",
        ),
        (
            "cidr",
            json!("10.0.0.0/8"),
            "spec.cidr: found 10.0.0.0/8, expected a net of at most 4096 addresses",
        ),
        (
            "affinity",
            json!("node-a"),
            "spec.affinity: found \"node-a\", expected host:NODE or virtual:NAME",
        ),
        (
            "attributes",
            json!([]),
            "spec.allocations[0]: found 0, expected a place in spec.attributes",
        ),
        ("allocations", json!([null]), "spec.allocations: found 1 entries, expected 64"),
        ("deleted", json!("perhaps"), "spec.deleted: found \"perhaps\", expected true or false"),
        (
            "affinityClaimTime",
            json!("now"),
            "spec.affinityClaimTime: found \"now\", expected a time as 2026-11-29T01:02:03Z",
        ),
    ] {
        let mut object = calicos_block();
        object["spec"][field] = value;
        assert_eq!(read(ServedKind::IpamBlock, &object), Err(expected.to_owned()));
    }
}

#[test]
fn deleted_is_a_text_in_affinities_of_the_first_version_only() {
    let kind = ServedKind::from(Kind::BlockAffinity);
    let affinity = Record::Affinity(Affinity {
        owner: host("node-a"),
        cidr: net("10.65.0.0/26"),
        state: State::Confirmed,
    });
    for (version, not, is) in
        [(Version::V1, json!("false"), json!("true")), (Version::V3, json!(false), json!(true))]
    {
        let object = write(&affinity, version, json!({}));
        assert_eq!(object["spec"]["deleted"], not);
        assert_eq!(read(kind, &object), Ok(Some(affinity.clone())));
        let marked = mark_deleted(version, kind, object);
        assert_eq!(marked["spec"]["deleted"], is);
        assert_eq!(read(kind, &marked), Ok(None));
    }
    // The oldest versions wrote the object in this form.
    let old = json!({ "spec": { "cidr": "10.65.0.0/26", "node": "node-a", "deleted": "" } });
    assert_eq!(read(kind, &old), Ok(Some(affinity)));
}

#[test]
fn settings_that_are_absent_have_calicos_defaults() {
    assert_eq!(config(&json!({})), Ok(Config::default()));
    let set = json!({ "strictAffinity": true, "maxBlocksPerHost": 3, "ipCooldownSeconds": 30 });
    let expected = Config {
        strict_affinity: true,
        claims_blocks: true,
        max_blocks: 3,
        cooldown: Duration::from_secs(30),
    };
    assert_eq!(config(&set), Ok(expected.clone()));
    assert_eq!(config(&write_config(&expected)), Ok(expected));
    assert!(config(&json!({ "strictAffinity": "yes" })).unwrap_err().contains("true or false"));
}
