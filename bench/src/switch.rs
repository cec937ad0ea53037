//! Paths through other people's userspace switches, over veth pairs like Manx's: Open vSwitch's own datapath and DPDK's
//! testpmd. Both hand frames on between two ports; they know no policy.
//!
//! Neither completes checksums, so the ends are told to send none that is unfinished, but where Open vSwitch takes
//! super-packets.

use std::fs::File;
use std::net::Ipv4Addr;
use std::path::{Path as FilePath, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use manx_linux::netns;

use crate::cores::{self, Cores};
use crate::error::{Error, io};
use crate::kernel;
use crate::path::{Between, End, Path};
use crate::process::{self, Process, tail};
use crate::programs;
use crate::sys;
use crate::traffic;
use crate::world;

/// The word by which a program of this crate starts itself to become a program in a namespace.
pub const WITHIN: &str = "within";
/// How long a switch may take until it hands on.
const PATIENCE: Duration = Duration::from_secs(15);
/// Where the schema of Open vSwitch's database is: packages, and what is built by hand.
const SCHEMAS: [&str; 2] =
    ["/usr/share/openvswitch/vswitch.ovsschema", "/usr/local/share/openvswitch/vswitch.ovsschema"];
const PORTS: [&str; 2] = ["left", "right"];

/// A switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Switch {
    /// Open vSwitch with the datapath `netdev`, which sleeps when nothing comes.
    OpenVSwitch {
        /// `userspace-tso-enable`: it takes super-packets and unfinished checksums.
        super_packets: bool,
    },
    /// DPDK's testpmd with its driver for packet sockets, which never sleeps.
    Testpmd,
}

/// The command line of [`WITHIN`].
#[derive(Debug, Parser)]
#[command(name = WITHIN)]
struct Arguments {
    /// The network namespace, if not this one
    netns: Option<PathBuf>,
    /// The cores that it may use
    #[arg(long, value_delimiter = ',')]
    cores: Vec<usize>,
    /// What to become
    #[arg(last = true, required = true)]
    program: Vec<String>,
}

/// Becomes a program in a network namespace, or where it is, on some cores, that ends with its parent. Call before any thread exists.
pub fn run_within(arguments: impl Iterator<Item = String>) -> Result<(), String> {
    let arguments = Arguments::parse_from(arguments);
    process::end_with_parent().map_err(|error| error.to_string())?;
    if let Some(netns) = &arguments.netns {
        let netns = netns::open(netns).map_err(|error| error.to_string())?;
        netns::enter(&netns).map_err(|error| error.to_string())?;
    }
    if !cores::pin_to(&arguments.cores) {
        return Err(format!("cannot stay on the cores {:?}", arguments.cores));
    }
    let error = process::become_program(&arguments.program);
    Err(format!("{} cannot be started: {error}", arguments.program.join(" ")))
}

impl Switch {
    /// Why it cannot be measured here, if so.
    pub fn is_missing(self) -> Option<String> {
        match self {
            Self::OpenVSwitch { .. } => programs::missing(
                &["ovsdb-tool", "ovsdb-server", "ovs-vsctl", "ovs-vswitchd"],
                "openvswitch-switch",
            ),
            Self::Testpmd => programs::missing(&["dpdk-testpmd"], "dpdk-dev"),
        }
    }

    /// A path through it. It has the worker's core.
    pub fn path(self, cores: Cores) -> Result<Path, Error> {
        let folder = world::folder()?;
        let middle = kernel::named(folder.path(), "switch")?;
        let end = |port, host| {
            let netns = kernel::namespace()?;
            kernel::veth(&middle, port, &netns, "eth0", kernel::MTU)?;
            kernel::address(&netns, "eth0", kernel::net(10, 96, 0, host, 24))?;
            if self != (Self::OpenVSwitch { super_packets: true }) {
                netns::run_in(&netns, || sys::features_off("eth0", &["tx-checksum-ip-generic"]))?
                    .map_err(io("eth0 cannot be told to finish its checksums"))?;
            }
            Ok::<_, Error>(End { netns, address: Ipv4Addr::new(10, 96, 0, host).into() })
        };
        let (from, to) = (end(PORTS[0], 2)?, end(PORTS[1], 3)?);
        let place = Place { folder: folder.path(), cores };
        let processes = match self {
            Self::OpenVSwitch { super_packets } => place.open_vswitch(super_packets)?,
            Self::Testpmd => vec![place.testpmd()?],
        };
        let path = Path { from, to, between: Between::Switch(processes, folder) };
        if let Err(error) = traffic::wait_until_carried(&path, PATIENCE) {
            let Between::Switch(_, folder) = &path.between else { return Err(error) };
            let log = tail(&folder.path().join("switch.log"));
            return Err(Error::Process {
                what: format!("{self:?} does not come up: {error}"),
                log,
            });
        }
        Ok(path)
    }
}

/// Where the processes of a switch are.
struct Place<'a> {
    folder: &'a FilePath,
    cores: Cores,
}

impl Place<'_> {
    fn core(&self) -> usize {
        self.cores.of_worker(true).unwrap_or(self.cores.receiver)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// A program in the switch's namespace, its output in the log.
    fn start(&self, cores: &[usize], program: &[String]) -> Result<Process, Error> {
        let log = File::options().create(true).append(true).open(self.file("switch.log"));
        let log = log.map_err(io("no log for the switch"))?;
        let error = log.try_clone().map_err(io("no log for the switch"))?;
        let cores: Vec<String> = cores.iter().map(ToString::to_string).collect();
        let mut command = Command::new("/proc/self/exe");
        command.arg(WITHIN).arg(self.file("switch")).arg(format!("--cores={}", cores.join(",")));
        command.arg("--").args(program);
        for variable in
            ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "XDG_RUNTIME_DIR", "RUNTIME_DIRECTORY"]
        {
            command.env(variable, self.folder);
        }
        Process::start(command.stdin(Stdio::null()).stdout(log).stderr(error))
    }

    /// The same of a program that ends by itself.
    fn run(&self, program: &[String]) -> Result<(), Error> {
        let mut process = self.start(&[self.core()], program)?;
        match process.wait()? {
            status if status.success() => Ok(()),
            status => Err(Error::Process {
                what: format!("{}: {status}", program.join(" ")),
                log: tail(&self.file("switch.log")),
            }),
        }
    }

    /// Until a file is there.
    fn wait_for(&self, path: &str) -> Result<(), Error> {
        let start = Instant::now();
        while !FilePath::new(path).exists() {
            if start.elapsed() > PATIENCE {
                let log = tail(&self.file("switch.log"));
                return Err(Error::Process { what: format!("{path} does not appear"), log });
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn open_vswitch(&self, super_packets: bool) -> Result<Vec<Process>, Error> {
        let schema = SCHEMAS.into_iter().find(|path| FilePath::new(path).exists());
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
        self.wait_for(&socket)?;
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

    fn testpmd(&self) -> Result<Process, Error> {
        // The main thread only waits; frames are handed on by the other.
        let (main, core) = (self.cores.sender, self.core());
        let cores = format!("{main},{core}");
        let devices = [0, 1].map(|at| format!("--vdev=net_af_packet{at},iface={}", PORTS[at]));
        let memory = "--no-huge --no-pci --no-shconf --no-telemetry -m 256";
        // Without a period of statistics it ends when its input does.
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
