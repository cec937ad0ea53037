//! The restrictions of a container's runtime, and the options of podman, Docker and Kubernetes that
//! lift them.

use std::fs;

use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::geteuid;

use super::machine::{may_set_file_capabilities, seccomp};

/// The restrictions that keep a process in a container from namespaces and their settings.
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Confinement {
    /// A seccomp filter is active.
    pub(super) filtered: bool,
    /// `/proc/sys` is mounted read-only.
    pub(super) covered: bool,
    /// An `AppArmor` profile is enforced.
    pub(super) profiled: bool,
    /// The process is root without `CAP_SETFCAP`, so it may not map itself (`user_namespaces(7)`).
    pub(super) unmappable: bool,
}

impl Confinement {
    pub(super) fn read() -> Self {
        // Without AppArmor the file cannot be read, or contains another security module's label.
        let label = fs::read_to_string("/proc/self/attr/apparmor/current").unwrap_or_default();
        Self {
            filtered: seccomp() == 2,
            covered: statvfs("/proc/sys").is_ok_and(|at| at.flags().contains(FsFlags::ST_RDONLY)),
            profiled: label.contains("(enforce)"),
            unmappable: geteuid().is_root() && !may_set_file_capabilities(),
        }
    }

    /// The options that lift the found restrictions, if there are any.
    pub(super) fn options(self) -> Option<String> {
        let rows = [
            (
                self.filtered,
                "--security-opt seccomp=unconfined",
                "--security-opt seccomp=unconfined",
                "seccompProfile: {type: Unconfined}",
            ),
            (
                self.covered,
                "--security-opt unmask=ALL",
                "--security-opt systempaths=unconfined",
                "procMount: Unmasked",
            ),
            (
                self.profiled,
                "--security-opt apparmor=unconfined",
                "--security-opt apparmor=unconfined",
                "appArmorProfile: {type: Unconfined}",
            ),
            (
                self.unmappable,
                "--cap-add SETFCAP",
                "--cap-add SETFCAP",
                "capabilities: {add: [SETFCAP]}",
            ),
        ];
        let (mut podman, mut docker, mut fields) = (Vec::new(), Vec::new(), Vec::new());
        for (_, for_podman, for_docker, field) in rows.into_iter().filter(|row| row.0) {
            podman.push(for_podman);
            docker.push(for_docker);
            fields.push(field);
        }
        let (podman, docker, fields) = (podman.join(" "), docker.join(" "), fields.join(", "));
        (!fields.is_empty()).then(|| {
            format!(
                "in a container: podman run {podman}; or docker run {docker}; or in a Kubernetes pod, spec: {{hostUsers: false}} and \
                 the container's securityContext: {{{fields}}}"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_confinement_has_its_options() {
        let usual = Confinement { filtered: true, covered: true, ..Confinement::default() };
        let told = [
            usual,
            Confinement { profiled: true, ..usual },
            Confinement { filtered: false, ..usual },
            Confinement { unmappable: true, ..Confinement::default() },
        ];
        insta::assert_snapshot!(told.map(|it| it.options().unwrap()).join("\n"), @r"
        in a container: podman run --security-opt seccomp=unconfined --security-opt unmask=ALL; or docker run --security-opt seccomp=unconfined --security-opt systempaths=unconfined; or in a Kubernetes pod, spec: {hostUsers: false} and the container's securityContext: {seccompProfile: {type: Unconfined}, procMount: Unmasked}
        in a container: podman run --security-opt seccomp=unconfined --security-opt unmask=ALL --security-opt apparmor=unconfined; or docker run --security-opt seccomp=unconfined --security-opt systempaths=unconfined --security-opt apparmor=unconfined; or in a Kubernetes pod, spec: {hostUsers: false} and the container's securityContext: {seccompProfile: {type: Unconfined}, procMount: Unmasked, appArmorProfile: {type: Unconfined}}
        in a container: podman run --security-opt unmask=ALL; or docker run --security-opt systempaths=unconfined; or in a Kubernetes pod, spec: {hostUsers: false} and the container's securityContext: {procMount: Unmasked}
        in a container: podman run --cap-add SETFCAP; or docker run --cap-add SETFCAP; or in a Kubernetes pod, spec: {hostUsers: false} and the container's securityContext: {capabilities: {add: [SETFCAP]}}
        ");
        assert_eq!(Confinement::default().options(), None);
    }
}
