//! A bare forwarder: a process with the devices and system calls of Manx's pods. It makes no decision: packets from one
//! port leave by the other. Less work per packet is not possible with these devices.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Parser;
use manx_agent::device::{AgentNamespace, DeviceSpec, Queues};
use manx_agent::pod_device;
use manx_api::Device;
use manx_dataplane::packet::Pool;
use manx_dataplane::port_table::poller::Poller;
use manx_dataplane::tables::PortId;
use manx_dataplane::worker::{Idle, Polling};

use super::datagrams::{self, Datagrams};
use crate::host::cores;
use crate::host::process;
use crate::path::constants::MTU;

/// The first argument with which this program starts itself as a bare forwarder.
pub const BARE: &str = "bare";
/// The number of packets that are received at once, as in a worker.
const BATCH: usize = 32;
const SLEEP: Duration = Duration::from_secs(1);

/// The command line of a bare forwarder.
#[derive(Debug, Parser)]
#[command(name = BARE)]
struct Arguments {
    /// The network namespace and the address of an end. Two ends, or one end and the node through which the other one
    /// is reached
    #[arg(long = "end", value_name = "NETNS=ADDRESS", value_parser = end)]
    ends: Vec<(PathBuf, IpAddr)>,
    /// The network namespace of this node
    #[arg(long, requires = "peer")]
    node: Option<PathBuf>,
    /// The other node's address
    #[arg(long, requires = "node")]
    peer: Option<Ipv4Addr>,
    /// The kind of the ends' devices
    #[arg(long, default_value = Device::Tun.name(), value_parser = device)]
    device: Device,
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

fn device(name: &str) -> Result<Device, String> {
    Device::named(name).ok_or_else(|| format!("{name:?} is no kind of device"))
}

/// Runs as a bare forwarder until it is killed. The caller must have a single thread.
pub fn run(arguments: impl Iterator<Item = String>) -> Result<(), String> {
    let arguments = Arguments::parse_from(arguments);
    process::end_with_parent().map_err(|error| error.to_string())?;
    let polling = if arguments.busy { Polling::Busy } else { Polling::Adaptive };
    let agent = AgentNamespace::create().map_err(|error| error.to_string())?;
    let mut ports = Queues::new();
    let tunnel = arguments.node.as_ref().zip(arguments.peer);
    let (mtu, segments) = match tunnel {
        None => (MTU, None),
        Some(_) => datagrams::pod_limits(),
    };
    for (netns, address) in &arguments.ends {
        let wanted = DeviceSpec {
            interface: "eth0",
            addresses: &[*address],
            mtu,
            segments,
            device: arguments.device,
            queues: 1,
            polling,
        };
        let (_, held) =
            pod_device::attach(&agent, netns, &wanted).map_err(|error| error.to_string())?;
        ports.extend(held.queues);
    }
    if let Some((node, peer)) = tunnel {
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

/// Forwards between two ports forever.
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
