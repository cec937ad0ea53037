//! BGP sessions over TCP (RFC 4271): one session with each peer, which exchanges routes with the table of `manx-bgp`.
//!
//! The layers, in order:
//! - [`Password`]: a password that no log or status contains. Values.
//! - [`Configuration`]: the peers, routes and passwords of a speaker. Values.
//! - [`status`]: the status of each session. Values.
//! - `collision`: decides which of two connections with a peer stays. Pure.
//! - `reason`: the reason why a connection has ended, its text, and its consequences. Pure.
//! - `codec`: UPDATEs between the wire and the values of `manx-bgp`. Pure.
//! - `open`: the content of this node's OPEN. Pure.
//! - `routes`: the table that all sessions share, and the sessions that its changes wake.
//! - `protection`: the options of sockets for passwords and hops.
//! - `quiet`: decides which messages about a peer are logged.
//! - `connection`: one TCP connection with a peer, and the timers of its state machine.
//! - `session`: the task of one peer: its connections, and its updates in both directions.
//! - `listen`: connections that peers begin.
//! - `run`: makes the sessions follow the configuration.
//!
//! All sessions run in one thread. Its memory is bounded: pending announcements wait in the table, where a prefix waits
//! once however often it changes. A connection from a source that is no peer is closed at once.
//!
//! A session carries IPv4 unicast or IPv6 unicast: the family of the peer's address. It supports graceful restart (RFC
//! 4724, RFC 8538), route refresh (RFC 2918), extended messages (RFC 8654), and autonomous systems of four octets (RFC
//! 6793). A malformed attribute withdraws routes and does not end the session (RFC 7606). A peer may require a password
//! (RFC 2385) and a limit of hops (RFC 5082); then it has no session without them. Not supported: several paths of a prefix
//! (RFC 7911); other families; routes with an `AS_SET` (RFC 9774 forbids them).

mod codec;
mod collision;
mod configuration;
mod connection;
mod listen;
mod open;
mod password;
mod protection;
mod quiet;
mod reason;
mod routes;
mod run;
mod session;
pub mod status;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use ipnet::IpNet;
use manx_bgp::peer::{Peer, PeerType};
use manx_bgp::table::Learned;
use tokio::sync::watch;

pub use crate::configuration::Configuration;
use crate::listen::{Doors, Listener, listen};
pub use crate::password::Password;
use crate::routes::Routes;
use crate::run::{Orders, run};
use crate::session::{Shared, Stop, Timing};
use crate::status::{Board, SessionStatus, Totals};

/// The sessions. Dropping this value ends them with "administrative shutdown", and waits a moment for the peers to read
/// that.
#[derive(Debug)]
pub struct Speaker {
    shared: Arc<Shared>,
    doors: Arc<Doors>,
    orders: watch::Sender<Orders>,
    listening: Vec<SocketAddr>,
    thread: Option<JoinHandle<()>>,
}

impl Speaker {
    /// Listens at addresses, and starts without peers. With `[::]`, it listens at all addresses of both families. For a
    /// port below 1024 the caller needs `CAP_NET_BIND_SERVICE`, but only during this call.
    ///
    /// The thread first runs `drop_privileges`, to drop rights that it does not need. If that fails, it does not speak BGP. It
    /// calls `on_change` when learned routes or a session's state may have changed; changes in quick succession cause one
    /// call. `on_change` must not block, because the sessions wait for it.
    ///
    /// # Errors
    /// The speaker cannot listen at an address, or the thread cannot be started.
    pub fn start(
        listen: &[SocketAddr],
        drop_privileges: impl FnOnce() -> io::Result<()> + Send + 'static,
        on_change: impl Fn() + Send + 'static,
    ) -> io::Result<Self> {
        Self::start_with(listen, Timing::CALICO, drop_privileges, on_change)
    }

