use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::file::FileStore;
use manx_api::Sandbox;

type Ipam = HostLocal<FileStore>;

/// No address has an owner outside the leases.
const NONE: BTreeMap<IpAddr, String> = BTreeMap::new();

thread_local! {
    static RUNTIME: tokio::runtime::Runtime =
        tokio::runtime::Builder::new_current_thread().build().unwrap();
}

fn wait<F: Future>(future: F) -> F::Output {
    RUNTIME.with(|runtime| runtime.block_on(future))
}

fn pod(number: u32) -> PodName {
    PodName { namespace: "default".to_owned(), name: format!("pod-{number}") }
}

fn open(path: &Path, blocks: &[IpNet]) -> Result<Ipam, Error> {
    open_as(path, Leases::new(blocks)?)
}

fn open_as(path: &Path, fresh: Leases) -> Result<Ipam, Error> {
    wait(HostLocal::open(FileStore::new(path, key("n1"))?, "n1", fresh))
}

/// Reserves, and commits.
fn reserve(
    ipam: &Ipam,
    pod: &PodName,
    wanted: &[IpAddr],
    id: Option<AttachmentId>,
) -> Result<Vec<IpAddr>, Error> {
    let request = Request { pod: pod.clone(), addresses: wanted.to_vec(), id, taken: NONE };
    wait(ipam.reserve(&request)).map(Reservation::commit)
}

fn release(ipam: &Ipam, pod: &PodName) -> Result<Vec<IpAddr>, Error> {
    wait(ipam.release(pod))
}

fn nets(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn addresses(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn named_addresses_are_in_the_file_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("addresses.json");
    let blocks = nets(&["10.0.0.0/24", "fd00::/64"]);
    let first = open(&path, &blocks).unwrap();
    for (number, wanted) in
        [&["10.0.0.9"][..], &["192.0.2.9", "fd09::9"], &["10.0.0.255", "fd00::3"]]
            .into_iter()
            .enumerate()
    {
        reserve(&first, &pod(number as u32), &addresses(wanted), None).unwrap();
    }
    reserve(&first, &pod(9), &[], None).unwrap();
    let second = open(&path, &blocks).unwrap();
    assert_eq!(second.leases(), first.leases());
    assert_eq!(second.leases().pods.len(), 4);
}

#[test]
fn a_store_without_blocks_remembers_what_another_plugin_gave_and_gives_nothing_itself() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("addresses.json");
    let first = open_as(&path, Leases::without_blocks()).unwrap();
    let theirs = addresses(&["10.77.0.2", "fd77::2"]);
    assert_eq!(reserve(&first, &pod(1), &theirs, None).unwrap(), theirs);
    assert!(reserve(&first, &pod(2), &theirs, None).is_err());
    reserve(&first, &pod(3), &[], None).unwrap_err();
    let second = open_as(&path, Leases::without_blocks()).unwrap();
    assert_eq!(second.leases(), first.leases());
    reserve(&second, &pod(2), &addresses(&["10.77.0.3"]), None).unwrap();
    wait(second.retain(|it| *it == pod(1))).unwrap();
    let kept: Vec<PodName> = second.leases().iter().map(|(pod, ..)| pod.clone()).collect();
    assert_eq!(kept, [pod(1)]);
    // These addresses are another plugin's, which may give them to other pods.
    let blocks = nets(&["10.77.0.0/24"]);
    let of_blocks = open(&path, &blocks).unwrap();
    assert_eq!(of_blocks.leases().iter().count(), 0);
    reserve(&of_blocks, &pod(1), &[], None).unwrap();
    let back = open_as(&path, Leases::without_blocks());
    assert!(matches!(back, Err(Error::OtherBlocks { pods: 1, .. })), "those of blocks stay");
}

