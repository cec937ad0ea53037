//! The division of a worker's time between two ports that always have packets. The packets of one port are cheap, and
//! those of the other port are expensive.
//!
//! The time of a port lasts from the moment when the worker asks it for packets to the moment when the worker asks the
//! next port. So it includes receiving, deciding and sending these packets.

use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use manx_dataplane::packet::Capabilities;
use manx_dataplane::packet::{Packet, Pool};
use manx_dataplane::port::{PacketIo, Received, Transmitted};
use manx_dataplane::sys::clock::ticks;
use manx_dataplane::worker::{Command, Wrap};

use super::load::{FLOWS, Outcome, ROUND, p999};
use crate::error::Failure;
use crate::report::statistics::{Pair, Summary};
use crate::sections::pipeline::node::{Node, Shape};
use crate::sections::pipeline::packets::addresses::{CLIENT_PORT, SERVER_PORT};
use crate::sections::pipeline::packets::peers::Peers;
use crate::sections::pipeline::packets::station::Pace;
use crate::sections::pipeline::packets::stream::{Direction, Order, Stream};
use crate::sections::pipeline::time::ticks_per_second;

/// The values of `Usage::owner`, which says for which port the worker's time is spent: the port with cheap packets, the
/// port with expensive packets, or neither.
const CHEAP: usize = 0;
const EXPENSIVE: usize = 1;
const NEITHER: usize = 2;
/// The fair share of each of two ports.
const HALF: f64 = 0.5;
/// The pace for super-packets of 64 KB: at most four at once, as a device returns them. Each is written only when the
/// worker asks for it.
const WHOLE: Pace = Pace { vector: 4, ring: 0 };

/// Measures cheap packets at one port and super-packets of 64 KB at the other.
pub(super) fn whole(rounds: usize) -> Result<Outcome, Failure> {
    measure(rounds, 45 * 1440, 1440, WHOLE)
}

/// Measures cheap packets at one port and super-packets of 480 segments of one byte at the other.
pub(super) fn tiny(rounds: usize) -> Result<Outcome, Failure> {
    measure(rounds, 480, 1, Pace::DEVICE)
}

/// Measures the share of the worker's time that the port with cheap packets gets. These packets go between the two
/// pods. The super-packets of the other port are cut for a tunnel.
fn measure(rounds: usize, payload: usize, size: u16, pace: Pace) -> Result<Outcome, Failure> {
    let mut node = Node::new(Shape::default())?;
    let near = Peers::near();
    let requests = Stream::udp(&near, Direction::Request, 0, FLOWS);
    let cheap = Stream::udp(&near, Direction::Reply, 0, FLOWS);
    for (port, stream) in [
        (CLIENT_PORT, requests.in_order(Order::InTurn)),
        (SERVER_PORT, cheap.clone().in_order(Order::InTurn)),
    ] {
        node.station(port).load(stream, FLOWS.into(), Pace::DEVICE);
        node.run();
    }
    let expensive = Stream::super_packets(&Peers::far(1, true), 1, payload, size);
    let meter = Arc::new(Meter(Mutex::new(Usage::new())));
    for (port, owner) in [(SERVER_PORT, CHEAP), (CLIENT_PORT, EXPENSIVE)] {
        let meter = Arc::clone(&meter);
        let wrap: Wrap = Box::new(move |inner| Box::new(Metered { inner, meter, owner }));
        node.send_command(Command::Wrap(port, wrap))?;
    }
    let (mut pairs, mut waits, mut rates) = (Vec::new(), Vec::new(), [Vec::new(), Vec::new()]);
    for _ in 0..rounds {
        node.station(SERVER_PORT).load(cheap.clone(), u64::MAX, Pace::DEVICE);
        rates[0].push(pass(&mut node, &meter).1);
        node.station(CLIENT_PORT).load(expensive.clone(), u64::MAX, pace);
        let (usage, rate) = pass(&mut node, &meter);
        node.station(CLIENT_PORT).unload();
        node.station(SERVER_PORT).unload();
        node.run();
        rates[1].push(rate);
        let [cheap, expensive] = [CHEAP, EXPENSIVE].map(|owner| usage.spent[owner] as f64);
        pairs.push(Pair { beside: HALF, manx: cheap / (cheap + expensive) });
        waits.extend(usage.waits);
    }
    let millions =
        |rates: &[f64]| Summary::from_values(rates).map_or_else(String::new, |it| it.show());
    let remark = format!(
        "{} million cheap packets a second alone, {} beside the others; their port waited {:.0} us for its turn at p99.9; dropped: {:?}",
        millions(&rates[0]),
        millions(&rates[1]),
        p999(&mut waits) / ticks_per_second() * 1e6,
        node.drops()
    );
    Ok(Outcome { pairs, remark })
}

