//! A worker that panics ends its process.

use std::io;
use std::os::fd::RawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::Command as Process;
use std::sync::Arc;
use std::time::{Duration, Instant};

use manx_dataplane::counters::PortCounters;
use manx_dataplane::packet::Capabilities;
use manx_dataplane::packet::{Packet, Pool};
use manx_dataplane::pipeline::Sizes;
use manx_dataplane::port::{PacketIo, Received, Transmitted};
use manx_dataplane::tables::PortId;
use manx_dataplane::worker::{Command, Polling, Settings, SharedState, spawn};

const CHILD: &str = "MANX_TEST_WORKER_PANICS";
const SIGABRT: i32 = 6;

/// A port whose device makes the worker panic.
struct Broken;

impl PacketIo for Broken {
    fn receive(&mut self, _: &mut Pool, _: &mut Vec<Packet>, _: usize) -> io::Result<Received> {
        panic!("a port panics");
    }

    fn transmit(&mut self, _: &mut Pool, _: &mut Vec<Packet>) -> io::Result<Transmitted> {
        Ok(Transmitted::default())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    fn descriptor(&self) -> Option<RawFd> {
        None
    }

    fn unwrapped(self: Box<Self>) -> Box<dyn PacketIo> {
        self
    }
}

#[test]
fn a_panic_in_a_worker_aborts_the_process_and_says_so() {
    if std::env::var_os(CHILD).is_some() {
        in_the_child();
    }
    let child = Process::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_panic_in_a_worker_aborts_the_process_and_says_so", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    assert_eq!(child.status.signal(), Some(SIGABRT), "{child:?}");
    assert!(String::from_utf8_lossy(&child.stderr).contains("a worker died"), "{child:?}");
}

/// Ends well if the worker's panic is not noticed.
fn in_the_child() -> ! {
    let sizes = Sizes { flows: 64, translates: false, buffers: 4, fragments: 4 };
    let settings = Settings { sizes, polling: Polling::Adaptive, core: None };
    let (reports, _kept) = crossbeam::channel::unbounded();
    let mut worker = spawn("worker", settings, SharedState::alone().unwrap(), reports).unwrap();
    worker.begin();
    let attach = Command::Attach(PortId(0), Box::new(Broken), Arc::new(PortCounters::default()));
    worker.commands().send(attach);
    let start = Instant::now();
    while worker.is_alive() && start.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(5));
    }
    std::process::exit(0);
}
