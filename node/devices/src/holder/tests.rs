use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use manx_linux::testing::{namespaces_allowed, tun_allowed};
use manx_linux::{netlink, netns, socket};

use super::*;
use crate::device::DeviceSpec;
use crate::pod_device;
use crate::testing::*;

const SOON: Duration = Duration::from_millis(20);
const LATE: Duration = Duration::from_secs(30);

struct Running {
    path: PathBuf,
    thread: JoinHandle<io::Result<()>>,
    _folder: tempfile::TempDir,
}

fn start(idle: Duration) -> Running {
    let folder = tempfile::tempdir().unwrap();
    let path = path(&folder.path().join("node.sock"));
    let holder = Holder::bind(&path).unwrap();
    let thread = thread::spawn(move || holder.run_for(idle, SOON));
    Running { path, thread, _folder: folder }
}

impl Running {
    fn client(&self) -> Client {
        Client::connect(&self.path).unwrap()
    }

    fn names(&self) -> Vec<String> {
        self.client().entries().unwrap().into_iter().map(|it| it.name).collect()
    }
}

fn held(name: &str, path: &Path) -> Held {
    let pod = PodName { namespace: "shop".to_owned(), name: name.to_owned() };
    let addresses = vec!["10.7.0.2".parse().unwrap()];
    Held { attach: Attach { addresses, ..Attach::new(pod, path, "eth0") }, mtu: 1400 }
}

fn note(name: &str, path: &Path) -> Note {
    held(name, path).into()
}

fn null() -> File {
    File::open("/dev/null").unwrap()
}

#[test]
fn what_is_kept_comes_back_as_it_was_until_it_is_released() {
    let holder = start(LATE);
    assert_eq!(fs::metadata(&holder.path).unwrap().permissions().mode() & 0o777, 0o600);
    let (one, other) = (null(), File::open("/").unwrap());
    let both = [one.as_fd(), other.as_fd()];
    let [a, b] = ["a", "b"].map(|name| held(name, Path::new("/run/netns/x")));
    assert_eq!(holder.client().keep(&Note::from(b.clone()), &both).unwrap(), 1);
    assert_eq!(holder.client().keep(&Note::from(a.clone()), &both[1..]).unwrap(), 2);
    // A second entry with the same name replaces the first.
    assert_eq!(holder.client().keep(&Note::from(b.clone()), &both).unwrap(), 2);
    let entries = holder.client().entries().unwrap();
    let is_folder =
        |queue: &OwnedFd| File::from(queue.try_clone().unwrap()).metadata().unwrap().is_dir();
    for (entry, (kept, folders)) in entries.iter().zip([(&a, vec![true]), (&b, vec![false, true])])
    {
        assert_eq!(entry.name, name(&kept.attach.pod));
        let found = entry.note.as_ref().unwrap();
        assert!(matches!(found, Note::Pod(_)));
        assert_eq!(serde_json::to_value(found).unwrap(), serde_json::to_value(kept).unwrap());
        assert_eq!(entry.descriptors.iter().map(is_folder).collect::<Vec<_>>(), folders);
    }
    holder.client().release(name(&a.attach.pod)).unwrap();
    holder.client().release(name(&a.attach.pod)).unwrap();
    assert_eq!(holder.client().keep(&Note::Flows { worker: 1 }, &both[..1]).unwrap(), 2);
    assert_eq!(holder.names(), ["flows:1", "pod:shop/b"]);
    let flows = holder.client().entries().unwrap().remove(0);
    assert!(matches!(flows.note, Ok(Note::Flows { worker: 1 })), "{flows:?}");
    holder.client().end().unwrap();
    holder.thread.join().unwrap().unwrap();
    assert!(!is_there(&holder.path) && !holder.path.exists());
    let error = Client::connect(&holder.path).unwrap_err();
    assert!(matches!(error, Error::NoHolder { .. }), "{error}");
}