#[test]
fn addresses_of_the_clusters_pools_are_remembered_and_no_other_allocator_takes_them_over() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("addresses.json");
    let first = open_as(&path, Leases::of_pools()).unwrap();
    reserve(&first, &pod(1), &addresses(&["10.65.0.0", "fd00::"]), None).unwrap();
    let second = open_as(&path, Leases::of_pools()).unwrap();
    assert_eq!(second.leases(), first.leases());
    let blocks = nets(&["10.77.0.0/24"]);
    let error = open(&path, &blocks).unwrap_err().to_string();
    assert!(
        error.ends_with(
            "holds pods (1) with addresses of the cluster's pools, and the agent is to take them from the node's pod \
             CIDRs: drain this node first (kubectl drain, then end its DaemonSets' pods), or set --ipam (MANX_IPAM) back"
        ),
        "{error}"
    );
    release(&second, &pod(1)).unwrap();
    let third = open(&path, &blocks).unwrap();
    reserve(&third, &pod(2), &[], None).unwrap();
    let error = open_as(&path, Leases::of_pools());
    assert!(matches!(error, Err(Error::OtherAllocator { pods: 1, .. })));
}

#[test]
fn a_store_remembers_and_goes_on_in_turn() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("addresses.json");
    let blocks = nets(&["10.0.0.0/24", "fd00::/64"]);
    let first = open(&path, &blocks).unwrap();
    let kept = reserve(&first, &pod(1), &[], None).unwrap();
    let gone = reserve(&first, &pod(2), &[], None).unwrap();
    assert_eq!(release(&first, &pod(2)).unwrap(), gone);
    let second = open(&path, &blocks).unwrap();
    assert_eq!(second.leases(), first.leases());
    assert_eq!(reserve(&second, &pod(1), &[], None).unwrap(), kept);
    assert_ne!(
        reserve(&second, &pod(3), &[], None).unwrap(),
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
    let ipam = open(&path, &blocks).unwrap();
    let has = reserve(&ipam, &pod(1), &[], Some(first.clone())).unwrap();
    reserve(&ipam, &pod(2), &[], None).unwrap();
    let ipam = open(&path, &blocks).unwrap();
    assert_eq!((ipam.leases().id(&pod(1)), ipam.leases().id(&pod(2))), (Some(&first), None));
    // Another sandbox of the pod gets the same addresses, and the lease names that sandbox.
    assert_eq!(reserve(&ipam, &pod(1), &[], Some(second.clone())).unwrap(), has);
    assert_eq!(open(&path, &blocks).unwrap().leases().id(&pod(1)), Some(&second));
    release(&ipam, &pod(1)).unwrap();
    assert_eq!(open(&path, &blocks).unwrap().leases().id(&pod(1)), None);
}

/// One step in the life of a store of a node with few addresses.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// A pod is attached, in this sandbox.
    Reserve(u32, u32),
    /// A pod is detached.
    Release(u32),
    /// Sandboxes that the runtime no longer has are released: it has those of this number and above.
    Collect(u32),
}

/// The end of a step.
#[derive(Debug, Clone, Copy)]
enum End {
    /// The step is done.
    Done,
    /// The file cannot be written.
    Failed,
    /// The agent dies while it writes. For 0 to 8, that many eighths of the content are in the temporary file; for 9, the
    /// new file is in its place. Another agent starts.
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

/// An allocator in its own folder, and the addresses that the pods have got.
struct Life {
    path: std::path::PathBuf,
    blocks: Vec<IpNet>,
    ipam: Ipam,
    /// The addresses that were given out and not taken back.
    held: BTreeMap<PodName, (Vec<IpAddr>, AttachmentId)>,
    _folder: tempfile::TempDir,
}

impl Life {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("addresses.json");
        let blocks = nets(&["10.0.0.0/29", "fd00::/125"]);
        let ipam = open(&path, &blocks).unwrap();
        Self { path, blocks, ipam, held: BTreeMap::new(), _folder: folder }
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

    /// Does one step for one pod. Returns the result, if the agent did not die during it.
    fn act<T>(
        &mut self,
        end: End,
        act: impl FnOnce(&Ipam) -> Result<T, Error>,
    ) -> Option<Result<T, Error>> {
        let before = fs::read(&self.path).ok();
        let beside = self.path.with_extension("json.new");
        match end {
            End::Done => Some(act(&self.ipam)),
            End::Failed => {
                let _ = fs::remove_file(&beside);
                fs::create_dir(&beside).unwrap();
                let result = act(&self.ipam);
                fs::remove_dir(&beside).unwrap();
                Some(result)
            }
            End::Crashed(written) => {
                let _ = act(&self.ipam);
                self.crash(before.as_deref(), written);
                self.ipam = open(&self.path, &self.blocks).unwrap();
                None
            }
        }
    }

