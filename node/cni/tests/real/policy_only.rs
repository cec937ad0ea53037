//! Policy with another plugin that connects the pods: the CNI project's `ptp` and `bridge`.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use manx_devices::shelter::Shelter;
use manx_linux::netns;
use serde_json::{Value, json};

use crate::node::{Call, Node, Power, Running, Said, connects, reaches};

fn plugin(name: &str) -> Value {
    json!({
        "type": name, "bridge": "cni0", "isGateway": true, "hairpinMode": true, "mtu": 1400,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": "10.77.0.0/24"}], [{"subnet": "fd77::/64"}]],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]
        }
    })
}

struct Pod {
    name: String,
    path: PathBuf,
    netns: OwnedFd,
    addresses: Vec<IpAddr>,
    /// The result of the chain's ADD.
    result: Value,
}

impl Pod {
    /// Calls the plugin that makes the interface, as a runtime does.
    fn call_main(node: &Node, main: &Value, verb: &str, (name, path): (&str, &Path)) -> Said {
        let folder = node.folder.path();
        let mut config = main.clone();
        config["cniVersion"] = "1.0.0".into();
        config["name"] = "manx".into();
        config["ipam"]["dataDir"] = folder.join("lib").to_str().unwrap().into();
        let mut command = Command::new(folder.join("bin").join(main["type"].as_str().unwrap()));
        command
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", name)
            .env("CNI_IFNAME", "eth0")
            .env("CNI_NETNS", path)
            .env("CNI_PATH", folder.join("bin"));
        Running::start(node, command, &config).end()
    }

    fn call(node: &Node, verb: &str, name: &str, path: &Path, previous: &Value) -> Said {
        let config = json!({"cniVersion": "1.0.0", "policyOnly": true, "prevResult": previous});
        node.call(verb, &Call { config, ..Call::new(name, path) })
    }

    fn add(node: &Node, main: &Value, name: &str) -> Self {
        let path = node.add_namespace(name);
        let made = Self::call_main(node, main, "ADD", (name, &path)).result();
        let result = Self::call(node, "ADD", name, &path, &made).result();
        assert_eq!(result, made, "nothing is added");
        // The other plugin's bridge checks for duplicates of its addresses, which takes a moment.
        wait(|| !ip(node, "-6 addr show tentative").contains("inet6"));
        let addresses = node.show(name, &result);
        assert_eq!(addresses.len(), 2, "{result}");
        Self { name: name.to_owned(), netns: netns::open(&path).unwrap(), path, addresses, result }
    }

    fn again(&self, node: &Node, verb: &str) -> Said {
        Self::call(node, verb, &self.name, &self.path, &self.result)
    }

    /// Calls DEL of all plugins in reverse order, until one fails.
    fn del(&self, node: &Node, main: &Value) -> Said {
        let own = self.again(node, "DEL");
        if own.succeeded {
            let main = Self::call_main(node, main, "DEL", (&self.name, &self.path));
            assert!(main.succeeded, "{}", main.text);
        }
        own
    }
}

/// Runs `ip` in the node's namespace.
fn ip(node: &Node, arguments: &str) -> String {
    let run = || Command::new("ip").args(arguments.split_whitespace()).output().unwrap();
    let output = node.inside(run);
    String::from_utf8(output.stdout).unwrap()
}

/// Whether the node reaches a pod's addresses, and the pod reaches the node's.
fn reach_node(node: &Node, pod: &Pod) -> bool {
    let to_pod = pod.addresses.iter().all(|address| {
        let listen = || TcpListener::bind((*address, 0)).unwrap();
        let listener = netns::run_in(&pod.netns, listen).unwrap();
        node.inside(|| connects(listener.local_addr().unwrap()))
    });
    let listener = node.inside(|| TcpListener::bind(("10.77.0.1", 0)).unwrap());
    let to: SocketAddr = listener.local_addr().unwrap();
    to_pod && netns::run_in(&pod.netns, || connects(to)).unwrap()
}

fn reach_each_other(a: &Pod, b: &Pod) -> bool {
    b.addresses.iter().all(|to| reaches(&a.netns, &b.netns, *to))
        && a.addresses.iter().all(|to| reaches(&b.netns, &a.netns, *to))
}

fn policy(pod: &str, kind: &str) -> String {
    format!(
        r#"{{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{{"name":"deny","namespace":"shop"}},
        "spec":{{"podSelector":{{"matchLabels":{{"pod":"{pod}"}}}},"policyTypes":["{kind}"]}}}}"#
    )
}