#[test]
fn there_is_one_of_them_and_it_ends_when_it_keeps_no_device() {
    let holder = start(SOON * 5);
    let second = Holder::bind(&holder.path).unwrap_err();
    assert!(matches!(second, socket::Error::InUse(_)), "{second}");
    let kept = held("a", Path::new("/run/netns/x"));
    // For a pod that another plugin has connected, the holder keeps the namespace that contains the links.
    for device in [null(), File::open("/proc/self/ns/net").unwrap()] {
        holder.client().keep(&Note::from(kept.clone()), &[device.as_fd()]).unwrap();
        thread::sleep(SOON * 10);
        assert_eq!(holder.names().len(), 1, "it stays while it keeps something");
    }
    let records = tempfile::tempfile().unwrap();
    holder.client().keep(&Note::Flows { worker: 0 }, &[records.as_fd()]).unwrap();
    holder.client().release(name(&kept.attach.pod)).unwrap();
    holder.thread.join().unwrap().unwrap();
    Holder::bind(&holder.path).unwrap();
}

#[test]
fn it_is_bounded_and_refuses_what_it_does_not_understand() {
    let holder = start(LATE);
    let null = null();
    let error = holder.client().keep(&note("a", Path::new("/x")), &[]).unwrap_err();
    assert!(matches!(&error, Error::Refused { .. }), "{error}");
    let long = "x".repeat(MAX_MESSAGE);
    let error = holder.client().keep(&note(&long, Path::new("/x")), &[null.as_fd()]).unwrap_err();
    assert!(matches!(&error, Error::Broken { .. }), "{error}");
    for (text, answer) in [
        (r#"{"version": 7, "call": "end"}"#, Some("speaks version 1")),
        (r#"{"version": 1, "call": "dance"}"#, None),
        ("[", None),
    ] {
        let stream = UnixStream::connect(&holder.path).unwrap();
        let value: Value = serde_json::from_str(text).unwrap_or(Value::Null);
        descriptors::send(&stream, &manx_api::encode(&value).unwrap(), &[]).unwrap();
        let got = receive::<Response>(&stream).unwrap_or(None);
        match answer {
            Some(answer) => assert!(got.unwrap().0.unwrap_err().contains(answer)),
            None => assert!(got.is_none(), "{text}"),
        }
    }
    // A silent client delays the others only for a moment.
    let _silent = UnixStream::connect(&holder.path).unwrap();
    assert_eq!(holder.names(), [""; 0]);
    for number in 0..MAX_ENTRIES {
        let kept =
            holder.client().keep(&note(&format!("{number:04}"), Path::new("/x")), &[null.as_fd()]);
        assert_eq!(kept.unwrap(), number + 1);
    }
    let error = holder.client().keep(&note("more", Path::new("/x")), &[null.as_fd()]).unwrap_err();
    assert!(error.to_string().contains("entries already"), "{error}");
    holder.client().end().unwrap();
}

/// Makes a device for a pod, as the plugin does.
fn made(pod: &Pod, queues: usize) -> Vec<OwnedFd> {
    let wanted = DeviceSpec { queues, ..pod.wanted() };
    let netns = netns::open(&pod.path).unwrap();
    pod_device::make(&netns, &pod.path, &wanted).unwrap()
}

fn index(pod: &Pod) -> Option<u32> {
    let netns = netns::open(&pod.path).unwrap();
    let link = netlink::in_netns(&netns, async |netlink| netlink.link("eth0").await);
    link.unwrap().map(|link| link.index)
}

fn await_gone(pod: &Pod) {
    let start = Instant::now();
    while index(pod).is_some() {
        assert!(start.elapsed() < LONG);
        thread::sleep(SOON);
    }
}

#[test]
fn a_device_whose_agent_ended_is_the_next_agents_and_goes_when_the_holder_lets_it_go() {
    if !namespaces_allowed() || !tun_allowed() {
        return;
    }
    let holder = start(LATE);
    let (a, b) = (Pod::new(&["10.7.0.2"]), Pod::new(&["10.7.0.3"]));
    for queues in [1, 2] {
        let mut sides = Vec::new();
        for (name, pod) in [("a", &a), ("b", &b)] {
            let made = made(pod, queues);
            let before = index(pod).unwrap();
            let all: Vec<BorrowedFd<'_>> = made.iter().map(AsFd::as_fd).collect();
            holder.client().keep(&note(name, &pod.path), &all).unwrap();
            drop(made);
            assert_eq!(index(pod), Some(before));
        }
        let wanted = |pod: &Pod, queues| {
            let wanted = DeviceSpec { queues, ..pod.wanted() };
            let of_it = holder.client().entries().unwrap().into_iter();
            let name = if pod.path == a.path { "pod:shop/a" } else { "pod:shop/b" };
            let entry = of_it.into_iter().find(|it| it.name == name).unwrap();
            let Note::Pod(held) = entry.note.unwrap() else { panic!("{name} is no pod's") };
            pod_device::restore(entry.descriptors, &held.attach.netns, &wanted)
        };
        let other = wanted(&a, queues + 1).err().unwrap().to_string();
        assert!(other.contains(&format!("there are {queues}")), "{other}");
        for pod in [&a, &b] {
            sides.push(wanted(pod, queues).unwrap().1.queues);
        }
        if queues == 1 {
            let [from, to] = [&a, &b].map(|pod| pod.run(|| bound(pod.addresses[0])));
            let (at_b, at_a) = (sides.pop().unwrap(), sides.pop().unwrap());
            let _wire = Wire::between(at_a, at_b);
            assert!(reaches(&from, &to, LONG) && reaches(&to, &from, LONG));
        }
        drop(sides);
        for (name, pod) in [("a", &a), ("b", &b)] {
            assert!(index(pod).is_some());
            holder.client().release(note(name, &pod.path).name()).unwrap();
            assert!(index(pod).is_none(), "the device goes with its last queue");
        }
    }
    holder.client().end().unwrap();
}

#[test]
fn a_device_that_is_gone_or_in_another_namespace_is_not_taken_and_a_gone_one_is_let_go() {
    if !namespaces_allowed() || !tun_allowed() {
        return;
    }
    let holder = start(LATE);
    let (a, b) = (Pod::new(&["10.7.0.2"]), Pod::new(&["10.7.0.3"]));
    let refuse = |queues, path: &Path, found: &str| {
        let error = pod_device::restore(queues, path, &a.wanted()).err().unwrap().to_string();
        assert!(error.contains(found), "{error}");
    };
    refuse(made(&a, 1), &b.path, "another namespace");
    refuse(made(&a, 1), Path::new("/run/netns/none"), "cannot be opened");
    refuse(vec![null().into()], &a.path, "gone");
    let queues = made(&a, 1);
    let all: Vec<BorrowedFd<'_>> = queues.iter().map(AsFd::as_fd).collect();
    holder.client().keep(&note("a", &a.path), &all).unwrap();
    holder.client().keep(&note("b", &b.path), &[null().as_fd()]).unwrap();
    thread::sleep(SOON * 5);
    assert_eq!(holder.names().len(), 2);
    pod_device::remove(&netns::open(&a.path).unwrap(), "eth0").unwrap();
    await_gone(&a);
    let start = Instant::now();
    while holder.names() != ["pod:shop/b"] {
        assert!(start.elapsed() < LONG);
        thread::sleep(SOON);
    }
    refuse(queues, &a.path, "gone");
    holder.client().end().unwrap();
}

#[test]
fn descriptors_that_do_not_come_are_noticed() {
    let holder = start(LATE);
    let stream = UnixStream::connect(&holder.path).unwrap();
    let call = Call::Keep { name: "pod:a/b".to_owned(), note: Value::Null, descriptors: 2 };
    let bytes = manx_api::encode(&Request { version: VERSION, call }).unwrap();
    descriptors::send(&stream, &bytes, &[null().as_fd()]).unwrap();
    let (response, _) = receive::<Response>(&stream).unwrap().unwrap();
    assert!(response.unwrap_err().contains("1 of 2 descriptors"));
    assert_eq!(holder.names(), [""; 0]);
    holder.client().end().unwrap();
}
