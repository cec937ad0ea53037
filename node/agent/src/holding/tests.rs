use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::thread;

use manx_api::Attach;
use manx_devices::holder::Holder;

use super::*;

/// A holder, and what the next agent has it keep.
struct Fixture {
    holding: Holding,
    folder: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let holding = Holding::new(&folder.path().join("node.sock"));
        let holder = Holder::bind(&holding.path).unwrap();
        thread::spawn(move || holder.run());
        Self { holding, folder }
    }

    fn client(&self) -> Client {
        Client::connect(&self.holding.path).unwrap()
    }

    /// A file in place of one with flow records.
    fn records(&self) -> (Arc<SharedFile>, u64) {
        let file = tempfile::tempfile_in(&self.folder).unwrap();
        let number = file.metadata().unwrap().ino();
        (Arc::new(SharedFile::open(file.into()).unwrap()), number)
    }

    /// What the last agent has left.
    fn leave(&self, pods: &[&str], workers: usize) {
        for name in pods {
            self.client().keep(&held(name).into(), &[queue().as_fd()]).unwrap();
        }
        for worker in 0..workers {
            let (file, _) = self.records();
            self.client().keep(&Note::Flows { worker }, &[file.as_fd()]).unwrap();
        }
    }

    /// The entries of files, each with the file's inode number.
    fn kept_records(&self) -> Vec<(String, u64)> {
        let all = self.client().entries().unwrap().into_iter();
        let flows = all.filter(|it| matches!(it.note, Ok(Note::Flows { .. })));
        let inode = |fd: OwnedFd| File::from(fd).metadata().unwrap().ino();
        flows.map(|mut it| (it.name, inode(it.descriptors.pop().unwrap()))).collect()
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = Client::connect(&self.holding.path).and_then(|mut holder| holder.end());
    }
}

fn held(name: &str) -> Held {
    let pod = PodName { namespace: "shop".to_owned(), name: name.to_owned() };
    Held { attach: Attach::new(pod, Path::new("/run/netns/x"), "eth0"), mtu: 1400 }
}

/// A device in place of a pod's.
fn queue() -> OwnedFd {
    File::open("/dev/null").unwrap().into()
}

#[test]
fn records_of_fewer_workers_take_the_place_of_all_that_were_there() {
    let fixture = Fixture::new();
    fixture.leave(&["a"], 3);
    fixture.holding.insert(held("a"), vec![queue()]);
    let (records, number) = fixture.records();
    fixture.holding.keep_flows(vec![records], &[0, 1, 2]);
    assert_eq!(fixture.kept_records(), [("flows:0".to_owned(), number)]);
    assert_eq!(fixture.holding.problem(), None);
}

#[test]
fn records_go_with_the_last_pod_and_come_with_the_first() {
    let fixture = Fixture::new();
    fixture.leave(&[], 2);
    let (records, number) = fixture.records();
    fixture.holding.keep_flows(vec![records], &[0, 1]);
    assert_eq!(fixture.kept_records(), []);
    for name in ["a", "b"] {
        fixture.holding.keep(held(name), Ok(vec![queue()]));
        assert_eq!(fixture.kept_records(), [("flows:0".to_owned(), number)]);
        fixture.holding.release(&held(name).attach.pod);
        assert_eq!(fixture.kept_records(), []);
    }
}

#[test]
fn the_last_agents_records_do_not_pass_for_this_ones() {
    let fixture = Fixture::new();
    fixture.leave(&["a"], 1);
    fixture.holding.insert(held("a"), vec![queue()]);
    let (records, number) = fixture.records();
    // The holder was just asked, and did not answer.
    lock(&fixture.holding.entries).rests_until = Some(Instant::now() + REST);
    fixture.holding.keep_flows(vec![records], &[0]);
    assert_ne!(fixture.kept_records()[0].1, number);
    lock(&fixture.holding.entries).rests_until = None;
    // It has as many entries now as it should have.
    fixture.holding.keep(held("b"), Ok(vec![queue()]));
    assert_eq!(fixture.kept_records(), [("flows:0".to_owned(), number)]);
}
