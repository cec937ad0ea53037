//! An attacker: a process in a pod that sends packets of one kind as fast as it can, for a given time and on a given
//! core.

use std::net::Ipv4Addr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum as _};
use manx_api::Device;
use manx_dataplane::sys::socket::{self, Instruction};
use manx_linux::netns;
use nix::net::if_::if_nametoindex;

use super::packets::{Kind, Packets};
use crate::error::{Error, errno, io as io_error};
use crate::host::cores;
use crate::host::process::{self, Process};
use crate::host::sys;
use crate::path::agents::cluster::Attack;

/// The first argument with which this program starts itself as an attacker.
pub const ATTACK: &str = "attack";
/// The Ethernet header of a frame from a pod whose device carries frames. The hardware address of the router is the
/// same for all pods.
const ETHERNET: [u8; 14] = [0xee, 0xee, 0xee, 0xee, 0xee, 0xee, 2, 0, 0, 0, 0, 1, 0x08, 0x00];
/// The send buffer of a socket, in bytes.
const BUFFER: i32 = 8 << 20;

/// The command line of an attacker.
#[derive(Debug, Parser)]
#[command(name = ATTACK)]
struct Arguments {
    /// The packets that it sends
    kind: Kind,
    /// The pod's network namespace
    #[arg(long)]
    netns: PathBuf,
    /// The pod's address
    #[arg(long)]
    from: Ipv4Addr,
    /// The address that it sends to
    #[arg(long)]
    to: Ipv4Addr,
    /// The pod's device carries Ethernet frames
    #[arg(long)]
    ethernet: bool,
    /// The core to stay on
    #[arg(long)]
    core: usize,
    /// Run only while no other thread wants the core
    #[arg(long)]
    only_when_idle: bool,
    /// It ends after so many seconds
    #[arg(long)]
    seconds: f64,
}

/// Where an attacker runs, and how long.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    /// How its pod is attached.
    pub(super) device: Device,
    /// The core to which it is pinned.
    pub(super) core: usize,
    /// Whether it runs only while no other thread wants the core.
    pub(super) only_when_idle: bool,
    /// The longest time for which it runs.
    pub(super) limit: Duration,
}

/// Starts an attacker in its pod. It ends when the returned process is dropped, or at its time limit.
pub(super) fn start(kind: Kind, attack: &Attack, place: Place) -> Result<Process, Error> {
    let name = kind.to_possible_value().map_or_else(String::new, |it| it.get_name().to_owned());
    let mut command = Command::new("/proc/self/exe");
    command.args([ATTACK, &name]).arg("--netns").arg(&attack.netns);
    command.arg(format!("--from={}", attack.from)).arg(format!("--to={}", kind.target(attack)));
    command.arg(format!("--core={}", place.core));
    command.arg(format!("--seconds={}", place.limit.as_secs_f64()));
    command.args(place.device.is_ethernet().then_some("--ethernet"));
    command.args(place.only_when_idle.then_some("--only-when-idle"));
    Process::start_and_wait(&mut command)
}

/// Runs as an attacker with the arguments of `start`. The caller must have a single thread.
pub fn run(arguments: impl Iterator<Item = String>) -> Result<(), String> {
    attack(&Arguments::parse_from(arguments)).map_err(|error| error.to_string())
}

fn attack(arguments: &Arguments) -> Result<(), Error> {
    process::end_with_parent()?;
    let length = Duration::try_from_secs_f64(arguments.seconds)
        .map_err(|error| Error::Failed(format!("--seconds {}: {error}", arguments.seconds)))?;
    if !cores::pin(arguments.core) {
        return Err(Error::Failed(format!("cannot stay on core {}", arguments.core)));
    }
    if arguments.only_when_idle {
        sys::run_only_when_idle().map_err(io_error("the attacker cannot give way"))?;
    }
    netns::enter(&netns::open(&arguments.netns)?)?;
    let Arguments { kind, from, to, ethernet, .. } = *arguments;
    let socket = open()?;
    let mut packets = Packets::new(kind, from, to, if ethernet { &ETHERNET } else { &[] });
    process::say_ready().map_err(io_error("the parent does not listen"))?;
    let until = Instant::now() + length;
    while Instant::now() < until {
        if kind == Kind::Loop {
            std::hint::spin_loop();
        } else {
            // The flood fills the queue, so this may fail. The agent counts the packets that arrived.
            let _ = packets.next().send(&socket);
        }
    }
    Ok(())
}

/// Opens a packet socket on the pod's interface that accepts packets with a virtio header. A process in a pod may open
/// one with `CAP_NET_RAW`. The socket receives nothing.
fn open() -> Result<OwnedFd, Error> {
    let index = if_nametoindex("eth0").map_err(errno("the pod has no eth0"))?;
    let nothing = Instruction {
        code: (libc::BPF_RET | libc::BPF_K) as u16,
        jump_true: 0,
        jump_false: 0,
        operand: 0,
    };
    let opened = || {
        let owned = socket::open(libc::AF_PACKET, libc::SOCK_RAW, 0)?;
        let fd = owned.as_fd();
        socket::set_option(fd, libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)?;
        socket::enlarge_buffers(fd, BUFFER)?;
        socket::attach_filter(fd, &[nothing])?;
        socket::bind_link(fd, index, libc::ETH_P_IP as u16)?;
        Ok(owned)
    };
    opened().map_err(io_error("no packet socket in the pod"))
}
