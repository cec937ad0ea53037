//! The commands with a server in memory. Their output is compared with snapshots.

use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser as _;
use manx_block_ipam::affinity::Owner;
use manx_block_ipam::assign::{Request, assign_named};
use manx_block_ipam::block::{Attributes, Rest, Time};
use manx_block_ipam::config::Config;
use manx_block_ipam::handle::Handle;
use manx_block_ipam::release::release_by_handle;
use manx_block_ipam::store::{Store as _, Which};
use manx_datastore::memory::MemoryWrites;
use manx_datastore::{ServedKey, ServedKind};
use manx_objects::object::Kind;
use serde_json::{Value, json};

use super::*;
use crate::Manx;

fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(work)
}

/// Parses these words as a command.
fn command(words: &str) -> Command {
    let words = ["manx", "ipam"].into_iter().chain(words.split_whitespace());
    match Manx::try_parse_from(words).unwrap().command {
        crate::Command::Ipam(ipam) => ipam.command,
        other => panic!("{other:?}"),
    }
}

fn show(words: &str, cluster: &Cluster<MemoryWrites>) -> String {
    let Command::Show(show) = command(words) else { panic!("{words}") };
    run(show::text(&show, cluster)).unwrap()
}

fn check(words: &str, cluster: &Cluster<MemoryWrites>) -> (String, bool) {
    let Command::Check(check) = command(words) else { panic!("{words}") };
    run(check::text(&check, cluster, Duration::ZERO)).unwrap()
}

fn release_one(words: &str, cluster: &Cluster<MemoryWrites>) -> Result<String, String> {
    let Command::Release(it) = command(words) else { panic!("{words}") };
    run(release::one(it.ip.unwrap(), it.force, cluster)).map_err(|error| error.to_string())
}

fn release_by_report(
    words: &str,
    cluster: &Cluster<MemoryWrites>,
) -> Result<(String, bool), String> {
    let Command::Release(it) = command(words) else { panic!("{words}") };
    run(release::from_reports(&it, cluster)).map_err(|error| error.to_string())
}

fn configure(words: &str, cluster: &Cluster<MemoryWrites>) -> Result<String, String> {
    let Command::Configure(it) = command(words) else { panic!("{words}") };
    run(configure::text(&it, cluster)).map_err(|error| error.to_string())
}

fn split(words: &str, cluster: &Cluster<MemoryWrites>) -> Result<String, String> {
    let Command::Split(it) = command(words) else { panic!("{words}") };
    run(split::text(&it, cluster)).map_err(|error| error.to_string())
}

fn pool(name: &str) -> ServedKey {
    ServedKey::new(Kind::IpPool, "", name)
}

fn pod(name: &str) -> ServedKey {
    ServedKey::new(Kind::Pod, "web", name)
}

fn put_pod(cluster: &Cluster<MemoryWrites>, name: &str, node: &str, address: &str) {
    let pod_of = json!({
        "spec": { "nodeName": node, "containers": [] },
        "status": { "phase": "Running", "podIP": address, "podIPs": [{ "ip": address }] },
    });
    cluster.writes().put(pod(name), pod_of);
}

/// Gives an address to a pod, as its node's agent does.
fn assign(cluster: &Cluster<MemoryWrites>, name: &str, node: &str, address: &str, at: u64) {
    let owner = Owner::Host(node.to_owned());
    let attributes = [("namespace", "web"), ("pod", name), ("node", node)];
    let attributes = attributes.map(|(key, value)| (key.to_owned(), value.to_owned()));
    allocate(cluster, &owner, &format!("k8s-pod-network.{name}"), &attributes.into(), address, at);
}

fn allocate(
    cluster: &Cluster<MemoryWrites>,
    owner: &Owner,
    handle: &str,
    attributes: &Attributes,
    address: &str,
    at: u64,
) {
    let config = Config::default();
    let request =
        Request { owner, handle, attributes, reserved: &[], config: &config, now: Time(at) };
    run(async {
        let pools = cluster.pools().await.unwrap();
        let address: IpAddr = address.parse().unwrap();
        assign_named(&cluster.store, &pools, address, request).await.unwrap();
    });
}

/// Two nodes, one of which borrows; a tunnel; and a deleted pod whose address was not released.
fn cluster() -> Cluster<MemoryWrites> {
    let cluster = sound_cluster();
    assign(&cluster, "gone", "node-a", "10.65.0.9", 4000);
    cluster
}

