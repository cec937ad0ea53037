use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::thread;

use manx_devices::holder::Holder;
use proptest::prelude::*;

use super::*;

/// A holder, and the restart state of an agent.
struct Fixture {
    state: RestartState,
    path: PathBuf,
    folder: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let state = RestartState::new(&folder.path().join("node.sock"));
        let fixture = Self { path: state.path.clone(), state, folder };
        fixture.start_holder();
        fixture
    }

    fn start_holder(&self) {
        let holder = loop {
            // The former holder may still be ending.
            if let Ok(holder) = Holder::bind(&self.path) {
                break holder;
            }
        };
        thread::spawn(move || holder.run());
    }

    /// Sets whether calls to the holder are paused.
    fn rest(&self, rests: bool) {
        lock(&self.state.entries).paused_until = rests.then(|| Instant::now() + PAUSE);
    }

    /// Sets whether connecting to the holder, which lives, fails, by a socket name that is too long.
    fn fail(&mut self, fails: bool) {
        let path = if fails { "x".repeat(200).into() } else { self.path.clone() };
        self.state.path = path;
    }

    /// The pods whose devices the holder keeps, and their sandboxes.
    fn kept_pods(&self) -> Vec<(PodName, Option<Sandbox>)> {
        let one = |it: Kept| match it.note.unwrap() {
            Note::Pod(held) => Some((held.attach.pod, held.attach.sandbox)),
            Note::Flows { .. } => None,
        };
        self.client().entries().unwrap().into_iter().filter_map(one).collect()
    }

    fn client(&self) -> Client {
        Client::connect(&self.path).unwrap()
    }

    /// Returns a file in place of one with flow records.
    fn records(&self) -> (Arc<SharedFile>, u64) {
        let file = tempfile::tempfile_in(&self.folder).unwrap();
        let number = file.metadata().unwrap().ino();
        (Arc::new(SharedFile::open(file.into()).unwrap()), number)
    }

    /// Leaves the entries of a last agent in the holder.
    fn leave(&self, pods: &[&str], workers: usize) {
        for name in pods {
            self.client().keep(&held(name).into(), &[queue().as_fd()]).unwrap();
        }
        for worker in 0..workers {
            let (file, _) = self.records();
            self.client().keep(&Note::Flows { worker }, &[file.as_fd()]).unwrap();
        }
    }

    /// The entries of flow records, each with its file's inode number.
    fn kept_records(&self) -> Vec<(String, u64)> {
        let all = self.client().entries().unwrap().into_iter();
        let flows = all.filter(|it| matches!(it.note, Ok(Note::Flows { .. })));
        let inode = |fd: OwnedFd| File::from(fd).metadata().unwrap().ino();
        flows.map(|mut it| (it.name, inode(it.descriptors.pop().unwrap()))).collect()
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = Client::connect(&self.path).and_then(|mut holder| holder.end());
    }
}

fn held(name: &str) -> Held {
    let pod = PodName { namespace: "shop".to_owned(), name: name.to_owned() };
    Held { attach: Attach::new(pod, Path::new("/run/netns/x"), "eth0"), mtu: 1400 }
}

/// Returns a device in place of a pod's.
fn queue() -> OwnedFd {
    File::open("/dev/null").unwrap().into()
}

#[test]
fn records_of_fewer_workers_take_the_place_of_all_that_were_there() {
    let fixture = Fixture::new();
    fixture.leave(&["a"], 3);
    fixture.state.insert(held("a"), vec![queue()]);
    let (records, number) = fixture.records();
    fixture.state.keep_flows(vec![records], &[0, 1, 2]);
    assert_eq!(fixture.kept_records(), [("flows:0".to_owned(), number)]);
    assert_eq!(fixture.state.problem(), None);
}

#[test]
fn records_go_with_the_last_pod_and_come_with_the_first() {
    let fixture = Fixture::new();
    fixture.leave(&[], 2);
    let (records, number) = fixture.records();
    fixture.state.keep_flows(vec![records], &[0, 1]);
    assert_eq!(fixture.kept_records(), []);
    for name in ["a", "b"] {
        fixture.state.keep(held(name), Ok(vec![queue()]));
        assert_eq!(fixture.kept_records(), [("flows:0".to_owned(), number)]);
        fixture.state.release(&held(name).attach.pod);
        assert_eq!(fixture.kept_records(), []);
    }
}

#[test]
fn the_last_agents_records_do_not_pass_for_this_ones() {
    let fixture = Fixture::new();
    fixture.leave(&["a"], 1);
    fixture.state.insert(held("a"), vec![queue()]);
    let (records, number) = fixture.records();
    // The holder was asked a moment ago, and did not answer.
    fixture.rest(true);
    fixture.state.keep_flows(vec![records], &[0]);
    assert_ne!(fixture.kept_records()[0].1, number);
    fixture.rest(false);
    // The holder now has the right number of entries, but not the right records.
    fixture.state.keep(held("b"), Ok(vec![queue()]));
    assert_eq!(fixture.kept_records(), [("flows:0".to_owned(), number)]);
}

fn sandbox(number: u8) -> Sandbox {
    Sandbox { network: "manx".to_owned(), container: number.to_string() }
}

#[derive(Debug, Clone, Copy)]
enum Step {
    /// A pod is attached.
    Keep(u8),
    /// The pod is attached again, by this sandbox.
    Rename(u8, u8),
    /// The pod is detached.
    Release(u8),
    /// Calls to the holder are paused from now on, or not.
    Rest(bool),
    /// Connecting to the holder fails from now on, or not.
    Fail(bool),
    /// The holder ends, and another one starts.
    Replace,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let pod = || 0_u8..3;
    let step = prop_oneof![
        3 => pod().prop_map(Step::Keep),
        4 => (pod(), 0_u8..3).prop_map(|(pod, sandbox)| Step::Rename(pod, sandbox)),
        1 => pod().prop_map(Step::Release),
        2 => any::<bool>().prop_map(Step::Rest),
        2 => any::<bool>().prop_map(Step::Fail),
        1 => Just(Step::Replace),
    ];
    prop::collection::vec(step, 0..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn when_the_holder_is_brought_a_device_it_has_all_and_each_with_its_sandbox(steps in steps()) {
        let mut fixture = Fixture::new();
        let name = |pod: u8| format!("pod-{pod}");
        let pod = |number: u8| held(&name(number)).attach.pod;
        let mut has: BTreeMap<PodName, Option<Sandbox>> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Keep(number) => {
                    fixture.state.keep(held(&name(number)), Ok(vec![queue()]));
                    has.insert(pod(number), None);
                }
                Step::Rename(number, by) => {
                    fixture.state.rename(&pod(number), &sandbox(by));
                    has.entry(pod(number)).and_modify(|it| *it = Some(sandbox(by)));
                }
                Step::Release(number) => {
                    fixture.state.release(&pod(number));
                    has.remove(&pod(number));
                }
                Step::Rest(rests) => fixture.rest(rests),
                Step::Fail(fails) => fixture.fail(fails),
                Step::Replace => {
                    fixture.client().end().unwrap();
                    fixture.start_holder();
                }
            }
        }
        fixture.fail(false);
        fixture.rest(false);
        fixture.state.keep(held("last"), Ok(vec![queue()]));
        has.insert(held("last").attach.pod, None);
        let mut kept = fixture.kept_pods();
        kept.sort();
        prop_assert_eq!(kept, has.into_iter().collect::<Vec<_>>());
        prop_assert_eq!(fixture.state.problem(), None);
    }
}
