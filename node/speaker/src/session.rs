//! The successive sessions with one peer: its connections, the routes that the table learns from it, and the routes
//! that are sent to it.

use std::fmt::Write as _;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::BytesMut;
use manx_bgp::peer::Peer;
use manx_bgp::table::{Message, Opened};
use rustbgpd_fsm::NegotiatedSession;
use rustbgpd_wire::notification::cease_subcode;
use rustbgpd_wire::{GracefulRestartFamily, NotificationCode};
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};

use crate::codec::decode::{Decoded, decode};
use crate::codec::encode::{encode, encode_end_of_rib};
use crate::codec::encoding::Family;
use crate::codec::written::Written;
use crate::collision::{self, Keep, Progress};
use crate::connection::{Connection, Happened, connect};
use crate::open::{Comeback, config, impossible};
use crate::password::Password;
use crate::protection::limit_hops_of_accepted;
use crate::quiet::Quiet;
use crate::reason::{Reason, cease, maximum_reached};
use crate::routes::{Routes, lock};
use crate::status::{Board, Established, SessionState};

/// The most prefixes that are encoded at once. A slow peer gets the next ones after it has read these.
const PREFIXES: usize = 500;

/// The intervals of connecting, which are Calico's (`connect delay time`, `connect retry time`, `error wait time` of its
/// BIRD).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timing {
    /// The time from the start, or from the loss of a connection, to the first attempt.
    pub(crate) delay: Duration,
    /// The time from one attempt to the next, which also limits an attempt.
    pub(crate) retry: Duration,
    /// The first and the longest wait after an error. Each further error doubles the wait.
    pub(crate) error_wait: (Duration, Duration),
}

impl Timing {
    pub(crate) const CALICO: Self = Self {
        delay: Duration::from_secs(2),
        retry: Duration::from_secs(5),
        error_wait: (Duration::from_secs(5), Duration::from_secs(30)),
    };
}

/// The state that all sessions share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) routes: Routes,
    pub(crate) board: Board,
    /// The cache of encoded attributes.
    pub(crate) written: Mutex<Written>,
    pub(crate) timing: Timing,
}

/// The way in which a peer's sessions end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// With a Cease notification of this subcode.
    Cease(u8),
    /// Without a notification: the peer keeps the routes while this node restarts.
    Leave,
}

/// A handle of a peer's task.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) peer: Peer,
    /// The channel for connections that the peer has begun.
    pub(crate) accepted: mpsc::Sender<TcpStream>,
    stop: watch::Sender<Option<Stop>>,
    task: JoinHandle<()>,
}

impl Handle {
    /// Makes the task end. [`Handle::ended`] waits for it.
    pub(crate) fn stop(&self, stop: Stop) {
        self.stop.send_replace(Some(stop));
    }

    /// Waits until the task has ended.
    pub(crate) async fn ended(self) {
        // An error means that the task has panicked, so it has ended, too.
        let _ = self.task.await;
    }
}

/// Begins the sessions with a peer, with its password if it has one. An error for the password is the reason why there can
/// be no session. `is_restart` says that this process replaces one whose routes the peers may have kept.
pub(crate) fn start(
    peer: Peer,
    password: Result<Option<Password>, String>,
    identifier: Ipv4Addr,
    is_restart: bool,
    shared: &Arc<Shared>,
) -> Handle {
    let (accept, accepted) = mpsc::channel(1);
    let (stop, stopped) = watch::channel(None);
    shared.board.join(&peer);
    let (password, refused) = match password {
        Ok(password) => (password, impossible(&peer).map(str::to_owned)),
        Err(reason) => (None, Some(reason)),
    };
    let task = Task {
        password,
        identifier,
        is_restart,
        wake: shared.routes.join(peer.address),
        shared: Arc::clone(shared),
        accepted,
        stopped,
        connections: [None, None],
        connecting: None,
        next_attempt: Instant::now() + shared.timing.delay,
        error_wait: None,
        refuses_until: None,
        was_established: false,
        log: Quiet::default(),
        shown: None,
        peer: peer.clone(),
    };
    Handle { peer, accepted: accept, stop, task: tokio::spawn(task.run(refused)) }
}