/// The node's interfaces, without names of other namespaces and without states that change by themselves.
fn links(node: &Node) -> Vec<String> {
    let text = ip(node, "-o -d link") + &ip(node, "-o addr") + &ip(node, "route show table all");
    let text = text + &ip(node, "-6 route show table all");
    let plain = |line: &str| {
        let mut words: Vec<&str> = line.split_whitespace().collect();
        for name in
            ["link-netnsid", "state", "hold_timer", "message_age_timer", "forward_delay_timer"]
        {
            while let Some(at) = words.iter().position(|it| *it == name) {
                words.drain(at..(at + 2).min(words.len()));
            }
        }
        words.iter().map(|it| it.split('@').next().unwrap()).collect::<Vec<_>>().join(" ")
    };
    let mut all: Vec<String> = text
        .lines()
        .filter(|it| it.contains(": veth") || it.contains("dev veth"))
        .map(plain)
        .collect();
    all.sort();
    all
}

#[test]
fn pods_that_ptp_connects_are_judged_and_nothing_passes_without_an_agent() {
    pods_of_another_plugin_are_judged_and_nothing_passes_without_an_agent("ptp");
}

#[test]
fn pods_that_bridge_connects_are_judged_and_nothing_passes_without_an_agent() {
    pods_of_another_plugin_are_judged_and_nothing_passes_without_an_agent("bridge");
}

fn pods_of_another_plugin_are_judged_and_nothing_passes_without_an_agent(name: &str) {
    let main = plugin(name);
    let Some(mut node) = Node::start_behind(&main) else { return };
    let [a, b] = ["a", "b"].map(|pod| Pod::add(&node, &main, pod));
    assert!(reach_each_other(&a, &b) && reach_node(&node, &a), "{name}");
    a.again(&node, "CHECK").result();
    let again = a.again(&node, "ADD").result();
    assert_eq!(again, a.result, "the same call has the same result");
    assert!(reach_each_other(&a, &b), "{name}");
    node.write("deny", &policy("a", "Ingress"));
    let denied = |from: &Pod, to: &Pod| !reaches(&from.netns, &to.netns, to.addresses[0]);
    wait(|| denied(&b, &a));
    assert!(!denied(&a, &b) && reach_node(&node, &a), "{name}: only what was asked for");
    node.write("deny", &policy("a", "Egress"));
    wait(|| denied(&a, &b));
    assert!(!denied(&b, &a), "{name}");
    let listener = node.inside(|| TcpListener::bind(("10.77.0.1", 0)).unwrap());
    let to: SocketAddr = listener.local_addr().unwrap();
    assert!(!netns::run_in(&a.netns, || connects(to)).unwrap(), "{name}: the node is no exception");
    std::fs::remove_file(node.folder.path().join("manifests/deny.yaml")).unwrap();
    wait(|| reach_each_other(&a, &b));
    let ends: [fn(&mut Node); 2] = [|node| assert!(node.stop_agent()), Node::kill_agent];
    let mut workers = 0;
    for end in ends {
        let before = links(&node);
        end(&mut node);
        let [to_b, to_a] = [&b, &a].map(|pod| pod.addresses[0]);
        let passes = [reaches(&a.netns, &b.netns, to_b), reaches(&b.netns, &a.netns, to_a)];
        assert_eq!(passes, [false; 2], "{name}");
        assert!(!reach_node(&node, &a), "{name}: nothing passes unjudged");
        assert_eq!(links(&node), before, "{name}: all interfaces stay");
        // The new agent has another number of workers.
        workers += 1;
        node.start_agent_with(workers, Power::Root);
        wait(|| reach_each_other(&a, &b) && reach_node(&node, &b));
    }
    for pod in [&a, &b] {
        assert!(pod.del(&node, &main).succeeded);
    }
    assert!(node.attachments().is_empty());
    assert_eq!(links(&node), [""; 0], "{name}: nothing is left");
    let shelter = Shelter::open(&node.socket().with_extension("netns")).unwrap().unwrap();
    assert_eq!(shelter.pairs().unwrap(), []);
}

