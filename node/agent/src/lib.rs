//! The node agent: one control thread that owns the state, workers that own the packets, and a socket for requests.

mod addresses;
mod capture;
mod denials;
mod error;
mod fault;
pub mod host_device;
mod interfaces;
mod node;
mod node_address;
mod own_addresses;
mod pod_work;
mod pool_addresses;
mod port_ids;
mod port_reservation;
mod port_rules;
mod privileges;
mod reconcile;
mod reserved;
mod restart_state;
pub mod server;
mod service_device;
pub mod settings;
mod start;
pub mod translation_device;
mod tunnel_addresses;
mod uplink;
mod verify;

use std::sync::Arc;
use std::time::{Duration, Instant};

use manx_api::health;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, mpsc, watch};

pub use self::error::Error;
use self::node::{Agent, WorkResult};
use self::pod_work::Completed;
use self::server::PendingRequest;
pub use self::settings::Settings;
use manx_calculation::topology::Reserved;
use manx_datastore::secrets::FoundSecrets;
pub use manx_devices::{device, pod_device};
use manx_linux::autodetect::Facts;
use manx_linux::doctor;
use manx_linux::netlink::Netlink;
use manx_linux::netns::sysctl;
use manx_linux::process;
use manx_observe::Observer;

/// The interval at which the workers' reports are read, and at which their threads are checked.
const TICK: Duration = Duration::from_millis(100);

/// The time that a stopping agent waits for the last writes of leases, and then for the work on devices.
const LAST_WORK: Duration = Duration::from_secs(1);

/// Checks the cores that workers are pinned to. Without this check, a worker that cannot be pinned would run on any core
/// without notice.
fn check_cores(asked: &[Option<usize>]) -> Result<(), Error> {
    let usable = doctor::usable_cores();
    match asked.iter().flatten().find(|core| !usable.contains(core)) {
        None => Ok(()),
        Some(&asked) => Err(Error::Core { asked, usable }),
    }
}

/// Runs the agent in the calling thread's network namespace until SIGTERM or SIGINT.
pub fn run(settings: &Settings) -> Result<(), Error> {
    if let Err(error) = sysctl::make_writable() {
        tracing::warn!(%error, "/proc/sys is read-only and cannot be mounted anew");
    }
    if let Err(error) = process::raise_open_files() {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
    // This comes before any other thread starts, because each thread has its own capabilities.
    let kept = privileges::drop_unneeded(settings.bgp).map_err(Error::Capabilities)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Error::Runtime)?;
    let ended = runtime.block_on(serve(settings, &kept));
    // Device work may hang for ever, but the agent must not.
    runtime.shutdown_timeout(LAST_WORK);
    ended
}

async fn serve(settings: &Settings, kept: &str) -> Result<(), Error> {
    check_cores(&settings.cores)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(Error::Runtime)?;
    let mut server = tokio::select! {
        listening = start::listen(settings) => listening?,
        _ = terminate.recv() => return Ok(()),
    };
    // Both sockets answer while the objects are read, which may take a long time.
    let (health_listener, refused) = match server.listen_second(&health::path(&settings.socket)) {
        Ok(listener) => (Some(listener), None),
        Err(error) => (None, Some(error)),
    };
    let observer = manx_observe::start(settings.observed_at, health_listener, privileges::drop_all);
    if let Some(error) = refused {
        observer.served.fail("probes", &format!("not answered: {error}"));
    }
    let (requests, mut inbox) = mpsc::channel(16);
    tokio::spawn(server.run(requests));
    let (mut inputs, mut view, node_addresses) = tokio::select! {
        opened = start::open(settings, &mut inbox, &observer.health) => opened?,
        _ = terminate.recv() => return Ok(()),
    };
    let netlink = Netlink::open()?;
    let addresses = &view.topology.addresses;
    let uplink = match &settings.uplink {
        Some(name) => uplink::find(&netlink, name).await?,
        None => uplink::find_by_address(&netlink, &settings.name, addresses).await?,
    };
    view.uplink.clone_from(&uplink.name);
    if settings.network == settings::Network::Manx {
        doctor::no_ipip_module()?;
    }
    let server_host = inputs.source.server_host().map(str::to_owned);
    let found =
        reserved::NeededAddresses::find(&netlink, server_host.as_deref(), reserved::START_PATIENCE)
            .await;
    let addresses = own_addresses::read(&netlink).await?;
    inputs.set_reserved(found.reserved());
    inputs.set_own_addresses(addresses.prefixes.clone());
    inputs.set_interface_addresses(addresses.of_interfaces.clone());
    inputs.set_links(addresses.links.clone());
    let (reserve, reserved) = watch::channel(found.reserved());
    tokio::spawn(reserved::watch(Netlink::open()?, server_host, found, reserve));
    let (own, own_addresses) = watch::channel(addresses);
    tokio::spawn(own_addresses::watch(Netlink::open()?, own));
    let (look, facts) = watch::channel(Facts::default());
    let wanted = node_addresses.wanted().clone();
    tokio::spawn(node_address::watch(Netlink::open()?, wanted, look));
    let secrets = inputs.source.secrets().subscribe();
    let news = Arc::new(Notify::new());
    let (mut agent, completed) =
        Agent::start(settings, (inputs, view, node_addresses), &uplink, &observer, &news).await?;

    let (found, next_hops) = watch::channel(uplink::NextHops::new());
    if settings.packet_socket {
        tokio::spawn(uplink::watch_next_hops(netlink, uplink.index, agent.peers(), found));
    }
    tracing::info!(
        node = settings.name,
        uplink = uplink.name,
        packet_socket = settings.packet_socket,
        "ready"
    );
    tracing::info!("{kept}");
    (settings.report_ready)();
    agent.tell_network_up();
    let mut sources = EventSources {
        terminate,
        inbox,
        completed,
        next_hops,
        own_addresses,
        facts,
        reserved,
        secrets,
        news,
        observer,
    };
    let ended = run_control_loop(&mut agent, &mut sources).await;
    tracing::info!(node = settings.name, "stopping");
    if ended.is_ok() {
        // Packets are still judged. The agent still holds the socket, by `sources`. So the next agent writes to the
        // cluster only after this one.
        agent.tell_network_down().await;
    }
    // The next agent reads the leases as soon as it has the socket.
    if tokio::time::timeout(LAST_WORK, agent.close_leases()).await.is_err() {
        tracing::error!(
            "the leases are still being written after {} s: the next agent reads them once more before it changes them",
            LAST_WORK.as_secs()
        );
    }
    // The file of the last state must be free when the next agent has the socket.
    drop(agent);
    drop(sources);
    ended
}

