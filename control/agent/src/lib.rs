//! The node agent: one control thread that owns the state, workers that own the packets, a socket to ask.

mod capture;
mod denials;
pub mod device;
mod device_work;
mod error;
mod fault;
pub mod host_device;
pub mod ipam;
mod node;
pub mod pod_device;
mod port_ids;
mod privileges;
pub mod server;
mod uplink;
mod verify;

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use manx_dataplane::pipeline::Sizes;
use manx_dataplane::tables::Connections;
use manx_dataplane::worker::{self, Polling, Workers};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};

use self::device::AgentNamespace;
use self::device_work::{Completed, DeviceWork};
pub use self::error::Error;
use self::host_device::HostDevice;
use self::node::pods::Commit;
use self::node::{Agent, Parts};
use self::server::{PendingRequest, Server};
use self::verify::Verifier;
use manx_calculation::import::import_for;
use manx_calculation::topology;
use manx_datastore::{Store, Watcher};
use manx_linux::doctor;
use manx_linux::netlink::Netlink;
use manx_objects::problem::Problem;

/// How often the workers' reports are read and their life is checked.
const TICK: Duration = Duration::from_millis(100);

/// What an agent is told at its start.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The name of its Node.
    pub name: String,
    /// The directory of manifests.
    pub datastore: PathBuf,
    /// Where it listens.
    pub socket: PathBuf,
    /// The interface to other nodes.
    pub uplink: String,
    /// Whether tunnel packets use a packet socket on the uplink, or only the raw socket.
    pub packet_socket: bool,
    /// How pods are attached.
    pub pod_device: pod_device::Preference,
    /// Whether workers sleep.
    pub polling: Polling,
    /// A worker for each; the core that it is pinned to.
    pub cores: Vec<Option<usize>>,
    /// How connections are followed.
    pub connections: Connections,
    /// Whether tables are proved before they are published.
    pub verify_tables: bool,
}

/// A worker that cannot be where it was told to be would be anywhere, and nobody would know.
fn check_cores(asked: &[Option<usize>]) -> Result<(), Error> {
    let usable = doctor::usable_cores();
    match asked.iter().flatten().find(|core| !usable.contains(core)) {
        None => Ok(()),
        Some(&asked) => Err(Error::Core { asked, usable }),
    }
}

/// Runs the agent in the calling thread's network namespace until SIGTERM or SIGINT.
pub fn run(settings: &Settings) -> Result<(), Error> {
    // While there is no other thread: each has its own.
    let kept = privileges::give_up().map_err(Error::Capabilities)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Error::Runtime)?;
    runtime.block_on(serve(settings, &kept))
}

