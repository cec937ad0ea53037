//! The share of the workers' time that a pod keeps while its neighbour attacks.
//!
//! A process in a pod sends packets of one kind as fast as it can. In the meantime, another pod of the node has a TCP
//! stream to a third pod, or a UDP ping-pong. The control is measured in turn with it: there, a process on the
//! attacker's core computes and sends nothing. Both measurements include the CPU time that the attacker's process takes
//! from the neighbour, so the difference is what the attacker takes by its packets.

pub mod attack;
mod node;
mod packets;
mod rows;

use std::time::Duration;

use crate::error::Error;
use crate::path::traffic::WARM_UP;
use crate::report::figures::Figure;
use crate::report::goal::Goal;
use crate::report::statistics::Pair;
use crate::run::{ListedRow, Run, Settings};

use node::{AttackedNode, CoreLoad, QUIET};
use rows::{ROWS, Row};

/// The part of its fair share that a neighbour must keep.
const KEPT: Goal = Goal::AtLeast(0.9);
/// The largest factor by which the p99 of its round trips may grow.
const LONGER: Goal = Goal::AtMost(3.0);
/// The fair share of a neighbour of one attacker, relative to its rate next to the loop.
const HALF: f64 = 0.5;
/// The rate of a neighbour that needs less than its fair share, relative to its rate next to the loop.
const QUARTER: f64 = 0.25;

/// The rows of this section.
pub fn rows(settings: &Settings) -> Vec<ListedRow> {
    let estimate = round_estimate(settings) * settings.rounds as u32;
    ROWS.iter().map(|row| ListedRow::new(row.name, &row.description(), estimate)).collect()
}

/// The time of a round of three pairs.
fn round_estimate(settings: &Settings) -> Duration {
    6 * (settings.length + WARM_UP) + 3 * 2 * QUIET
}

/// Measures the chosen rows.
pub fn measure(run: &mut Run) -> Result<(), Error> {
    for row in &ROWS {
        if !run.wants(row.name) {
            continue;
        }
        if let Some(why) = run.no_namespaces.clone() {
            run.add_missing(row.name, why, false)?;
            continue;
        }
        run.progress.begin(&row.description());
        let measured = measure_row(run, row).map(|(figures, remark)| {
            run.report.remarks.push(remark);
            figures
        });
        run.add_measured(row.name, measured)?;
    }
    Ok(())
}

/// The pairs of a row, one of each kind per round.
#[derive(Default)]
struct Pairs {
    /// A stream that is as fast as possible, compared with its fair share.
    stream: Vec<Pair>,
    /// A stream that needs a quarter of its rate.
    quarter: Vec<Pair>,
    /// The p99 of a ping-pong.
    ping: Vec<Pair>,
}

/// The figures of a row, and a remark.
fn measure_row(run: &Run, row: &Row) -> Result<(Vec<Figure>, String), Error> {
    let settings = &run.settings;
    let mut node = AttackedNode::build(row, settings)?;
    let mut pairs = Pairs::default();
    for round in 1..=settings.rounds {
        let [stream, quarter, ping] = measure_round(&mut node)?;
        let text = format!(
            "{} {round}/{}: stream {:.2} of its share, a quarter {:.2}, ping's p99 {:.2}",
            row.name,
            settings.rounds,
            stream.ratio(),
            quarter.ratio(),
            ping.ratio()
        );
        run.progress.step(text, round_estimate(settings));
        pairs.stream.push(stream);
        pairs.quarter.push(quarter);
        pairs.ping.push(ping);
    }
    let figures = figures(row, &pairs)
        .ok_or_else(|| Error::Nothing("no rounds were asked for".to_owned()))?;
    Ok((figures, node.summary()))
}

/// Measures one pair each of the stream, the stream that needs a quarter, and the ping-pong.
fn measure_round(node: &mut AttackedNode<'_>) -> Result<[Pair; 3], Error> {
    let beside_loop = node.measure_stream(CoreLoad::Loop, None)?;
    let manx = node.measure_stream(CoreLoad::Attack, None)?;
    let stream = Pair { beside: beside_loop * HALF, manx };
    let pace = Some(beside_loop * QUARTER);
    let beside = node.measure_stream(CoreLoad::Loop, pace)?;
    let quarter = Pair { beside, manx: node.measure_stream(CoreLoad::Attack, pace)? };
    let beside = node.measure_ping(CoreLoad::Loop)?;
    let ping = Pair { beside, manx: node.measure_ping(CoreLoad::Attack)? };
    Ok([stream, quarter, ping])
}

/// The figures of these pairs. `None` if there are none.
fn figures(row: &Row, pairs: &Pairs) -> Option<Vec<Figure>> {
    let figures = [
        ("stream, beside half of what a loop leaves it", "Gbit/s", &pairs.stream, KEPT),
        ("stream that asks for a quarter, beside a loop's", "Gbit/s", &pairs.quarter, KEPT),
        ("ping-pong, p99, beside a loop's", "us", &pairs.ping, LONGER),
    ];
    let figure = |(what, unit, pairs, goal): (&str, _, &Vec<Pair>, _)| {
        let what = format!("{}: {what}", row.kind.description());
        Figure::from_pairs(row.name, row.head(), what, unit, pairs, Some(goal))
    };
    figures.into_iter().map(figure).collect()
}