/// The state of a peer's task.
struct Task {
    peer: Peer,
    /// The password of the connections that this node begins. The listening sockets have the passwords of accepted
    /// connections.
    password: Option<Password>,
    identifier: Ipv4Addr,
    is_restart: bool,
    shared: Arc<Shared>,
    /// Notified when the table has routes to send to the peer.
    wake: Arc<Notify>,
    accepted: mpsc::Receiver<TcpStream>,
    stopped: watch::Receiver<Option<Stop>>,
    /// The connections: two only until it is decided which one stays. Only the first can be established.
    connections: [Option<Connection>; 2],
    /// The attempt to connect, while one runs.
    connecting: Option<JoinHandle<io::Result<TcpStream>>>,
    next_attempt: Instant,
    /// The wait after the last error.
    error_wait: Option<Duration>,
    /// The time until which the peer's connections are refused, because it has exceeded the maximum of prefixes.
    refuses_until: Option<Instant>,
    /// Whether this process has had a session with the peer.
    was_established: bool,
    log: Quiet,
    /// The state in the published status.
    shown: Option<SessionState>,
}

/// The events that a task waits for.
enum Event {
    Stop(Stop),
    Accepted(TcpStream),
    Connected(io::Result<TcpStream>),
    Attempt,
    Happened(usize, Happened),
    Wake,
}

impl Task {
    /// Runs until the task is stopped. `refused` is the reason why there can be no session.
    async fn run(mut self, refused: Option<String>) {
        if let Some(reason) = refused {
            self.refuse_all(reason).await;
        } else {
            self.set_state();
            loop {
                match self.wait().await {
                    Event::Stop(stop) => {
                        self.stop(stop).await;
                        break;
                    }
                    Event::Accepted(stream) => self.accept(stream),
                    Event::Connected(result) => self.connected(result),
                    Event::Attempt => self.connect(),
                    Event::Happened(at, happened) => {
                        self.happened(at, happened);
                        // The receive buffer may contain more complete messages. Their number is bounded, because the
                        // buffer is.
                        while let Some(more) = self.ready(at) {
                            self.happened(at, more);
                        }
                    }
                    Event::Wake => self.tell(),
                }
                self.set_state();
            }
        }
        self.shared.routes.leave(self.peer.address);
        self.shared.board.leave(self.peer.address);
        self.shared.routes.changed.notify_one();
    }

    /// Closes each connection at once until the task is stopped.
    async fn refuse_all(&mut self, reason: String) {
        let Peer { address, name, .. } = &self.peer;
        tracing::warn!(peer = %address, name, "there is no BGP session: {reason}");
        self.change_status(|it| it.last_error = Some(reason));
        loop {
            tokio::select! {
                _ = stop(&mut self.stopped) => return,
                stream = self.accepted.recv() => drop(stream),
            }
        }
    }

    /// Waits for the next event. Other events are not lost.
    async fn wait(&mut self) -> Event {
        let wants_to_connect = !self.peer.is_passive
            && self.connecting.is_none()
            && self.connections.iter().all(Option::is_none);
        let can_tell = matches!(
            &self.connections[0], Some(it) if it.established().is_some() && it.is_drained()
        );
        let [first, second] = &mut self.connections;
        tokio::select! {
            stop = stop(&mut self.stopped) => Event::Stop(stop),
            Some(stream) = self.accepted.recv() => Event::Accepted(stream),
            result = finished(&mut self.connecting) => {
                self.connecting = None;
                Event::Connected(result)
            }
            () = sleep_until(self.next_attempt), if wants_to_connect => Event::Attempt,
            it = next(first) => Event::Happened(0, it),
            it = next(second) => Event::Happened(1, it),
            () = self.wake.notified(), if can_tell => Event::Wake,
        }
    }

    fn connect(&mut self) {
        let Peer { address, port, source, hops, .. } = self.peer;
        let (password, retry) = (self.password.clone(), self.shared.timing.retry);
        self.next_attempt = Instant::now() + retry;
        self.connecting = Some(tokio::spawn(async move {
            let to = SocketAddr::new(address, port);
            let connecting = connect(to, source, password.as_ref(), hops);
            let late = io::Error::new(io::ErrorKind::TimedOut, "no answer");
            timeout(retry, connecting).await.unwrap_or(Err(late))
        }));
    }

    fn connected(&mut self, result: io::Result<TcpStream>) {
        match result {
            Ok(stream) => self.begin(stream, true),
            Err(error) => self.fail(self.not_connected(&error)),
        }
    }

