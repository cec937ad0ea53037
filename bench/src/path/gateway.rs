//! Paths through programs that connect a namespace to the outside without privileges. Each connection of the pod ends
//! at the program, which has its own socket on the node. These programs enforce no policy.

use std::fs::File;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use super::ends::{PathEnd, PathEnds, ProcessPath};
use super::links::{ANYWHERE, add_route, named_namespace};
use super::traffic;
use super::translating::outside;
use super::way::OUTSIDE;
use crate::error::{Error, io};
use crate::host::cores::Cores;
use crate::host::process::{Process, tail};
use crate::host::{namespaces, programs, within};

/// The longest time that a program may take until it forwards.
const PATIENCE: Duration = Duration::from_secs(15);
/// The pod's address, which is the one that slirp4netns assigns.
const POD: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 100);

/// A program that connects a namespace to the outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gateway {
    Pasta,
    Slirp4netns,
}

impl Gateway {
    const fn program(self) -> &'static str {
        match self {
            Self::Pasta => "pasta",
            Self::Slirp4netns => "slirp4netns",
        }
    }

    /// Why it cannot be measured here. `None` if it can.
    pub fn why_missing(self) -> Option<String> {
        let package = match self {
            Self::Pasta => "passt",
            Self::Slirp4netns => "slirp4netns",
        };
        programs::why_missing(&[self.program()], package)
    }

    /// The command line with which it connects a namespace to the outside. Both programs use the MTU 65,520, which is
    /// pasta's default.
    fn command(self, pod: &Path) -> Vec<String> {
        let pod = pod.display();
        let text = match self {
            // It copies the addresses and routes of the node's interface that has the default route.
            Self::Pasta => format!(
                "pasta --foreground --quiet --runas 0 --netns-only --netns {pod} --config-net --ns-ifname eth0 \
                 --address {POD} --netmask 24 --gateway 10.0.2.2 \
                 --tcp-ports none --udp-ports none --tcp-ns none --udp-ns none"
            ),
            Self::Slirp4netns => {
                format!("slirp4netns --netns-type=path --configure --mtu=65520 {pod} eth0")
            }
        };
        text.split_whitespace().map(str::to_owned).collect()
    }

    /// A path from a pod to a host outside. The program runs on the core on which an agent's worker would run.
    pub fn path(self, cores: Cores) -> Result<ProcessPath, Error> {
        let folder = namespaces::temporary_folder()?;
        let node = named_namespace(folder.path(), "node")?;
        let receiver = outside(&node)?;
        add_route(&node, "eth0", ANYWHERE, OUTSIDE)?;
        let sender = PathEnd { netns: named_namespace(folder.path(), "pod")?, address: POD.into() };
        let log = folder.path().join("gateway.log");
        let output = File::create(&log).map_err(io("no log for the gateway"))?;
        let error = output.try_clone().map_err(io("no log for the gateway"))?;
        let core: Vec<usize> = cores.worker_core(true).into_iter().collect();
        let program = self.command(&folder.path().join("pod"));
        let mut command = within::command(&folder.path().join("node"), &core, &program);
        let process = Process::start(command.stdin(Stdio::null()).stdout(output).stderr(error))?;
        let ends = PathEnds::new(sender, receiver);
        let start = Instant::now();
        // Until the program has assigned the pod's address, opening a socket with this address fails at once, so it is
        // tried again.
        while let Err(error) = traffic::wait_until_carried(&ends, PATIENCE) {
            if start.elapsed() > PATIENCE {
                let what = format!("{} does not come up: {error}", self.program());
                return Err(Error::Process { what, log: tail(&log) });
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(ProcessPath { ends, processes: vec![process], folder })
    }
}