fn sound_cluster() -> Cluster<MemoryWrites> {
    let cluster = Cluster::new(MemoryWrites::new("crd.projectcalico.org/v1"));
    let server = cluster.writes();
    let spec = json!({ "cidr": "10.65.0.0/16", "ipipMode": "Always", "natOutgoing": true });
    server.put(pool("default-ipv4-ippool"), json!({ "spec": spec }));
    server.put(pool("six"), json!({ "spec": { "cidr": "fd00:65::/48" } }));
    let tunnel = json!({ "projectcalico.org/IPv4IPIPTunnelAddr": "10.65.0.0" });
    let node = |name: &str| ServedKey::new(Kind::Node, "", name);
    server.put(node("node-a"), json!({ "metadata": { "annotations": tunnel } }));
    server.put(node("node-b"), json!({}));
    let reservation = ServedKey::new(ServedKind::IpReservation, "", "r");
    server.put(reservation.clone(), json!({ "spec": { "reservedCIDRs": ["10.65.0.62/31"] } }));
    let of_tunnel = [("node", "node-a"), ("type", "ipipTunnelAddress")];
    let of_tunnel = of_tunnel.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let owner = Owner::Host("node-a".to_owned());
    let handle = "ipip-tunnel-addr-node-a";
    allocate(&cluster, &owner, handle, &of_tunnel.into(), "10.65.0.0", 1000);
    for (name, node, address) in [
        ("a", "node-a", "10.65.0.1"),
        ("b", "node-b", "10.65.7.3"),
        ("c", "node-b", "10.65.0.2"),
        ("d", "node-a", "fd00:65::7"),
    ] {
        assign(&cluster, name, node, address, 2000);
        put_pod(&cluster, name, node, address);
    }
    cluster
}

#[test]
fn pools_blocks_and_addresses_are_shown() {
    let cluster = cluster();
    insta::assert_snapshot!("pools", show("show", &cluster));
    insta::assert_snapshot!("blocks", show("show --show-blocks", &cluster));
    insta::assert_snapshot!("borrowed", show("show --show-borrowed", &cluster));
    let addresses =
        ["10.65.0.2", "10.65.0.9", "10.65.0.0", "10.65.0.40", "10.65.99.1", "192.0.2.1"];
    let told = addresses.map(|it| show(&format!("show --ip={it}"), &cluster));
    insta::assert_snapshot!("addresses", told.join("\n"));
    cluster.writes().remove(&pool("six"));
    let told = show("show", &cluster);
    assert!(
        told.ends_with("\n\n1 of the blocks are in no IPPool; --show-blocks shows them\n"),
        "{told}"
    );
}

#[test]
fn a_sound_cluster_has_no_problem() {
    let (told, is_sound) = check("check --show-problem-ips", &sound_cluster());
    assert!(is_sound && told.ends_with("\n\nno problem found\n"), "{told}");
}