    /// The reason why this node could not connect. A peer with another password, or one that is too far away, does not
    /// answer.
    fn not_connected(&self, error: &io::Error) -> String {
        let Peer { address, port, hops, .. } = self.peer;
        let mut words =
            format!("{} cannot be connected to: {error}", SocketAddr::new(address, port));
        if error.kind() == io::ErrorKind::TimedOut {
            if self.password.is_some() {
                words += ", as of a peer that has another password or none";
            }
            if let Some(hops) = hops {
                let far = "as of a peer that is farther away than ttlSecurity says";
                let _ = write!(words, ", {far} ({hops})");
            }
        }
        words
    }

    /// Accepts a connection that the peer has begun.
    fn accept(&mut self, stream: TcpStream) {
        if self.refuses_until.is_some_and(|it| Instant::now() < it) {
            return;
        }
        if let Some(hops) = self.peer.hops
            && let Err(words) = limit_hops_of_accepted(&stream, self.peer.address.is_ipv4(), hops)
        {
            return self.fail(words);
        }
        self.begin(stream, false);
    }

    /// Starts the BGP connection on a connected socket, next to another connection if there is one.
    fn begin(&mut self, stream: TcpStream, is_ours: bool) {
        let comeback = Comeback {
            is_restart: self.is_restart,
            has_forwarded: self.is_restart || self.was_established,
        };
        let config = config(&self.peer, self.identifier);
        let connection = match Connection::new(stream, is_ours, config, comeback) {
            Ok(connection) => connection,
            Err(error) => return self.fail(Reason::Lost(error.to_string()).words()),
        };
        let at = usize::from(self.connections[0].is_some());
        // If the peer begins several connections, the last one counts: the peer has given up the earlier ones.
        if let Some(before) = self.connections[at].replace(connection) {
            close_collided(before);
        }
    }

    /// The event that is already there on a connection, if there is one.
    fn ready(&mut self, at: usize) -> Option<Happened> {
        self.connections[at].as_mut()?.ready()
    }

    fn happened(&mut self, at: usize, happened: Happened) {
        match happened {
            Happened::Opened { identifier, system } => self.opened(at, (identifier, system)),
            Happened::Established => self.established(at),
            Happened::Update(update) => self.take_update(at, &update),
            Happened::Asked => self.shared.routes.write(|it| it.refresh(self.peer.address)),
            Happened::Drained => {}
            Happened::Ended(reason) => self.ended(at, &reason),
        }
    }

    /// The peer's OPEN has arrived on a connection. If there is a second connection, one of the two may have to end.
    fn opened(&mut self, at: usize, there: collision::End) {
        let here = (self.identifier, self.peer.own_system);
        // Whichever connection stays, this node begins no other one.
        if let Some(connecting) = self.connecting.take() {
            connecting.abort();
        }
        let [Some(new), old] = self.pair(at) else { return };
        let Some(old) = old else { return new.agree() };
        let progress = match old.established() {
            Some((negotiated, since)) => {
                Progress::Established { age: since.elapsed(), restarts: negotiated.peer_gr_capable }
            }
            None => Progress::Opening,
        };
        match collision::decide(progress, old.is_ours, new.is_ours, (here, there)) {
            Keep::Old => {
                if let Some(new) = self.connections[at].take() {
                    close_collided(new);
                }
            }
            Keep::New => {
                new.agree();
                let is_established = old.established().is_some();
                if let Some(old) = self.connections[1 - at].take() {
                    if is_established {
                        // The old connection is closed without a notification (RFC 4724, 4.2).
                        self.close(&old, &Reason::Replaced);
                    } else {
                        close_collided(old);
                    }
                }
            }
        }
    }

    /// The connection with this index, and the other one.
    fn pair(&mut self, at: usize) -> [Option<&mut Connection>; 2] {
        let [first, second] = &mut self.connections;
        let (one, other) = if at == 0 { (first, second) } else { (second, first) };
        [one.as_mut(), other.as_mut()]
    }

