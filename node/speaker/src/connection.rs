//! One TCP connection with a peer: messages in both directions, and the timers of its state machine.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use rustbgpd_fsm::negotiation::validate_open;
use rustbgpd_fsm::{
    Action, Event, NegotiatedSession, PeerConfig, Session, SessionState, TimerType,
};
use rustbgpd_wire::notification::open_subcode;
use rustbgpd_wire::{
    DecodeError, EXTENDED_MAX_MESSAGE_LEN, MAX_MESSAGE_LEN, Message, NotificationCode,
    NotificationMessage, OpenMessage, RouteRefreshSubtype, UpdateMessage, decode_message,
    encode_message_with_limit, peek_message_length,
};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, sleep_until, timeout};

use crate::codec::encoding::{Encoding, Family};
use crate::open::{self, Comeback};
use crate::password::Password;
use crate::protection::{limit_hops, send_full_ttl, set_password};
use crate::reason::{Reason, harden};

/// The most bytes that are read at once. The unread part of an incomplete message comes in addition: less than 64 KiB.
const READ: usize = 64 * 1024;
/// The time that a peer has to read the last message before the socket is closed.
pub(crate) const LINGER: Duration = Duration::from_secs(1);

/// The events of a connection.
#[derive(Debug)]
pub(crate) enum Happened {
    /// The peer's OPEN has arrived and fits the configuration. [`Connection::agree`] continues.
    Opened { identifier: Ipv4Addr, system: u32 },
    /// The session is established.
    Established,
    /// An UPDATE of the peer.
    Update(UpdateMessage),
    /// The peer has sent a route refresh (RFC 2918).
    Asked,
    /// The send buffer is empty.
    Drained,
    /// The connection has ended. It must not be used any more.
    Ended(Reason),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    config: PeerConfig,
    comeback: Comeback,
    machine: Session,
    /// The peer's OPEN, until this node accepts it.
    open: Option<OpenMessage>,
    negotiated: Option<Box<NegotiatedSession>>,
    established: Option<Instant>,
    inbound: BytesMut,
    outbound: BytesMut,
    timers: Timers,
    end: Option<Reason>,
    /// This node's address.
    pub(crate) here: IpAddr,
    /// Whether this node began the connection.
    pub(crate) is_ours: bool,
}

/// The expiry times of the timers.
#[derive(Debug, Default)]
struct Timers {
    hold: Option<Instant>,
    keepalive: Option<Instant>,
    /// The send hold timer, which runs while the peer reads nothing (RFC 9687).
    send: Option<Instant>,
}

impl Connection {
    /// Starts with a connected socket. The first message sent is this node's OPEN.
    ///
    /// # Errors
    /// The socket is not connected any more.
    pub(crate) fn new(
        stream: TcpStream,
        is_ours: bool,
        config: PeerConfig,
        comeback: Comeback,
    ) -> io::Result<Self> {
        let here = stream.local_addr()?.ip().to_canonical();
        // A KEEPALIVE must not wait for more bytes.
        stream.set_nodelay(true)?;
        let mut connection = Self {
            stream,
            machine: Session::new(config.clone()),
            config,
            comeback,
            open: None,
            negotiated: None,
            established: None,
            inbound: BytesMut::new(),
            outbound: BytesMut::new(),
            timers: Timers::default(),
            end: None,
            here,
            is_ours,
        };
        connection.handle(Event::ManualStart);
        let connected =
            if is_ours { Event::TcpConnectionAcknowledged } else { Event::TcpConnectionConfirmed };
        connection.handle(connected);
        Ok(connection)
    }

    /// The state according to RFC 4271.
    pub(crate) fn state(&self) -> SessionState {
        self.machine.state()
    }

    /// The negotiated parameters of an established session, and the time when it was established.
    pub(crate) fn established(&self) -> Option<(&NegotiatedSession, Instant)> {
        Some((self.negotiated.as_deref()?, self.established?))
    }

