//! The time to attach many pods to one real agent, and the delay of other work in the meantime.
//!
//! In each round the pods are attached one after the other, detached, attached at once, and detached. In the meantime a
//! policy of all pods changes ten times per second, so that the agent reads its datastore and publishes tables. A
//! client requests the agent's status every 2 ms.

mod observer;
mod rows;

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use manx_api::{Attach, Status};

use crate::error::Error;
use crate::path::agents::node::Node;
use crate::path::agents::shape::Shape;
use crate::report::figures::Figure;
use crate::report::goal::Goal;
use crate::report::statistics::Pair;
use crate::run::{ListedRow, Run, Settings};

use observer::{Observed, change_policy, longest, observe};
use rows::{FIGURES, HEAD, NAME, PODS};

/// The estimated time of a round.
const ROUND: Duration = Duration::from_secs(8);
/// The time for which the policy changes before the first pod is attached.
const LEAD: Duration = Duration::from_millis(500);
/// The goal for each ratio: attaching all pods at once must not be slower than attaching them one after the other.
const LONGER: Goal = Goal::AtMost(1.0);

/// The row of this section.
pub fn rows(settings: &Settings) -> Vec<ListedRow> {
    let estimate = ROUND * settings.rounds as u32;
    vec![ListedRow::new(NAME, HEAD, estimate)]
}

pub fn measure(run: &mut Run) -> Result<(), Error> {
    if let Some(why) = run.no_namespaces.clone() {
        return run.add_missing(NAME, why, false);
    }
    run.progress.begin(&format!("{NAME}: {HEAD}"));
    let measured = measure_rounds(run);
    run.add_measured(NAME, measured)
}

fn measure_rounds(run: &Run) -> Result<Vec<Figure>, Error> {
    let settings = &run.settings;
    let node = Node::start(Shape::one_node(0, settings.cores), PODS)?;
    let mut pairs: [Vec<Pair>; FIGURES.len()] = Default::default();
    for round in 1..=settings.rounds {
        let beside = measure_once(&node, attach_in_turn)?;
        let manx = measure_once(&node, attach_at_once)?;
        for (pairs, (beside, manx)) in pairs.iter_mut().zip(beside.into_iter().zip(manx)) {
            pairs.push(Pair { beside, manx });
        }
        let text = format!(
            "{NAME} {round}/{}: {:.0} ms, at once {:.0}",
            settings.rounds, beside[0], manx[0]
        );
        run.progress.step(text, ROUND);
    }
    let goals = [Some(LONGER), None, None];
    let figure = |((what, pairs), goal): ((&str, &Vec<Pair>), _)| {
        Figure::from_pairs(NAME, HEAD, what.to_owned(), "ms", pairs, goal)
    };
    let figures = FIGURES.into_iter().zip(&pairs).zip(goals).map(figure);
    figures
        .collect::<Option<_>>()
        .ok_or_else(|| Error::Nothing("no rounds were asked for".to_owned()))
}

/// Attaches all pods, then detaches them. Returns the figures in milliseconds.
fn measure_once(
    node: &Node,
    attach: fn(&Node) -> Result<(), Error>,
) -> Result<[f64; FIGURES.len()], Error> {
    let (start, end, observed) = attach_observed(node, attach)?;
    for_all_at_once(node, |pod| Ok(node.connect()?.detach(pod.pod.clone())?))?;
    let gap = |moments: &[Instant], what| {
        let within = moments.iter().any(|moment| (start..end).contains(moment));
        let gap = longest(moments, start, end).filter(|_| within);
        gap.ok_or_else(|| Error::Failed(format!("{what} while the pods were attached")))
    };
    let figures = [
        end - start,
        gap(&observed.publications, "no tables were published")?,
        gap(&observed.answers, "no status was told")?,
    ];
    Ok(figures.map(|it| it.as_secs_f64() * 1e3))
}

/// Attaches all pods while a policy changes. Returns the time at the start, the time when all pods were attached and
/// their policy was in force, and the observations.
fn attach_observed(
    node: &Node,
    attach: fn(&Node) -> Result<(), Error>,
) -> Result<(Instant, Instant, Observed), Error> {
    let client = node.connect()?;
    let (attached, observed) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        let changer = scope.spawn(|| change_policy(node, &observed));
        let observer = scope.spawn(|| observe(client, &attached));
        thread::sleep(LEAD);
        let start = Instant::now();
        let result = attach(node).and_then(|()| check(&node.connect()?.status()?));
        let end = Instant::now();
        attached.store(true, Ordering::Relaxed);
        let seen = join(observer);
        observed.store(true, Ordering::Relaxed);
        join(changer)?;
        result?;
        Ok((start, end, seen?))
    })
}

fn attach_in_turn(node: &Node) -> Result<(), Error> {
    let mut agent = node.connect()?;
    for pod in node.pods() {
        agent.attach(pod.clone())?;
    }
    Ok(())
}

fn attach_at_once(node: &Node) -> Result<(), Error> {
    for_all_at_once(node, |pod| {
        node.connect()?.attach(pod.clone())?;
        Ok(())
    })
}

/// Calls a function for each pod, on a separate thread.
fn for_all_at_once(
    node: &Node,
    call: impl Fn(&Attach) -> Result<(), Error> + Sync,
) -> Result<(), Error> {
    thread::scope(|scope| {
        let call = &call;
        let calls: Vec<_> = node.pods().iter().map(|pod| scope.spawn(move || call(pod))).collect();
        calls.into_iter().try_for_each(join)
    })
}

/// Checks that all pods are attached and that their policy is in force.
fn check(status: &Status) -> Result<(), Error> {
    let enforced = status.endpoints.iter().filter(|endpoint| endpoint.enforced).count();
    if [enforced, status.endpoints.len()] == [usize::from(PODS); 2] {
        return Ok(());
    }
    let found = status.endpoints.len();
    Err(Error::Failed(format!("of {PODS} pods {found} are attached, {enforced} with policy")))
}

fn join<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| resume_unwind(panic))
}