    /// A session is established: the other connection is closed, and all routes are sent to the peer.
    fn established(&mut self, at: usize) {
        if let Some(other) = self.connections[1 - at].take() {
            close_collided(other);
        }
        self.connections.swap(0, at);
        let Some(connection) = &self.connections[0] else { return };
        let Some((negotiated, _)) = connection.established() else { return };
        let (address, here) = (self.peer.address, connection.here);
        let opened = Opened {
            identifier: negotiated.peer_router_id,
            here,
            keeps_routes: keeps_routes(negotiated, address),
            now: self.shared.routes.now(),
        };
        let status = Established {
            identifier: negotiated.peer_router_id,
            here,
            hold_time: Duration::from_secs(negotiated.hold_time.into()),
            restart_time: Reason::Lost(String::new()).retains(negotiated),
        };
        self.shared.routes.write(|it| it.opened(address, opened));
        self.shared.routes.stale.notify_one();
        self.change_status(|it| it.established = Some(status));
        (self.was_established, self.is_restart, self.error_wait) = (true, false, None);
        tracing::info!(peer = %address, name = self.peer.name, "BGP session is established");
    }

    /// Passes the routes of an UPDATE to the table.
    fn take_update(&mut self, at: usize, message: &rustbgpd_wire::UpdateMessage) {
        let address = self.peer.address;
        let Some(connection) = &mut self.connections[at] else { return };
        let (updates, fault) = match decode(message, connection.encoding(address)) {
            Ok(Decoded::EndOfRib) => {
                return self.shared.routes.write(|it| it.end_of_rib(address));
            }
            Ok(Decoded::Routes { updates, fault }) => (updates, fault),
            Err(notification) => return connection.end(notification, None),
        };
        let (result, refused) = self.shared.routes.write(|table| {
            let before = table.counts(address).refused;
            let result = updates.into_iter().try_for_each(|update| table.updated(address, update));
            (result, table.counts(address).refused.saturating_sub(before))
        });
        self.shared.board.count_refused(self.peer.kind, refused);
        if let Err(too_many) = result {
            let limit = too_many.limit;
            let details = format!("the peer tells more than {limit} prefixes");
            connection.end(maximum_reached(address, limit), Some(details));
            self.refuses_until = Some(Instant::now() + self.shared.timing.error_wait.1);
        }
        if let Some(fault) = fault {
            self.change_status(|it| it.malformed += 1);
            if self.log.allows(&fault) {
                let name = &self.peer.name;
                tracing::warn!(peer = %address, name, "BGP: a message of the peer is wrong: {fault}");
            }
        }
    }

    /// Sends new routes to the peer, after it has read all earlier ones.
    fn tell(&mut self) {
        let address = self.peer.address;
        let Some(connection) = &mut self.connections[0] else { return };
        let encoding = connection.encoding(address);
        let messages = self.shared.routes.write(|it| it.take_messages(address, PREFIXES));
        let mut bytes = BytesMut::new();
        let mut unannounced = 0;
        let mut written = lock(&self.shared.written);
        for message in messages {
            match message {
                Message::Update(update) => {
                    unannounced += encode(&update, encoding, &mut written, &mut bytes);
                }
                Message::EndOfRib => encode_end_of_rib(encoding, &mut bytes),
            }
        }
        drop(written);
        connection.send(bytes);
        connection.flush();
        if unannounced > 0 {
            self.change_status(|it| it.unannounced += unannounced as u64);
            let words = "routes are not announced: their attributes fit into no message";
            if self.log.allows(words) {
                tracing::warn!(peer = %address, name = self.peer.name, "BGP: {words}");
            }
        }
    }

    /// A connection has ended on its own, not because the task was stopped.
    fn ended(&mut self, at: usize, reason: &Reason) {
        let Some(connection) = self.connections[at].take() else { return };
        self.connections.swap(0, 1 - at);
        let now = Instant::now();
        if connection.established().is_some() {
            self.close(&connection, reason);
        }
        let timing = self.shared.timing;
        self.next_attempt = match reason {
            Reason::Lost(_) | Reason::Replaced => now + timing.delay,
            Reason::Sent(..) | Reason::Received(_) => {
                let (first, last) = timing.error_wait;
                let wait = self.error_wait.map_or(first, |it| (it * 2).min(last));
                self.error_wait = Some(wait);
                now + wait
            }
        };
        if let Reason::Received(it) = reason
            && it.code == NotificationCode::Cease
            && it.subcode == cease_subcode::CONNECTION_COLLISION_RESOLUTION
        {
            // The peer keeps another connection. If that one has ended meanwhile, this node may connect again.
            self.next_attempt = now + timing.retry;
            self.error_wait = None;
        } else {
            self.fail(reason.words());
        }
        tokio::spawn(connection.close());
    }

