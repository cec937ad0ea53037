//! Rounds of garbage collection: one every half of the grace time, and more of them soon after a
//! node was deleted.

use std::collections::BTreeSet;
use std::fmt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use manx_block_ipam::block::{Rest, Time, describe};
use manx_block_ipam::garbage::{Garbage, Look, Outcome, Reason, Settings, Step, take};
use manx_block_ipam::objects::Objects;
use manx_datastore::api_server::{Access, Writer};
use tokio::time::sleep;

/// The longest pause between two requests for the list of nodes.
const POLL: Duration = Duration::from_secs(30);
/// The number of rounds after a node was deleted: the first one notices it, the next one releases
/// its addresses, the last one its blocks.
const AFTER_NODE: u32 = 3;

/// Makes rounds for as long as this process leads.
pub(super) async fn make(access: &Access, settings: Settings, leads: &impl Fn() -> bool) {
    let poll = POLL.min(settings.grace / 2);
    let started = Instant::now();
    let mut rounds = Rounds {
        garbage: Garbage::default(),
        settings,
        started,
        next: started,
        more: 0,
        nodes: BTreeSet::new(),
    };
    let mut told = String::new();
    loop {
        match rounds.go_on(access, leads).await {
            Ok(()) => told.clear(),
            Err(reason) => {
                if reason != told {
                    tracing::warn!(reason, "no round now: trying again");
                    told = reason;
                }
            }
        }
        sleep(poll).await;
    }
}

struct Rounds {
    garbage: Garbage,
    settings: Settings,
    started: Instant,
    /// The time of the next regular round.
    next: Instant,
    /// The number of rounds that are made without waiting for the next regular one.
    more: u32,
    /// The names of the nodes in the last list.
    nodes: BTreeSet<String>,
}

impl Rounds {
    /// Makes a round if it is time for one.
    async fn go_on(&mut self, access: &Access, leads: &impl Fn() -> bool) -> Result<(), String> {
        let writer = Writer::open(access).await.map_err(|error| error.to_string())?;
        let objects = Objects::new(writer);
        let nodes = objects.node_names().await.map_err(|error| error.to_string())?;
        let nodes: BTreeSet<String> = nodes.into_iter().collect();
        if self.nodes.difference(&nodes).next().is_some() {
            self.more = AFTER_NODE;
        }
        self.nodes = nodes;
        let is_regular = Instant::now() >= self.next;
        if !is_regular && self.more == 0 {
            return Ok(());
        }
        let left = self.round(&objects, leads).await?;
        if is_regular {
            self.next = Instant::now() + self.settings.grace / 2;
        }
        self.more = self.more.saturating_sub(1).max(u32::from(left > 0));
        Ok(())
    }

    /// Makes a round. Returns the number of steps that are left for the next one.
    async fn round(
        &mut self,
        objects: &Objects<Writer>,
        leads: &impl Fn() -> bool,
    ) -> Result<usize, String> {
        let config = objects.config().await.map_err(|error| error.to_string())?;
        let look = Look::read(objects, objects).await.map_err(|error| error.to_string())?;
        let at = self.started.elapsed();
        let rest = || Rest { now: now(), cooldown: config.cooldown };
        let plan = self.garbage.plan(&look, self.settings, at, rest());
        let (steps, left) = (plan.steps.len(), plan.left);
        let mut failed = 0;
        for step in plan.steps {
            if !leads() {
                break;
            }
            match take(objects, objects, &step, rest()).await {
                Ok(outcome) => tracing::info!("{}", Line(&step, &outcome)),
                Err(error) => {
                    failed += 1;
                    tracing::warn!(reason = %error, "{}: failed", What(&step));
                }
            }
        }
        let (blocks, handles) = (look.records.blocks.len(), look.records.handles.len());
        let round = format!("a round: {blocks} blocks, {handles} handles, {steps} steps");
        if steps > 0 {
            tracing::info!("{round}, {failed} of them failed, {left} are left for the next round");
        } else {
            tracing::debug!("{round}");
        }
        Ok(left)
    }
}

pub(super) fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

