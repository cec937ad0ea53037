//! An observer of an agent while pods are attached. It records when the agent publishes tables and when it answers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use manx_api::client::Client;

use crate::error::Error;
use crate::path::agents::node::Node;

/// The time between two changes of a policy. After a change, the agent waits 50 ms for further changes.
const BETWEEN_CHANGES: Duration = Duration::from_millis(100);
/// The time between an answer of the agent and the next request.
const BETWEEN_REQUESTS: Duration = Duration::from_millis(2);

/// The longest time that the publication of a change may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// The times of the agent's actions.
#[derive(Debug, Default)]
pub(super) struct Observed {
    /// The times of its answers.
    pub(super) answers: Vec<Instant>,
    /// The times of the answers with a new version of the tables: one that differs from the answer before.
    pub(super) publications: Vec<Instant>,
}

/// Changes a policy repeatedly until `stop`.
pub(super) fn change_policy(node: &Node, stop: &AtomicBool) -> Result<(), Error> {
    for port in (10_000..11_000).cycle() {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        node.change_policy(port)?;
        thread::sleep(BETWEEN_CHANGES);
    }
    Ok(())
}

/// Requests the status repeatedly. After `stop` is set, it continues until one more publication is seen.
pub(super) fn observe(mut agent: Client, stop: &AtomicBool) -> Result<Observed, Error> {
    let (mut observed, mut version, mut stopped) = (Observed::default(), None, None);
    loop {
        let tables = agent.status()?.tables;
        let now = Instant::now();
        observed.answers.push(now);
        if version.replace(tables).is_some_and(|before| before != tables) {
            observed.publications.push(now);
            if stopped.is_some() {
                return Ok(observed);
            }
        }
        if stop.load(Ordering::Relaxed) && now - *stopped.get_or_insert(now) > PATIENCE {
            return Err(Error::Failed(format!("no tables are published for {PATIENCE:?}")));
        }
        thread::sleep(BETWEEN_REQUESTS);
    }
}

/// The length of the longest interval between two consecutive moments, among the intervals that overlap the time from
/// `start` to `end`. `None` if there is no such interval.
pub(super) fn longest(moments: &[Instant], start: Instant, end: Instant) -> Option<Duration> {
    let gaps = moments.windows(2).filter_map(|pair| <&[Instant; 2]>::try_from(pair).ok());
    let within = gaps.filter(|[from, to]| *to > start && *from < end);
    within.map(|[from, to]| *to - *from).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_counts_if_a_part_of_it_is_within() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let moments = [0, 90, 100, 130, 140, 200].map(at);
        let longest = |from, to| longest(&moments, at(from), at(to)).map(|it| it.as_millis());
        assert_eq!(longest(95, 135), Some(30));
        assert_eq!(longest(80, 135), Some(90));
        assert_eq!(longest(95, 150), Some(60));
        assert_eq!(longest(200, 300), None);
    }
}
