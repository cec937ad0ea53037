//! The capabilities that this environment allows, the consequence of each missing one, and the command that provides
//! it.
//!
//! The result of a check is a text about what was found, or a [`Lack`]. Every command that needs the capability prints the
//! text of that lack. Some capabilities can only be found by trying. Child processes ([`probe`]) try them, in namespaces
//! that end with these processes.

mod container;
mod folders;
mod lack;
mod machine;
mod namespaces;
mod probe;
mod rules;
pub mod sandbox;
mod sockets;
mod tun;

use std::io;

use serde::Serialize;

pub use self::lack::{Capability, Check, Lack};
pub use self::machine::{no_ipip_module, usable_cores};
pub use self::namespaces::{network_namespaces_refused, user_namespaces_refusal};
pub use self::probe::{ProbeResults, probe, probe_inside};
pub use self::sockets::{packet_sockets_refused, raw_sockets_refused};
pub use self::tun::{tun, tun_opens};

/// The results of all checks.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Each capability, in the order of [`Capability`].
    pub checks: Vec<Entry>,
    /// The process's seccomp mode (proc(5)): 0 none, 1 strict, 2 filter. Not a lack by itself, but a filter may be the
    /// cause of one.
    pub seccomp: u64,
    /// Whether the rig can run.
    pub rig: bool,
}

/// One line of a [`Report`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Entry {
    pub capability: Capability,
    /// Whether the capability is there.
    pub allowed: bool,
    pub found: String,
    /// The consequence, if the capability is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<String>,
    /// The remedy, if the capability is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Entry {
    fn new(capability: Capability, check: Check) -> Self {
        match check {
            Ok(found) => Self { capability, allowed: true, found, cost: None, remedy: None },
            Err(Lack { capability, found, cost, remedy }) => {
                Self { capability, allowed: false, found, cost: Some(cost), remedy: Some(remedy) }
            }
        }
    }
}

impl Report {
    /// A report of these results, in the order of [`Capability`].
    pub fn new(found: ProbeResults, seccomp: u64) -> Self {
        let mut checks: Vec<Entry> =
            found.into_iter().map(|(capability, check)| Entry::new(capability, check)).collect();
        checks.sort_by_key(|entry| entry.capability);
        let rig = checks.iter().all(|entry| entry.allowed || !entry.capability.needed_by_rig());
        Self { checks, seccomp, rig }
    }
}

impl Report {
    /// The first capability that the rig needs and that is missing. `None` if the rig can run.
    pub fn obstacle(&self) -> Option<Lack> {
        let mut needed = self.checks.iter().filter(|entry| entry.capability.needed_by_rig());
        needed.find_map(|entry| self.lack(entry.capability))
    }

    /// The lack of a capability, if the capability is missing.
    pub fn lack(&self, capability: Capability) -> Option<Lack> {
        let entry = self.checks.iter().find(|entry| entry.capability == capability)?;
        let (cost, remedy) = (entry.cost.clone()?, entry.remedy.clone()?);
        Some(Lack { capability, found: entry.found.clone(), cost, remedy })
    }
}

/// Checks everything.
///
/// # Errors
/// The probing child cannot be started, or its output cannot be parsed.
pub fn examine() -> io::Result<Report> {
    let mut found = probe::run("doctor-probe")?;
    found.extend([
        (Capability::Folders, folders::folders()),
        (Capability::Kernel, machine::kernel()),
        (Capability::NoIpipModule, no_ipip_module()),
        (Capability::BgpPort, sockets::bgp_port()),
        (Capability::IoUring, machine::io_uring()),
        (Capability::Cores, machine::cores()),
    ]);
    Ok(Report::new(found, machine::seccomp()))
}
