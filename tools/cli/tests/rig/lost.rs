//! Devices that disappear while the agent runs.

use std::path::Path;

use crate::bench::{Bench, json};
use crate::traffic::{Talker, assert_flows, assert_silent};
use manx_api::client::Client;
use manx_api::{Attach, PodName};

#[test]
fn a_pod_whose_device_goes_is_cut_off_until_it_is_attached_anew_over_tun() {
    a_pod_whose_device_goes_is_cut_off_until_it_is_attached_anew("auto");
}

#[test]
fn a_pod_whose_device_goes_is_cut_off_until_it_is_attached_anew_over_veth() {
    a_pod_whose_device_goes_is_cut_off_until_it_is_attached_anew("veth");
}

#[test]
fn a_pod_whose_device_goes_is_cut_off_until_it_is_attached_anew_over_tap() {
    a_pod_whose_device_goes_is_cut_off_until_it_is_attached_anew("tap");
}

fn a_pod_whose_device_goes_is_cut_off_until_it_is_attached_anew(device: &str) {
    let Some(bench) = Bench::with_device(device) else { return };
    bench.keep_open(&["--pod-device", device]);
    let [web, stranger] = ["demo/web", "demo/stranger"].map(|pod| bench.address(0, pod));
    let _at_web = Talker::start(&bench, "demo/web", &[]);
    let _at_stranger = Talker::start(&bench, "demo/stranger", &[]);
    let talker = Talker::start(&bench, "demo/client", &[web, stranger]);
    let to = |peer| ["tcp", "udp"].map(|transport| (&talker, format!("back {transport} {peer}")));
    assert_flows(&[to(web), to(stranger)].concat());

    delete(&bench, "demo/web", "eth0");
    bench.await_log("the pod's device is gone; nothing passes until it is attached anew");
    assert!(!ports(&bench).contains(&"pod:demo/web".to_owned()));
    assert!(!endpoints(&bench).contains(&"web".to_owned()));
    assert_silent(&to(web));
    // The other pods continue.
    assert_flows(&to(stranger));

    // Pods' namespaces are numbered by their pods' names: client, stranger, web.
    let netns = bench.folder.path().join("manx/rigs/demo/ns/pod-2");
    let mut agent = Client::connect(Path::new(&bench.socket(0))).unwrap();
    let pod = PodName { namespace: "demo".to_owned(), name: "web".to_owned() };
    let attach = Attach::new(pod, netns, "eth0");
    assert_eq!(agent.attach(attach).unwrap().addresses, [web], "it kept its address");
    assert!(ports(&bench).contains(&"pod:demo/web".to_owned()));
    assert_flows(&[to(web), to(stranger)].concat());
}

#[test]
fn an_agent_whose_own_device_goes_ends_and_says_so_and_nothing_passes_over_tun() {
    an_agent_whose_own_device_goes_ends_and_says_so("auto");
}

#[test]
fn an_agent_whose_own_device_goes_ends_and_says_so_and_nothing_passes_over_veth() {
    an_agent_whose_own_device_goes_ends_and_says_so("veth");
}

#[test]
fn an_agent_whose_own_device_goes_ends_and_says_so_and_nothing_passes_over_tap() {
    an_agent_whose_own_device_goes_ends_and_says_so("tap");
}

fn an_agent_whose_own_device_goes_ends_and_says_so(device: &str) {
    let Some(bench) = Bench::with_device(device) else { return };
    bench.keep_open(&["--pod-device", device]);
    let [web, stranger] = ["demo/web", "demo/stranger"].map(|pod| bench.address(0, pod));
    // The pod also sends to the world: a packet socket whose device went down before it disappeared reports that to the
    // sender.
    let world = "192.0.2.1".parse().unwrap();
    let at_web = Talker::start(&bench, "demo/web", &[stranger, world]);
    let at_stranger = Talker::start(&bench, "demo/stranger", &[web]);
    let far = Talker::start(&bench, "demo/client", &[web]);
    let all: Vec<_> = [(&at_web, stranger), (&at_stranger, web), (&far, web)]
        .into_iter()
        .flat_map(|(talker, peer)| ["tcp", "udp"].map(|t| (talker, format!("back {t} {peer}"))))
        .collect();
    assert_flows(&all);

    delete(&bench, "node/node-1", "manx0");
    bench.await_log("the device of the node's port host failed");
    assert_silent(&all);
    // No agent answers any more: neither a living one without its device, nor the socket file of a dead one.
    let status = bench.manx(&["status", "--socket", &bench.socket(0)]);
    assert_eq!(status.status.code(), Some(3), "{}", String::from_utf8_lossy(&status.stdout));
}

/// Deletes an interface in the network namespace of a pod or node.
fn delete(bench: &Bench, party: &str, interface: &str) {
    let output = bench
        .manx(&["rig", "exec", "--rig", "demo", party, "--", "ip", "link", "delete", interface]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn status(bench: &Bench) -> serde_json::Value {
    json(&bench.manx(&["status", "--output", "json", "--socket", &bench.socket(0)]))
}

fn ports(bench: &Bench) -> Vec<String> {
    let status = status(bench);
    let ports = status["ports"].as_array().unwrap().iter();
    ports.map(|port| port["name"].as_str().unwrap().to_owned()).collect()
}

fn endpoints(bench: &Bench) -> Vec<String> {
    let status = status(bench);
    let endpoints = status["endpoints"].as_array().unwrap().iter();
    endpoints.map(|one| one["pod"]["name"].as_str().unwrap().to_owned()).collect()
}
