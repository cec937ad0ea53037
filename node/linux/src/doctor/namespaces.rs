//! User namespaces, and the operations in them that need capabilities.

use nix::errno::Errno;

use super::container::Confinement;
use super::lack::{Capability, Lack};
use super::machine::read_number;
use crate::netns::sysctl;

/// The settings that decide whether a user may have namespaces.
#[derive(Debug, Clone, Copy, Default)]
struct NamespaceSettings {
    /// `kernel.apparmor_restrict_unprivileged_userns` (Ubuntu 23.10 and later): the namespace is made, but without
    /// capabilities.
    apparmor: bool,
    /// `kernel.unprivileged_userns_clone` is 0 (Debian's kernels).
    clone_disabled: bool,
    /// `user.max_user_namespaces` is 0.
    none_left: bool,
    /// The restrictions of a container's runtime.
    confinement: Confinement,
}

impl NamespaceSettings {
    fn read() -> Self {
        Self {
            apparmor: read_number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
                == Some(1),
            clone_disabled: read_number("/proc/sys/kernel/unprivileged_userns_clone") == Some(0),
            none_left: read_number("/proc/sys/user/max_user_namespaces") == Some(0),
            confinement: Confinement::read(),
        }
    }

    fn remedy(self, errno: Errno) -> String {
        let denied = matches!(errno, Errno::EPERM | Errno::EACCES);
        let confinement = match errno {
            // This error has one cause alone: `/proc/sys` is mounted read-only.
            Errno::EROFS => Confinement { covered: true, ..Confinement::default() },
            Errno::EPERM | Errno::EACCES if !self.none_left => self.confinement,
            _ => Confinement::default(),
        };
        if let Some(options) = confinement.options() {
            return options;
        }
        let remedy = match errno {
            Errno::EINVAL | Errno::ENOSYS => {
                "boot a kernel that is built with CONFIG_USER_NS and CONFIG_NET_NS"
            }
            Errno::EOPNOTSUPP => "load the drivers: sudo modprobe -a veth bridge",
            _ if self.none_left => "to allow it: sudo sysctl -w user.max_user_namespaces=15000",
            _ if denied && self.clone_disabled => {
                "to allow it: sudo sysctl -w kernel.unprivileged_userns_clone=1"
            }
            _ if denied && self.apparmor => {
                "AppArmor takes the capabilities away; to allow it: sudo sysctl -w \
                 kernel.apparmor_restrict_unprivileged_userns=0"
            }
            _ => "run it outside of the chroot or the security profile that forbids it, or as root",
        };
        remedy.to_owned()
    }
}

/// Makes the message for a refused user namespace, from the refused step (`unshare`, the writing of the user map, …) and
/// its error. Call this function before the first step, because a step changes the facts by which the cause is recognized.
pub fn user_namespaces_refusal() -> impl Fn(&str, Errno) -> Lack {
    let settings = NamespaceSettings::read();
    move |step, errno| refused(Capability::UserNamespaces, step, errno, settings)
}

/// The message if other namespaces, or operations in them, are refused in a user namespace or to root.
pub fn network_namespaces_refused(step: &str, errno: Errno) -> Lack {
    refused(Capability::NetworkNamespaces, step, errno, NamespaceSettings::read())
}

/// The message if a setting in the caller's own namespace cannot be written.
pub(super) fn settings_refused(error: &sysctl::Error) -> Lack {
    let errno = error.source.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw);
    Lack {
        capability: Capability::Settings,
        found: format!("{} cannot be {} ({})", error.path.display(), error.verb, errno.desc()),
        cost: "the rig cannot run, since its kernel would neither forward what it must nor leave the rest to Manx"
            .to_owned(),
        remedy: NamespaceSettings::read().remedy(errno),
    }
}

