//! The cores that the parts of a measurement use.

use std::str::FromStr;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// The cores that the parts of a measurement use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cores {
    /// The core of the sender's thread. Kernel forwarding mostly runs here, too, because a veth delivers packets in the
    /// sender's context.
    pub sender: usize,
    /// The core of the receiver's thread.
    pub receiver: usize,
    /// The cores on which the workers of the agents run.
    pub agent: Placement,
}

/// The cores on which the workers of the agents run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// All of them run on this core.
    On(usize),
    /// Each runs on the core of an end: of the end that is on the worker's node, or of the receiver if both ends are.
    BesideTheEnds,
    /// The scheduler chooses the core.
    Anywhere,
}

impl FromStr for Placement {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "ends" => Ok(Self::BesideTheEnds),
            "scheduler" => Ok(Self::Anywhere),
            core => core.parse().map(Self::On).map_err(|_| {
                format!("\"{core}\" is no core: give its number, or `ends` or `scheduler`")
            }),
        }
    }
}

impl Cores {
    /// Chooses among the cores that this process may use: the first two for the ends, and the third, if there is one,
    /// for the agents.
    pub fn detect() -> Self {
        let allowed = allowed();
        let sender = allowed.first().copied().unwrap_or(0);
        let receiver = allowed.get(1).copied().unwrap_or(sender);
        let agent = allowed.get(2).map_or(Placement::BesideTheEnds, |&core| Placement::On(core));
        Self { sender, receiver, agent }
    }

    /// The cores for a measurement in which the worker shares its core with neither end. If the worker would share a
    /// core with an end, both ends share the other core instead.
    #[must_use]
    pub fn with_separate_worker(self) -> Self {
        match self.agent {
            Placement::BesideTheEnds => {
                Self { receiver: self.sender, agent: Placement::On(self.receiver), ..self }
            }
            Placement::On(_) | Placement::Anywhere => self,
        }
    }

    /// The core of the worker of a node. `None` leaves the choice to the scheduler. `holds_receiver` says whether the
    /// receiver is on that node.
    pub fn worker_core(&self, holds_receiver: bool) -> Option<usize> {
        match self.agent {
            Placement::On(core) => Some(core),
            Placement::BesideTheEnds => {
                Some(if holds_receiver { self.receiver } else { self.sender })
            }
            Placement::Anywhere => None,
        }
    }

    /// The cores of all workers of a node. The [worker's core](Self::worker_core) comes first, then the cores that
    /// neither end uses, then the receiver's and the sender's. Each core occurs once, so there may be fewer than
    /// `workers`. The list is empty if the scheduler places the workers.
    pub fn worker_cores(&self, holds_receiver: bool, workers: usize) -> Vec<usize> {
        let ends = [self.receiver, self.sender];
        let free = allowed().into_iter().filter(|core| !ends.contains(core));
        let mut cores: Vec<usize> = self.worker_core(holds_receiver).into_iter().collect();
        if !cores.is_empty() {
            for core in free.chain(ends) {
                if !cores.contains(&core) {
                    cores.push(core);
                }
            }
        }
        cores.truncate(workers);
        cores
    }

    /// The core for one more process: a core that is used neither by the ends nor by these workers, or else the
    /// sender's.
    pub fn spare_core(&self, workers: &[usize]) -> usize {
        let taken =
            |core: &usize| [self.sender, self.receiver].contains(core) || workers.contains(core);
        allowed().into_iter().find(|core| !taken(core)).unwrap_or(self.sender)
    }

    /// A description in words, for the head of the report.
    pub fn describe(&self) -> String {
        let agent = match self.agent {
            Placement::On(core) => format!("agents' workers on core {core}"),
            Placement::BesideTheEnds => {
                "agents' workers beside their ends (same node: beside the receiver)".to_owned()
            }
            Placement::Anywhere => "agents' workers where the scheduler puts them".to_owned(),
        };
        format!("sender on core {}, receiver on core {}, {agent}", self.sender, self.receiver)
    }
}

/// The cores that this process may use.
fn allowed() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(Pid::from_raw(0)) else { return vec![0] };
    (0..CpuSet::count()).filter(|core| set.is_set(*core).unwrap_or(false)).collect()
}

/// Pins the calling thread to a core. Returns whether the kernel allowed it.
pub fn pin(core: usize) -> bool {
    pin_to(&[core])
}

/// Pins the calling thread to these cores. If the list is empty, the thread may run on any core. Returns whether the
/// kernel allowed it.
pub fn pin_to(cores: &[usize]) -> bool {
    let mut set = CpuSet::new();
    cores.is_empty()
        || cores.iter().all(|core| set.set(*core).is_ok())
            && sched_setaffinity(Pid::from_raw(0), &set).is_ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_worker_has_a_core_of_its_own_and_the_first_is_where_one_alone_is() {
        let cores = Cores::detect();
        for agent in [cores.agent, Placement::On(cores.receiver)] {
            let cores = Cores { agent, ..cores };
            let workers = cores.worker_cores(true, 64);
            assert_eq!(workers.first().copied(), cores.worker_core(true));
            assert_eq!(workers.iter().collect::<BTreeSet<_>>().len(), workers.len());
            assert_eq!(cores.worker_cores(true, 1), workers[..1]);
            let another = cores.spare_core(&workers[..1]);
            assert!(another == cores.sender || ![cores.receiver, workers[0]].contains(&another));
        }
        assert!(Cores { agent: Placement::Anywhere, ..cores }.worker_cores(true, 2).is_empty());
    }
}