async fn serve(settings: &Settings, kept: &str) -> Result<(), Error> {
    check_cores(&settings.cores)?;
    if !settings.datastore.is_dir() {
        return Err(Error::NoDatastore(settings.datastore.clone()));
    }
    let mut store = Store::new(&settings.datastore);
    let watcher = Watcher::new(&settings.datastore);
    store.refresh();
    let cluster = import_for(store.contents(), &settings.name);
    if !cluster.in_sync {
        let problems: Vec<String> = cluster.problems.iter().map(Problem::summary).collect();
        return Err(Error::NotInSync(settings.datastore.clone(), problems.join("; ")));
    }
    let place = topology::topology(&cluster, &settings.name)?;
    let server = Server::bind(&settings.socket)?;
    let netlink = Netlink::open()?;
    let uplink = netlink.existing(&settings.uplink).await?;
    if uplink.loopback {
        return Err(Error::Loopback(uplink.name));
    }
    if !uplink.up {
        tracing::warn!(uplink = uplink.name, "the uplink is down: other nodes cannot be reached");
    }
    doctor::no_ipip_module()?;
    let workers = settings.cores.len();
    let tunnels = uplink::open(&uplink, settings.packet_socket, workers)?;
    let addresses =
        ipam::store::Store::open(&settings.socket.with_extension("addresses"), &place.blocks)?;
    let namespace = Arc::new(AgentNamespace::create()?);
    let pod_device = pod_device::choose(settings.pod_device, workers)?;
    let (host_device, host) = HostDevice::attach(
        &namespace,
        pod_device,
        uplink.mtu,
        workers,
        settings.polling,
        &uplink.name,
    )?;

    let (report, reports) = crossbeam::channel::unbounded();
    let of_each =
        worker::Settings { sizes: Sizes::default(), polling: settings.polling, core: None };
    let workers = Workers::spawn(of_each, &settings.cores, &report).map_err(Error::Worker)?;
    let (device_work, completed) = DeviceWork::new(Arc::clone(&namespace));
    let mut agent = Agent::new(Parts {
        name: settings.name.clone(),
        store,
        workers,
        reports,
        namespace,
        device_work,
        host_device,
        pod_device,
        polling: settings.polling,
        addresses,
        raw: tunnels.raw,
        packet_socket: tunnels.packet_socket,
        uplink: settings.uplink.clone(),
        underlay_mtu: uplink.mtu,
        host,
        host_mtu: uplink.mtu,
        connections: settings.connections,
        verifier: settings.verify_tables.then(Verifier::default),
    })?;
    agent.import_all(cluster);

    let (peers, wanted) = watch::channel(agent.peers());
    let (found, next_hops) = watch::channel(uplink::NextHops::new());
    if settings.packet_socket {
        tokio::spawn(uplink::watch_next_hops(netlink, uplink.index, wanted, found));
    }
    let (requests, inbox) = mpsc::channel(16);
    tokio::spawn(server.run(requests));
    tracing::info!(
        node = settings.name,
        uplink = settings.uplink,
        packet_socket = settings.packet_socket,
        "ready"
    );
    tracing::info!("{kept}");
    let sources = EventSources { watcher, inbox, completed, peers, next_hops };
    let ended = run_control_loop(&mut agent, sources).await;
    tracing::info!(node = settings.name, "stopping");
    ended
}

/// Where events come from.
struct EventSources {
    watcher: Watcher,
    inbox: mpsc::Receiver<PendingRequest>,
    completed: mpsc::UnboundedReceiver<Completed<Commit>>,
    /// Tells the follower of next hops whom to look for.
    peers: watch::Sender<BTreeSet<Ipv4Addr>>,
    next_hops: watch::Receiver<uplink::NextHops>,
}

/// The control loop: one event after the other, until the agent is told to stop or cannot go on.
async fn run_control_loop(agent: &mut Agent, mut sources: EventSources) -> Result<(), Error> {
    let mut terminate = signal(SignalKind::terminate()).map_err(Error::Runtime)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Error::Runtime)?;
    let mut tick = tokio::time::interval(TICK);
    let mut ended = Vec::new();
    loop {
        tokio::select! {
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            Some(request) = sources.inbox.recv() => agent.handle(request),
            // One publication is for all that have ended until now.
            _ = sources.completed.recv_many(&mut ended, usize::MAX) => agent.commit(ended.drain(..)),
            _ = sources.watcher.changed() => {
                if agent.refresh() {
                    sources.peers.send_replace(agent.peers());
                }
                if agent.store.has_unsettled_file() {
                    sources.watcher.rescan_within(manx_datastore::STANDS);
                }
            },
            Ok(()) = sources.next_hops.changed() => {
                let hops = sources.next_hops.borrow_and_update().clone();
                agent.set_next_hops(hops);
            }
            _ = tick.tick() => {
                agent.read_reports();
                agent.restore_devices(Instant::now());
                agent.retry();
                if let Some(error) = agent.failed.take() {
                    return Err(error);
                }
                if !agent.workers.are_alive() {
                    return Err(Error::WorkerGone);
                }
            }
        }
    }
}
