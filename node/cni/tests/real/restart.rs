//! Agents that end and start again, and the effects on their pods.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use manx_api::Device;
use manx_linux::{netlink, netns};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};
use serde_json::{Value, json};

use crate::node::{Call, Node, Power, end, reaches};
use crate::{BOTH, addresses};

const SOON: Duration = Duration::from_millis(5);
const LONG: Duration = Duration::from_secs(10);

/// A pod that the plugin has attached, with its object.
struct Pod {
    name: String,
    path: PathBuf,
    netns: OwnedFd,
    device: &'static str,
    result: Value,
}

impl Pod {
    fn attach(node: &Node, name: &str) -> Self {
        Self::attach_by(node, name, "tun")
    }

    /// Attaches a pod with this kind of device.
    fn attach_by(node: &Node, name: &str, device: &'static str) -> Self {
        let pod = Self::attach_all_by(node, &[name.to_owned()], device).remove(0);
        node.show(name, &pod.result);
        pod
    }

    /// Attaches many pods at once.
    fn attach_all(node: &Node, names: &[String]) -> Vec<Self> {
        Self::attach_all_by(node, names, "tun")
    }

    fn attach_all_by(node: &Node, names: &[String], device: &'static str) -> Vec<Self> {
        let paths: Vec<PathBuf> = names.iter().map(|name| node.add_namespace(name)).collect();
        let all = names.iter().zip(paths);
        let running: Vec<_> = all
            .map(|(name, path)| {
                let config = json!({"deviceType": device});
                let call = Call { config, ..Call::new(name, &path) };
                (name, node.start_call("ADD", &call), path)
            })
            .collect();
        let attached = running.into_iter().map(|(name, call, path)| {
            let result = call.end().result();
            node.write_pod(name, &result);
            let netns = netns::open(&path).unwrap();
            Self { name: name.clone(), netns, path, device, result }
        });
        attached.collect()
    }

    fn call(&self) -> Call<'_> {
        let config = json!({"deviceType": self.device});
        Call { config, ..Call::new(&self.name, &self.path) }
    }

    fn check(&self, node: &Node) {
        let config = json!({"prevResult": self.result});
        node.call("CHECK", &Call { config, ..self.call() }).result();
    }

    fn addresses(&self) -> Vec<IpAddr> {
        addresses(&self.result)
    }

    /// The index of the pod's interface.
    fn index(&self) -> Option<u32> {
        let link = netlink::in_netns(&self.netns, async |netlink| netlink.link("eth0").await);
        link.unwrap().map(|link| link.index)
    }

    fn reaches(&self, to: &Self) -> bool {
        to.addresses().iter().all(|address| reaches(&self.netns, &to.netns, *address))
    }
}

/// A connection between two pods, whose far end sends back what it receives.
struct Echo(TcpStream);

impl Echo {
    fn open(from: &Pod, to: &Pod) -> Self {
        let address = to.addresses()[0];
        let listener = netns::run_in(&to.netns, || TcpListener::bind((address, 0)).unwrap());
        let listener = listener.unwrap();
        let there = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut reading = stream.try_clone().unwrap();
            let _ = std::io::copy(&mut reading, &mut stream);
        });
        let stream = netns::run_in(&from.netns, || TcpStream::connect_timeout(&there, LONG));
        let stream = stream.unwrap().unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        Self(stream)
    }

    fn works(&mut self) -> bool {
        let mut heard = [0; 5];
        self.0.write_all(b"hello").is_ok() && self.0.read_exact(&mut heard).is_ok()
    }
}

fn warnings(node: &Node) -> String {
    node.client().unwrap().status().unwrap().warnings.join("\n")
}

