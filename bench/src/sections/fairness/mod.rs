//! The share of the workers' time that a pod keeps while its neighbour attacks.
//!
//! A process in a pod sends packets of one kind as fast as it can. In the meantime, another pod of the node has a TCP
//! stream to a third pod, or a UDP ping-pong. For comparison, the same is measured while a process on the attacker's
//! core only computes and sends nothing (the *loop*). In both measurements, a process takes CPU time on that core. So
//! the difference is the effect of the attacker's packets alone.

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

/// The goal for a stream: the neighbour must keep this part of its fair share.
const KEPT: Goal = Goal::AtLeast(0.9);
/// The goal for a ping-pong: the p99 of the neighbour's round trips may grow by this factor at most.
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

/// The estimated time of a round of three pairs.
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
    /// A stream that sends at a quarter of the rate that is possible next to the loop.
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

/// Measures one pair of each kind: the stream, the stream at a quarter of the rate, and the ping-pong.
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

/// The figures of a row. `None` if there are no pairs.
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
