//! How a worker shares its time between two ports that always have packets: one cheap ones, the other dear ones.
//!
//! A port's time is what passes from when it is asked for packets to when the next port is. So it holds receiving, deciding and
//! sending them.

use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use manx_dataplane::packet::{Packet, Pool};
use manx_dataplane::port::{Capabilities, PacketIo, Received, Transmitted};
use manx_dataplane::sys::clock::ticks;
use manx_dataplane::worker::{Command, Wrap};

use super::Failure;
use super::beside::{FLOWS, Found, ROUND, p999};
use super::node::{CLIENT_PORT, Node, SERVER_PORT, Shape};
use super::peers::Peers;
use super::station::Pace;
use super::stream::{Order, Stream, Way};
use super::time::rate;
use crate::statistics::{Pair, Summary};

/// Who has the time: the port with cheap packets, the one with dear ones, nobody.
const CHEAP: usize = 0;
const DEAR: usize = 1;
const NOBODY: usize = 2;
/// What is fairly its own of one of two ports that want all.
const HALF: f64 = 0.5;
/// As many super-packets of 64 KB as a device gives at once, each read when it is asked for.
const WHOLE: Pace = Pace { vector: 4, ring: 0 };

/// Beside super-packets of 64 KB.
pub(super) fn whole(rounds: usize) -> Result<Found, Failure> {
    shared(rounds, 45 * 1440, 1440, WHOLE)
}

/// Beside super-packets of 480 segments of one byte.
pub(super) fn tiny(rounds: usize) -> Result<Found, Failure> {
    shared(rounds, 480, 1, Pace::DEVICE)
}

/// What the port with cheap packets, between the two pods, has of the worker's time beside one whose super-packets are cut for a
/// tunnel.
fn shared(rounds: usize, payload: usize, size: u16, pace: Pace) -> Result<Found, Failure> {
    let mut node = Node::new(Shape::default())?;
    let near = Peers::near();
    let forth = Stream::udp(&near, Way::Forth, 0, FLOWS);
    let cheap = Stream::udp(&near, Way::Back, 0, FLOWS);
    for (port, stream) in [
        (CLIENT_PORT, forth.in_order(Order::InTurn)),
        (SERVER_PORT, cheap.clone().in_order(Order::InTurn)),
    ] {
        node.station(port).load(stream, FLOWS.into(), Pace::DEVICE);
        node.run();
    }
    let dear = Stream::super_packets(&Peers::far(1, true), 1, payload, size);
    let meter = Arc::new(Meter(Mutex::new(Had::nothing())));
    for (port, who) in [(SERVER_PORT, CHEAP), (CLIENT_PORT, DEAR)] {
        let meter = Arc::clone(&meter);
        let wrap: Wrap = Box::new(move |inner| Box::new(Metered { inner, meter, who }));
        node.send(Command::Wrap(port, wrap))?;
    }
    let (mut pairs, mut waits, mut rates) = (Vec::new(), Vec::new(), [Vec::new(), Vec::new()]);
    for _ in 0..rounds {
        node.station(SERVER_PORT).load(cheap.clone(), u64::MAX, Pace::DEVICE);
        rates[0].push(pass(&mut node, &meter).1);
        node.station(CLIENT_PORT).load(dear.clone(), u64::MAX, pace);
        let (had, rate) = pass(&mut node, &meter);
        node.station(CLIENT_PORT).unload();
        node.station(SERVER_PORT).unload();
        node.run();
        rates[1].push(rate);
        let [cheap, dear] = [CHEAP, DEAR].map(|who| had.spent[who] as f64);
        pairs.push(Pair { beside: HALF, manx: cheap / (cheap + dear) });
        waits.extend(had.waits);
    }
    let millions = |rates: &[f64]| Summary::of(rates).map_or_else(String::new, |it| it.show());
    let words = format!(
        "{} million cheap packets a second alone, {} beside the others; their port waited {:.0} us for its turn at p99.9; dropped: {:?}",
        millions(&rates[0]),
        millions(&rates[1]),
        p999(&mut waits) / rate() * 1e6,
        node.drops()
    );
    Ok(Found { pairs, words })
}

/// Turns for a while; what each had of it, and how many millions of cheap packets came a second.
fn pass(node: &mut Node, meter: &Meter) -> (Had, f64) {
    meter.take();
    let began = Instant::now();
    while began.elapsed() < ROUND {
        node.turn();
    }
    let had = meter.take();
    let rate = had.packets as f64 / began.elapsed().as_secs_f64() / 1e6;
    (had, rate)
}

/// What was had of the worker's time.
struct Had {
    /// Whose time it is, and since when.
    who: usize,
    since: u64,
    /// Ticks of each.
    spent: [u64; 3],
    /// Cheap packets.
    packets: usize,
    /// Ticks from each end of the cheap port's time to its next beginning.
    waits: Vec<f64>,
    left: Option<u64>,
}

impl Had {
    fn nothing() -> Self {
        let (since, waits) = (ticks(), Vec::new());
        Self { who: NOBODY, since, spent: [0; 3], packets: 0, waits, left: None }
    }

    /// From `now` on it is this one's time.
    fn begin(&mut self, who: usize, now: u64) {
        self.spent[self.who] += now.wrapping_sub(self.since);
        if who == CHEAP {
            let left = self.left.take().map(|left| now.wrapping_sub(left) as f64);
            self.waits.extend(left);
        } else if self.who == CHEAP {
            self.left = Some(now);
        }
        (self.who, self.since) = (who, now);
    }
}

/// Who has how much of the time.
struct Meter(Mutex<Had>);

impl Meter {
    fn with<T>(&self, f: impl FnOnce(&mut Had) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What was had since the last time.
    fn take(&self) -> Had {
        self.with(|had| std::mem::replace(had, Had::nothing()))
    }
}

/// A port whose time is measured.
struct Metered {
    inner: Box<dyn PacketIo>,
    meter: Arc<Meter>,
    who: usize,
}

impl PacketIo for Metered {
    fn receive(
        &mut self,
        pool: &mut Pool,
        into: &mut Vec<Packet>,
        limit: usize,
    ) -> io::Result<Received> {
        self.meter.with(|had| had.begin(self.who, ticks()));
        let before = into.len();
        let received = self.inner.receive(pool, into, limit);
        if self.who == CHEAP {
            self.meter.with(|had| had.packets += into.len() - before);
        }
        received
    }

    fn transmit(&mut self, pool: &mut Pool, packets: &mut Vec<Packet>) -> io::Result<Transmitted> {
        self.inner.transmit(pool, packets)
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn descriptor(&self) -> Option<RawFd> {
        self.inner.descriptor()
    }

    fn is_mapped(&self) -> bool {
        self.inner.is_mapped()
    }

    fn unwrapped(self: Box<Self>) -> Box<dyn PacketIo> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_the_time_from_its_beginning_to_the_next() {
        let mut had = Had { since: 0, ..Had::nothing() };
        for (who, now) in
            [(CHEAP, 10), (CHEAP, 15), (DEAR, 20), (DEAR, 50), (CHEAP, 100), (DEAR, 101)]
        {
            had.begin(who, now);
        }
        assert_eq!(had.spent, [11, 80, 10]);
        assert_eq!(had.waits, [80.0]);
    }
}
