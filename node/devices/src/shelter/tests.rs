//! A node, a pod, and a veth between them that another plugin could have made.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use manx_dataplane::port::PacketIo;
use manx_dataplane::port::packet::{PacketPort, Receipt};
use manx_dataplane::port::relay::Ends;
use manx_linux::testing::namespaces_allowed;

use super::*;
use crate::testing::{LONG, SHORT, Wire, bound, reaches};

const HOST_END: &str = "veth1a2b3c4d";
const NODE4: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1));
const POD4: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2));

/// The node's side of the pod's link, as the plugin makes it.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Plugin {
    /// Addresses and routes on the host end.
    Ptp,
    /// The host end is a bridge's port.
    Bridge,
}

struct Cluster {
    node: OwnedFd,
    pod: OwnedFd,
    shelter: Shelter,
    path: PathBuf,
    _folder: tempfile::TempDir,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        netns::delete(&self.path).unwrap();
    }
}

fn run(netns: &OwnedFd, program: &str, arguments: &str) -> String {
    let run = || Command::new(program).args(arguments.split_whitespace()).output().unwrap();
    let output = netns::run_in(netns, run).unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{program} {arguments}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

fn ip(netns: &OwnedFd, arguments: &str) -> String {
    run(netns, "ip", arguments)
}

fn set(netns: &OwnedFd, key: &str, value: &str) {
    netns::run_in(netns, || sysctl::set(key, value)).unwrap().unwrap();
}

impl Cluster {
    fn new(plugin: Plugin) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shelter.netns");
        let (node, pod) = (netns::create().unwrap(), netns::create().unwrap());
        netlink::in_netns(&node, async |netlink| {
            let peer = Peer { name: "eth0", netns: Some(pod.as_fd()), mac: None, index: None };
            let veth = Veth { name: HOST_END, mac: None, index: None, mtu: 1400, peer };
            netlink.add_veth(&veth).await
        })
        .unwrap();
        for command in [
            "link set lo up",
            "link set eth0 up",
            "addr add 10.77.0.2/24 dev eth0",
            "addr add fd77::2/64 dev eth0 nodad",
        ] {
            ip(&pod, command);
        }
        ip(&node, "link set lo up");
        let mut device = HOST_END;
        if plugin == Plugin::Bridge {
            device = "cni0";
            ip(&node, "link add cni0 address 02:00:00:00:00:77 type bridge");
            ip(&node, "link set cni0 up");
            ip(&node, &format!("link set {HOST_END} master cni0 txqueuelen 77"));
            ip(
                &node,
                &format!(
                    "link set {HOST_END} type bridge_slave hairpin on isolated on mcast_flood off"
                ),
            );
        }
        ip(&node, &format!("link set {HOST_END} up"));
        let prefixes = if plugin == Plugin::Ptp { ["32", "128"] } else { ["24", "64"] };
        ip(&node, &format!("addr add 10.77.0.1/{} dev {device}", prefixes[0]));
        ip(&node, &format!("addr add fd77::1/{} dev {device} nodad", prefixes[1]));
        if plugin == Plugin::Ptp {
            for route in [
                "10.77.0.2 scope host",
                "fd77::2 metric 1024",
                "10.78.0.0/24 via 10.77.0.2 onlink table 100",
                "10.79.0.0/24 table 1234 metric 7 src 10.77.0.1",
                "fd79::/64 via fd77::2",
            ] {
                let (to, rest) = route.split_once(' ').unwrap();
                ip(&node, &format!("route add {to} dev {HOST_END} {rest}"));
            }
            ip(&node, &format!("neigh add 10.77.0.9 lladdr 02:00:00:00:00:99 dev {HOST_END}"));
        }
        set(&node, &format!("ipv4/conf/{HOST_END}/proxy_arp"), "1");
        set(&node, &format!("ipv4/conf/{HOST_END}/rp_filter"), "2");
        set(&node, &format!("ipv6/conf/{HOST_END}/accept_ra"), "0");
        set(&node, &format!("ipv4/neigh/{HOST_END}/gc_stale_time"), "33");
        let shelter = Shelter::ensure(&path).unwrap();
        let devices = if plugin == Plugin::Bridge { 2 } else { 1 };
        let has_addresses = || {
            let addresses = ip(&node, "-6 addr show scope link");
            let count = addresses.matches("inet6 fe80::").count();
            count == devices && !addresses.contains("tentative")
        };
        let start = Instant::now();
        while !has_addresses() {
            assert!(start.elapsed() < LONG, "{}", ip(&node, "-6 addr"));
            thread::sleep(SHORT);
        }
        Self { node, pod, shelter, path, _folder: folder }
    }

    /// Everything that the node's kernel shows about the host end, or about its stand-in, except names of the other end,
    /// counters and clocks.
    fn seen(&self) -> Vec<String> {
        let mut all = Vec::new();
        for arguments in [
            "-d link",
            "addr",
            "-4 route show table all",
            "-6 route show table all",
            "neigh show nud permanent",
        ] {
            let text = ip(&self.node, &format!("-o {arguments}"));
            let mut words: Vec<String> = text
                .lines()
                .map(|line| {
                    let mut words: Vec<&str> = line.split_whitespace().collect();
                    while let Some(at) = words.iter().position(|it| {
                        it.ends_with("_timer")
                            || *it == "link-netnsid"
                            || *it == "state"
                            || *it == "carrier_changes"
                    }) {
                        words.drain(at..(at + 2).min(words.len()));
                    }
                    words
                        .iter()
                        .map(|it| it.split('@').next().unwrap())
                        .collect::<Vec<_>>()
                        .join(" ")
                })
                .collect();
            words.sort();
            all.extend(words);
        }
        let settings = netns::run_in(&self.node, || sysctl::of_interface(HOST_END)).unwrap();
        all.extend(settings.into_iter().map(|(key, value)| format!("{key} = {value}")));
        all
    }

    fn link(netns: &OwnedFd, name: &str) -> Link {
        netlink::in_netns(netns, async |netlink| netlink.existing(name).await).unwrap()
    }

    fn take_in(&self) -> Pair {
        let [_, host_end] = host_end(&self.node, &self.pod, "eth0").unwrap();
        self.shelter.take_in(&self.node, &host_end, &attachment()).unwrap();
        let [pair] = self.shelter.pairs().unwrap().try_into().unwrap();
        pair
    }

    /// Whether the pod reaches the node, and the node the pod.
    fn reach(&self, patience: Duration) -> [bool; 2] {
        let socket = |netns: &OwnedFd, address| -> UdpSocket {
            netns::run_in(netns, || bound(address)).unwrap()
        };
        let (pod, node) = (socket(&self.pod, POD4), socket(&self.node, NODE4));
        [reaches(&pod, &node, patience), reaches(&node, &pod, patience)]
    }

    /// Carries packets between the two ends of a pair.
    fn carry(&self, pair: &Pair) -> Wire {
        let ends = Ends {
            pod: Self::link(&self.pod, "eth0").mac.unwrap(),
            node: Self::link(&self.node, HOST_END).mac.unwrap(),
            addresses: vec![POD4, "fd77::2".parse().unwrap()],
        };
        let indices = [pair.index, pair.inner_index()];
        let open = || PacketPort::open_relay(indices, &ends, 1, Receipt::Calls).unwrap();
        let boxed = |ports: Vec<PacketPort>| {
            ports.into_iter().map(|port| Box::new(port) as Box<dyn PacketIo>).collect()
        };
        let [pod, node] = netns::run_in(self.shelter.netns(), open).unwrap().map(boxed);
        Wire::between(pod, node)
    }
}