    fn step(&mut self, step: Step, end: End) {
        match step {
            Step::Reserve(number, of) => {
                let (pod, id) = (pod(number), sandbox(of));
                match self.act(end, |ipam| reserve(ipam, &pod, &[], Some(id.clone()))) {
                    Some(Ok(addresses)) => drop(self.held.insert(pod, (addresses, id))),
                    Some(Err(_)) => {}
                    // A pod that was attached already may have the new sandbox or the old one.
                    None => {
                        if let Some((_, has)) = self.held.get_mut(&pod) {
                            *has = self.ipam.leases().id(&pod).unwrap().clone();
                        }
                    }
                }
            }
            Step::Release(number) => self.release(&pod(number), end),
            Step::Collect(first) => {
                let is_stale = |id: &AttachmentId| (0..first).any(|number| sandbox(number) == *id);
                let leases = self.ipam.leases();
                let stale: Vec<PodName> = leases
                    .iter()
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
        match self.act(end, |ipam| release(ipam, pod)) {
            Some(Ok(addresses)) => {
                let had = self.held.remove(pod);
                // After a crash a pod may have addresses although the caller never got the reply.
                assert!(had.is_none_or(|(had, _)| had == addresses));
            }
            None if self.ipam.leases().iter().all(|(name, _, _)| name != pod) => {
                self.held.remove(pod);
            }
            Some(Err(_)) | None => {}
        }
    }

    /// Checks that no two pods have one address, in memory and in the file.
    fn check(&self) {
        let again = open(&self.path, &self.blocks).unwrap();
        assert_eq!(again.leases(), self.ipam.leases());
        let mut seen = BTreeSet::new();
        for (pod, addresses, id) in again.leases().iter() {
            assert!(addresses.iter().all(|address| seen.insert(*address)), "{pod}: {addresses:?}");
            if let Some((had, of)) = self.held.get(pod) {
                assert_eq!((had.as_slice(), Some(of)), (addresses, id), "{pod}");
            }
        }
        let kept = |pod| again.leases().iter().any(|(name, _, _)| name == pod);
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
        // Leases that a crash has left are released, because the runtime has no such sandbox.
        life.step(Step::Collect(5), End::Done);
        life.check();
        prop_assert_eq!(life.ipam.leases().iter().count(), 0);
        let pods = (100..).map_while(|number| reserve(&life.ipam, &pod(number), &[], None).ok());
        prop_assert_eq!(pods.count(), 5, "10.0.0.2 to 10.0.0.6");
    }
}

#[test]
fn on_a_full_disk_nothing_is_given_and_nothing_is_forgotten() {
    if !manx_linux::testing::namespaces_allowed() {
        return;
    }
    // The test runs in its own thread, because its mounts are for that thread alone.
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
        let ipam = open(&path, &blocks).unwrap();
        let given = (0..).map_while(|number| reserve(&ipam, &pod(number), &[], None).ok()).count();
        assert!((50..1000).contains(&given), "{given}");
        let error = reserve(&ipam, &pod(5000), &[], None).unwrap_err();
        let Error::Store(store::Error { verb: "written", source, .. }) = &error else {
            panic!("{error}")
        };
        assert_eq!(source.kind(), std::io::ErrorKind::StorageFull);
        let ipam = open(&path, &blocks).unwrap();
        assert_eq!(ipam.leases().iter().count(), given);
        // There is no space to write more, but a release needs less space.
        release(&ipam, &pod(0)).unwrap();
        reserve(&ipam, &pod(5000), &[], None).unwrap();
        nix::mount::umount(folder.path()).unwrap();
    };
    std::thread::scope(|scope| scope.spawn(small_disk).join()).unwrap();
}

#[test]
fn a_file_that_is_put_back_takes_no_running_pods_address_away() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("addresses.json");
    let ipam = open(&path, &nets(&["10.0.0.0/24"])).unwrap();
    reserve(&ipam, &pod(1), &[], None).unwrap();
    let backup = fs::read(&path).unwrap();
    let running = reserve(&ipam, &pod(2), &[], None).unwrap();
    fs::write(&path, backup).unwrap();
    assert_ne!(reserve(&ipam, &pod(3), &[], None).unwrap(), running);
    let again = open(&path, &nets(&["10.0.0.0/24"])).unwrap();
    assert_eq!(again.leases().addresses(&pod(2)), Some(&running[..]));
}

#[test]
fn what_lies_where_the_file_is_written_is_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let [path, beside, other] =
        ["addresses.json", "addresses.json.new", "other"].map(|name| folder.path().join(name));
    fs::write(&other, "precious").unwrap();
    std::os::unix::fs::symlink(&other, &beside).unwrap();
    let blocks = nets(&["10.0.0.0/24"]);
    reserve(&open(&path, &blocks).unwrap(), &pod(1), &[], None).unwrap();
    assert_eq!(fs::read_to_string(&other).unwrap(), "precious");
    assert!(path.symlink_metadata().unwrap().is_file() && !beside.exists());
}

