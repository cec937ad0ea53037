//! Paths through a bare forwarder: the devices and system calls of Manx's pods, in a process of its own, and no decision in
//! between: what comes by one goes out by the other. Less work per packet is not possible with these devices.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Parser;
use manx_agent::device::{AgentNamespace, Queues};
use manx_agent::pod_device::{self, Attachment};
use manx_api::Device;
use manx_dataplane::packet::Pool;
use manx_dataplane::poller::Poller;
use manx_dataplane::tables::PortId;
use manx_dataplane::worker::{Idle, Polling};
use manx_linux::netns;

use crate::bare_tunnel::{self, Datagrams};
use crate::cores;
use crate::error::Error;
use crate::kernel;
use crate::path::{Between, End, Path};
use crate::process::{self, Process};
use crate::world;

/// The word by which a program of this crate starts itself as a bare forwarder.
pub const BARE: &str = "bare";
/// Packets taken at once, as by a worker.
const BATCH: usize = 32;
/// Longest sleep.
const SLEEP: Duration = Duration::from_secs(1);

/// A bare forwarder's own command line.
#[derive(Debug, Parser)]
#[command(name = BARE)]
struct Arguments {
    /// The network namespace of an end and its address: of two ends, or of one and a node behind which the other is
    #[arg(long = "end", value_name = "NETNS=ADDRESS", value_parser = end)]
    ends: Vec<(PathBuf, IpAddr)>,
    /// The network namespace of this node
    #[arg(long, requires = "peer")]
    node: Option<PathBuf>,
    /// The other node's address
    #[arg(long, requires = "node")]
    peer: Option<Ipv4Addr>,
    /// By veth pairs, not by TUN
    #[arg(long)]
    veth: bool,
    /// Never sleep
    #[arg(long)]
    busy: bool,
    /// The core to stay on
    #[arg(long)]
    pin: Option<usize>,
}

fn end(text: &str) -> Result<(PathBuf, IpAddr), String> {
    let (netns, address) = text.rsplit_once('=').ok_or("expected NETNS=ADDRESS")?;
    let address = address.parse().map_err(|_| format!("{address:?} is no address"))?;
    Ok((netns.into(), address))
}

/// A path through a forwarder on this core (`None`: the scheduler's choice).
pub fn path(device: Device, polling: Polling, core: Option<usize>) -> Result<Path, Error> {
    let folder = world::folder()?;
    let end = |name: &str, host| {
        let netns = netns::create_named(&folder.path().join(name))?;
        Ok::<_, Error>(End { netns, address: address(host) })
    };
    let (from, to) = (end("left", 0)?, end("right", 1)?);
    let ends = [("left", &from), ("right", &to)]
        .map(|(name, end)| (folder.path().join(name), end.address));
    let flags = [(device == Device::Veth, "--veth"), (polling == Polling::Busy, "--busy")];
    let flags = flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag.to_owned());
    let process = start(&ends, core, flags)?;
    Ok(Path { from, to, between: Between::Bare(vec![process], folder) })
}

/// Starts a forwarder of these ends on this core, and waits until its devices are there.
pub(crate) fn start(
    ends: &[(PathBuf, IpAddr)],
    core: Option<usize>,
    others: impl IntoIterator<Item = String>,
) -> Result<Process, Error> {
    let mut command = Command::new("/proc/self/exe");
    command.arg(BARE).args(others);
    command.args(ends.iter().map(|(netns, end)| format!("--end={}={end}", netns.display())));
    command.args(core.map(|core| format!("--pin={core}")));
    Process::start_and_wait(&mut command)
}

/// The address of the first or second end.
fn address(end: u8) -> IpAddr {
    Ipv4Addr::new(10, 97, 0, 2 + end).into()
}

/// Runs as a bare forwarder, with the arguments that [`path`] gave, until it is killed. Call before any thread exists.
pub fn run(arguments: impl Iterator<Item = String>) -> Result<(), String> {
    let arguments = Arguments::parse_from(arguments);
    process::end_with_parent().map_err(|error| error.to_string())?;
    let polling = if arguments.busy { Polling::Busy } else { Polling::Adaptive };
    let agent = AgentNamespace::create().map_err(|error| error.to_string())?;
    let mut ports = Queues::new();
    let way = arguments.node.as_ref().zip(arguments.peer);
    let (mtu, segments) = match way {
        None => (kernel::MTU, None),
        Some(_) => bare_tunnel::of_pods(),
    };
    for (netns, address) in &arguments.ends {
        let attachment = Attachment {
            netns,
            interface: "eth0",
            addresses: &[*address],
            mtu,
            segments,
            device: if arguments.veth { Device::Veth } else { Device::Tun },
            queues: 1,
            polling,
        };
        let (_, held) =
            pod_device::attach(&agent, &attachment).map_err(|error| error.to_string())?;
        ports.extend(held.queues);
    }
    if let Some((node, peer)) = way {
        let datagrams = Datagrams::open(node, peer).map_err(|error| error.to_string())?;
        ports.push(Box::new(datagrams));
    }
    if let Some(core) = arguments.pin
        && !cores::pin(core)
    {
        return Err(format!("cannot stay on core {core}"));
    }
    forward(&mut ports, polling).map_err(|error| error.to_string())
}

/// Hands on between two ports, for ever.
fn forward(ports: &mut Queues, polling: Polling) -> io::Result<()> {
    let mut poller = Poller::new()?;
    for (port, id) in ports.iter().zip(0..) {
        if let Some(descriptor) = port.descriptor() {
            poller.watch(descriptor, PortId(id))?;
        }
    }
    let [left, right] = &mut ports[..] else {
        return Err(io::Error::other(format!("found {} ports, expected 2", ports.len())));
    };
    let mut pool = Pool::new(2 * BATCH);
    let mut batch = Vec::with_capacity(BATCH);
    let mut idle = Idle::new(Instant::now());
    process::say_ready()?;
    loop {
        let mut found = 0;
        for _ in 0..2 {
            let _ = left.receive(&mut pool, &mut batch, BATCH)?;
            if !batch.is_empty() {
                found += batch.len();
                let _ = right.transmit(&mut pool, &mut batch)?;
            }
            std::mem::swap(left, right);
        }
        if found > 0 || polling == Polling::Busy {
            idle.found_packets();
        } else if idle.should_sleep(Instant::now()) {
            poller.wait(SLEEP, |_| {})?;
        } else {
            idle.yield_core();
        }
    }
}
