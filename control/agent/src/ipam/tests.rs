use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;

use manx_calculation::block::TUNNEL;
use manx_calculation::import::import;
use manx_calculation::topology::{Reserved, topology};
use manx_objects::contents::Contents;
use proptest::prelude::*;

use super::store::{self, Store};
use super::*;
use manx_api::Sandbox;

/// What the topology routes to the node itself must be what no pod gets.
#[test]
fn the_address_that_is_kept_from_pods_is_the_topologys_own() {
    let node = r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"a"},"spec":{"podCIDRs":["10.244.1.0/24","fd00:10:1::/64"]},
        "status":{"addresses":[{"type":"InternalIP","address":"172.18.0.2"}]}}"#;
    let cluster = import(&Contents::from_texts([("node.json", node)]));
    let seen = topology(&cluster, "a", &Reserved::new()).unwrap();
    assert_eq!(seen.tunnel_addresses.len(), 2);
    assert_eq!(tunnel_addresses(&Ipam::new(&seen.blocks).unwrap()), seen.tunnel_addresses);
}

/// No address is another's.
const NONE: BTreeMap<IpAddr, String> = BTreeMap::new();

fn pod(number: u32) -> PodName {
    PodName { namespace: "default".to_owned(), name: format!("pod-{number}") }
}

fn open(path: &Path, blocks: &[IpNet]) -> Result<Store, store::Error> {
    Store::open(path, Ipam::new(blocks)?)
}