#[test]
fn pods_from_before_manx_are_named() {
    let main = plugin("ptp");
    let Some(node) = Node::start_behind(&main) else { return };
    let path = node.add_namespace("early");
    let made = Pod::call_main(&node, &main, "ADD", ("early", &path)).result();
    node.write_pod("early", &made);
    let warned = || node.client().unwrap().status().unwrap().warnings;
    wait(|| warned().iter().any(|it| it.starts_with("pod shop/early: another plugin")));
    // The pod is deleted and made again.
    let main_del = Pod::call_main(&node, &main, "DEL", ("early", &path));
    assert!(main_del.succeeded, "{}", main_del.text);
    netns::delete(&path).unwrap();
    Pod::add(&node, &main, "early");
    wait(|| warned().is_empty());
}

#[test]
fn del_without_an_agent_cuts_the_pod_and_goes_through_later() {
    let main = plugin("bridge");
    let Some(mut node) = Node::start_behind(&main) else { return };
    let a = Pod::add(&node, &main, "a");
    node.stop_agent();
    assert_eq!(a.del(&node, &main).error().0, 11);
    assert!(!reach_node(&node, &a), "the pod is cut");
    assert_eq!(links(&node), [""; 0], "and what stood in for its host end is gone");
    node.start_agent();
    assert!(a.del(&node, &main).succeeded);
    assert!(node.attachments().is_empty());
    node.remove_pod("a");
    wait(|| node.client().unwrap().status().unwrap().warnings.is_empty());
}

#[test]
fn a_runtime_runs_the_chain_that_the_installer_writes() {
    let main = plugin("bridge");
    let Some(node) = Node::start_behind(&main) else { return };
    let paths = ["a", "b"].map(|name| node.add_namespace(name));
    // cnitool has its own mounts here, which end with it, so the shelter must be mounted before.
    Shelter::ensure(&node.socket().with_extension("netns")).unwrap();
    let mut pods = Vec::new();
    for (name, path) in ["a", "b"].into_iter().zip(&paths) {
        let Some(added) = node.cnitool("add", path) else { return };
        let result = added.result();
        wait(|| !ip(&node, "-6 addr show tentative").contains("inet6"));
        let (addresses, netns) = (node.show(name, &result), netns::open(path).unwrap());
        pods.push(Pod { name: name.to_owned(), netns, path: path.clone(), addresses, result });
    }
    assert!(reach_each_other(&pods[0], &pods[1]) && reach_node(&node, &pods[0]));
    assert_eq!(node.attachments().len(), 2, "both are judged");
    for path in &paths {
        // `bridge` would not find its host end, so the installer has left CHECK out.
        node.cnitool("check", path).unwrap().result();
        node.cnitool("del", path).unwrap().result();
    }
    assert!(node.attachments().is_empty());
    assert_eq!(links(&node), [""; 0], "nothing is left");
    node.uninstall();
    let left = std::fs::read_dir(node.folder.path().join("net.d")).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["20-other.conflist"], "and the runtime uses the other network as it was");
}

#[test]
fn uninstalling_gives_pods_back_with_their_connections() {
    for (name, with_agent) in [("ptp", true), ("ptp", false), ("bridge", true), ("bridge", false)] {
        let main = plugin(name);
        let Some(mut node) = Node::start_behind(&main) else { return };
        let [a, b] = ["a", "b"].map(|pod| Pod::add(&node, &main, pod));
        let listen = || TcpListener::bind((a.addresses[0], 0)).unwrap();
        let listener = netns::run_in(&a.netns, listen).unwrap();
        let to = listener.local_addr().unwrap();
        let mut open = node.inside(|| TcpStream::connect(to).unwrap());
        let (mut accepted, _) = listener.accept().unwrap();
        let before = links(&node);
        if !with_agent {
            node.stop_agent();
        }
        let told = node.uninstall();
        assert!(told.contains("gave 2 pods back"), "{told}");
        assert_eq!(links(&node), before, "{name}");
        assert!(
            reach_each_other(&a, &b) && reach_node(&node, &a),
            "{name}: as the plugin made them"
        );
        std::io::Write::write_all(&mut open, b"still here").unwrap();
        let mut heard = [0; 10];
        accepted.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
        std::io::Read::read_exact(&mut accepted, &mut heard).unwrap();
        assert_eq!(&heard, b"still here");
        assert!(!node.socket().with_extension("netns").exists(), "the shelter is gone");
        assert!(!node.socket().with_extension("netns.lock").exists(), "and its lock");
        if !with_agent {
            node.start_agent();
        }
        let warned = || node.client().unwrap().status().unwrap().warnings;
        let unjudged = |pod: &str| {
            let line = format!("pod shop/{pod}: another plugin");
            warned().iter().any(|it| it.starts_with(&line))
        };
        wait(|| unjudged("a") && unjudged("b"));
        wait(|| node.attachments().is_empty());
        // Manx is installed again, and a pod of the same name has other addresses.
        node.install();
        let gone = Pod::call_main(&node, &main, "DEL", ("a", &a.path));
        assert!(gone.succeeded, "{}", gone.text);
        netns::delete(&a.path).unwrap();
        let a = Pod::add(&node, &main, "a");
        wait(|| !unjudged("a"));
        assert!(reach_node(&node, &a) && unjudged("b"));
    }
}