#[test]
fn blocks_change_only_without_pods() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("addresses.json");
    let ipam = open(&path, &nets(&["10.0.0.0/24"])).unwrap();
    reserve(&ipam, &pod(1), &[], None).unwrap();
    let other = nets(&["10.0.1.0/24"]);
    assert!(matches!(open(&path, &other), Err(Error::OtherBlocks { pods: 1, .. })));
    release(&ipam, &pod(1)).unwrap();
    assert_eq!(open(&path, &other).unwrap().leases().blocks(), other);
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
        state(r#""a/b":["10.0.0.9"]"#).replace("\"version\":1", "\"version\":5"),
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
        state("").replace(r#""10.0.0.9"}"#, r#""10.0.0.9","resting":"x"}"#),
        state("").replace(r#""10.0.0.9"}"#, r#""10.0.0.9","resting":"1"}"#),
        state("").replace(r#""10.0.0.9"}"#, r#""10.0.0.9","resting":"9 9"}"#),
        state(r#""a/b":["10.0.0.9"]"#).replace(r#""10.0.0.9"}]"#, r#""10.0.0.9","resting":"9"}]"#),
        state(r#"},"attachments":{"a/b":{"network":"n","container":"c","interface":"eth0"}"#),
    ];
    let mut reasons = Vec::new();
    for text in damaged {
        fs::write(&path, &text).unwrap();
        match open(&path, &nets(&["10.0.0.0/24"])) {
            Err(Error::Damaged { reason, .. }) => reasons.push(reason),
            other => panic!("{text}: {other:?}"),
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
    insta::assert_snapshot!(reasons.join("\n"), @r#"
    EOF while parsing a value at line 1 column 0
    it has version 5, this manx reads versions up to 4
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
    "x" is not a list of the numbers of addresses that rest
    number 1 of 10.0.0.0/24 rests, and is no pod's
    10.0.0.9 rests twice
    10.0.0.9 rests, and a pod has it
    a/b is attached (eth0 of container c in network n) and has no address
    "#);
}

#[test]
fn files_of_all_versions_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("addresses.json");
    let block =
        r#""blocks":[{"cidr":"10.0.0.0/24","last":"10.0.0.9"}],"pods":{"a/b":["10.0.0.9"]}"#;
    let pinned = r#","pinned":{"a/c":["192.0.2.1"]}"#;
    let attached = r#","attachments":{"a/c":{"network":"n","container":"c","interface":"eth0"}}"#;
    let later = format!("{pinned}{attached}");
    for (version, more) in [(1, ""), (2, pinned), (3, &*later)] {
        fs::write(&path, format!(r#"{{"version":{version},{block}{more}}}"#)).unwrap();
        let ipam = open(&path, &nets(&["10.0.0.0/24"])).unwrap();
        let leases = ipam.leases();
        let named = |name: &str| PodName { namespace: "a".to_owned(), name: name.to_owned() };
        assert_eq!(leases.addresses(&named("b")), Some(&*addresses(&["10.0.0.9"])));
        let of_c = (version > 1).then(|| addresses(&["192.0.2.1"]));
        assert_eq!(leases.addresses(&named("c")), of_c.as_deref());
        assert_eq!(leases.id(&named("c")).is_some(), version > 2);
        assert_eq!(reserve(&ipam, &pod(1), &[], None).unwrap(), addresses(&["10.0.0.10"]));
        assert_eq!(open(&path, &nets(&["10.0.0.0/24"])).unwrap().leases(), ipam.leases());
    }
}