#[test]
fn pods_keep_interface_and_connections_when_their_agent_is_killed_or_replaced() {
    for (workers, power) in [(1, Power::WithoutSysAdmin), (2, Power::Root)] {
        let Some(mut node) = Node::new(&BOTH) else { return };
        node.start_agent_with(workers, power);
        let [a, b] =
            [("a", "tun"), ("b", "tap")].map(|(name, device)| Pod::attach_by(&node, name, device));
        let before = [&a, &b].map(|pod| pod.index().unwrap());
        let mut open = Echo::open(&a, &b);
        assert!(open.works());
        for is_killed in [true, false] {
            if is_killed {
                node.kill_agent();
            } else {
                assert!(node.stop_agent());
            }
            for verb in ["ADD", "DEL"] {
                assert_eq!(node.call(verb, &a.call()).error().0, 11);
            }
            node.start_agent_with(workers, power);
            assert_eq!([&a, &b].map(|pod| pod.index().unwrap()), before);
            assert!(open.works() && a.reaches(&b) && b.reaches(&a));
            for pod in [&a, &b] {
                pod.check(&node);
                assert_eq!(node.call("ADD", &pod.call()).result(), pod.result);
            }
            assert_eq!(warnings(&node), "");
        }
        assert_eq!(node.kept().len(), 2);
        for pod in [&a, &b] {
            node.call("DEL", &pod.call()).result();
            assert_eq!(pod.index(), None);
        }
        assert_eq!(node.attachments(), []);
        assert!(node.kept().is_empty());
        let anew = Pod::attach(&node, "c");
        assert_eq!(node.kept().len(), 1);
        assert!(anew.index().is_some());
    }
}

/// A policy for pod `b`: `b` opens no connections, and only pod `a` may open connections to it, if `allows_a`.
fn answers_only(allows_a: bool) -> String {
    let from = if allows_a { "a" } else { "nobody" };
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "answers-only", "namespace": "shop"},
        "spec": {
            "podSelector": {"matchLabels": {"pod": "b"}},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"pod": from}}}]}],
        },
    })
    .to_string()
}

/// A connection from one pod to another. Returns both ends, first that of the pod that has opened it.
fn connection(from: &Pod, to: &Pod) -> [TcpStream; 2] {
    let address = to.addresses()[0];
    let listener = netns::run_in(&to.netns, || TcpListener::bind((address, 0)).unwrap()).unwrap();
    let there = listener.local_addr().unwrap();
    let near = netns::run_in(&from.netns, || TcpStream::connect_timeout(&there, LONG).unwrap());
    let (near, (far, _)) = (near.unwrap(), listener.accept().unwrap());
    [near, far]
}

fn hears(near: &mut TcpStream, far: &mut TcpStream, patience: Duration) -> bool {
    near.set_read_timeout(Some(patience)).unwrap();
    far.write_all(b"news").is_ok() && near.read_exact(&mut [0; 4]).is_ok()
}

#[test]
fn the_next_agent_knows_who_opened_a_connection_and_judges_it_anew() {
    for workers in [1, 2] {
        let Some(mut node) = Node::new(&BOTH) else { return };
        node.start_agent_with(workers, Power::WithoutSysAdmin);
        let [a, b] = ["a", "b"].map(|name| Pod::attach(&node, name));
        node.write("answers-only", &answers_only(true));
        let opens = |from: &Pod, to: &Pod| {
            let listener = netns::run_in(&to.netns, || TcpListener::bind((to.addresses()[0], 0)));
            let there = listener.unwrap().unwrap().local_addr().unwrap();
            let connect = || TcpStream::connect_timeout(&there, Duration::from_millis(60));
            netns::run_in(&from.netns, connect).unwrap().is_ok()
        };
        let start = Instant::now();
        while opens(&b, &a) {
            assert!(start.elapsed() < LONG, "the policy is not in force");
        }
        let [mut near, mut far] = connection(&a, &b);
        assert!(hears(&mut near, &mut far, LONG));
        for _ in 0..3 {
            node.kill_agent();
            node.start_agent_with(workers, Power::WithoutSysAdmin);
            // The pod that may open no connections sends first.
            assert!(hears(&mut near, &mut far, LONG));
            assert!(!opens(&b, &a));
        }
        node.kill_agent();
        node.write("answers-only", &answers_only(false));
        node.start_agent_with(workers, Power::WithoutSysAdmin);
        assert!(!hears(&mut near, &mut far, Duration::from_millis(500)));
    }
}