fn nets(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn ipam(blocks: &[&str]) -> Ipam {
    Ipam::new(&nets(blocks)).unwrap()
}

/// The node's own address in each block.
fn tunnel_addresses(ipam: &Ipam) -> Vec<IpAddr> {
    ipam.blocks.iter().map(|block| block.address(TUNNEL)).collect()
}

/// Blocks of one or both families, small enough to run out.
fn blocks() -> impl Strategy<Value = Vec<IpNet>> {
    let v4 = (any::<u32>(), 25_u8..=30).prop_map(|(bits, len)| {
        IpNet::new(IpAddr::from(Ipv4Addr::from_bits(bits)), len).unwrap().trunc()
    });
    let v6 = (any::<u128>(), 121_u8..=126).prop_map(|(bits, len)| {
        IpNet::new(IpAddr::from(Ipv6Addr::from_bits(bits)), len).unwrap().trunc()
    });
    prop_oneof![
        v4.clone().prop_map(|net| vec![net]),
        v6.clone().prop_map(|net| vec![net]),
        (v4, v6).prop_map(|(v4, v6)| vec![v4, v6]),
    ]
}

proptest! {
    #[test]
    fn no_address_is_given_twice_and_none_is_reserved(
        blocks in blocks(),
        steps in prop::collection::vec((any::<bool>(), 0_u32..160), 0..400),
    ) {
        let mut ipam = Ipam::new(&blocks).unwrap();
        let mut held: BTreeMap<PodName, Vec<IpAddr>> = BTreeMap::new();
        for (attach, number) in steps {
            let pod = pod(number);
            if !attach {
                prop_assert_eq!(ipam.release(&pod), held.remove(&pod).unwrap_or_default());
                continue;
            }
            match ipam.assign(&pod, &NONE) {
                Ok(addresses) => {
                    for (net, address) in blocks.iter().zip(&addresses) {
                        prop_assert!(net.contains(address));
                        prop_assert_ne!(*address, net.network());
                        prop_assert!(net.addr().is_ipv6() || *address != net.broadcast());
                        prop_assert!(!tunnel_addresses(&ipam).contains(address));
                        let holder = held.iter().find(|(_, theirs)| theirs.contains(address));
                        prop_assert!(holder.is_none_or(|(holder, _)| *holder == pod));
                    }
                    if let Some(before) = held.insert(pod, addresses.clone()) {
                        prop_assert_eq!(before, addresses, "the same pod has the same address");
                    }
                }
                Err(Error::Exhausted { block, leased, others }) => {
                    prop_assert!(blocks.contains(&block));
                    prop_assert_eq!(leased, held.len());
                    prop_assert!(others.is_empty());
                    let host_bits = u32::from(block.max_prefix_len() - block.prefix_len());
                    let reserved = if block.addr().is_ipv4() { 3 } else { 2 };
                    prop_assert_eq!(leased, (1 << host_bits) - reserved, "every address is in use");
                }
                Err(other) => prop_assert!(false, "{other}"),
            }
        }
        prop_assert_eq!(&ipam.pods, &held);
    }

    #[test]
    fn what_was_released_is_the_last_to_come_again(blocks in blocks(), attached in 1_u32..20) {
        let mut ipam = Ipam::new(&blocks[..1]).unwrap();
        let attached = (0..attached).take_while(|number| ipam.assign(&pod(*number), &NONE).is_ok()).count() as u32;
        let released = ipam.release(&pod(0));
        let later = (attached..).map_while(|number| ipam.assign(&pod(number), &NONE).ok()).collect::<Vec<_>>();
        prop_assert_eq!(later.last(), Some(&released));
        prop_assert_eq!(later.iter().filter(|addresses| **addresses == released).count(), 1);
    }
}

#[test]
fn the_second_address_is_the_nodes_and_the_third_the_first_pods() {
    let mut ipam = ipam(&["10.244.1.0/24", "fd00:1::/64"]);
    let own: Vec<IpAddr> = vec!["10.244.1.1".parse().unwrap(), "fd00:1::1".parse().unwrap()];
    assert_eq!(tunnel_addresses(&ipam), own);
    let first: Vec<IpAddr> = vec!["10.244.1.2".parse().unwrap(), "fd00:1::2".parse().unwrap()];
    assert_eq!(ipam.assign(&pod(1), &NONE).unwrap(), first);
}

#[test]
fn the_whole_address_space_is_a_block_too() {
    let mut ipam = ipam(&["0.0.0.0/0", "::/0"]);
    let first: Vec<IpAddr> = vec!["0.0.0.2".parse().unwrap(), "::2".parse().unwrap()];
    assert_eq!(ipam.assign(&pod(1), &NONE).unwrap(), first);
}

#[test]
fn refusals_name_the_block() {
    let refused = |blocks: &[&str]| Ipam::new(&nets(blocks)).unwrap_err().to_string();
    let mut full = ipam(&["10.0.0.0/30"]);
    full.assign(&pod(1), &NONE).unwrap();
    let texts = [
        refused(&[]),
        refused(&["10.0.0.0/24", "10.0.1.0/24"]),
        refused(&["10.0.0.0/31"]),
        refused(&["fd00::/127"]),
        refused(&["10.0.0.1/32"]),
        full.assign(&pod(2), &NONE).unwrap_err().to_string(),
    ];
    insta::assert_snapshot!(texts.join("\n"), @r"
    the node has no pod CIDR: set Node.spec.podCIDRs
    the node has two pod CIDRs of one family, 10.0.0.0/24 and 10.0.1.0/24: Node.spec.podCIDRs holds at most one of each
    pod CIDR 10.0.0.0/31 has no room for a pod: an IPv4 block is /30 or larger, an IPv6 block /126 or larger
    pod CIDR fd00::/127 has no room for a pod: an IPv4 block is /30 or larger, an IPv6 block /126 or larger
    pod CIDR 10.0.0.1/32 has no room for a pod: an IPv4 block is /30 or larger, an IPv6 block /126 or larger
    no address is left in pod CIDR 10.0.0.0/30: pods of this node have 1; remove pods, or give the node a larger pod CIDR
    ");
}

fn addresses(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn named_addresses_are_given_exactly_and_to_no_other_pod() {
    let mut ipam = ipam(&["10.0.0.0/29", "fd00::/64"]);
    let inside = addresses(&["10.0.0.2"]);
    assert_eq!(ipam.pin(&pod(1), &inside).unwrap(), inside);
    let outside = addresses(&["192.0.2.9", "fd09::9"]);
    assert_eq!(ipam.pin(&pod(2), &outside).unwrap(), outside);
    // Both again, in another order, and without naming them.
    assert_eq!(ipam.pin(&pod(2), &addresses(&["fd09::9", "192.0.2.9"])).unwrap(), outside);
    assert_eq!(ipam.assign(&pod(2), &NONE).unwrap(), outside);
    // The turn goes past it.
    assert_eq!(ipam.assign(&pod(3), &NONE).unwrap(), addresses(&["10.0.0.3", "fd00::2"]));
    let refused = |wanted: &[&str]| {
        let mut next = ipam.clone();
        let error = next.pin(&pod(4), &addresses(wanted)).unwrap_err();
        assert_eq!(next, ipam, "all or nothing");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        error.to_string()
    };
    let texts = [
        refused(&["10.0.0.4", "fd09::9"]),
        refused(&["10.0.0.3"]),
        refused(&["10.0.0.1"]),
        refused(&["10.0.0.0"]),
        refused(&["10.0.0.4", "10.0.0.5"]),
        refused(&["127.0.0.1"]),
        refused(&["fe80::1"]),
        ipam.pin(&pod(2), &inside).unwrap_err().to_string(),
    ];
    insta::assert_snapshot!(texts.join("\n"), @r"
    address fd09::9 is that of pod default/pod-2: name another, or detach that pod first
    address 10.0.0.3 is that of pod default/pod-3: name another, or detach that pod first
    address 10.0.0.1 is the node's own in pod CIDR 10.0.0.0/29: name another
    address 10.0.0.0 is the node's own in pod CIDR 10.0.0.0/29: name another
    the addresses 10.0.0.4 and 10.0.0.5 are of one family: name at most one for IPv4 and one for IPv6
    address 127.0.0.1 is not one that a pod can have: expected a unicast address, not link-local or loopback
    address fe80::1 is not one that a pod can have: expected a unicast address, not link-local or loopback
    pod default/pod-2 has the addresses 192.0.2.9, fd09::9, and not 10.0.0.2: detach it first to give it others
    ");
    assert_eq!(ipam.release(&pod(2)), outside);
    assert_eq!(ipam.pin(&pod(4), &outside).unwrap(), outside);
}

#[test]
fn named_addresses_are_in_the_file_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("addresses.json");
    let blocks = nets(&["10.0.0.0/24", "fd00::/64"]);
    let mut first = open(&path, &blocks).unwrap();
    for (number, wanted) in
        [&["10.0.0.9"][..], &["192.0.2.9", "fd09::9"], &["10.0.0.255", "fd00::3"]]
            .into_iter()
            .enumerate()
    {
        first.reserve(&pod(number as u32), &addresses(wanted), None, &NONE).unwrap();
    }
    first.reserve(&pod(9), &[], None, &NONE).unwrap();
    let second = open(&path, &blocks).unwrap();
    assert_eq!(second.ipam, first.ipam);
    assert_eq!(second.ipam.pods.len(), 4);
}

#[test]
fn a_store_without_blocks_remembers_what_another_plugin_gave_and_gives_nothing_itself() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("addresses.json");
    let mut first = Store::open(&path, Ipam::without_blocks()).unwrap();
    let theirs = addresses(&["10.77.0.2", "fd77::2"]);
    assert_eq!(first.reserve(&pod(1), &theirs, None, &NONE).unwrap(), theirs);
    assert!(first.reserve(&pod(2), &theirs, None, &NONE).is_err());
    first.reserve(&pod(3), &[], None, &NONE).unwrap_err();
    let mut second = Store::open(&path, Ipam::without_blocks()).unwrap();
    assert_eq!(second.ipam, first.ipam);
    second.reserve(&pod(2), &addresses(&["10.77.0.3"]), None, &NONE).unwrap();
    second.retain(|it| *it == pod(1)).unwrap();
    let kept: Vec<PodName> = second.ipam().leases().map(|(pod, ..)| pod.clone()).collect();
    assert_eq!(kept, [pod(1)]);
    // They are another plugin's, which gives them out as it likes.
    let blocks = nets(&["10.77.0.0/24"]);
    let mut of_blocks = open(&path, &blocks).unwrap();
    assert_eq!(of_blocks.ipam().leases().count(), 0);
    of_blocks.reserve(&pod(1), &[], None, &NONE).unwrap();
    let back = Store::open(&path, Ipam::without_blocks());
    assert!(matches!(back, Err(store::Error::OtherBlocks { pods: 1, .. })), "those of blocks stay");
}

#[test]
fn a_store_remembers_and_goes_on_in_turn() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("addresses.json");
    let blocks = nets(&["10.0.0.0/24", "fd00::/64"]);
    let mut first = open(&path, &blocks).unwrap();
    let kept = first.reserve(&pod(1), &[], None, &NONE).unwrap();
    let gone = first.reserve(&pod(2), &[], None, &NONE).unwrap();
    assert_eq!(first.release(&pod(2)).unwrap(), gone);
    let mut second = open(&path, &blocks).unwrap();
    assert_eq!(second.ipam, first.ipam);
    assert_eq!(second.reserve(&pod(1), &[], None, &NONE).unwrap(), kept);
    assert_ne!(
        second.reserve(&pod(3), &[], None, &NONE).unwrap(),
        gone,
        "not what was released a moment ago"
    );
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside the file");
}

#[test]
fn a_store_remembers_what_a_runtime_calls_an_attachment_until_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("addresses.json");
    let blocks = nets(&["10.0.0.0/24"]);
    let [first, second] = ["first", "second"].map(|container| AttachmentId {
        sandbox: Sandbox { network: "manx".to_owned(), container: container.to_owned() },
        interface: "eth0".to_owned(),
    });
    let mut store = open(&path, &blocks).unwrap();
    let has = store.reserve(&pod(1), &[], Some(first.clone()), &NONE).unwrap();
    store.reserve(&pod(2), &[], None, &NONE).unwrap();
    let mut store = open(&path, &blocks).unwrap();
    assert_eq!((store.ipam().id(&pod(1)), store.ipam().id(&pod(2))), (Some(&first), None));
    // Another sandbox of the pod has the same addresses, and is the one that has them.
    assert_eq!(store.reserve(&pod(1), &[], Some(second.clone()), &NONE).unwrap(), has);
    assert_eq!(open(&path, &blocks).unwrap().ipam().id(&pod(1)), Some(&second));
    store.release(&pod(1)).unwrap();
    assert_eq!(open(&path, &blocks).unwrap().ipam().id(&pod(1)), None);
}

