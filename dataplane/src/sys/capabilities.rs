//! A thread's capabilities, beyond the rights of its user (`capabilities(7)`). Threads that it starts inherit them.

use std::io;

pub use rustix::thread::CapabilitySet;
use rustix::thread::{CapabilitySets, capabilities, set_capabilities, set_no_new_privs};

/// Lowers all of the calling thread's capabilities: none is in effect, and the thread may raise each again. If a
/// process gave them up permanently, every process of the same user could trace it and act through it (ptrace(2)).
/// Programs that root executes have all capabilities in effect.
pub fn lay_down() -> io::Result<()> {
    let sets = capabilities(None)?;
    set_capabilities(None, CapabilitySets { effective: CapabilitySet::empty(), ..sets })
        .map_err(Into::into)
}

/// Gives up all of the calling thread's capabilities except `kept`, permanently: no program that it executes gets them
/// back (`PR_SET_NO_NEW_PRIVS`). Returns those of `kept` that the thread had.
pub fn keep_only(kept: CapabilitySet) -> io::Result<CapabilitySet> {
    set_no_new_privs(true)?;
    let left = capabilities(None)?.permitted & kept;
    let sets =
        CapabilitySets { effective: left, permitted: left, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets)?;
    Ok(left)
}
