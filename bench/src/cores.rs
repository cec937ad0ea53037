//! Who runs on which core.

use std::str::FromStr;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Where the parts of a measurement run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cores {
    /// The sender's thread. Kernel forwarding mostly runs here too: a veth hands its packets on in the sender's context.
    pub sender: usize,
    /// The receiver's thread.
    pub receiver: usize,
    /// The worker of each agent.
    pub agent: Placement,
}

/// Where the agents' workers run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// All on this core.
    On(usize),
    /// Each beside the end that it shares a node with; on the receiver's core if it has both.
    BesideTheEnds,
    /// Where the scheduler puts them.
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
    /// The machine's: the first two that this process may use, and the third for the agents if there is one.
    pub fn of_this_machine() -> Self {
        let allowed = allowed();
        let sender = allowed.first().copied().unwrap_or(0);
        let receiver = allowed.get(1).copied().unwrap_or(sender);
        let agent = allowed.get(2).map_or(Placement::BesideTheEnds, |&core| Placement::On(core));
        Self { sender, receiver, agent }
    }

    /// The worker has a core to itself, on a machine of two too: there both ends take turns on the other.
    #[must_use]
    pub fn apart(self) -> Self {
        match self.agent {
            Placement::BesideTheEnds => {
                Self { receiver: self.sender, agent: Placement::On(self.receiver), ..self }
            }
            Placement::On(_) | Placement::Anywhere => self,
        }
    }

    /// The core of the worker that holds these ends; `None`: the scheduler's choice.
    pub fn of_worker(&self, holds_receiver: bool) -> Option<usize> {
        match self.agent {
            Placement::On(core) => Some(core),
            Placement::BesideTheEnds => {
                Some(if holds_receiver { self.receiver } else { self.sender })
            }
            Placement::Anywhere => None,
        }
    }

    /// The cores of all workers of a node: the first as [`Cores::of_worker`] has it, then those that neither end has, then the
    /// receiver's and the sender's. Each is named once, so there may be fewer; none where the scheduler places them.
    pub fn of_workers(&self, holds_receiver: bool, workers: usize) -> Vec<usize> {
        let ends = [self.receiver, self.sender];
        let free = allowed().into_iter().filter(|core| !ends.contains(core));
        let mut cores: Vec<usize> = self.of_worker(holds_receiver).into_iter().collect();
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

    /// A core for one process more: one that neither the ends nor these workers have, else the sender's.
    pub fn of_another(&self, workers: &[usize]) -> usize {
        let taken =
            |core: &usize| [self.sender, self.receiver].contains(core) || workers.contains(core);
        allowed().into_iter().find(|core| !taken(core)).unwrap_or(self.sender)
    }

    /// In words, for the head of the report.
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

/// Keeps the calling thread on a core. Returns whether it is there now.
pub fn pin(core: usize) -> bool {
    pin_to(&[core])
}

/// The same of several; of none, where the scheduler puts it.
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
        let cores = Cores::of_this_machine();
        for agent in [cores.agent, Placement::On(cores.receiver)] {
            let cores = Cores { agent, ..cores };
            let workers = cores.of_workers(true, 64);
            assert_eq!(workers.first().copied(), cores.of_worker(true));
            assert_eq!(workers.iter().collect::<BTreeSet<_>>().len(), workers.len());
            assert_eq!(cores.of_workers(true, 1), workers[..1]);
            let another = cores.of_another(&workers[..1]);
            assert!(another == cores.sender || ![cores.receiver, workers[0]].contains(&another));
        }
        assert!(Cores { agent: Placement::Anywhere, ..cores }.of_workers(true, 2).is_empty());
    }
}