/// The sources of events other than the datastore.
struct EventSources {
    terminate: Signal,
    inbox: mpsc::Receiver<PendingRequest>,
    completed: mpsc::UnboundedReceiver<Completed<WorkResult>>,
    next_hops: watch::Receiver<uplink::NextHops>,
    /// The node's own addresses.
    own_addresses: watch::Receiver<own_addresses::OwnAddresses>,
    /// The kernel's facts from which the node's address is chosen.
    facts: watch::Receiver<Facts>,
    /// Addresses that no pod may have.
    reserved: watch::Receiver<Reserved>,
    /// The requested values of Secrets.
    secrets: watch::Receiver<FoundSecrets>,
    /// Notified when routes or sessions of BGP have changed.
    news: Arc<Notify>,
    observer: Observer,
}

/// The control loop: it handles events one at a time, until a signal or an error ends the agent.
async fn run_control_loop(agent: &mut Agent, sources: &mut EventSources) -> Result<(), Error> {
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Error::Runtime)?;
    let mut tick = tokio::time::interval(TICK);
    let mut ended = Vec::new();
    loop {
        if !agent.submit_ready() {
            tokio::select! {
                _ = sources.terminate.recv() => return Ok(()),
                _ = interrupt.recv() => return Ok(()),
                Some(request) = sources.inbox.recv() => agent.handle(request),
                // All work that has ended so far is settled together.
                _ = sources.completed.recv_many(&mut ended, usize::MAX) => {
                    agent.take_results(ended.drain(..));
                }
                changes = agent.inputs.source.next() => agent.inputs.add_changes(changes),
                Ok(()) = sources.next_hops.changed() => {
                    let hops = sources.next_hops.borrow_and_update().clone();
                    agent.inputs.set_next_hops(hops);
                }
                Ok(()) = sources.own_addresses.changed() => {
                    let addresses = sources.own_addresses.borrow_and_update().clone();
                    agent.inputs.set_own_addresses(addresses.prefixes);
                    agent.inputs.set_interface_addresses(addresses.of_interfaces);
                    agent.inputs.set_links(addresses.links);
                }
                Ok(()) = sources.facts.changed() => {
                    let facts = sources.facts.borrow_and_update().clone();
                    agent.take_facts(facts, Instant::now());
                }
                Ok(()) = sources.reserved.changed() => {
                    let reserved = sources.reserved.borrow_and_update().clone();
                    agent.inputs.set_reserved(reserved);
                }
                Ok(()) = sources.secrets.changed() => agent.inputs.note_passwords(),
                () = sources.news.notified() => agent.take_ways_out(Instant::now()),
                Some(request) = sources.observer.metrics_requests.recv() => {
                    // A client that went away no longer waits.
                    if !request.is_closed() {
                        let _ = request.send(agent.metrics());
                    }
                }
                _ = tick.tick() => {
                    let now = Instant::now();
                    agent.tick(now)?;
                    sources.observer.health.send_modify(|health| agent.report_health(health, now));
                }
            }
        }
        agent.settle(Instant::now());
    }
}
