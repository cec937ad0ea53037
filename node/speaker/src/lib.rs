//! BGP sessions over TCP (RFC 4271): with each peer one that exchanges routes with the table of `manx-bgp`.
//!
//! The layers, in order:
//! - [`Password`]: a password that is shown nowhere. Values.
//! - [`Configuration`]: what a speaker is to do. Values.
//! - [`status`]: how each session is. Values.
//! - `collision`: which one of two connections with a peer stays. Pure.
//! - `reason`: why a connection has ended, in words and in consequences. Pure.
//! - `codec`: UPDATEs between the wire and the values of `manx-bgp`. Pure.
//! - `open`: what this node's OPEN says. Pure.
//! - `routes`: the table that all sessions share, and whom its changes wake.
//! - `protection`: the options of sockets for passwords and hops.
//! - `quiet`: which lines about a peer are logged.
//! - `connection`: one TCP connection with a peer, and the timers of its state machine.
//! - `session`: the task of one peer: its connections, what it tells and is told.
//! - `listen`: connections that peers begin.
//! - `run`: sessions follow the configuration.
//!
//! All sessions run in one thread. Its memory is bounded: what a peer has not taken waits in the table, where a prefix
//! waits once however often it changes. A connection of anybody who is no peer is closed at once.
//!
//! A session carries IPv4 unicast or IPv6 unicast: the family of the peer's address. It does graceful restart (RFC 4724,
//! RFC 8538), route refresh (RFC 2918), extended messages (RFC 8654), and autonomous systems of four octets (RFC 6793).
//! A malformed attribute withdraws routes and costs no session (RFC 7606). A peer may have a password (RFC 2385) and a number
//! of hops (RFC 5082), and has no session without them. Not done: several paths of a prefix (RFC 7911); other families;
//! routes with sets of autonomous systems (RFC 9774 forbids them).

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

/// The sessions. Dropping this ends them with "administrative shutdown", and waits a moment for the peers to read it.
#[derive(Debug)]
pub struct Speaker {
    shared: Arc<Shared>,
    doors: Arc<Doors>,
    orders: watch::Sender<Orders>,
    listening: Vec<SocketAddr>,
    thread: Option<JoinHandle<()>>,
}

impl Speaker {
    /// Listens at addresses, and begins without peers. `[::]` stands for all addresses of both families. A port below 1024
    /// takes `CAP_NET_BIND_SERVICE` of the caller, and only now.
    ///
    /// The thread first runs `give_up`, to drop rights that it does not need, and does not speak if that fails. It calls
    /// `on_change` when learned routes or a session's state may have changed; changes in a row are one.
    /// It must not wait for anything: the sessions wait for it.
    ///
    /// # Errors
    /// An address cannot be listened at, or there is no thread.
    pub fn start(
        listen: &[SocketAddr],
        give_up: impl FnOnce() -> io::Result<()> + Send + 'static,
        on_change: impl Fn() + Send + 'static,
    ) -> io::Result<Self> {
        Self::start_with(listen, Timing::CALICO, give_up, on_change)
    }

    fn start_with(
        addresses: &[SocketAddr],
        timing: Timing,
        give_up: impl FnOnce() -> io::Result<()> + Send + 'static,
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
        let thread = thread.spawn(move || match give_up() {
            Ok(()) => runtime.block_on(running),
            Err(error) => {
                tracing::error!(%error, "the thread of BGP keeps rights that it should not have, and does not speak");
            }
        })?;
        let thread = Some(thread);
        Ok(Self { shared, doors, orders, listening, thread })
    }

    /// Takes a new configuration. Sessions follow: those of new peers begin, those of peers that are gone end with "peer
    /// de-configured", those of peers that differ begin anew, and others are not touched.
    pub fn configure(&self, configuration: Configuration) {
        let configuration = Some(Arc::new(configuration));
        self.orders.send_modify(|it| it.configuration = configuration);
    }

    /// The addresses at which it listens.
    pub fn listening(&self) -> &[SocketAddr] {
        &self.listening
    }

    /// A number that differs if [`Self::next_hops`] may.
    pub fn learned_generation(&self) -> u64 {
        self.shared.routes.read(manx_bgp::table::Table::generation)
    }

    /// The prefixes that some peers have told, in no order, each with the next hops of the routes of theirs that are as good
    /// as the best one: a row for each, 16 at most. Sessions go on meanwhile: what changes during the call may be left out,
    /// or come twice, and then [`Self::learned_generation`] differs from what it was before.
    pub fn next_hops(&self, is_meant: impl Fn(&Peer) -> bool) -> Vec<(IpNet, IpAddr)> {
        let (mut all, mut from) = (Vec::new(), Some(0));
        while let Some(at) = from {
            from = self.shared.routes.read(|it| it.next_hops(&is_meant, at, &mut all));
        }
        all
    }

    /// The first routes that peers have told, by their prefixes: so many of each family at most.
    pub fn first_learned(&self, most: usize) -> Vec<(IpNet, Vec<Learned>)> {
        let (mut prefixes, mut from) = (Default::default(), Some(0));
        while let Some(at) = from {
            from = self.shared.routes.read(|it| it.first_prefixes(most, at, &mut prefixes));
        }
        let prefixes = prefixes.into_iter().flatten();
        self.shared.routes.read(|it| it.routes_of(prefixes).collect())
    }

    /// How each session is, by the peers' addresses.
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

    /// What has happened in all sessions, by the type of the peers.
    pub fn totals(&self) -> BTreeMap<PeerType, Totals> {
        self.shared.board.totals()
    }

    /// The connections that were closed at once, because they came from nobody who is a peer, or faster than they were
    /// looked at.
    pub fn refused_connections(&self) -> u64 {
        self.doors.refused()
    }

    /// Ends without a word to the peers: those that do graceful restart keep this node's routes for its next process.
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
