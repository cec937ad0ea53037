//! What a pod's attack leaves its neighbour of one node's workers.
//!
//! A process in a pod sends one kind of packets as fast as it can, while another pod of the node has a TCP stream to a third
//! one, or a UDP ping-pong. The control, in turn with it, is the same neighbour beside a process that computes on the attacker's
//! core and sends nothing. What the attacker takes from the neighbour as a process is in both; what it takes as a sender of
//! packets is the difference.

mod attack;
mod field;
mod packets;

use std::net::Ipv4Addr;
use std::time::Duration;

use manx_api::Device;

use crate::agents::Attack;
use crate::error::Error;
use crate::goal::Goal;
use crate::report::Figure;
use crate::run::{Listed, Run, Settings};
use crate::statistics::Pair;
use crate::traffic::WARM_UP;

use field::{Beside, Field, QUIET};
use packets::Kind;

pub use attack::{ATTACK, run as run_attack};

/// A row: who attacks what.
struct Row {
    name: &'static str,
    kind: Kind,
    workers: usize,
    device: Device,
}

const fn one(name: &'static str, kind: Kind) -> Row {
    Row { name, kind, workers: 1, device: Device::Tun }
}

const fn two(name: &'static str, kind: Kind) -> Row {
    Row { workers: 2, ..one(name, kind) }
}

/// All, in the order of the report.
const ROWS: [Row; 19] = [
    one("fair-small", Kind::Small),
    one("fair-new", Kind::New),
    one("fair-denied", Kind::Denied),
    one("fair-fragments", Kind::Fragments),
    one("fair-segments", Kind::Segments),
    one("fair-udp-segments", Kind::SegmentsUdp),
    one("fair-ttl", Kind::Ttl),
    one("fair-too-big", Kind::TooBig),
    one("fair-super", Kind::Super),
    two("fair-two-small", Kind::Small),
    two("fair-two-new", Kind::New),
    two("fair-two-denied", Kind::Denied),
    two("fair-two-fragments", Kind::Fragments),
    two("fair-two-segments", Kind::Segments),
    two("fair-two-udp-segments", Kind::SegmentsUdp),
    two("fair-two-ttl", Kind::Ttl),
    two("fair-two-too-big", Kind::TooBig),
    two("fair-two-super", Kind::Super),
    Row { device: Device::Veth, ..two("fair-veth-segments", Kind::Segments) },
];

/// The share of its fair share that a neighbour keeps at least.
const KEPT: Goal = Goal::AtLeast(0.9);
/// How much longer the p99 of its round trips becomes at most.
const LONGER: Goal = Goal::AtMost(3.0);
/// The part of what the neighbour has beside the loop that is fairly its own beside one attacker.
const HALF: f64 = 0.5;
/// The part of it that a neighbour asks for who asks for less than that.
const QUARTER: f64 = 0.25;

impl Kind {
    /// What is sent and where.
    const fn words(self) -> &'static str {
        match self {
            Self::Loop => "nothing",
            Self::Small => "64-byte packets of 64 flows to its node",
            Self::New => "64-byte packets to its node, each a new flow",
            Self::Denied => "64-byte packets to its node, each a new flow that is denied",
            Self::Fragments => "44-byte fragments to its node, two a datagram",
            Self::Segments => "520-byte packets of 480 TCP segments, by IPIP",
            Self::SegmentsUdp => "92-byte packets of 64 UDP segments, by IPIP",
            Self::Ttl => "64-byte packets whose TTL ends",
            Self::TooBig => "3,000-byte packets with DF, by IPIP",
            Self::Super => "64 KB super-packets, by IPIP",
        }
    }

    /// To another node where it is the cut for the wire that costs.
    const fn target(self, attack: &Attack) -> Ipv4Addr {
        match self {
            Self::Segments | Self::SegmentsUdp | Self::TooBig | Self::Super => attack.far,
            Self::Loop | Self::Small | Self::New | Self::Denied | Self::Fragments | Self::Ttl => {
                attack.near
            }
        }
    }
}

impl Row {
    fn head(&self) -> &'static str {
        match (self.workers, self.device) {
            (1, _) => "A neighbour beside an attacker, one worker",
            (_, Device::Tun) => "A neighbour beside an attacker, two workers",
            (_, Device::Veth) => "A neighbour beside an attacker, two workers, by veth",
        }
    }
}

/// Its rows.
pub fn rows(settings: &Settings) -> Vec<Listed> {
    let takes = of_a_round(settings) * settings.rounds as u32;
    let listed = |row: &Row| {
        let words = format!("{}: {}", row.head(), row.kind.words());
        Listed { name: row.name, words, takes }
    };
    ROWS.iter().map(listed).collect()
}

/// How long a round takes: three pairs.
fn of_a_round(settings: &Settings) -> Duration {
    6 * (settings.length + WARM_UP) + 3 * 2 * QUIET
}

/// Measures what was chosen of them.
pub fn measure(run: &mut Run) -> Result<(), Error> {
    for row in &ROWS {
        if !run.wants(row.name) {
            continue;
        }
        if let Some(why) = run.world.clone() {
            run.lacks(row.name, why, false)?;
            continue;
        }
        run.progress.begin(&format!("{}: {}", row.head(), row.kind.words()));
        match of_one(run, row) {
            Ok((figures, remark)) => {
                run.report.remarks.push(remark);
                figures.into_iter().try_for_each(|figure| run.found(figure))?;
            }
            Err(error) => run.lacks(row.name, error.to_string(), true)?,
        }
    }
    Ok(())
}

/// The figures of a row, and what else was seen.
fn of_one(run: &Run, row: &Row) -> Result<(Vec<Figure>, String), Error> {
    let settings = &run.settings;
    let mut field = Field::build(row, settings)?;
    let [mut whole, mut paced, mut pings] = [const { Vec::new() }; 3];
    for round in 1..=settings.rounds {
        let beside_loop = field.stream(Beside::Loop, None)?;
        let stream = Pair { beside: beside_loop * HALF, manx: field.stream(Beside::Attack, None)? };
        let pace = Some(beside_loop * QUARTER);
        let beside = field.stream(Beside::Loop, pace)?;
        let quarter = Pair { beside, manx: field.stream(Beside::Attack, pace)? };
        let beside = field.ping(Beside::Loop)?;
        let ping = Pair { beside, manx: field.ping(Beside::Attack)? };
        let said = format!(
            "{} {round}/{}: stream {:.2} of its share, a quarter {:.2}, ping's p99 {:.2}",
            row.name,
            settings.rounds,
            stream.ratio(),
            quarter.ratio(),
            ping.ratio()
        );
        run.progress.step(said, of_a_round(settings));
        whole.push(stream);
        paced.push(quarter);
        pings.push(ping);
    }
    let figures = [
        ("stream, beside half of what a loop leaves it", "Gbit/s", whole, KEPT),
        ("stream that asks for a quarter, beside a loop's", "Gbit/s", paced, KEPT),
        ("ping-pong, p99, beside a loop's", "us", pings, LONGER),
    ];
    let figures = figures.into_iter().map(|(what, unit, pairs, goal)| {
        let what = format!("{}: {what}", row.kind.words());
        Figure::of_pairs(row.name, row.head(), what, unit, &pairs, Some(goal))
    });
    let figures = figures.collect::<Option<Vec<_>>>();
    let nothing = || Error::Nothing("no rounds were asked for".to_owned());
    Ok((figures.ok_or_else(nothing)?, field.account()))
}
