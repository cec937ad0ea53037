//! Paths through userspace switches of other projects, over veth pairs like those of Manx: Open vSwitch with its
//! userspace datapath, and DPDK's testpmd. Both forward frames between two ports and enforce no policy.
//!
//! Neither completes partial checksums, so the ends send complete ones. The exception is Open vSwitch with
//! super-packets.

use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use manx_linux::netns;

use super::constants::MTU;
use super::ends::{PathEnd, PathEnds, ProcessPath};
use super::links::{add_address, add_veth, named_namespace, namespace, net};
use super::traffic;
use crate::error::{Error, io};
use crate::host::cores::Cores;
use crate::host::process::{Process, tail};
use crate::host::{namespaces, programs, sys, within};

/// The longest time that a switch may take until it forwards.
const PATIENCE: Duration = Duration::from_secs(15);
/// The paths of the schema of Open vSwitch's database: those of packages, and that of a build from source.
const SCHEMAS: [&str; 2] =
    ["/usr/share/openvswitch/vswitch.ovsschema", "/usr/local/share/openvswitch/vswitch.ovsschema"];
const PORTS: [&str; 2] = ["left", "right"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Switch {
    /// Open vSwitch with the datapath `netdev`, which sleeps when there are no packets.
    OpenVSwitch {
        /// Whether it accepts super-packets and partial checksums (`userspace-tso-enable`).
        super_packets: bool,
    },
    /// DPDK's testpmd, which never sleeps, with its driver for packet sockets.
    Testpmd,
}

impl Switch {
    /// Why it cannot be measured here. `None` if it can.
    pub fn why_missing(self) -> Option<String> {
        match self {
            Self::OpenVSwitch { .. } => programs::why_missing(
                &["ovsdb-tool", "ovsdb-server", "ovs-vsctl", "ovs-vswitchd"],
                "openvswitch-switch",
            ),
            Self::Testpmd => programs::why_missing(&["dpdk-testpmd"], "dpdk-dev"),
        }
    }

    /// A path through the switch. The switch runs on the worker's core.
    pub fn path(self, cores: Cores) -> Result<ProcessPath, Error> {
        let folder = namespaces::temporary_folder()?;
        let middle = named_namespace(folder.path(), "switch")?;
        let ends = PathEnds::new(self.end(&middle, PORTS[0], 2)?, self.end(&middle, PORTS[1], 3)?);
        let place = Place { folder: folder.path(), cores };
        let processes = match self {
            Self::OpenVSwitch { super_packets } => place.start_open_vswitch(super_packets)?,
            Self::Testpmd => vec![place.start_testpmd()?],
        };
        traffic::wait_until_carried(&ends, PATIENCE).map_err(|error| Error::Process {
            what: format!("{self:?} does not come up: {error}"),
            log: tail(&place.log()),
        })?;
        Ok(ProcessPath { ends, processes, folder })
    }

    /// An end behind a port of the switch.
    fn end(self, switch: &OwnedFd, port: &str, host: u8) -> Result<PathEnd, Error> {
        let netns = namespace()?;
        add_veth(switch, port, &netns, "eth0", MTU)?;
        add_address(&netns, "eth0", net(10, 96, 0, host, 24))?;
        if self != (Self::OpenVSwitch { super_packets: true }) {
            netns::run_in(&netns, || sys::features_off("eth0", &["tx-checksum-ip-generic"]))?
                .map_err(io("eth0 cannot be told to complete its checksums"))?;
        }
        Ok(PathEnd { netns, address: Ipv4Addr::new(10, 96, 0, host).into() })
    }
}

/// The folder and the cores of a switch.
struct Place<'a> {
    folder: &'a Path,
    cores: Cores,
}