/// The subject of a step, as text for users.
struct What<'a>(&'a Step);

impl fmt::Display for What<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Step::Release { leaks, reason } => {
                f.write_str("release of")?;
                for (at, leak) in leaks.iter().enumerate() {
                    write!(f, "{} {}", if at == 0 { "" } else { "," }, leak.address)?;
                }
                if let Some(leak) = leaks.first() {
                    write!(f, " of {}", describe(&leak.allocation))?;
                    if let Some(handle) = &leak.allocation.handle {
                        write!(f, " (handle {handle:?})")?;
                    }
                }
                f.write_str(match reason {
                    Reason::Unused => ", which nobody has used for the grace time",
                    Reason::NodeGone => ", whose node is gone",
                })
            }
            Step::EndRest(cidr) => write!(f, "end of the rest of addresses of block {cidr}"),
            Step::ReleaseIdleBlock { owner, cidr, .. } => {
                write!(f, "release of idle block {cidr} of {owner}")
            }
            Step::ReleaseBlockOfGone { owner, cidr } => {
                write!(f, "release of block {cidr} of {owner}, which is gone")
            }
            Step::DeleteHandle(handle) => {
                write!(f, "deletion of handle {:?}, which has no address", handle.id)
            }
        }
    }
}

/// A step and its outcome, as text for users.
struct Line<'a>(&'a Step, &'a Outcome);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outcome = match self.1 {
            Outcome::Kept => "not done: it is in use, or has changed",
            Outcome::Released(_)
            | Outcome::Freed
            | Outcome::ReleasedBlock
            | Outcome::DeletedHandle => "done",
        };
        write!(f, "{}: {outcome}", What(self.0))
    }
}

#[cfg(test)]
mod tests {
    use manx_block_ipam::affinity::Owner;
    use manx_block_ipam::block::Allocation;
    use manx_block_ipam::garbage::Leak;
    use manx_block_ipam::handle::Handle;

    use super::*;

    #[test]
    fn each_step_is_told_in_a_line() {
        let leak = |address: &str| {
            let owner = [("namespace", "web"), ("pod", "front")];
            let owner = owner.map(|(key, value)| (key.to_owned(), value.to_owned()));
            let handle = Some("net.1\nx".to_owned());
            let allocation = Allocation { handle, owner: owner.into(), ..Allocation::default() };
            let block = "10.0.0.0/26".parse().unwrap();
            Leak { address: address.parse().unwrap(), block, allocation }
        };
        let (owner, cidr) = (Owner::Host("a".to_owned()), "10.0.0.0/26".parse().unwrap());
        let leaks = vec![leak("10.0.0.1"), leak("fd00::1")];
        let released = Outcome::Released(Vec::new());
        let handle = Handle { id: "net.2".to_owned(), blocks: [(cidr, 1)].into() };
        let steps = [
            (Step::Release { leaks: leaks.clone(), reason: Reason::Unused }, released),
            (Step::Release { leaks, reason: Reason::NodeGone }, Outcome::Kept),
            (Step::EndRest(cidr), Outcome::Freed),
            (
                Step::ReleaseIdleBlock { owner: owner.clone(), cidr, sequence: 1 },
                Outcome::ReleasedBlock,
            ),
            (Step::ReleaseBlockOfGone { owner, cidr }, Outcome::ReleasedBlock),
            (Step::DeleteHandle(handle), Outcome::DeletedHandle),
        ];
        let lines = steps.map(|(step, outcome)| Line(&step, &outcome).to_string());
        insta::assert_snapshot!(lines.join("\n"), @r#"
        release of 10.0.0.1, fd00::1 of pod web/front (handle "net.1\nx"), which nobody has used for the grace time: done
        release of 10.0.0.1, fd00::1 of pod web/front (handle "net.1\nx"), whose node is gone: not done: it is in use, or has changed
        end of the rest of addresses of block 10.0.0.0/26: done
        release of idle block 10.0.0.0/26 of host:a: done
        release of block 10.0.0.0/26 of host:a, which is gone: done
        deletion of handle "net.2", which has no address: done
        "#);
    }
}