#[test]
fn a_device_stays_as_it_is_whichever_the_next_agent_gives_to_pods() {
    let Some(mut node) = Node::start(&BOTH) else { return };
    let [a, b] =
        [("a", "tun"), ("b", "tap")].map(|(name, device)| Pod::attach_by(&node, name, device));
    let mut open = Echo::open(&a, &b);
    for device in Device::ALL {
        assert!(node.stop_agent());
        node.device = Some(device);
        node.start_agent();
        assert!(open.works() && a.reaches(&b) && b.reaches(&a), "{device}");
        for (pod, has) in [(&a, Device::Tun), (&b, Device::Tap)] {
            pod.check(&node);
            let all = node.attachments();
            let found = all.iter().find(|it| it.pod.name == pod.name).unwrap();
            assert_eq!(found.device, Some(has), "{device}");
        }
    }
}

#[test]
fn what_a_pod_sends_while_there_is_no_agent_is_judged_by_the_next_one() {
    for device in ["tun", "tap"] {
        sends_while_there_is_no_agent(device);
    }
}

fn sends_while_there_is_no_agent(device: &'static str) {
    let Some(mut node) = Node::start(&BOTH) else { return };
    let [a, b] = ["a", "b"].map(|name| Pod::attach_by(&node, name, device));
    let (near, all) = (bound(&a), [node.socket_of_host(), bound(&b)]);
    for far in &all {
        far.set_read_timeout(Some(LONG)).unwrap();
    }
    for _ in 0..10 {
        node.kill_agent();
        for number in 0..100 {
            for far in &all {
                near.send_to(&[number], far.local_addr().unwrap()).unwrap();
            }
        }
        node.start_agent();
        for far in &all {
            let heard: Vec<u8> = (0..100)
                .map(|_| {
                    let mut number = [0];
                    far.recv(&mut number).unwrap();
                    number[0]
                })
                .collect();
            assert_eq!(heard, (0..100).collect::<Vec<u8>>());
        }
    }
}

#[test]
fn an_agent_that_waits_takes_the_place_of_one_that_ends() {
    let Some(mut node) = Node::start(&BOTH) else { return };
    let [a, b] = ["a", "b"].map(|name| Pod::attach(&node, name));
    let (a_index, b_index) = (a.index(), b.index());
    for how in [Signal::SIGTERM, Signal::SIGKILL] {
        let standby = node.start_standby();
        // The first agent continues meanwhile.
        let name = format!("meanwhile-{how}").to_lowercase();
        let meanwhile = Pod::attach(&node, &name);
        assert!(a.reaches(&b) && a.reaches(&meanwhile));
        node.call("DEL", &meanwhile.call()).result();
        node.replace_agent(standby, how);
        let start = Instant::now();
        while !a.reaches(&b) {
            assert!(start.elapsed() < LONG, "{}", warnings(&node));
        }
        assert_eq!((a.index(), b.index()), (a_index, b_index));
        a.check(&node);
    }
    assert!(
        end(node.start_standby(), Signal::SIGTERM),
        "one that still waits ends when it is told to"
    );
    assert!(a.reaches(&b));
}