    /// The established session has ended. The table keeps or removes the peer's routes.
    fn close(&mut self, connection: &Connection, reason: &Reason) {
        let Some((negotiated, _)) = connection.established() else { return };
        let retain = reason.retains(negotiated);
        let (address, now) = (self.peer.address, self.shared.routes.now());
        self.shared.routes.write(|it| it.closed(address, retain, now));
        self.shared.routes.stale.notify_one();
        self.change_status(|it| it.established = None);
    }

    async fn stop(&mut self, stop: Stop) {
        if let Some(connecting) = self.connecting.take() {
            connecting.abort();
        }
        for mut connection in std::mem::take(&mut self.connections).into_iter().flatten() {
            match stop {
                Stop::Leave => drop(connection),
                Stop::Cease(subcode) => {
                    let notification = cease(subcode);
                    connection.end(notification.clone(), None);
                    self.close(&connection, &Reason::Sent(notification, None));
                    connection.close().await;
                }
            }
        }
    }

    /// Records the reason why there is no session.
    fn fail(&mut self, words: String) {
        if self.log.allows(&words) {
            let Peer { address, name, .. } = &self.peer;
            tracing::warn!(peer = %address, name, "there is no BGP session: {words}");
        }
        self.change_status(|it| it.last_error = Some(words));
    }

    fn set_state(&mut self) {
        use rustbgpd_fsm::SessionState as Machine;
        let state = self.connections.iter().flatten().map(|it| match it.state() {
            Machine::Idle => SessionState::Idle,
            Machine::Connect => SessionState::Connect,
            Machine::Active => SessionState::Active,
            Machine::OpenSent => SessionState::OpenSent,
            Machine::OpenConfirm => SessionState::OpenConfirm,
            Machine::Established => SessionState::Established,
        });
        let without = match &self.connecting {
            Some(_) => SessionState::Connect,
            None if self.peer.is_passive => SessionState::Active,
            None if self.error_wait.is_some() && Instant::now() < self.next_attempt => {
                SessionState::Idle
            }
            None => SessionState::Active,
        };
        let state = state.max().unwrap_or(without);
        if self.shown.replace(state) != Some(state) {
            self.change_status(|it| it.state = state);
        }
    }

    fn change_status(&self, change: impl FnOnce(&mut crate::status::SessionStatus)) {
        if self.shared.board.change(self.peer.address, change) {
            self.shared.routes.changed.notify_one();
        }
    }
}

/// Whether the peer's earlier routes stay valid until it has sent all routes: the peer has forwarded packets all the time
/// (RFC 4724, 4.2).
fn keeps_routes(negotiated: &NegotiatedSession, peer: IpAddr) -> bool {
    let family = Family::of(peer).on_wire();
    let of = |it: &GracefulRestartFamily| (it.afi, it.safi) == family && it.forwarding_preserved;
    negotiated.peer_gr_capable && negotiated.peer_gr_families.iter().any(of)
}

/// Ends a connection that is not established, because another connection stays (RFC 4271, 6.8).
fn close_collided(mut connection: Connection) {
    connection.end(cease(cease_subcode::CONNECTION_COLLISION_RESOLUTION), None);
    tokio::spawn(connection.close());
}

/// Waits until the task is stopped. It also stops if its handle was dropped.
async fn stop(stopped: &mut watch::Receiver<Option<Stop>>) -> Stop {
    match stopped.wait_for(Option::is_some).await {
        Ok(stop) => stop.unwrap_or(Stop::Leave),
        Err(_) => Stop::Leave,
    }
}

/// Waits for the next event of a connection. Without a connection it waits for ever.
async fn next(connection: &mut Option<Connection>) -> Happened {
    match connection {
        Some(it) => it.next().await,
        None => std::future::pending().await,
    }
}

async fn finished(
    connecting: &mut Option<JoinHandle<io::Result<TcpStream>>>,
) -> io::Result<TcpStream> {
    match connecting {
        Some(it) => it.await.unwrap_or_else(|error| Err(io::Error::other(error))),
        None => std::future::pending().await,
    }
}