/// The host end of `a` has no stand-in any more, as after an uninstall that was killed.
#[test]
fn an_uninstall_that_was_interrupted_is_finished_and_names_what_lost_its_configuration() {
    let main = plugin("ptp");
    let Some(node) = Node::start_behind(&main) else { return };
    let [a, b] = ["a", "b"].map(|pod| Pod::add(&node, &main, pod));
    let name = node.socket().with_extension("netns");
    let shelter = Shelter::open(&name).unwrap().unwrap();
    let pairs = shelter.pairs().unwrap();
    let of_a = pairs
        .iter()
        .find(|it| it.attachment.as_ref().is_some_and(|id| id.sandbox.container == "a"))
        .unwrap();
    shelter.remove(of_a).unwrap();
    drop(shelter);
    let told = node.uninstall_that_fails();
    assert!(told.contains("make that pod anew") && told.contains("veth"), "{told}");
    assert!(ip(&node, "-o link").matches("veth").count() == 2, "both host ends are back");
    let link =
        netns::run_in(&a.netns, || Command::new("ip").args(["link", "show", "eth0"]).status());
    assert!(link.unwrap().unwrap().success(), "the pod has its interface");
    assert!(reach_node(&node, &b));
    assert!(!name.exists() && !name.with_extension("netns.lock").exists());
    assert!(node.uninstall().contains("is not there"), "nothing is left to do");
    // The state of a runtime that read the configuration, and found the program, before both were removed.
    let program = node.folder.path().join("bin/manx-cni");
    std::fs::copy(env!("CARGO_BIN_EXE_manx-cni"), program).unwrap();
    let path = node.add_namespace("late");
    let made = Pod::call_main(&node, &main, "ADD", ("late", &path)).result();
    let (code, text) = Pod::call(&node, "ADD", "late", &path, &made).error();
    assert!(code == 11 && text.contains("was taken away"), "{code}: {text}");
    assert!(!name.exists(), "no shelter is made");
}

#[test]
fn a_chain_that_cannot_be_is_refused_and_leaves_the_other_plugins_link_alone() {
    let main = plugin("ptp");
    let Some(mut node) = Node::start_behind(&main) else { return };
    let path = node.add_namespace("a");
    let made = Pod::call_main(&node, &main, "ADD", ("a", &path)).result();
    wait(|| !ip(&node, "-6 addr show tentative").contains("veth"));
    let before = links(&node);
    let refused = |node: &Node, config: Value, code: u64, expected: &str| {
        let said = node.call("ADD", &Call { config, ..Call::new("a", &path) });
        let (found, text) = said.error();
        assert!(found == code && text.contains(expected), "{found}: {text}");
        assert_eq!(links(node), before, "nothing was touched");
    };
    refused(&node, json!({"policyOnly": true}), 7, "`prevResult`");
    refused(
        &node,
        json!({"policyOnly": true, "prevResult": made, "deviceType": "tun"}),
        7,
        "deviceType",
    );
    let dns = json!({"nameservers": ["10.96.0.10"]});
    refused(&node, json!({"policyOnly": true, "prevResult": made, "dns": dns}), 7, "`dns`");
    refused(&node, json!({"prevResult": made}), 7, "`policyOnly`");
    refused(&node, json!({}), 100, "policyOnly");
    // The next agent connects pods itself.
    node.stop_agent();
    node.connect_pods_itself(&["10.244.1.0/24"]);
    refused(&node, json!({"policyOnly": true, "prevResult": made}), 100, "--policy-only");
}

/// Waits until `holds` is true, for at most 20 s.
#[track_caller]
fn wait(mut holds: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !holds() {
        assert!(start.elapsed() < std::time::Duration::from_secs(20), "it never came true");
    }
}
