//! The namespaces of the bench. With them, the bench does not need root, and it leaves nothing behind.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Gid, Uid};
use tempfile::TempDir;

use crate::error::{Error, errno, io as io_error};

/// The path at which the bench mounts its own file system. So its files disappear with the namespace, however the
/// process ends.
const SCRATCH: &str = "/dev/shm";

/// Moves the process into its own namespaces. It must have a single thread. Everything that is created in the
/// namespaces disappears with the process and its children.
///
/// Root gets a network and a mount namespace. Any other user also gets a user namespace and is root in it
/// (`user_namespaces(7)`: groups must be given up before the group map may be written).
pub fn enter() -> Result<(), Error> {
    let (uid, gid) = (Uid::effective(), Gid::effective());
    let mut flags = CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS;
    if !uid.is_root() {
        flags |= CloneFlags::CLONE_NEWUSER;
    }
    unshare(flags).map_err(errno(
        "no namespaces can be made here: `manx doctor` tells what is missing and how to get it",
    ))?;
    if !uid.is_root() {
        let write = |file: &str, text: String| -> io::Result<()> {
            fs::write(format!("/proc/self/{file}"), text)
        };
        write("setgroups", "deny".to_owned())
            .and_then(|()| write("uid_map", format!("0 {uid} 1")))
            .and_then(|()| write("gid_map", format!("0 {gid} 1")))
            .map_err(io_error("the user namespace's maps cannot be written"))?;
    }
    // Mounts that are made below must not be visible outside.
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
        .map_err(errno("the mount namespace cannot be made private"))?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some("manx-bench"), SCRATCH, Some("tmpfs"), flags, None::<&str>)
        .map_err(errno(format!("no temporary file system at {SCRATCH}")))
}

/// Creates a folder that is removed when the value is dropped.
pub fn temporary_folder() -> Result<TempDir, Error> {
    let mut made = tempfile::Builder::new();
    made.permissions(Permissions::from_mode(0o700));
    made.tempdir_in(SCRATCH).or_else(|_| made.tempdir()).map_err(io_error("no temporary folder"))
}
