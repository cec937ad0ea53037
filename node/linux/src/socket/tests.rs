use std::process::{Command, Stdio};
use std::time::Instant;
use std::{env, thread};

use super::*;

/// The variable that makes a process of this program listen. Its value is the path.
const PATH: &str = "MANX_SOCKET_TEST_PATH";
/// The test that listens in such a process.
const LISTENS: &str = "socket::tests::one_that_was_killed_is_told_from_one_that_lives";

#[test]
fn one_that_was_killed_is_told_from_one_that_lives() {
    if let Some(path) = env::var_os(PATH) {
        let _listening = Listening::bind(Path::new(&path)).unwrap();
        thread::sleep(Duration::from_mins(1));
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.sock");
    assert_eq!(patience(&path), ENDING, "nobody listens: who has the lock ends, or starts");
    let mut other = Command::new(env::current_exe().unwrap());
    other.args(["--exact", LISTENS]).env(PATH, &path).stdout(Stdio::null());
    let mut other = other.spawn().unwrap();
    let start = Instant::now();
    while UnixStream::connect(&path).is_err() {
        assert!(start.elapsed() < Duration::from_secs(10), "it does not listen");
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(patience(&path), LIVING);
    assert!(matches!(SocketLock::take(&path), Err(Error::InUse(_))));
    other.kill().unwrap();
    // The test does not wait for the process to end: it may live for a moment, with all its open files.
    let killed = Instant::now();
    let taken = loop {
        match Listening::bind(&path) {
            Err(Error::InUse(path)) if killed.elapsed() < patience(&path) => {}
            taken => break taken,
        }
    };
    assert!(taken.is_ok(), "{taken:?}");
    other.wait().unwrap();
    let pid = other.id().cast_signed();
    assert!(process::is_ending(pid) && !process::is_ending(std::process::id().cast_signed()));
}

#[test]
fn a_second_name_is_taken_by_who_has_the_first_and_goes_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let [path, beside] = ["agent.sock", "agent.health"].map(|name| folder.path().join(name));
    // A stale socket of a process that has not ended yet, with its descriptors.
    let _stale = UnixListener::bind(&beside).unwrap();
    let mut listening = Listening::bind(&path).unwrap();
    let listener = listening.listen_second(&beside).unwrap();
    UnixStream::connect(&beside).unwrap();
    listener.accept().unwrap();
    assert_eq!(fs::metadata(&beside).unwrap().mode() & 0o777, 0o600);
    drop((listening, listener));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    fs::write(&beside, "precious").unwrap();
    let refused = Listening::bind(&path).unwrap().listen_second(&beside);
    assert!(matches!(refused, Err(Error::NotASocket(_))));
    assert_eq!(fs::read_to_string(&beside).unwrap(), "precious");
}