#[test]
fn an_address_of_a_service_is_in_use_while_the_service_is_there() {
    let cluster = sound_cluster();
    let server = cluster.writes();
    let spec = json!({ "cidr": "192.0.2.0/26", "allowedUses": ["LoadBalancer"] });
    server.put(pool("balanced"), json!({ "spec": spec }));
    let service = ServedKey::new(Kind::Service, "web", "front");
    let object = json!({ "metadata": { "uid": "u-1" }, "spec": { "type": "LoadBalancer" } });
    server.put(service.clone(), object);
    let attributes = [("namespace", "web"), ("service", "front"), ("type", "LoadBalancer")];
    let attributes = attributes.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let handle = Handle::of_service("web", "front", "u-1");
    let owner = Owner::load_balancer();
    allocate(&cluster, &owner, &handle, &attributes.into(), "192.0.2.7", 1000);
    let (told, is_sound) = check("check --show-problem-ips", &cluster);
    assert!(is_sound, "{told}");
    let told = show("show --ip=192.0.2.7", &cluster).replace(&handle, "HANDLE");
    insta::assert_snapshot!(told, @r"
    192.0.2.7: allocated to Service web/front, in use
      block: 192.0.2.0/26 of virtual:load-balancer
      handle: HANDLE
      sequence number: 1000
      owner: namespace=web, service=front, type=LoadBalancer
    ");
    assert!(!show("show --show-borrowed", &cluster).contains("it is not known"));
    let refused = release_one("release --ip 192.0.2.7", &cluster).unwrap_err();
    assert!(refused.contains("delete the Service instead"), "{refused}");
    cluster.writes().remove(&service);
    let (told, is_sound) = check("check --show-problem-ips", &cluster);
    assert!(!is_sound && told.contains("is allocated to Service web/front"), "{told}");
}

#[test]
fn problems_are_counted_and_listed_each_with_what_to_do() {
    let cluster = cluster();
    put_pod(&cluster, "host-local", "node-b", "10.65.0.50");
    put_pod(&cluster, "second", "node-b", "10.65.0.1");
    let (told, is_sound) = check("check", &cluster);
    assert!(!is_sound);
    insta::assert_snapshot!("check", told);
    insta::assert_snapshot!("check_all", check("check --show-all-ips", &cluster).0);
    let (listed, _) = check("check --show-problem-ips", &cluster);
    let first = "\n\nallocated addresses that nobody uses:\n  10.65.0.9 of";
    assert!(listed.contains(first), "{listed}");
}

#[test]
fn a_pool_that_is_not_valid_is_told_and_nothing_is_checked_by_it() {
    let cluster = cluster();
    cluster.writes().put(pool("wrong"), json!({ "spec": { "cidr": "ten" } }));
    let Command::Check(it) = command("check") else { panic!() };
    let error = run(check::text(&it, &cluster, Duration::ZERO)).unwrap_err();
    insta::assert_snapshot!(error, @r#"IPPool wrong: spec.cidr: found the string "ten", expected a CIDR without host bits, such as 10.0.0.0/8 or fd00::/64; correct it first"#);
}

fn report(cluster: &Cluster<MemoryWrites>, folder: &tempfile::TempDir, name: &str) -> PathBuf {
    let file = folder.path().join(name);
    check(&format!("check -o {}", file.display()), cluster);
    file
}

#[test]
fn a_report_has_calicos_fields() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = cluster();
    let information = ServedKey::new(ServedKind::ClusterInformation, "", "default");
    let spec = json!({ "clusterGUID": "abc", "clusterType": "k8s,kdd", "datastoreReady": true });
    cluster.writes().put(information.clone(), json!({ "spec": spec }));
    let text = fs::read_to_string(report(&cluster, &folder, "r")).unwrap();
    insta::assert_snapshot!("report", text.replace(env!("CARGO_PKG_VERSION"), "VERSION"));
}

#[test]
fn one_address_is_released_only_if_nobody_uses_it_or_by_force() {
    let cluster = cluster();
    let told = [
        "release --ip 10.65.0.1",
        "release --ip 10.65.0.0",
        "release --ip 10.65.0.40",
        "release --ip 10.65.0.9",
        "release --ip 10.65.0.9",
        "release --ip 10.65.0.1 --force",
    ];
    let told = told.map(|it| match release_one(it, &cluster) {
        Ok(told) => format!("{it}\n  {told}"),
        Err(error) => format!("{it}\n  error: {error}\n"),
    });
    insta::assert_snapshot!("release_one", told.concat());
    let handles = run(cluster.store.list(&Which::Handles)).unwrap();
    assert_eq!(handles.len(), 4, "{handles:?}");
}

#[test]
fn a_report_releases_what_nobody_uses_and_what_is_others_by_now_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = cluster();
    for (name, address) in [
        ("left", "10.65.0.10"),
        ("again", "10.65.0.11"),
        ("back", "10.65.0.12"),
        ("free", "10.65.0.13"),
    ] {
        assign(&cluster, name, "node-a", address, 5000);
    }
    let handle = |id: &str| ServedKey::new(ServedKind::IpamHandle, "", id);
    let of_handle = |id: &str| json!({ "spec": { "handleID": id, "block": { "10.65.0.0/26": 1 }, "deleted": false } });
    for id in ["net.gone", "net.changed"] {
        cluster.writes().put(handle(id), of_handle(id));
    }
    let file = report(&cluster, &folder, "first");
    let words = format!("release --from-report {}", file.display());
    // These changes happen after the report: one address is assigned to another pod, one is
    // released, the pod of one exists again, and a handle is written.
    let rest = Rest { now: Time(1), cooldown: Duration::ZERO };
    for name in ["again", "free"] {
        let handle = format!("k8s-pod-network.{name}");
        let released = run(release_by_handle(&cluster.store, &handle, rest));
        assert_eq!(released.unwrap().len(), 1);
    }
    assign(&cluster, "new", "node-a", "10.65.0.11", 9000);
    put_pod(&cluster, "back", "node-a", "10.65.0.12");
    cluster.writes().put(handle("net.changed"), of_handle("net.changed"));
    let (told, is_all) = release_by_report(&words, &cluster).unwrap();
    assert!(!is_all);
    insta::assert_snapshot!("release_report", told);
    assert!(cluster.writes().object(&handle("net.gone")).is_none());
    assert!(cluster.writes().object(&handle("net.changed")).is_some());
    let (told, _) = release_by_report(&format!("{words} --force"), &cluster).unwrap();
    assert!(told.starts_with("addresses released: 1\nhandles deleted: 0\n"), "{told}");
    // The address that was assigned again stays with its new user.
    assert!(told.contains("10.65.0.11    found sequence number"), "{told}");
}