    /// The encoding of the connection's UPDATEs.
    pub(crate) fn encoding(&self, peer: IpAddr) -> Encoding {
        Encoding {
            family: Family::of(peer),
            is_four_octet: self.negotiated.as_ref().is_none_or(|it| it.four_octet_as),
            is_internal: self.config.local_asn == self.config.remote_asn,
            limit: self.limit(),
        }
    }

    /// The most bytes of a message in either direction (RFC 8654).
    fn limit(&self) -> u16 {
        match &self.negotiated {
            Some(it) if it.peer_extended_message => EXTENDED_MAX_MESSAGE_LEN,
            _ => MAX_MESSAGE_LEN,
        }
    }

    /// Whether the send buffer is empty.
    pub(crate) fn is_drained(&self) -> bool {
        self.outbound.is_empty()
    }

    /// Accepts the peer's OPEN.
    pub(crate) fn agree(&mut self) {
        if let Some(open) = self.open.take() {
            self.handle(Event::OpenReceived(open));
        }
    }

    /// Appends messages to the send buffer.
    pub(crate) fn send(&mut self, messages: BytesMut) {
        if self.outbound.is_empty() && !messages.is_empty() {
            self.timers.send = Some(Instant::now() + self.send_hold());
            self.outbound = messages;
        } else {
            self.outbound.unsplit(messages);
        }
    }

    /// Writes as much of the send buffer as the socket takes at once.
    pub(crate) fn flush(&mut self) {
        if !self.outbound.is_empty()
            && let Err(error) = self.write()
        {
            self.lose(&error);
        }
    }

    /// Ends the connection with a notification.
    pub(crate) fn end(&mut self, notification: NotificationMessage, details: Option<String>) {
        self.send_message(&Message::Notification(self.for_peer(notification.clone())));
        self.end.get_or_insert(Reason::Sent(notification, details));
    }

    /// Waits for the next event. The future may be dropped at any time: no event is lost.
    pub(crate) async fn next(&mut self) -> Happened {
        loop {
            if let Some(happened) = self.ready() {
                return happened;
            }
            let due = [self.timers.hold, self.timers.keepalive, self.timers.send];
            let due = due.into_iter().flatten().min();
            let timer = sleep_until(due.unwrap_or_else(Instant::now));
            let has_more = !self.outbound.is_empty();
            tokio::select! {
                ready = self.stream.readable(), if self.open.is_none() => {
                    if let Err(error) = ready.and_then(|()| self.read()) {
                        self.lose(&error);
                    }
                }
                ready = self.stream.writable(), if has_more => {
                    match ready.and_then(|()| self.write()) {
                        Ok(()) if self.outbound.is_empty() => return Happened::Drained,
                        Ok(()) => {}
                        Err(error) => self.lose(&error),
                    }
                }
                () = timer, if due.is_some() => self.expire(),
            }
        }
    }

    /// Returns an event that is already there, without waiting.
    pub(crate) fn ready(&mut self) -> Option<Happened> {
        loop {
            if let Some(reason) = self.end.take() {
                return Some(Happened::Ended(reason));
            }
            if self.open.is_some() {
                return None;
            }
            match self.take_message() {
                Ok(Some(message)) => {
                    let happened = self.receive(message);
                    if happened.is_some() {
                        return happened;
                    }
                }
                Ok(None) => return None,
                Err(error) => {
                    let words = error.to_string();
                    self.handle_with(Event::DecodeError(error), Some(words));
                }
            }
        }
    }

    /// Sends the rest of the buffer and closes the connection, after a moment for the peer to read it. If a socket is
    /// closed while unread bytes wait in it, the connection is reset, and the peer would lose the last message.
    pub(crate) async fn close(mut self) {
        let closing = async {
            self.stream.write_all(&self.outbound).await?;
            self.stream.shutdown().await?;
            loop {
                self.stream.readable().await?;
                self.inbound.clear();
                self.read()?;
            }
        };
        let _: Result<io::Result<()>, _> = timeout(LINGER, closing).await;
    }