fn refused(capability: Capability, step: &str, errno: Errno, settings: NamespaceSettings) -> Lack {
    let (what, cost) = match capability {
        Capability::UserNamespaces => (
            "a user namespace in which this user is root cannot be made",
            "the rig cannot run, since its nodes and pods are namespaces that belong to it",
        ),
        _ => (
            "network namespaces cannot be made and set up",
            "neither can a rig be built nor a pod be attached by veth",
        ),
    };
    Lack {
        capability,
        found: format!("{what} ({step}: {})", errno.desc()),
        cost: cost.to_owned(),
        remedy: settings.remedy(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_has_its_command() {
        let ordinary = NamespaceSettings::default();
        let confinement = Confinement { filtered: true, covered: true, ..Confinement::default() };
        let cases = [
            ("unshare", Errno::ENOSPC, NamespaceSettings { none_left: true, ..ordinary }),
            ("unshare", Errno::EPERM, NamespaceSettings { clone_disabled: true, ..ordinary }),
            ("uid_map", Errno::EACCES, NamespaceSettings { apparmor: true, ..ordinary }),
            ("unshare", Errno::EPERM, NamespaceSettings { confinement, ..ordinary }),
            ("unshare", Errno::EINVAL, ordinary),
            ("making interfaces", Errno::EOPNOTSUPP, ordinary),
            ("a setting", Errno::EROFS, NamespaceSettings { confinement, ..ordinary }),
            ("unshare", Errno::EPERM, ordinary),
        ];
        let mut told: Vec<String> = cases
            .into_iter()
            .map(|(step, errno, settings)| {
                refused(Capability::UserNamespaces, step, errno, settings).to_string()
            })
            .collect();
        let emptied = NamespaceSettings { apparmor: true, ..ordinary };
        told.push(
            refused(Capability::NetworkNamespaces, "lo up", Errno::EPERM, emptied).to_string(),
        );
        insta::assert_snapshot!(told.join("\n"), @r"
        a user namespace in which this user is root cannot be made (unshare: No space left on device): the rig cannot run, since its nodes and pods are namespaces that belong to it; to allow it: sudo sysctl -w user.max_user_namespaces=15000
        a user namespace in which this user is root cannot be made (unshare: Operation not permitted): the rig cannot run, since its nodes and pods are namespaces that belong to it; to allow it: sudo sysctl -w kernel.unprivileged_userns_clone=1
        a user namespace in which this user is root cannot be made (uid_map: Permission denied): the rig cannot run, since its nodes and pods are namespaces that belong to it; AppArmor takes the capabilities away; to allow it: sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0
        a user namespace in which this user is root cannot be made (unshare: Operation not permitted): the rig cannot run, since its nodes and pods are namespaces that belong to it; in a container: podman run --security-opt seccomp=unconfined --security-opt unmask=ALL; or docker run --security-opt seccomp=unconfined --security-opt systempaths=unconfined; or in a Kubernetes pod, spec: {hostUsers: false} and the container's securityContext: {seccompProfile: {type: Unconfined}, procMount: Unmasked}
        a user namespace in which this user is root cannot be made (unshare: Invalid argument): the rig cannot run, since its nodes and pods are namespaces that belong to it; boot a kernel that is built with CONFIG_USER_NS and CONFIG_NET_NS
        a user namespace in which this user is root cannot be made (making interfaces: Operation not supported on transport endpoint): the rig cannot run, since its nodes and pods are namespaces that belong to it; load the drivers: sudo modprobe -a veth bridge
        a user namespace in which this user is root cannot be made (a setting: Read-only file system): the rig cannot run, since its nodes and pods are namespaces that belong to it; in a container: podman run --security-opt unmask=ALL; or docker run --security-opt systempaths=unconfined; or in a Kubernetes pod, spec: {hostUsers: false} and the container's securityContext: {procMount: Unmasked}
        a user namespace in which this user is root cannot be made (unshare: Operation not permitted): the rig cannot run, since its nodes and pods are namespaces that belong to it; run it outside of the chroot or the security profile that forbids it, or as root
        network namespaces cannot be made and set up (lo up: Operation not permitted): neither can a rig be built nor a pod be attached by veth; AppArmor takes the capabilities away; to allow it: sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0
        ");
    }
}