#[test]
fn what_policy_denies_does_not_pass_once_while_the_agent_is_killed_ten_times() {
    let Some(mut node) = Node::start(&BOTH) else { return };
    let [a, b, c] = ["a", "b", "c"].map(|name| Pod::attach(&node, name));
    let policy = r#"{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy",
        "metadata":{"name":"only-a","namespace":"shop"},
        "spec":{"podSelector":{"matchLabels":{"pod":"b"}},
                "ingress":[{"from":[{"podSelector":{"matchLabels":{"pod":"a"}}}]}]}}"#;
    node.write("only-a", policy);
    let listener = netns::run_in(&b.netns, || TcpListener::bind("0.0.0.0:80").unwrap()).unwrap();
    thread::spawn(move || while listener.accept().is_ok() {});
    let there = SocketAddr::new(b.addresses()[0], 80);
    let connects = || TcpStream::connect_timeout(&there, Duration::from_millis(60)).is_ok();
    let start = Instant::now();
    while netns::run_in(&c.netns, connects).unwrap() {
        assert!(start.elapsed() < LONG, "the policy is not in force");
    }
    let (passed, tried, ends) = (AtomicU32::new(0), AtomicU32::new(0), AtomicBool::new(false));
    let probe = || {
        while !ends.load(Ordering::Relaxed) {
            tried.fetch_add(1, Ordering::Relaxed);
            passed.fetch_add(u32::from(connects()), Ordering::Relaxed);
        }
    };
    thread::scope(|scope| {
        let probing = scope.spawn(|| netns::run_in(&c.netns, probe).unwrap());
        for _ in 0..10 {
            node.kill_agent();
            node.start_agent();
            let start = Instant::now();
            while !netns::run_in(&a.netns, connects).unwrap() {
                assert!(start.elapsed() < LONG, "what is allowed does not pass");
            }
            // The next agent also gets requests, however soon it starts.
            let before = tried.load(Ordering::Relaxed);
            while tried.load(Ordering::Relaxed) < before + 3 {
                assert!(start.elapsed() < LONG, "nobody asks");
                thread::sleep(Duration::from_millis(5));
            }
        }
        ends.store(true, Ordering::Relaxed);
        probing.join().unwrap();
    });
    assert_eq!(passed.load(Ordering::Relaxed), 0);
}

#[test]
fn a_holder_that_is_killed_costs_nothing_and_the_next_one_has_all() {
    let Some(mut node) = Node::start(&BOTH) else { return };
    let [a, b] = ["a", "b"].map(|name| Pod::attach(&node, name));
    let (first, _) = node.holder().unwrap();
    kill(first, Signal::SIGKILL).unwrap();
    let start = Instant::now();
    while node.holder().is_some() {
        assert!(start.elapsed() < LONG);
        thread::sleep(SOON);
    }
    assert!(a.reaches(&b) && b.reaches(&a));
    node.call("DEL", &b.call()).result();
    let c = Pod::attach(&node, "c");
    assert_ne!(node.holder().unwrap().0, first);
    assert_eq!(node.kept(), ["a", "c"].map(str::to_owned).into());
    node.kill_agent();
    node.start_agent();
    assert!(a.reaches(&c) && c.reaches(&a));
    // Without holder and agent the interface is gone.
    node.holder().unwrap().1.end().unwrap();
    node.kill_agent();
    assert_eq!(a.index(), None);
    node.start_agent();
    assert!(node.attachments().iter().all(|it| it.device.is_none()));
    node.call("DEL", &a.call()).result();
    assert_eq!(node.call("ADD", &a.call()).result()["interfaces"][0]["name"], "eth0");
}

/// A socket of a pod with a port that the kernel chooses.
fn bound(pod: &Pod) -> UdpSocket {
    let address = pod.addresses()[0];
    netns::run_in(&pod.netns, || UdpSocket::bind((address, 0)).unwrap()).unwrap()
}