    /// Reads what the socket has.
    fn read(&mut self) -> io::Result<()> {
        self.inbound.reserve(READ);
        match self.stream.try_read_buf(&mut self.inbound) {
            Ok(0) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the peer has closed it")),
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }

    /// Writes as much as the socket takes.
    fn write(&mut self) -> io::Result<()> {
        match self.stream.try_write(&self.outbound) {
            Ok(written) => {
                self.outbound.advance(written);
                let has_more = !self.outbound.is_empty();
                self.timers.send = has_more.then(|| Instant::now() + self.send_hold());
                if !has_more {
                    // After a large table was sent, the buffer's memory is freed.
                    self.outbound = BytesMut::new();
                }
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Takes the next complete message from the receive buffer.
    fn take_message(&mut self) -> Result<Option<Message>, DecodeError> {
        let limit = self.limit();
        if self.inbound.is_empty() {
            // A silent session needs no receive buffer.
            self.inbound = BytesMut::new();
            return Ok(None);
        }
        let length = peek_message_length(&self.inbound, limit)?;
        let Some(length) = length.filter(|it| self.inbound.len() >= usize::from(*it)) else {
            // The rest is copied, so that it does not keep the memory of the whole buffer.
            self.inbound = BytesMut::from(&self.inbound[..]);
            return Ok(None);
        };
        let mut bytes = self.inbound.split_to(length.into()).freeze();
        decode_message(&mut bytes, limit).map(Some)
    }

    fn receive(&mut self, message: Message) -> Option<Happened> {
        match message {
            Message::Open(open) => {
                if self.state() == SessionState::OpenSent
                    && validate_open(&open, &self.config).is_ok()
                {
                    let (identifier, system) = (open.bgp_identifier, open.four_byte_as());
                    self.open = Some(open);
                    return Some(Happened::Opened { identifier, system });
                }
                let is_first = self.state() == SessionState::OpenSent;
                let details = if is_first { self.details(&open) } else { None };
                self.handle_with(Event::OpenReceived(open), details);
            }
            Message::Keepalive => {
                self.handle(Event::KeepaliveReceived);
                if self.negotiated.is_some() && self.established.is_none() {
                    self.established = Some(Instant::now());
                    return Some(Happened::Established);
                }
            }
            Message::Update(update) => {
                self.handle(Event::UpdateReceived);
                if self.state() == SessionState::Established {
                    return Some(Happened::Update(update));
                }
            }
            Message::RouteRefresh(refresh) => {
                if let (Some(afi), Some(safi)) = (refresh.afi(), refresh.safi()) {
                    self.handle(Event::RouteRefreshReceived { afi, safi });
                    let is_family = self.config.families.contains(&(afi, safi));
                    if is_family
                        && refresh.subtype() == RouteRefreshSubtype::Normal
                        && self.state() == SessionState::Established
                    {
                        return Some(Happened::Asked);
                    }
                }
            }
            Message::Notification(notification) => {
                self.end.get_or_insert(Reason::Received(notification.clone()));
                self.handle(Event::NotificationReceived(notification));
            }
            _ => {}
        }
        None
    }

    /// The fault of an OPEN that the state machine will refuse, if the notification itself does not describe it.
    fn details(&self, open: &OpenMessage) -> Option<String> {
        let refused = validate_open(open, &self.config).err()?;
        if refused.code != NotificationCode::OpenMessage {
            return None;
        }
        match refused.subcode {
            open_subcode::BAD_PEER_AS => Some(format!(
                "the peer is of AS {}, and AS {} is configured",
                open.four_byte_as(),
                self.config.remote_asn
            )),
            open_subcode::BAD_BGP_IDENTIFIER => Some(format!(
                "the peer's identifier is {}, and this node's is {}",
                open.bgp_identifier, self.config.local_router_id
            )),
            open_subcode::UNACCEPTABLE_HOLD_TIME => {
                Some(format!("the peer proposes {} s", open.hold_time))
            }
            open_subcode::UNSUPPORTED_CAPABILITY => {
                let family = if self.config.disable_ipv4_unicast { "IPv6" } else { "IPv4" };
                Some(format!("the peer does not offer {family} unicast"))
            }
            _ => None,
        }
    }

    fn expire(&mut self) {
        let now = Instant::now();
        let is_due = |it: Option<Instant>| it.is_some_and(|it| it <= now);
        if is_due(self.timers.send) {
            // No notification would reach the peer (RFC 9687, 4).
            let seconds = self.send_hold().as_secs();
            let words = format!("the peer has taken nothing for {seconds} s");
            self.end.get_or_insert(Reason::Lost(words));
            return;
        }
        if is_due(self.timers.hold) {
            self.timers.hold = None;
            self.handle(Event::HoldTimerExpires);
        }
        if is_due(self.timers.keepalive) {
            self.timers.keepalive = None;
            self.handle(Event::KeepaliveTimerExpires);
        }
    }

    fn lose(&mut self, error: &io::Error) {
        self.end.get_or_insert(Reason::Lost(error.to_string()));
    }

    fn send_hold(&self) -> Duration {
        Duration::from_secs(self.config.send_hold_time.into())
    }

    fn handle(&mut self, event: Event) {
        self.handle_with(event, None);
    }

    /// Passes an event to the state machine, and executes the resulting actions. If one of them sends a notification,
    /// `details` describe its fault for this node's own log.
    fn handle_with(&mut self, event: Event, details: Option<String>) {
        let mut details = details;
        for action in self.machine.handle_event(event) {
            match action {
                Action::SendOpen(mut open) => {
                    open::complete(&mut open, self.comeback);
                    self.send_message(&Message::Open(open));
                }
                Action::SendKeepalive => self.send_message(&Message::Keepalive),
                Action::SendNotification(it) => self.end(it, details.take()),
                Action::StartTimer(timer, seconds) => {
                    let at = Instant::now() + Duration::from_secs(seconds.into());
                    self.set_timer(timer, Some(at));
                }
                Action::StopTimer(timer) => self.set_timer(timer, None),
                Action::SessionEstablished(negotiated) => self.negotiated = Some(negotiated),
                // Other actions are not needed: the peer's task makes connections, and [`Reason`] reports their end.
                _ => {}
            }
        }
    }

    fn set_timer(&mut self, timer: TimerType, at: Option<Instant>) {
        match timer {
            TimerType::Hold => self.timers.hold = at,
            TimerType::Keepalive => self.timers.keepalive = at,
            _ => {}
        }
    }

    fn for_peer(&self, notification: NotificationMessage) -> NotificationMessage {
        let keeps = self.negotiated.as_ref().is_some_and(|it| it.peer_notification_gr);
        if keeps { harden(notification) } else { notification }
    }

    fn send_message(&mut self, message: &Message) {
        match encode_message_with_limit(message, self.limit()) {
            Ok(bytes) => self.send(bytes),
            Err(error) => {
                self.end.get_or_insert(Reason::Lost(error.to_string()));
            }
        }
    }
}

/// Connects to a peer, with its password and its limit of hops if it has them.
pub(crate) async fn connect(
    to: SocketAddr,
    source: Option<IpAddr>,
    password: Option<&Password>,
    hops: Option<u8>,
) -> io::Result<TcpStream> {
    let socket = if to.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    if let Some(source) = source {
        socket.bind(SocketAddr::new(source, 0))?;
    }
    if password.is_some() {
        set_password(&socket, to.is_ipv6(), to.ip(), password).map_err(io::Error::other)?;
    }
    send_full_ttl(&socket, to.is_ipv4())?;
    if let Some(hops) = hops {
        limit_hops(&socket, to.is_ipv4(), hops)?;
    }
    socket.connect(to).await
}