fn attachment() -> AttachmentId {
    let sandbox = Sandbox { network: "cbr0".to_owned(), container: "c0ffee".to_owned() };
    AttachmentId { sandbox, interface: "eth0".to_owned() }
}

#[test]
fn a_host_end_goes_and_comes_back_as_it_was() {
    if !namespaces_allowed() {
        return;
    }
    for plugin in [Plugin::Ptp, Plugin::Bridge] {
        let cluster = Cluster::new(plugin);
        assert_eq!(cluster.reach(LONG), [true; 2], "{plugin:?}");
        let before = cluster.seen();
        assert!(before.iter().any(|line| line.contains("10.79.0.0/24")) == (plugin == Plugin::Ptp));
        assert!(
            before.iter().any(|line| line.contains("isolated on")) == (plugin == Plugin::Bridge),
            "{before:#?}"
        );
        let was = Cluster::link(&cluster.node, HOST_END);
        let pair = cluster.take_in();
        assert_eq!(pair, Pair { index: was.index, attachment: Some(attachment()) });
        assert_same(&before, &cluster, "the stand-in", plugin);
        assert_eq!(cluster.reach(SHORT), [false; 2], "{plugin:?}: nobody carries anything");
        let wire = cluster.carry(&pair);
        assert_eq!(cluster.reach(LONG), [true; 2], "{plugin:?}: through the shelter");
        drop(wire);
        assert_eq!(cluster.reach(SHORT), [false; 2], "{plugin:?}: nobody any more");
        cluster.shelter.give_back(&cluster.node, &pair).unwrap();
        assert_same(&before, &cluster, "back again", plugin);
        let is = Cluster::link(&cluster.node, HOST_END);
        assert_eq!((is.mac, is.veth_peer), (was.mac, was.veth_peer), "the same device");
        assert_eq!(cluster.reach(LONG), [true; 2], "{plugin:?}");
        assert_eq!(cluster.shelter.pairs().unwrap(), []);
    }
}