    fn start_with(
        addresses: &[SocketAddr],
        timing: Timing,
        drop_privileges: impl FnOnce() -> io::Result<()> + Send + 'static,
        on_change: impl Fn() + Send + 'static,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let entered = runtime.enter();
        let listeners = addresses.iter().map(|it| listen(*it)).collect::<io::Result<Vec<_>>>()?;
        let listening = listeners.iter().map(Listener::address).collect();
        drop(entered);
        let shared = Shared {
            routes: Routes::new(),
            board: Board::default(),
            written: Mutex::default(),
            timing,
        };
        let (shared, doors) = (Arc::new(shared), Arc::new(Doors::default()));
        let (orders, ordered) = watch::channel(Orders::default());
        let running = run(listeners, Arc::clone(&shared), Arc::clone(&doors), on_change, ordered);
        let thread = thread::Builder::new().name("bgp".to_owned());
        let thread = thread.spawn(move || match drop_privileges() {
            Ok(()) => runtime.block_on(running),
            Err(error) => {
                tracing::error!(%error, "the thread of BGP keeps rights that it should not have, and does not speak");
            }
        })?;
        let thread = Some(thread);
        Ok(Self { shared, doors, orders, listening, thread })
    }

    /// Sets a new configuration. Sessions of new peers begin, and those of removed peers end with "peer de-configured".
    /// Sessions of changed peers begin again, and others are not touched.
    pub fn configure(&self, configuration: Configuration) {
        let configuration = Some(Arc::new(configuration));
        self.orders.send_modify(|it| it.configuration = configuration);
    }

    /// The addresses at which the speaker listens.
    pub fn listening(&self) -> &[SocketAddr] {
        &self.listening
    }

    /// A number that changes whenever the result of [`Self::next_hops`] may have changed.
    pub fn learned_generation(&self) -> u64 {
        self.shared.routes.read(manx_bgp::table::Table::generation)
    }

    /// The prefixes that the peers for which `is_meant` is true have announced, in no order. A prefix has a row for
    /// each next hop, at most 16: the next hops of the best route of these peers, and of their routes that are equally
    /// good. Sessions continue meanwhile: a prefix that changes during the call may be left out or occur twice, and
    /// then [`Self::learned_generation`] has changed.
    pub fn next_hops(&self, is_meant: impl Fn(&Peer) -> bool) -> Vec<(IpNet, IpAddr)> {
        let (mut all, mut from) = (Vec::new(), Some(0));
        while let Some(at) = from {
            from = self.shared.routes.read(|it| it.next_hops(&is_meant, at, &mut all));
        }
        all
    }

    /// The first announced routes in the order of their prefixes, at most `most` of each family.
    pub fn first_learned(&self, most: usize) -> Vec<(IpNet, Vec<Learned>)> {
        let (mut prefixes, mut from) = (Default::default(), Some(0));
        while let Some(at) = from {
            from = self.shared.routes.read(|it| it.first_prefixes(most, at, &mut prefixes));
        }
        let prefixes = prefixes.into_iter().flatten();
        self.shared.routes.read(|it| it.routes_of(prefixes).collect())
    }

    /// The status of each session, in the order of the peers' addresses.
    pub fn sessions(&self) -> Vec<SessionStatus> {
        let mut all = self.shared.board.all();
        self.shared.routes.read(|table| {
            for it in &mut all {
                it.counts = table.counts(it.peer);
            }
        });
        all
    }

    /// The peers with an established session.
    pub fn established(&self) -> BTreeSet<IpAddr> {
        self.shared.board.established()
    }

    /// The counters of all sessions, by the type of the peers.
    pub fn totals(&self) -> BTreeMap<PeerType, Totals> {
        self.shared.board.totals()
    }

    /// The connections that were closed at once, because their source is no peer, or because the peer's task could not take
    /// them fast enough.
    pub fn refused_connections(&self) -> u64 {
        self.doors.refused()
    }

    /// Ends without a notification to the peers: those that support graceful restart keep this node's routes for its next
    /// process.
    pub fn leave(self) {
        self.orders.send_modify(|it| it.end = Some(Stop::Leave));
    }
}

impl Drop for Speaker {
    fn drop(&mut self) {
        let shutdown =
            Stop::Cease(rustbgpd_wire::notification::cease_subcode::ADMINISTRATIVE_SHUTDOWN);
        self.orders.send_modify(|it| {
            it.end.get_or_insert(shutdown);
        });
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has ended the sessions already.
            let _ = thread.join();
        }
    }
}
