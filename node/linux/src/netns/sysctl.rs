//! The settings under `/proc/sys/net`, which belong to the calling thread's network namespace.

use std::io;
use std::path::PathBuf;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::statvfs::{FsFlags, statvfs};

const PROC_SYS: &str = "/proc/sys/net";

/// A setting that cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{path} cannot be {verb}: {source}{}", hint(source))]
pub struct Error {
    pub path: PathBuf,
    /// `read` or `set to …`.
    pub verb: String,
    pub source: io::Error,
}

fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EROFS) => {
            "; /proc/sys is mounted read-only here, as in a container that is not privileged"
        }
        Some(libc::EACCES | libc::EPERM) => {
            "; it takes CAP_NET_ADMIN in the user namespace that owns the network namespace"
        }
        _ => "",
    }
}

/// The file of `key`, e.g. `ipv4/ip_forward`. The parts are divided by slashes, because an interface's name may contain
/// dots.
fn path(key: &str) -> PathBuf {
    PathBuf::from(PROC_SYS).join(key)
}

/// Makes `/proc/sys` writable for the calling thread and its later children, if it is read-only. It is read-only in a
/// container that is not privileged. The caller needs `CAP_SYS_ADMIN`, because `/proc` is mounted again in a new mount
/// namespace. Mounts that are made later in the former namespace appear in the new one, too. Call it while the process
/// has one thread.
pub fn make_writable() -> io::Result<()> {
    if !statvfs(PROC_SYS)?.flags().contains(FsFlags::ST_RDONLY) {
        return Ok(());
    }
    unshare(CloneFlags::CLONE_NEWNS)?;
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_SLAVE | MsFlags::MS_REC, none)?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("proc"), "/proc", Some("proc"), flags, none)?;
    Ok(())
}

/// Sets `key`, e.g. `ipv4/ip_forward`. A value that is already set is not written again, so a read-only `/proc/sys`
/// with the right value is no error.
pub fn set(key: &str, value: &str) -> Result<(), Error> {
    if matches!(read(key), Ok(now) if now == value) {
        return Ok(());
    }
    let path = path(key);
    std::fs::write(&path, value).map_err(|source| Error {
        path,
        verb: format!("set to {value}"),
        source,
    })
}

/// Like [`set`], but it is no error if the kernel lacks the setting (for example without IPv6).
pub fn set_if_present(key: &str, value: &str) -> Result<(), Error> {
    match set(key, value) {
        Err(error) if error.source.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Reads `key`, without the line break.
pub fn read(key: &str) -> Result<String, Error> {
    let path = path(key);
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(text.trim_end().to_owned()),
        Err(source) => Err(Error { path, verb: "read".to_owned(), source }),
    }
}

/// The settings of an interface, by key, and their values. Settings that cannot be read are left out.
pub fn of_interface(name: &str) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for of in ["ipv4/conf", "ipv6/conf", "ipv4/neigh", "ipv6/neigh"] {
        let folder = format!("{of}/{name}");
        // A kernel without IPv6 has no such folder.
        let Ok(files) = std::fs::read_dir(path(&folder)) else { continue };
        let names = files.filter_map(|file| file.ok()?.file_name().into_string().ok());
        let keys = names.map(|name| format!("{folder}/{name}"));
        all.extend(
            keys.filter_map(|key| Some((read(&key).ok()?, key))).map(|(value, key)| (key, value)),
        );
    }
    all.sort();
    all
}

/// Settings and their values. Every kernel has the settings of IPv4; others may be missing.
pub type Settings = [(&'static str, &'static str)];

/// The settings for a namespace of the rig. Addresses are usable at once, and the kernel accepts a packet even if its
/// source is reached by another interface. The ICMP errors of closed ports have no rate limit: the default is one per
/// second and destination (the kernel's `ip-sysctl.rst`), which parallel probes would exceed.
pub const RIG: &Settings = &[
    ("ipv4/icmp_ratelimit", "0"),
    ("ipv6/icmp/ratelimit", "0"),
    ("ipv6/conf/all/accept_dad", "0"),
    ("ipv6/conf/default/accept_dad", "0"),
    ("ipv4/conf/all/rp_filter", "0"),
    ("ipv4/conf/default/rp_filter", "0"),
];

/// The settings for a namespace that forwards packets.
pub const FORWARD: &Settings = &[("ipv4/ip_forward", "1"), ("ipv6/conf/all/forwarding", "1")];

/// The settings for a namespace whose bridges are only wires: no packet filter sees their packets.
pub const PLAIN_BRIDGES: &Settings = &[
    ("bridge/bridge-nf-call-iptables", "0"),
    ("bridge/bridge-nf-call-ip6tables", "0"),
    ("bridge/bridge-nf-call-arptables", "0"),
];

/// The settings for a namespace whose kernel forwards nothing and answers nothing: no forwarding, no IPv6, no ARP (8: never
/// reply, for any address; the kernel's `ip-sysctl.rst`).
pub const SILENT: &Settings = &[
    ("ipv6/conf/all/disable_ipv6", "1"),
    ("ipv6/conf/default/disable_ipv6", "1"),
    ("ipv6/conf/all/forwarding", "0"),
    ("ipv6/conf/default/forwarding", "0"),
    ("ipv4/conf/all/arp_ignore", "8"),
    ("ipv4/conf/default/arp_ignore", "8"),
    ("ipv4/ip_forward", "0"),
];

/// Sets all `settings` in order.
pub fn apply(settings: &Settings) -> Result<(), Error> {
    for (key, value) in settings {
        if key.starts_with("ipv4/") { set(key, value) } else { set_if_present(key, value) }?;
    }
    Ok(())
}

/// Makes an interface's IPv6 as static as its IPv4 (RFC 4862, sections 5.4 and 5.5; the kernel's `ip-sysctl.rst`). Without
/// duplicate address detection its addresses, including the link-local one, are usable at once. It sends no router
/// solicitations, and learns nothing from advertisements. Call it before the interface is set up. A kernel without IPv6 is
/// no error.
pub fn make_ipv6_static(interface: &str) -> Result<(), Error> {
    for (key, value) in [
        ("accept_dad", "0"),
        ("dad_transmits", "0"),
        ("router_solicitations", "0"),
        ("accept_ra", "0"),
        ("autoconf", "0"),
        ("disable_ipv6", "0"),
    ] {
        set_if_present(&format!("ipv6/conf/{interface}/{key}"), value)?;
    }
    Ok(())
}