#[test]
fn of_several_reports_only_what_is_in_all_is_released() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = cluster();
    let first = report(&cluster, &folder, "first");
    assign(&cluster, "later", "node-a", "10.65.0.20", 6000);
    let second = report(&cluster, &folder, "second");
    let words = [&first, &second].map(|it| format!("--from-report={}", it.display())).join(" ");
    let (told, is_all) = release_by_report(&format!("release {words}"), &cluster).unwrap();
    assert_eq!((told.as_str(), is_all), ("addresses released: 1\nhandles deleted: 0\n", true));
    assert!(show("show --ip 10.65.0.20", &cluster).contains("unused"));
    assert!(show("show --ip 10.65.0.9", &cluster).contains("not allocated"));
}

#[test]
fn a_report_of_another_cluster_and_what_is_no_report_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = cluster();
    let information = ServedKey::new(ServedKind::ClusterInformation, "", "default");
    cluster.writes().put(information.clone(), json!({ "spec": { "clusterGUID": "abc" } }));
    let file = report(&cluster, &folder, "r");
    cluster.writes().put(information.clone(), json!({ "spec": { "clusterGUID": "other" } }));
    let refused = |file: &PathBuf| {
        let words = format!("release --from-report {}", file.display());
        let error = release_by_report(&words, &cluster).unwrap_err();
        error.replace(&folder.path().display().to_string(), "DIR")
    };
    let of_other = refused(&file);
    fs::write(&file, "{}").unwrap();
    let told = [of_other, refused(&file), refused(&folder.path().join("none"))];
    insta::assert_snapshot!(told.join("\n"), @"
    report DIR/r: found the cluster abc, expected other: it is another cluster's
    report DIR/r: missing field `allocations` at line 1 column 2; expected what manx ipam check -o FILE or calicoctl ipam check -o FILE has written
    report DIR/none: No such file or directory (os error 2); expected what manx ipam check -o FILE or calicoctl ipam check -o FILE has written
    ");
}

#[test]
fn settings_are_shown_and_changed_and_contradictions_refused() {
    let cluster = cluster();
    let told = [
        "configure show",
        "configure --strictaffinity=true --max-blocks-per-host 3",
        "configure --strictaffinity=false",
        "configure --max-blocks-per-host=0",
        "configure --strictaffinity=false",
    ];
    let told = told.map(|it| match configure(it, &cluster) {
        Ok(told) => format!("{it}\n{told}"),
        Err(error) => format!("{it}\nerror: {error}\n"),
    });
    insta::assert_snapshot!("configure", told.join("\n"));
    assert_eq!(
        show("show --show-configuration", &cluster),
        configure("configure show", &cluster).unwrap()
    );
    let key = ServedKey::new(ServedKind::IpamConfig, "", "default");
    let spec = cluster.writes().object(&key).unwrap()["spec"].clone();
    let expected =
        json!({ "strictAffinity": false, "autoAllocateBlocks": true, "maxBlocksPerHost": 0 });
    assert_eq!(spec, expected);
}

