//! A prober's process. It is in the prober's network namespace, serves its ports, and runs commands (`Command` lines),
//! many at once. It reports the result of each (`ProberEvent` lines). Commands and results go over its stdin, which is
//! a socket. The process ends when the socket closes.

mod echo;
mod probe;
mod raw;
mod sample;
mod sctp;
mod serve;
mod wire;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use manx_policy_compiler::model::Protocol;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::mpsc;

use self::wire::Wire;
use super::command::{Command, ProberEvent, Task, TaskResult};
use crate::plan::port::Port;
use manx_linux::netns;

/// The reason why a prober's process cannot work.
#[derive(Debug, thiserror::Error)]
pub enum PodError {
    #[error(transparent)]
    Namespace(#[from] netns::Error),
    /// A server cannot be started.
    #[error("{0} cannot be served: {1}")]
    Serve(Port, io::Error),
    /// A socket, a pipe or the runtime cannot be made.
    #[error("{0}: {1}")]
    System(&'static str, io::Error),
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> PodError {
    move |error| PodError::System(what, error)
}

/// Runs the process, which must still have a single thread. It listens on the addresses `at`, or on all if there are
/// none.
pub fn run(netns: &Path, name: &str, ports: &[Port], at: &[IpAddr]) -> Result<(), PodError> {
    netns::enter(netns::open(netns)?)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(system("runtime"))?;
    runtime.block_on(run_control_loop(name, ports, at))
}

async fn run_control_loop(name: &str, ports: &[Port], at: &[IpAddr]) -> Result<(), PodError> {
    let name: Arc<str> = name.into();
    let sctp = |port: &&Port| port.protocol == Protocol::Sctp;
    let listening = ports.iter().filter(sctp).map(|port| port.number).collect();
    let wire = Wire::open(listening, &name).map_err(system("raw socket"))?;
    let all = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
    let at = if at.is_empty() { &all } else { at };
    for port in ports {
        serve::serve(*port, at, &name).map_err(|error| PodError::Serve(*port, error))?;
    }
    let (events, mut outgoing) = mpsc::unbounded_channel();
    let (read_half, mut write_half) = channel().map_err(system("stdin"))?.into_split();
    let writer = tokio::spawn(async move {
        while let Some(event) = outgoing.recv().await {
            let mut line = serde_json::to_vec(&event).map_err(io::Error::from)?;
            line.push(b'\n');
            write_half.write_all(&line).await?;
        }
        Ok::<(), io::Error>(())
    });
    let _ = events.send(ProberEvent::Ready);
    let mut commands = BufReader::new(read_half).lines();
    while let Some(line) = commands.next_line().await.map_err(system("stdin"))? {
        let Command { id, task } = serde_json::from_str(&line)
            .map_err(|error| PodError::System("command", error.into()))?;
        let (wire, events) = (wire.clone(), events.clone());
        tokio::spawn(async move {
            let result = carry_out(&wire, &task).await;
            // When the rig ends, the receiver is gone.
            let _ = events.send(ProberEvent::Done { id, result });
        });
    }
    writer.abort();
    Ok(())
}

/// Stdin as a socket.
fn channel() -> io::Result<UnixStream> {
    let socket = std::os::unix::net::UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    socket.set_nonblocking(true)?;
    UnixStream::from_std(socket)
}

async fn carry_out(wire: &Wire, task: &Task) -> TaskResult {
    match task {
        Task::Probe(probe) => TaskResult::Probed(probe::probe(wire, probe).await),
        Task::Stream(sample) => sample::stream(sample).await,
        Task::PingPong(sample) => sample::ping_pong(sample).await,
    }
}
