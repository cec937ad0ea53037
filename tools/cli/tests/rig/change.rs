//! Policy that changes while connections are open.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use manx_api::client::Client;
use manx_api::{Attach, PodName};

use crate::bench::{Bench, deviations, json};
use crate::traffic::{Talker, assert_flows, assert_silent};

/// In addition to the template's policy, which allows the client only web's port: everything from the client.
const OPEN_TO_CLIENT: &str = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: open, namespace: demo}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress: [{from: [{podSelector: {matchLabels: {app: client}}}]}]
";

#[test]
fn a_change_of_policy_stops_an_open_connection_and_lets_it_go_on() {
    let Some(bench) = Bench::new() else { return };
    bench.keep_open(&[]);
    let web = bench.address(0, "demo/web");
    let _at_web = Talker::start(&bench, "demo/web", &[]);
    let near = Talker::start(&bench, "demo/stranger", &[web]);
    let far = Talker::start(&bench, "demo/client", &[web]);
    let both = |talker| ["tcp", "udp"].map(|transport| (talker, format!("back {transport} {web}")));
    assert_flows(&[both(&near), both(&far)].concat());

    let web_takes = |from: &str| {
        let policy = format!(
            "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: web, namespace: demo}}\n\
             spec: {{podSelector: {{matchLabels: {{app: web}}}}, policyTypes: [Ingress], ingress: {from}}}\n"
        );
        apply(&bench, &policy);
    };
    web_takes("[]");
    assert_silent(&[both(&near), both(&far)].concat());
    web_takes("[{from: [{podSelector: {matchLabels: {app: client}}}]}]");
    assert_flows(&both(&far));
    assert_silent(&both(&near));
    web_takes("[{}]");
    assert_flows(&[both(&near), both(&far)].concat());
    // The same connections as before.
    assert_eq!((near.heard("lost"), far.heard("lost")), (0, 0));
}

#[test]
fn a_setting_that_is_not_done_is_a_line_of_status_until_it_asks_for_nothing() {
    let Some(bench) = Bench::new() else { return };
    bench.keep_open(&[]);
    let warnings = || {
        let status =
            json(&bench.manx(&["status", "--output", "json", "--socket", &bench.socket(0)]));
        status["warnings"].to_string()
    };
    let felix = |truth: bool| {
        let text = format!(
            "{{apiVersion: projectcalico.org/v3, kind: FelixConfiguration, metadata: {{name: default}}, spec: {{wireguardEnabled: {truth}}}}}"
        );
        apply(&bench, &text);
    };
    assert!(!warnings().contains("wireguardEnabled"), "{}", warnings());
    felix(true);
    assert!(warnings().contains("spec.wireguardEnabled: is NOT DONE: "), "{}", warnings());
    felix(false);
    assert!(!warnings().contains("wireguardEnabled"), "{}", warnings());
}

#[test]
fn a_pod_that_is_relabelled_loses_and_gets_back_its_open_connections() {
    let Some(bench) = Bench::new() else { return };
    fs::write(bench.rig().join("open.yaml"), OPEN_TO_CLIENT).unwrap();
    assert_eq!(bench.run(&["--keep", "--ttl", "5m"]).status.code(), Some(0));
    let web = bench.address(0, "demo/web");
    let _at_web = Talker::start(&bench, "demo/web", &[]);
    let near = Talker::start(&bench, "demo/stranger", &[web]);
    let far = Talker::start(&bench, "demo/client", &[web]);
    let both = |talker| ["tcp", "udp"].map(|transport| (talker, format!("back {transport} {web}")));
    assert_flows(&both(&far));
    assert_silent(&both(&near));

    let label = |pod: &str, node: &str, app: &str| {
        let ports = if pod == "web" { "[{name: http, containerPort: 8080}]" } else { "[]" };
        let pod = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {pod}, namespace: demo, labels: {{app: {app}}}}}\n\
             spec: {{nodeName: {node}, containers: [{{name: c, image: none, ports: {ports}}}]}}\n"
        );
        apply(&bench, &pod);
    };
    let tables = || {
        let status =
            json(&bench.manx(&["status", "--output", "json", "--socket", &bench.socket(0)]));
        ["tables", "changed_in_place"].map(|counter| status[counter].as_u64().unwrap())
    };
    // The change is at the other end of the connection, on another node.
    let [published, changed] = tables();
    label("client", "node-2", "other");
    assert_silent(&[both(&far), both(&near)].concat());
    label("client", "node-2", "client");
    assert_flows(&both(&far));
    assert_silent(&both(&near));
    assert_eq!(tables(), [published, changed + 2], "tables published, and changed in place");
    // The change is at this end: no policy selects it any more.
    label("web", "node-1", "other");
    assert_flows(&[both(&far), both(&near)].concat());
    label("web", "node-1", "web");
    assert_flows(&both(&far));
    assert_silent(&both(&near));
    assert_eq!(far.heard("lost"), 0);
}