/// Checks that the cluster looks as before. The kernel sets the carrier of a new link a moment later, so the check
/// waits for it.
fn assert_same(before: &[String], cluster: &Cluster, when: &str, plugin: Plugin) {
    const SETTLES: Duration = Duration::from_secs(5);
    let start = Instant::now();
    loop {
        let now = cluster.seen();
        let missing: Vec<_> = before.iter().filter(|line| !now.contains(line)).collect();
        let new: Vec<_> = now.iter().filter(|line| !before.contains(line)).collect();
        if missing.is_empty() && new.is_empty() {
            return;
        }
        assert!(start.elapsed() < SETTLES, "{plugin:?}, {when}: lost {missing:#?}, new {new:#?}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Whether a host end is in the shelter, and the pod and the node cannot reach each other.
fn is_cut(cluster: &Cluster, index: u32) -> bool {
    // The address may have been deleted with the host end.
    ip(&cluster.node, &format!("addr replace {NODE4}/32 dev lo"));
    let links = |netns| netlink::in_netns(netns, async |netlink| netlink.links().await).unwrap();
    let is_here = |netns| links(netns).iter().any(|link| link.index == index);
    !is_here(&cluster.node)
        && is_here(cluster.shelter.netns())
        && cluster.reach(SHORT) == [false; 2]
}

#[test]
fn a_move_that_fails_midway_leaves_no_way_open() {
    if !namespaces_allowed() {
        return;
    }
    for plugin in [Plugin::Ptp, Plugin::Bridge] {
        let cluster = Cluster::new(plugin);
        let [_, found] = host_end(&cluster.node, &cluster.pod, "eth0").unwrap();
        assert_eq!(cluster.reach(LONG), [true; 2], "{plugin:?}: the links are up");
        let before = cluster.seen();
        let long = AttachmentId { interface: "x".repeat(ALIAS_MAX), ..attachment() };
        let error = cluster.shelter.take_in(&cluster.node, &found, &long).unwrap_err();
        assert!(error.to_string().contains("255 bytes"), "{error}");
        assert_same(&before, &cluster, "before the move", plugin);
        // The stand-in cannot be made.
        let taken = format!(
            "link add {PREFIX}{} index 90000 type veth peer name other index 90001",
            found.index
        );
        ip(cluster.shelter.netns(), &taken);
        cluster.shelter.take_in(&cluster.node, &found, &attachment()).unwrap_err();
        assert!(is_cut(&cluster, found.index), "{plugin:?}");
        // The host end can be given back nevertheless, without its former configuration.
        give_back_bare(&cluster, found.index);
    }
    // The stand-in cannot be configured, because its bridge was deleted meanwhile.
    let cluster = Cluster::new(Plugin::Bridge);
    let [_, found] = host_end(&cluster.node, &cluster.pod, "eth0").unwrap();
    let config = netlink::in_netns(&cluster.node, async |netlink| netlink.config(HOST_END).await);
    ip(&cluster.node, "link del cni0");
    let config = config.unwrap();
    let failed = cluster.shelter.take_in_as(&cluster.node, &config, &attachment()).unwrap_err();
    assert!(matches!(failed, Error::Netlink(_)), "{failed}");
    assert!(is_cut(&cluster, found.index));
    give_back_bare(&cluster, found.index);
    // The stand-in was removed, as by DEL or a hook that is killed midway.
    let cluster = Cluster::new(Plugin::Ptp);
    let pair = cluster.take_in();
    cluster.shelter.remove(&pair).unwrap();
    assert!(is_cut(&cluster, pair.index));
    give_back_bare(&cluster, pair.index);
}

/// A host end without a stand-in is found and given back. Then the shelter may end, and the pod's interface stays.
fn give_back_bare(cluster: &Cluster, index: u32) {
    let pair = Pair { index, attachment: None };
    assert_eq!(cluster.shelter.pairs().unwrap(), std::slice::from_ref(&pair));
    let bare = GivenBack::Bare { host_end: HOST_END.to_owned() };
    assert_eq!(cluster.shelter.give_back(&cluster.node, &pair).unwrap(), bare);
    assert_eq!(cluster.shelter.pairs().unwrap(), []);
    assert!(Cluster::link(&cluster.node, HOST_END).up);
}

#[test]
fn an_interface_that_does_not_keep_its_index_is_not_taken_for_another() {
    if !namespaces_allowed() {
        return;
    }
    let cluster = Cluster::new(Plugin::Bridge);
    let [_, found] = host_end(&cluster.node, &cluster.pod, "eth0").unwrap();
    let other =
        format!("link add name one index {} type veth peer name two index 90001", found.index);
    ip(cluster.shelter.netns(), &other);
    let error = cluster.shelter.take_in(&cluster.node, &found, &attachment()).unwrap_err();
    assert!(matches!(error, Error::IndexTaken { .. }), "{error}");
    let names = ip(cluster.shelter.netns(), "-o link show up");
    assert!(!names.contains(HOST_END) && !names.contains("one"), "nothing is set up: {names}");
    assert_eq!(cluster.reach(SHORT), [false; 2]);
}

#[test]
fn what_stands_in_for_a_host_end_that_is_gone_is_swept_away() {
    if !namespaces_allowed() {
        return;
    }
    let cluster = Cluster::new(Plugin::Bridge);
    let pair = cluster.take_in();
    cluster.shelter.remove_stale_stand_ins().unwrap();
    assert_eq!(cluster.shelter.pair(pair.index).unwrap(), Some(pair.clone()), "its pod is there");
    ip(&cluster.pod, "link del eth0");
    assert_eq!(cluster.shelter.pairs().unwrap(), [pair]);
    cluster.shelter.remove_stale_stand_ins().unwrap();
    assert_eq!(cluster.shelter.pairs().unwrap(), []);
    assert!(!ip(&cluster.node, "-o link").contains(HOST_END));
}

#[test]
fn who_waits_while_all_is_given_back_moves_nothing_in_any_more() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("node.netns");
    let given_back = |lock: Result<Lock, Error>| matches!(lock, Err(Error::GivenBack(_)));
    assert!(given_back(Lock::shared(&path)), "nobody has made it");
    assert!(Lock::exclusive(&path).unwrap().is_none());
    Lock::create(&path).unwrap();
    Lock::create(&path).unwrap();
    let (first, second) = (Lock::shared(&path).unwrap(), Lock::shared(&path).unwrap());
    thread::scope(|scope| {
        let (taken, is_taken) = std::sync::mpsc::channel();
        let path = &path;
        let ends = scope.spawn(move || {
            let all = Lock::exclusive(path).unwrap().unwrap();
            taken.send(()).unwrap();
            let [late, another] = [(); 2].map(|()| scope.spawn(move || Lock::shared(path)));
            let twice = scope.spawn(move || Lock::exclusive(path));
            thread::sleep(SHORT);
            all.remove(path).unwrap();
            // The result does not depend on whether the file was opened before that or later.
            assert!(given_back(late.join().unwrap()) && given_back(another.join().unwrap()));
            assert!(twice.join().unwrap().unwrap().is_none(), "it is done already");
        });
        drop(first);
        assert!(is_taken.recv_timeout(SHORT).is_err(), "one is still at it");
        drop(second);
        ends.join().unwrap();
    });
}

#[test]
fn what_would_be_lost_or_cannot_be_moved_is_refused() {
    if !namespaces_allowed() {
        return;
    }
    let refused = |cluster: &Cluster, expected: &[&str]| {
        let error = host_end(&cluster.node, &cluster.pod, "eth0").unwrap_err().to_string();
        assert!(expected.iter().all(|it| error.contains(it)), "{error}");
    };
    let cluster = Cluster::new(Plugin::Bridge);
    host_end(&cluster.node, &cluster.pod, "eth0").unwrap();
    for (kind, add) in [
        ("tbf", "root tbf rate 1mbit burst 10kb latency 50ms"),
        ("clsact", "clsact"),
        ("ingress", "ingress"),
    ] {
        run(&cluster.node, "tc", &format!("qdisc add dev {HOST_END} {add}"));
        refused(&cluster, &[HOST_END, kind, "directly behind"]);
        let what = add.split(' ').next().unwrap();
        run(&cluster.node, "tc", &format!("qdisc del dev {HOST_END} {what}"));
    }
    host_end(&cluster.node, &cluster.pod, "eth0").unwrap();
    ip(&cluster.pod, "link set eth0 name veth9");
    ip(&cluster.pod, "link add link veth9 name eth0 type macvlan");
    refused(&cluster, &["eth0", "no end of a veth pair", "macvlan"]);
    // Both ends are in the pod, and the node has another pod's pair with the same indices.
    ip(&cluster.pod, "link del eth0");
    let index = Cluster::link(&cluster.node, HOST_END).index;
    ip(&cluster.pod, "link del veth9");
    ip(&cluster.pod, &format!("link add eth0 index 700 type veth peer name inside index {index}"));
    let other = netns::create().unwrap();
    netlink::in_netns(&cluster.node, async |netlink| {
        let peer = Peer { name: "eth0", netns: Some(other.as_fd()), mac: None, index: Some(700) };
        let veth = Veth { name: HOST_END, mac: None, index: Some(index), mtu: 1400, peer };
        netlink.add_veth(&veth).await
    })
    .unwrap();
    refused(&cluster, &["eth0", "elsewhere"]);
    host_end(&cluster.node, &other, "eth0").unwrap();
}

#[test]
fn a_pair_goes_with_its_pod_and_an_attachment_is_read_as_it_was_written() {
    if !namespaces_allowed() {
        return;
    }
    let cluster = Cluster::new(Plugin::Bridge);
    let pair = cluster.take_in();
    ip(&cluster.pod, "link del eth0");
    assert_eq!(
        cluster.shelter.pairs().unwrap(),
        std::slice::from_ref(&pair),
        "the stand-in is still there"
    );
    cluster.shelter.give_back(&cluster.node, &pair).unwrap();
    cluster.shelter.give_back(&cluster.node, &pair).unwrap();
    assert_eq!(cluster.shelter.pairs().unwrap(), []);
    let left = ip(&cluster.node, "-o link") + &ip(cluster.shelter.netns(), "-o link");
    assert!(!left.contains("veth") && !left.contains(PREFIX), "{left}");
    for (network, container, interface, holds) in [
        ("n", "c", "i", true),
        ("a b", "c", "i", false),
        ("", "c", "i", false),
        ("n", "c d", "i", false),
    ] {
        let sandbox = Sandbox { network: network.to_owned(), container: container.to_owned() };
        let id = AttachmentId { sandbox, interface: interface.to_owned() };
        assert_eq!(alias(&id).ok().as_deref().and_then(read_alias), holds.then_some(id));
    }
}

#[test]
fn several_callers_at_once_get_one_shelter_and_a_stale_name_is_no_shelter() {
    if !namespaces_allowed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shelter.netns");
    for round in 0..20 {
        assert!(Shelter::open(&path).unwrap().is_none());
        if round % 2 == 1 {
            fs::write(&path, "").unwrap();
            let error = Shelter::open(&path).unwrap_err().to_string();
            assert!(error.contains("nothing is mounted"), "{error}");
        }
        let all: Vec<Shelter> = thread::scope(|scope| {
            let callers: Vec<_> =
                (0..8).map(|_| scope.spawn(|| Shelter::ensure(&path).unwrap())).collect();
            callers.into_iter().map(|caller| caller.join().unwrap()).collect()
        });
        for other in &all {
            assert!(netns::same(other.netns(), all[0].netns()).unwrap());
        }
        let value = netns::run_in(all[0].netns(), || sysctl::read("ipv4/conf/all/arp_ignore"));
        assert_eq!(value.unwrap().unwrap(), "8", "it answers nothing");
        netns::delete(&path).unwrap();
    }
    let others = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o077;
    Lock::create(&path).unwrap();
    assert_eq!(others(&path.with_extension("netns.lock")), 0, "no other user can lock it");
}
