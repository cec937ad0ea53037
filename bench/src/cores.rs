//! Who runs on which core.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Where the parts of a measurement run. The agent's worker is left to the scheduler unless it is given a core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cores {
    /// The sender's thread. Kernel forwarding mostly runs here too: a veth hands its packets on in the sender's context.
    pub sender: usize,
    /// The receiver's thread.
    pub receiver: usize,
    /// The worker of each agent.
    pub agent: Option<usize>,
}

impl Cores {
    /// The machine's: the first two that this process may use, and the third for the agent if there is one.
    pub fn of_this_machine() -> Self {
        let allowed = allowed();
        let sender = allowed.first().copied().unwrap_or(0);
        let receiver = allowed.get(1).copied().unwrap_or(sender);
        Self { sender, receiver, agent: allowed.get(2).copied() }
    }

    /// In words, for the head of the report.
    pub fn describe(&self) -> String {
        let agent = match self.agent {
            Some(core) => format!("agent's worker on core {core}"),
            None => "agent's worker where the scheduler puts it".to_owned(),
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
    let mut set = CpuSet::new();
    set.set(core).is_ok() && sched_setaffinity(Pid::from_raw(0), &set).is_ok()
}