#[test]
fn a_pool_is_split_into_parts_with_its_settings() {
    let cluster = cluster();
    let parent = pool("default-ipv4-ippool");
    let mut object = cluster.writes().object(&parent).unwrap();
    let own =
        json!({ "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z", "labels": { "x": "y" } });
    object["metadata"]["annotations"] = json!({
        "projectcalico.org/metadata": own.to_string(),
        "kubectl.kubernetes.io/last-applied-configuration": "{}",
    });
    cluster.writes().put(parent.clone(), object);
    // An interrupted run has made the second part.
    let spec = json!({ "cidr": "10.65.128.0/17", "ipipMode": "Always", "natOutgoing": true });
    cluster.writes().put(pool("split-default-ipv4-ippool-1"), json!({ "spec": spec }));
    insta::assert_snapshot!("split", split("split 2 --cidr=10.65.0.0/16", &cluster).unwrap());
    assert!(cluster.writes().object(&parent).is_none());
    let part = cluster.writes().object(&pool("split-default-ipv4-ippool-0")).unwrap();
    let expected = json!({ "cidr": "10.65.0.0/17", "ipipMode": "Always", "natOutgoing": true });
    assert_eq!(part["spec"], expected);
    let annotations = json!({ "projectcalico.org/metadata": r#"{"labels":{"x":"y"}}"# });
    assert_eq!(part["metadata"]["annotations"], annotations);
    assert_eq!(run(cluster.store.list(&Which::Blocks)).unwrap().len(), 3);
    assert!(!show("show", &cluster).contains("in no IPPool"));
}

#[test]
fn a_pool_that_cannot_be_split_stays_as_it_is() {
    let cluster = cluster();
    let refused = |words: &str| format!("{words}\n  {}\n", split(words, &cluster).unwrap_err());
    let spec = json!({ "cidr": "10.99.0.0/16" });
    cluster.writes().put(pool("split-six-1"), json!({ "spec": spec }));
    let mut told = [
        "split 3 --name six",
        "split 2 --name none",
        "split 2 --cidr 10.65.0.0/17",
        "split 2 --name six",
    ]
    .map(refused)
    .concat();
    let small = json!({ "spec": { "cidr": "10.66.0.0/25" } });
    cluster.writes().put(pool("small"), small);
    told.push_str(&refused("split 4 --name small"));
    let information = ServedKey::new(ServedKind::ClusterInformation, "", "default");
    cluster.writes().put(information.clone(), json!({ "spec": { "datastoreReady": true } }));
    told.push_str(&refused("split 2 --name small"));
    insta::assert_snapshot!("split_refused", told);
    assert!(cluster.writes().object(&pool("split-six-0")).is_none(), "nothing is begun");
    assert!(cluster.writes().object(&pool("small")).is_some());
    cluster.writes().put(information.clone(), json!({ "spec": { "datastoreReady": false } }));
    assert!(split("split 2 --name small", &cluster).is_ok());
}

#[test]
fn options_are_spelled_as_calicoctl_spells_them() {
    for words in [
        "show --show-blocks",
        "show --ip=10.65.0.1",
        "check --show-all-ips --show-problem-ips -o report.json --kubeconfig=k",
        "check --output=report.json",
        "release --ip=10.65.0.1",
        "release --from-report=a --from-report=b --force",
        "configure --strictaffinity=true --max-blocks-per-host=4",
        "split --cidr=10.65.0.0/16 2",
        "split 2 --name=pool",
    ] {
        command(words);
    }
    for words in [
        "release",
        "release --ip=10.65.0.1 --from-report=a",
        "configure",
        "split 2",
        "configure show --strictaffinity=true",
        "show --ip=ten",
    ] {
        let words = ["manx", "ipam"].into_iter().chain(words.split_whitespace());
        assert!(Manx::try_parse_from(words).is_err());
    }
}

#[test]
fn a_damaged_object_is_named_and_nothing_is_decided_by_it() {
    let cluster = cluster();
    let key = ServedKey::new(ServedKind::IpamBlock, "", "10-65-0-0-26");
    let mut block: Value = cluster.writes().object(&key).unwrap();
    block["spec"]["allocations"] = json!([]);
    cluster.writes().put(key.clone(), block);
    let Command::Show(it) = command("show") else { panic!() };
    let error = run(show::text(&it, &cluster)).unwrap_err();
    insta::assert_snapshot!(error, @"IPAMBlock 10-65-0-0-26 is damaged: spec.allocations: found 0 entries, expected 64. Nothing is decided while an object cannot be read: correct it, or restore it from a backup");
}