impl Place<'_> {
    fn core(&self) -> usize {
        self.cores.worker_core(true).unwrap_or(self.cores.receiver)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn log(&self) -> PathBuf {
        self.file("switch.log")
    }

    /// Starts a program in the switch's namespace. Its output goes to the log.
    fn start(&self, cores: &[usize], program: &[String]) -> Result<Process, Error> {
        let log = File::options().create(true).append(true).open(self.log());
        let log = log.map_err(io("no log for the switch"))?;
        let error = log.try_clone().map_err(io("no log for the switch"))?;
        let mut command = within::command(&self.file("switch"), cores, program);
        for variable in
            ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "XDG_RUNTIME_DIR", "RUNTIME_DIRECTORY"]
        {
            command.env(variable, self.folder);
        }
        Process::start(command.stdin(Stdio::null()).stdout(log).stderr(error))
    }

    /// Runs a program in the switch's namespace until it ends.
    fn run(&self, program: &[String]) -> Result<(), Error> {
        let mut process = self.start(&[self.core()], program)?;
        match process.wait()? {
            status if status.success() => Ok(()),
            status => Err(Error::Process {
                what: format!("{}: {status}", program.join(" ")),
                log: tail(&self.log()),
            }),
        }
    }

    /// Waits until a file exists.
    fn wait_for_file(&self, path: &str) -> Result<(), Error> {
        let start = Instant::now();
        while !Path::new(path).exists() {
            if start.elapsed() > PATIENCE {
                let log = tail(&self.log());
                return Err(Error::Process { what: format!("{path} does not appear"), log });
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn start_open_vswitch(&self, super_packets: bool) -> Result<Vec<Process>, Error> {
        let schema = SCHEMAS.into_iter().find(|path| Path::new(path).exists());
        let schema = schema.ok_or_else(|| {
            Error::Nothing(format!("the schema of Open vSwitch's database: none of {SCHEMAS:?}"))
        })?;
        let file = |name| self.file(name).display().to_string();
        let (database, socket) = (file("conf.db"), file("db.sock"));
        self.run(&words(&["ovsdb-tool", "create", &database, schema]))?;
        let remote = format!("--remote=punix:{socket}");
        let control = format!("--unixctl={}", file("db.ctl"));
        let server = words(&["ovsdb-server", &database, &remote, &control]);
        let server = self.start(&[self.cores.sender], &server)?;
        self.wait_for_file(&socket)?;
        let at = format!("--db=unix:{socket}");
        let set = format!("other_config:userspace-tso-enable={super_packets}");
        let ask = ["ovs-vsctl", &at, "--timeout=15"];
        self.run(&words(&[&ask[..], &["--no-wait", "init"]].concat()))?;
        self.run(&words(&[&ask[..], &["--no-wait", "set", "Open_vSwitch", ".", &set]].concat()))?;
        let at = format!("unix:{socket}");
        let control = format!("--unixctl={}", file("switch.ctl"));
        let switch = self.start(&[self.core()], &words(&["ovs-vswitchd", &at, &control]))?;
        let bridge = ["add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev"];
        let ports = PORTS.map(|port| ["--", "add-port", "br0", port]).concat();
        self.run(&words(&[&ask[..], &bridge, &ports].concat()))?;
        Ok(vec![switch, server])
    }

    fn start_testpmd(&self) -> Result<Process, Error> {
        // The main thread only waits; the other thread forwards.
        let (main, core) = (self.cores.sender, self.core());
        let cores = format!("{main},{core}");
        let devices = [0, 1].map(|at| format!("--vdev=net_af_packet{at},iface={}", PORTS[at]));
        let memory = "--no-huge --no-pci --no-shconf --no-telemetry -m 256";
        // testpmd needs a period for statistics here: without one it ends when its input ends.
        let how = "--forward-mode=io --auto-start --nb-cores=1 --total-num-mbufs=16384 --stats-period=1000000";
        let program = ["dpdk-testpmd"]
            .into_iter()
            .chain(memory.split(' '))
            .chain(["-l", &cores, "--main-lcore"])
            .map(str::to_owned)
            .chain([main.to_string()])
            .chain(devices)
            .chain(["--".to_owned()])
            .chain(how.split(' ').map(str::to_owned));
        self.start(&[main, core], &program.collect::<Vec<_>>())
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}
