//! Moves a process into the namespaces that contain a rig. The rig's processes do it, and `doctor` tries it.
//!
//! Each function changes the calling process permanently. Call it in a process with a single thread.

use std::fs;
use std::path::Path;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{getegid, geteuid};

use super::lack::Lack;
use super::namespaces::{network_namespaces_refused, user_namespaces_refusal};

/// Makes the user root of a new user namespace, and makes the next child the first process of a new pid namespace.
pub fn enter_user_namespace() -> Result<(), Lack> {
    let (user, group, refused) = (geteuid(), getegid(), user_namespaces_refusal());
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWPID)
        .map_err(|errno| refused("unshare", errno))?;
    // Without CAP_SETGID in the parent namespace a group can be mapped only after setgroups is denied
    // (user_namespaces(7)).
    for (path, text) in [
        ("/proc/self/setgroups", "deny".to_owned()),
        ("/proc/self/uid_map", format!("0 {user} 1")),
        ("/proc/self/gid_map", format!("0 {group} 1")),
    ] {
        fs::write(path, text).map_err(|error| {
            let errno = error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw);
            refused(&format!("writing {path}"), errno)
        })?;
    }
    Ok(())
}

/// Enters new mount, network, host name and IPC namespaces. Mounts a tmpfs on `names` for the names of network namespaces,
/// and mounts `/proc` again if the kernel allows it.
pub fn enter_other_namespaces(names: &Path) -> Result<(), Lack> {
    let refused = |step: &'static str| move |errno| network_namespaces_refused(step, errno);
    unshare(
        CloneFlags::CLONE_NEWNS
            | CloneFlags::CLONE_NEWNET
            | CloneFlags::CLONE_NEWUTS
            | CloneFlags::CLONE_NEWIPC,
    )
    .map_err(refused("unshare"))?;
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)
        .map_err(refused("making mounts private"))?;
    mount(Some("manx"), names, Some("tmpfs"), MsFlags::MS_NOSUID | MsFlags::MS_NODEV, none)
        .map_err(refused("mounting a tmpfs"))?;
    // With this mount, commands in the rig see the rig's processes. If /proc is partly covered, as in many containers,
    // the kernel refuses the mount. Nothing in the rig itself needs it.
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    let _ = mount(Some("proc"), Path::new("/proc"), Some("proc"), flags, none);
    Ok(())
}