/// Runs the worker for a round. Returns the usage of its time, and how many millions of cheap packets arrived per
/// second.
fn pass(node: &mut Node, meter: &Meter) -> (Usage, f64) {
    meter.take();
    let began = Instant::now();
    while began.elapsed() < ROUND {
        node.turn();
    }
    let usage = meter.take();
    let rate = usage.packets as f64 / began.elapsed().as_secs_f64() / 1e6;
    (usage, rate)
}

/// The usage of the worker's time.
struct Usage {
    /// The current owner. It has been the owner since the time `since`.
    owner: usize,
    since: u64,
    /// The ticks of each owner.
    spent: [u64; 3],
    /// The number of cheap packets.
    packets: usize,
    /// The times in ticks for which the port with cheap packets waited: from the end of its time to its next beginning.
    waits: Vec<f64>,
    /// The moment when the time of the port with cheap packets ended. `None` unless the port waits.
    ended: Option<u64>,
}

impl Usage {
    fn new() -> Self {
        let (since, waits) = (ticks(), Vec::new());
        Self { owner: NEITHER, since, spent: [0; 3], packets: 0, waits, ended: None }
    }

    /// Records that the time from `now` on belongs to `owner`.
    fn begin(&mut self, owner: usize, now: u64) {
        self.spent[self.owner] += now.wrapping_sub(self.since);
        if owner == CHEAP {
            let wait = self.ended.take().map(|ended| now.wrapping_sub(ended) as f64);
            self.waits.extend(wait);
        } else if self.owner == CHEAP {
            self.ended = Some(now);
        }
        (self.owner, self.since) = (owner, now);
    }
}

/// The usage behind a lock, because both ports access it.
struct Meter(Mutex<Usage>);

impl Meter {
    fn with<T>(&self, f: impl FnOnce(&mut Usage) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The usage since the last call.
    fn take(&self) -> Usage {
        self.with(|usage| std::mem::replace(usage, Usage::new()))
    }
}

/// A port whose time is metered.
struct Metered {
    inner: Box<dyn PacketIo>,
    meter: Arc<Meter>,
    owner: usize,
}

impl PacketIo for Metered {
    fn receive(
        &mut self,
        pool: &mut Pool,
        into: &mut Vec<Packet>,
        limit: usize,
    ) -> io::Result<Received> {
        self.meter.with(|usage| usage.begin(self.owner, ticks()));
        let before = into.len();
        let received = self.inner.receive(pool, into, limit);
        if self.owner == CHEAP {
            self.meter.with(|usage| usage.packets += into.len() - before);
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
    fn the_time_of_a_port_lasts_until_that_of_the_next_begins() {
        let mut usage = Usage { since: 0, ..Usage::new() };
        for (owner, now) in [
            (CHEAP, 10),
            (CHEAP, 15),
            (EXPENSIVE, 20),
            (EXPENSIVE, 50),
            (CHEAP, 100),
            (EXPENSIVE, 101),
        ] {
            usage.begin(owner, now);
        }
        assert_eq!(usage.spent, [11, 80, 10]);
        assert_eq!(usage.waits, [80.0]);
    }
}