/// One step in the life of a store of a node with few addresses.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// A pod is attached, in this sandbox.
    Reserve(u32, u32),
    /// A pod is detached.
    Release(u32),
    /// What the runtime no longer has is freed: it has the sandboxes of this number and above.
    Collect(u32),
}

/// What becomes of a step.
#[derive(Debug, Clone, Copy)]
enum End {
    /// It is done.
    Done,
    /// The file cannot be written.
    Failed,
    /// The agent dies while it writes: with so many eighths of the file beside its place (8: all of it), or after the
    /// file is in its place (9). Another agent starts.
    Crashed(usize),
}

fn steps() -> impl Strategy<Value = Vec<(Step, End)>> {
    let step = prop_oneof![
        4 => (0_u32..8, 0_u32..4).prop_map(|(pod, sandbox)| Step::Reserve(pod, sandbox)),
        2 => (0_u32..8).prop_map(Step::Release),
        1 => (0_u32..5).prop_map(Step::Collect),
    ];
    let end = prop_oneof![
        4 => Just(End::Done),
        1 => Just(End::Failed),
        3 => (0_usize..=9).prop_map(End::Crashed),
    ];
    prop::collection::vec((step, end), 1..40)
}

fn sandbox(number: u32) -> AttachmentId {
    AttachmentId {
        sandbox: Sandbox { network: "manx".to_owned(), container: number.to_string() },
        interface: "eth0".to_owned(),
    }
}