/// Sends datagrams every millisecond from one pod to another, which replies, until `ends` is set. Returns the times of
/// the replies.
fn probe(from: &Pod, to: &Pod, count: &AtomicU32, ends: &AtomicBool) -> Vec<Instant> {
    let (near, far) = (bound(from), bound(to));
    for socket in [&near, &far] {
        socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    }
    let there = far.local_addr().unwrap();
    let mut answers = Vec::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                if let Ok((_, sender)) = far.recv_from(&mut [0; 1]) {
                    let _ = far.send_to(&[0], sender);
                }
            }
        });
        while !ends.load(Ordering::Relaxed) {
            let _ = near.send_to(&[0], there);
            if near.recv(&mut [0; 1]).is_ok() {
                answers.push(Instant::now());
                count.fetch_add(1, Ordering::Relaxed);
                thread::sleep(Duration::from_millis(1));
            }
        }
    });
    answers
}

/// The memory of a process in KiB, including its share of shared memory (`Pss`, proc(5)).
fn memory(pid: Pid) -> u32 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// With a release build (`--release --nocapture`) this prints the numbers of docs/agent.md.
#[test]
fn all_pods_of_a_node_pass_again_soon_after_the_next_agent_starts() {
    for count in [2, 250] {
        let Some(mut node) = Node::start(&["10.244.0.0/20"]) else { return };
        let names: Vec<String> = (0..count).map(|number| format!("pod-{number}")).collect();
        let pods = Pod::attach_all(&node, &names);
        let (holder, _) = node.holder().unwrap();
        eprintln!("{count} pods: the holder has {} KiB", memory(holder));
        for _ in 0..5 {
            let (came, ends) = (AtomicU32::new(0), AtomicBool::new(false));
            let await_more = || {
                let (before, start) = (came.load(Ordering::Relaxed), Instant::now());
                while came.load(Ordering::Relaxed) < before + 10 {
                    assert!(start.elapsed() < LONG, "nothing passes");
                    thread::sleep(SOON);
                }
            };
            let (killed, started, answers) = thread::scope(|scope| {
                let probing = scope.spawn(|| probe(&pods[0], &pods[count - 1], &came, &ends));
                await_more();
                let killed = Instant::now();
                node.kill_agent();
                let started = Instant::now();
                node.start_agent();
                await_more();
                ends.store(true, Ordering::Relaxed);
                (killed, started, probing.join().unwrap())
            });
            let before = answers.iter().filter(|answer| **answer < started).max().unwrap();
            let first = answers.iter().find(|answer| **answer > started).unwrap();
            let (after, gap) = (*first - started, *first - *before);
            eprintln!("{count} pods: first packet after {after:?}, gap {gap:?}");
            assert!(*before < started && killed < *first && after < LONG / 2, "{after:?}");
        }
        assert_eq!(node.attachments().iter().filter(|it| it.device.is_some()).count(), count);
        assert!(pods.iter().all(|pod| pod.index().is_some()));
        assert_eq!(warnings(&node), "");
    }
}

/// Ends the agent, calls `meanwhile`, and starts an agent with this number of workers. Checks that the pod's interface is
/// released, that the status says so, and that the pod can be detached and attached again.
fn is_let_go(workers: usize, says: &str, meanwhile: impl FnOnce(&Node, &Pod)) {
    let Some(mut node) = Node::start(&BOTH) else { return };
    let [a, b] = ["a", "b"].map(|name| Pod::attach(&node, name));
    node.kill_agent();
    meanwhile(&node, &a);
    node.start_agent_with(workers, Power::Root);
    let told = warnings(&node);
    let of_a = told.lines().find(|line| line.starts_with("pod shop/a:")).unwrap_or_default();
    assert!(of_a.contains(says) && of_a.contains("made anew"), "{told}");
    assert_eq!(a.index(), None);
    assert!(!node.kept().contains("a"));
    node.call("DEL", &a.call()).result();
    let result = node.call("ADD", &a.call()).result();
    node.show("a", &result);
    let again = Pod { result, netns: netns::open(&a.path).unwrap(), ..a };
    if b.index().is_some() {
        assert!(again.reaches(&b) && b.reaches(&again));
    }
    again.check(&node);
    assert!(!warnings(&node).contains("pod shop/a:"));
}

