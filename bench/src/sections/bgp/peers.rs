//! All peers of a measurement, in one thread.

use std::io;
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::messages::{announce, keepalive, withdraw};
use super::peer::{Peer, READ, Stage};
use super::scenario::{self, Routes, SYSTEM, Scenario};
use crate::error::{Error, errno, io as io_error};

/// The number of peers that may wait for a speaker's OPEN at the same time. It is smaller than the shortest queue of
/// new connections of any speaker (BIRD: 8).
const AT_ONCE: usize = 4;
/// The time before a peer connects again.
const AGAIN: Duration = Duration::from_millis(20);
/// The time between two messages that keep a session alive.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// The largest number of events that are processed together.
const EVENTS: usize = 256;

/// All peers of a measurement.
#[derive(Debug)]
pub(super) struct Peers {
    plan: Vec<scenario::Peer>,
    all: Vec<Peer>,
    epoll: Epoll,
    buffer: Vec<u8>,
    /// The peers that are not connected, each with the earliest time at which it connects.
    waiting: Vec<(usize, Instant)>,
    /// The number of peers that wait for a speaker's OPEN.
    connecting: usize,
    /// The number of peers that have received and sent all prefixes.
    whole: usize,
    next_keepalive: Instant,
    /// Why the last lost connection ended.
    lost: Option<String>,
}

impl Peers {
    /// Creates the peers of a scenario, without connections.
    pub(super) fn new(scenario: &Scenario) -> Result<Self, Error> {
        let plan = scenario.peers();
        let now = Instant::now();
        Ok(Self {
            all: plan.iter().map(Peer::new).collect(),
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(errno("no epoll"))?,
            buffer: vec![0; READ],
            waiting: (0..plan.len()).rev().map(|at| (at, now)).collect(),
            plan,
            connecting: 0,
            whole: 0,
            next_keepalive: now + KEEPALIVE,
            lost: None,
        })
    }

    /// Connects, sends and reads until every peer has received and sent all prefixes. Returns the time when this was
    /// the case.
    ///
    /// # Errors
    /// Returns an error if this takes longer than `patience`.
    pub(super) fn until_whole(&mut self, patience: Duration) -> Result<Instant, Error> {
        let end = Instant::now() + patience;
        while self.whole < self.all.len() {
            if Instant::now() > end {
                let (whole, all) = (self.whole, self.all.len());
                let lost = self.lost.as_deref().unwrap_or("none");
                return Err(Error::Failed(format!(
                    "after {} s {whole} of {all} peers hold all that they are to hold; the last connection that was lost: {lost}",
                    patience.as_secs()
                )));
            }
            self.turn(Duration::from_millis(100))?;
        }
        Ok(Instant::now())
    }

    /// Reads for a while.
    pub(super) fn wait(&mut self, time: Duration) -> Result<(), Error> {
        let end = Instant::now() + time;
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            self.turn(left)?;
        }
        Ok(())
    }

    /// Makes a peer withdraw the first of its prefixes, or announce it again if `is_there`. All other peers that
    /// receive routes are expected to receive the change.
    pub(super) fn change(&mut self, teller: usize, is_there: bool) -> Result<(), Error> {
        let it = &self.plan[teller];
        let Some(routes) = it.routes.first() else {
            return Err(Error::Failed("a peer that tells nothing cannot change it".to_owned()));
        };
        let message = if is_there {
            let first = Routes { prefixes: vec![routes.prefixes[0]], ..routes.clone() };
            announce(&first, it.address, it.system == SYSTEM)
        } else {
            withdraw(routes.prefixes[0])
        };
        for (at, (peer, plan)) in self.all.iter_mut().zip(&self.plan).enumerate() {
            let is_announced = plan.announced > 0 && at != teller;
            peer.expected = plan.announced - usize::from(is_announced && !is_there);
        }
        self.whole = self.all.iter().filter(|it| it.is_whole()).count();
        self.all[teller].send(&message).map_err(io_error("a peer cannot tell a change"))
    }

    /// Connects the peers whose time has come, and processes the events of all connections once, for which it waits at
    /// most `wait`.
    fn turn(&mut self, wait: Duration) -> Result<(), Error> {
        self.connect_some()?;
        if self.next_keepalive <= Instant::now() {
            self.next_keepalive += KEEPALIVE;
            for at in 0..self.all.len() {
                if self.all[at].stage() == Stage::Established {
                    self.step(at, |peer, _| peer.send(&keepalive()));
                }
            }
        }
        let wait = if self.waiting.is_empty() { wait } else { wait.min(AGAIN / 4) };
        let timeout = EpollTimeout::try_from(wait).unwrap_or(EpollTimeout::ZERO);
        let mut events = [EpollEvent::empty(); EVENTS];
        let count = match self.epoll.wait(&mut events, timeout) {
            Ok(count) => count,
            Err(nix::errno::Errno::EINTR) => 0,
            Err(error) => return Err(errno("no events of sockets")(error)),
        };
        for event in &events[..count] {
            self.step(event.data() as usize, Peer::progress);
        }
        Ok(())
    }

    /// Calls `act` for a peer, and updates the counts. If `act` fails, the connection is closed, and the peer connects
    /// again later.
    fn step(&mut self, at: usize, act: impl FnOnce(&mut Peer, &mut [u8]) -> io::Result<()>) {
        let peer = &mut self.all[at];
        let (was_whole, stage) = (peer.is_whole(), peer.stage());
        if let Err(error) = act(peer, &mut self.buffer) {
            self.lost = Some(error.to_string());
            peer.close();
            self.waiting.push((at, Instant::now() + AGAIN));
        }
        self.connecting -= usize::from(stage == Stage::Connected && peer.stage() != stage);
        self.whole = self.whole + usize::from(peer.is_whole()) - usize::from(was_whole);
    }

    fn connect_some(&mut self) -> Result<(), Error> {
        let now = Instant::now();
        while self.connecting < AT_ONCE
            && let Some(found) = self.waiting.iter().rposition(|(_, at)| *at <= now)
        {
            let (at, _) = self.waiting.remove(found);
            match self.all[at].connect() {
                Ok(stream) => {
                    let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLET;
                    let event = EpollEvent::new(flags, at as u64);
                    self.epoll.add(stream, event).map_err(errno("no events of a socket"))?;
                    self.connecting += 1;
                }
                Err(error) => {
                    self.lost = Some(error.to_string());
                    self.all[at].close();
                    self.waiting.push((at, now + AGAIN));
                }
            }
        }
        Ok(())
    }
}