/// Applies objects to the rig; its probes must then be as the oracle expects.
fn apply(bench: &Bench, objects: &str) {
    let file = bench.folder.path().join("change.yaml");
    fs::write(&file, objects).unwrap();
    let output =
        bench.manx(&["rig", "apply", "--rig", "demo", file.to_str().unwrap(), "--output", "json"]);
    let report = json(&output);
    assert_eq!(output.status.code(), Some(0), "{:?}", deviations(&report));
}

#[test]
fn an_address_that_another_pod_gets_takes_no_connection_of_its_former_owner_along() {
    let Some(bench) = Bench::new() else { return };
    // The range has room for one pod, so the next pod gets the former pod's address.
    let nodes = fs::read_to_string(bench.rig().join("nodes.yaml")).unwrap();
    let small = nodes.replace("10.244.2.0/24", "10.244.2.0/30");
    assert_ne!(nodes, small);
    fs::write(bench.rig().join("nodes.yaml"), small).unwrap();
    fs::write(bench.rig().join("open.yaml"), OPEN_TO_CLIENT).unwrap();
    assert_eq!(bench.run(&["--keep", "--ttl", "5m"]).status.code(), Some(0));
    let [web, stranger] = ["demo/web", "demo/stranger"].map(|pod| bench.address(0, pod));
    let address = bench.address(1, "demo/client");
    let _at_web = Talker::start(&bench, "demo/web", &[]);
    let _at_stranger = Talker::start(&bench, "demo/stranger", &[]);
    // The same sockets are used all the time, in the namespace of one pod, which the other pod gets
    // later.
    let talker = Talker::start(&bench, "demo/client", &[web, stranger]);
    let to = |peer| ["tcp", "udp"].map(|transport| (&talker, format!("back {transport} {peer}")));
    assert_flows(&[to(web), to(stranger)].concat());

    let folder = bench.folder.path().join("manx/rigs/demo");
    let mut agent = Client::connect(Path::new(&bench.socket(1))).unwrap();
    let name = |name: &str| PodName { namespace: "demo".to_owned(), name: name.to_owned() };
    agent.detach(name("client")).unwrap();
    assert_silent(&[to(web), to(stranger)].concat());
    fs::remove_file(folder.join("manifests/pod.demo.client.json")).unwrap();
    // Pods' namespaces are numbered by their pods' names.
    let netns = folder.join("ns/pod-0");
    let attach = Attach::new(name("other"), netns, "eth0");
    // The address is free when the agent has read that the pod's object is gone.
    let until = Instant::now() + Duration::from_secs(10);
    let attached = loop {
        match agent.attach(attach.clone()) {
            Err(error) if Instant::now() < until => {
                assert!(error.to_string().contains("no address is left"), "{error}");
                thread::sleep(Duration::from_millis(50));
            }
            attached => break attached.unwrap(),
        }
    };
    assert_eq!(attached.addresses, [address]);
    let write_pod = |app: &str| {
        let pod = format!(
            "{{\"apiVersion\": \"v1\", \"kind\": \"Pod\", \
              \"metadata\": {{\"name\": \"other\", \"namespace\": \"demo\", \"labels\": {{\"app\": \"{app}\"}}}}, \
              \"spec\": {{\"nodeName\": \"node-2\", \"containers\": [{{\"name\": \"c\", \"image\": \"none\"}}]}}, \
              \"status\": {{\"phase\": \"Running\", \"podIP\": \"{address}\", \"podIPs\": [{{\"ip\": \"{address}\"}}]}}}}"
        );
        let draft = folder.join("manifests/.draft");
        fs::write(&draft, pod).unwrap();
        fs::rename(&draft, folder.join("manifests/pod.demo.other.json")).unwrap();
    };
    write_pod("other");
    // Every pod with the address may send to the stranger, but only a client may send to web.
    assert_flows(&to(stranger));
    assert_silent(&to(web));
    write_pod("client");
    assert_flows(&[to(web), to(stranger)].concat());
}