#[test]
fn an_interface_of_another_number_of_workers_is_let_go() {
    is_let_go(2, "there are 1; expected 2", |_, _| {});
}

#[test]
fn an_interface_without_a_lease_is_let_go() {
    is_let_go(1, "no lease", |node, _| {
        fs::remove_file(node.folder.path().join("run/node.addresses")).unwrap();
    });
}

#[test]
fn an_interface_of_another_sandbox_than_the_lease_is_let_go() {
    is_let_go(1, "container other", |node, _| {
        let path = node.folder.path().join("run/node.addresses");
        let mut leases: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        leases["attachments"]["shop/a"]["container"] = "other".into();
        fs::write(path, leases.to_string()).unwrap();
    });
}

#[test]
fn an_interface_in_a_former_namespace_of_its_path_is_let_go() {
    // The test keeps the former namespace open, and the device is there.
    is_let_go(1, "another namespace", |_, pod| {
        netns::delete(&pod.path).unwrap();
        netns::create_named(&pod.path).unwrap();
    });
}

#[test]
fn the_next_agent_has_a_device_for_the_sandbox_that_was_attached_last() {
    let Some(mut node) = Node::start(&BOTH) else { return };
    let a = Pod::attach(&node, "a");
    let before = a.index();
    for container in ["second", "third"] {
        let again = Call { container, ..a.call() };
        assert_eq!(node.call("ADD", &again).result(), a.result);
        node.kill_agent();
        node.start_agent();
        assert_eq!((a.index(), warnings(&node)), (before, String::new()));
        let all = node.attachments();
        let found = all.iter().map(|it| (it.id.as_ref().unwrap(), it.device));
        let found: Vec<_> = found.map(|(id, it)| (&*id.sandbox.container, it)).collect();
        assert_eq!(found, [(container, Some(Device::Tun))]);
    }
    node.call("DEL", &Call { container: "second", ..a.call() }).result();
    assert_eq!(a.index(), before);
    node.call("DEL", &Call { container: "third", ..a.call() }).result();
    assert_eq!(a.index(), None);
}

/// Removes an attachment, which would give the pod another name in the record, while the disk hangs. Afterwards writing
/// succeeds if `succeeds` is set, and otherwise fails. Returns the node and the pod.
fn remove_while_it_renews(succeeds: bool) -> Option<(Node, Pod)> {
    let node = Node::start(&BOTH)?;
    let a = Pod::attach(&node, "a");
    let [leases, aside, new] = ["node.addresses", "aside", "node.addresses.new"]
        .map(|name| node.folder.path().join("run").join(name));
    // A pipe in place of a disk that hangs: reading it waits until the test writes to it.
    fs::rename(&leases, &aside).unwrap();
    mkfifo(&leases, Mode::S_IRWXU).unwrap();
    let again = Call { container: "second", ..a.call() };
    let adding = node.start_call("ADD", &again);
    expect_others(&node, &["a"], "kept under a new name");
    adding.kill();
    let removing = node.start_call("DEL", &again);
    thread::sleep(Duration::from_millis(500));
    assert!(a.index().is_some(), "as long as another sandbox may keep it");
    if !succeeds {
        fs::create_dir(new).unwrap();
    }
    // The agent reads the former content, and replaces this file by a new one.
    fs::write(&leases, fs::read(&aside).unwrap()).unwrap();
    removing.end().result();
    Some((node, a))
}

#[test]
fn a_removal_finds_the_attachment_that_gives_a_pod_another_name() {
    let Some((node, a)) = remove_while_it_renews(true) else { return };
    assert_eq!(node.attachments(), []);
    assert_eq!(a.index(), None);
    expect_others(&node, &[], "");
}