/// A store in a folder of its own, and what the pods believe to have.
struct Life {
    path: std::path::PathBuf,
    blocks: Vec<IpNet>,
    store: Store,
    /// What was given and not taken back.
    held: BTreeMap<PodName, (Vec<IpAddr>, AttachmentId)>,
    _folder: tempfile::TempDir,
}

impl Life {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("addresses.json");
        let blocks = nets(&["10.0.0.0/29", "fd00::/125"]);
        let store = open(&path, &blocks).unwrap();
        Self { path, blocks, store, held: BTreeMap::new(), _folder: folder }
    }

    /// Puts the folder in the state that a crash leaves.
    fn crash(&self, before: Option<&[u8]>, written: usize) {
        let beside = self.path.with_extension("json.new");
        if written > 8 {
            return;
        }
        let after = fs::read(&self.path).unwrap_or_default();
        fs::write(&beside, &after[..after.len() * written / 8]).unwrap();
        match before {
            Some(bytes) => fs::write(&self.path, bytes).unwrap(),
            None => drop(fs::remove_file(&self.path)),
        }
    }

    /// Does one thing to one pod. Returns what the agent that lives then has told, if it lived to tell.
    fn act<T>(
        &mut self,
        end: End,
        act: impl FnOnce(&mut Store) -> Result<T, store::Error>,
    ) -> Option<Result<T, store::Error>> {
        let before = fs::read(&self.path).ok();
        let beside = self.path.with_extension("json.new");
        match end {
            End::Done => Some(act(&mut self.store)),
            End::Failed => {
                let _ = fs::remove_file(&beside);
                fs::create_dir(&beside).unwrap();
                let result = act(&mut self.store);
                fs::remove_dir(&beside).unwrap();
                Some(result)
            }
            End::Crashed(written) => {
                let _ = act(&mut self.store);
                self.crash(before.as_deref(), written);
                self.store = open(&self.path, &self.blocks).unwrap();
                None
            }
        }
    }

    fn step(&mut self, step: Step, end: End) {
        match step {
            Step::Reserve(number, of) => {
                let (pod, id) = (pod(number), sandbox(of));
                match self.act(end, |store| store.reserve(&pod, &[], Some(id.clone()), &NONE)) {
                    Some(Ok(addresses)) => drop(self.held.insert(pod, (addresses, id))),
                    Some(Err(_)) => {}
                    // A pod that was attached already may have the new sandbox or the old one.
                    None => {
                        if let Some((_, has)) = self.held.get_mut(&pod) {
                            *has = self.store.ipam().id(&pod).unwrap().clone();
                        }
                    }
                }
            }
            Step::Release(number) => self.release(&pod(number), end),
            Step::Collect(first) => {
                let is_stale = |id: &AttachmentId| (0..first).any(|number| sandbox(number) == *id);
                let leases = self.store.ipam().leases();
                let stale: Vec<PodName> = leases
                    .filter(|(_, _, id)| id.is_some_and(is_stale))
                    .map(|(pod, _, _)| pod.clone())
                    .collect();
                for pod in &stale {
                    self.release(pod, end);
                }
            }
        }
    }

    fn release(&mut self, pod: &PodName, end: End) {
        match self.act(end, |store| store.release(pod)) {
            Some(Ok(addresses)) => {
                let had = self.held.remove(pod);
                // A crash may have left a pod with addresses that it was never told of.
                assert!(had.is_none_or(|(had, _)| had == addresses));
            }
            None if self.store.ipam().leases().all(|(name, _, _)| name != pod) => {
                self.held.remove(pod);
            }
            Some(Err(_)) | None => {}
        }
    }

    /// What pods have is theirs alone, in memory and in the file.
    fn check(&self) {
        let again = open(&self.path, &self.blocks).unwrap();
        assert_eq!(again.ipam, self.store.ipam);
        let mut seen = BTreeSet::new();
        for (pod, addresses, id) in again.ipam().leases() {
            assert!(addresses.iter().all(|address| seen.insert(*address)), "{pod}: {addresses:?}");
            if let Some((had, of)) = self.held.get(pod) {
                assert_eq!((had.as_slice(), Some(of)), (addresses, id), "{pod}");
            }
        }
        let kept = |pod| again.ipam().leases().any(|(name, _, _)| name == pod);
        assert!(self.held.keys().all(kept), "an address is forgotten");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn whatever_fails_or_crashes_no_address_is_another_pods_and_all_come_back(steps in steps()) {
        let mut life = Life::new();
        for (step, end) in steps {
            life.step(step, end);
            life.check();
        }
        // What a crash has left is freed by what the runtime has no more.
        life.step(Step::Collect(5), End::Done);
        life.check();
        prop_assert_eq!(life.store.ipam().leases().count(), 0);
        let pods = (100..).map_while(|number| life.store.reserve(&pod(number), &[], None, &NONE).ok());
        prop_assert_eq!(pods.count(), 5, "10.0.0.2 to 10.0.0.6");
    }
}