#[test]
fn a_removal_of_an_attachment_that_fails_leaves_the_other_sandbox_its_interface() {
    let Some((node, a)) = remove_while_it_renews(false) else { return };
    let left: Vec<_> = node.attachments().into_iter().map(|it| (it.pod.name, it.device)).collect();
    assert_eq!(left, [("a".to_owned(), Some(Device::Tun))]);
    assert!(a.index().is_some());
    expect_others(&node, &[], "");
}

/// Waits until exactly these pods are listed as not simply attached, each in a state whose text contains `says`.
fn expect_others(node: &Node, names: &[&str], says: &str) {
    let start = Instant::now();
    loop {
        let found = node.client().unwrap().status().unwrap().other_pods;
        let told = found.longest.iter().filter(|it| it.state.contains(says));
        let told: BTreeSet<&str> = told.map(|it| &*it.pod.name).collect();
        if found.count == names.len() && told == names.iter().copied().collect() {
            return;
        }
        assert!(start.elapsed() < LONG, "{found:?}");
        thread::sleep(SOON);
    }
}

#[test]
fn a_pod_without_a_device_is_listed_until_it_is_attached_anew_or_gone() {
    let Some(mut node) = Node::start(&BOTH) else { return };
    let [a, b] = ["a", "b"].map(|name| Pod::attach(&node, name));
    expect_others(&node, &[], "");
    let delete =
        || std::process::Command::new("ip").args(["link", "delete", "eth0"]).status().unwrap();
    assert!(netns::run_in(&a.netns, delete).unwrap().success());
    expect_others(&node, &["a"], "its device is gone; its addresses stay its own");
    let again = node.call("ADD", &a.call()).result();
    assert_eq!(addresses(&again), a.addresses());
    expect_others(&node, &[], "");
    node.holder().unwrap().1.end().unwrap();
    node.kill_agent();
    node.start_agent();
    expect_others(&node, &["a", "b"], "left no device");
    node.call("DEL", &a.call()).result();
    expect_others(&node, &["b"], "left no device");
    node.call("DEL", &b.call()).result();
    expect_others(&node, &[], "");
}

#[test]
fn a_pod_without_device_and_lease_is_listed_until_it_is_attached_anew_or_gone() {
    let Some(mut node) = Node::start(&BOTH) else { return };
    let [a, b] = ["a", "b"].map(|name| Pod::attach(&node, name));
    node.kill_agent();
    fs::remove_file(node.folder.path().join("run/node.addresses")).unwrap();
    node.start_agent();
    expect_others(&node, &["a", "b"], "no lease");
    let all = node.attachments();
    assert!(all.len() == 2 && all.iter().all(|it| it.addresses.is_empty() && it.device.is_none()));
    node.call("DEL", &Call { container: "other", ..a.call() }).result();
    expect_others(&node, &["a", "b"], "no lease");
    node.call("DEL", &a.call()).result();
    expect_others(&node, &["b"], "no lease");
    node.call("ADD", &b.call()).result();
    expect_others(&node, &[], "");
    assert!(!warnings(&node).contains("no lease"));
}

#[test]
fn the_end_of_the_plugin_on_a_node_ends_the_holder() {
    let Some(mut node) = Node::start(&BOTH) else { return };
    let [a, b] = ["a", "b"].map(|name| Pod::attach(&node, name));
    let (succeeded, said) = node.uninstall_if_removed();
    assert!(succeeded && said.contains("nothing is removed"), "{said}");
    assert!(node.holder().is_some());
    let said = node.uninstall();
    assert!(said.contains("ended the holder"), "{said}");
    assert!(node.holder().is_none());
    assert!(a.reaches(&b), "the agent has the interfaces");
    assert!(!node.uninstall().contains("ended the holder"));
    assert!(node.stop_agent());
    assert_eq!([a.index(), b.index()], [None, None]);
    let (succeeded, said) = node.uninstall_if_removed();
    assert!(!succeeded && said.contains("nothing is removed"), "no agent, no answer: {said}");
}