#[test]
fn on_a_full_disk_nothing_is_given_and_nothing_is_forgotten() {
    if !manx_linux::testing::namespaces_allowed() {
        return;
    }
    // In a thread of its own, whose mounts no other sees.
    let small_disk = || {
        use nix::mount::{MsFlags, mount};
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let none: Option<&str> = None;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
        // Three pages: the folder's entries take none.
        let size = Some("size=12k");
        mount(Some("none"), folder.path(), Some("tmpfs"), MsFlags::empty(), size).unwrap();
        let path = folder.path().join("addresses.json");
        let blocks = nets(&["10.0.0.0/16"]);
        let mut store = open(&path, &blocks).unwrap();
        let given =
            (0..).map_while(|number| store.reserve(&pod(number), &[], None, &NONE).ok()).count();
        assert!((50..1000).contains(&given), "{given}");
        let error = store.reserve(&pod(5000), &[], None, &NONE).unwrap_err();
        let store::Error::File { verb: "written", source, .. } = &error else { panic!("{error}") };
        assert_eq!(source.kind(), std::io::ErrorKind::StorageFull);
        let mut store = open(&path, &blocks).unwrap();
        assert_eq!(store.ipam().leases().count(), given);
        // There is no more room to write, and what goes needs less.
        store.release(&pod(0)).unwrap();
        store.reserve(&pod(5000), &[], None, &NONE).unwrap();
        nix::mount::umount(folder.path()).unwrap();
    };
    std::thread::scope(|scope| scope.spawn(small_disk).join()).unwrap();
}

#[test]
fn what_lies_where_the_file_is_written_is_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let [path, beside, other] =
        ["addresses.json", "addresses.json.new", "other"].map(|name| folder.path().join(name));
    fs::write(&other, "precious").unwrap();
    std::os::unix::fs::symlink(&other, &beside).unwrap();
    let blocks = nets(&["10.0.0.0/24"]);
    open(&path, &blocks).unwrap().reserve(&pod(1), &[], None, &NONE).unwrap();
    assert_eq!(fs::read_to_string(&other).unwrap(), "precious");
    assert!(path.symlink_metadata().unwrap().is_file() && !beside.exists());
}

#[test]
fn blocks_change_only_without_pods() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("addresses.json");
    let mut store = open(&path, &nets(&["10.0.0.0/24"])).unwrap();
    store.reserve(&pod(1), &[], None, &NONE).unwrap();
    let other = nets(&["10.0.1.0/24"]);
    assert!(matches!(open(&path, &other), Err(store::Error::OtherBlocks { pods: 1, .. })));
    store.release(&pod(1)).unwrap();
    assert_eq!(open(&path, &other).unwrap().ipam.blocks(), other);
}

#[test]
fn a_damaged_file_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("addresses.json");
    let state = |pods: &str| {
        format!(
            r#"{{"version":1,"blocks":[{{"cidr":"10.0.0.0/24","last":"10.0.0.9"}}],"pods":{{{pods}}}}}"#
        )
    };
    let damaged = [
        String::new(),
        state(r#""a/b":["10.0.0.9"]"#).replace("\"version\":1", "\"version\":4"),
        state(r#""a/b":["10.0.0.9"],"a/c":["10.0.0.9"]"#),
        state(r#""a/b":["10.0.0.1"]"#),
        state(r#""a/b":["10.0.1.9"]"#),
        state(r#""a/b":[]"#),
        state(r#""b":["10.0.0.9"]"#),
        state("").replace("10.0.0.9", "10.0.0.255"),
        state(r#""a/b":["10.0.0.9"]},"pinned":{"a/c":["10.0.0.9"]"#),
        state(r#""a/b":["10.0.0.9"]},"pinned":{"a/b":["10.9.0.9"]"#),
        state(r#"},"pinned":{"a/b":[]"#),
        state(r#"},"pinned":{"a/b":["10.0.0.1"]"#),
        state(r#"},"attachments":{"a/b":{"network":"n","container":"c","interface":"eth0"}"#),
    ];
    let mut reasons = Vec::new();
    for text in damaged {
        fs::write(&path, &text).unwrap();
        match open(&path, &nets(&["10.0.0.0/24"])) {
            Err(store::Error::Damaged { reason, .. }) => reasons.push(reason),
            other => panic!("{text}: {other:?}"),
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
    insta::assert_snapshot!(reasons.join("\n"), @r#"
    EOF while parsing a value at line 1 column 0
    it has version 4, this manx reads versions up to 3
    a/c is not the only pod with 10.0.0.9
    10.0.0.1 is not a pod's address of 10.0.0.0/24
    10.0.1.9 is not a pod's address of 10.0.0.0/24
    a/b has 0 addresses of 1 blocks
    "b" is not a pod's namespace/name
    10.0.0.255 is not a pod's address of 10.0.0.0/24
    a/c is not the only pod with 10.0.0.9
    a/b is there twice
    a/b has no address
    address 10.0.0.1 is the node's own in pod CIDR 10.0.0.0/24: name another
    a/b is attached (eth0 of container c in network n) and has no address
    "#);
}

#[test]
fn an_address_that_an_object_of_another_has_is_not_given_out() {
    let mut ipam = ipam(&["10.0.0.0/29", "fd00::/125"]);
    let others = addresses(&["10.0.0.2", "10.0.0.4", "fd00::2"]).into_iter();
    let mut others: BTreeMap<IpAddr, String> =
        others.map(|address| (address, "Pod shop/web".to_owned())).collect();
    assert_eq!(ipam.assign(&pod(1), &others).unwrap(), addresses(&["10.0.0.3", "fd00::3"]));
    assert_eq!(ipam.assign(&pod(2), &others).unwrap(), addresses(&["10.0.0.5", "fd00::4"]));
    others.insert("10.0.0.6".parse().unwrap(), "Node \"b\"".to_owned());
    insta::assert_snapshot!(
        ipam.assign(&pod(3), &others).unwrap_err(),
        @r#"no address is left in pod CIDR 10.0.0.0/29: pods of this node have 2, and others have 3: 10.0.0.2 of Pod shop/web, 10.0.0.4 of Pod shop/web, 10.0.0.6 of Node "b"; remove pods, or give the node a larger pod CIDR"#
    );
}
