//! What a container's runtime takes away, and the options of podman, Docker and Kubernetes that leave it.

use std::fs;

use nix::sys::statvfs::{FsFlags, statvfs};

use super::machine::seccomp;

/// What keeps a process from namespaces and their settings in a container.
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Confinement {
    /// A seccomp filter is active.
    pub(super) filtered: bool,
    /// `/proc/sys` is mounted read-only.
    pub(super) covered: bool,
    /// An `AppArmor` profile is enforced.
    pub(super) profiled: bool,
}

impl Confinement {
    pub(super) fn read() -> Self {
        // Without AppArmor the file cannot be read, or holds another security module's label.
        let label = fs::read_to_string("/proc/self/attr/apparmor/current").unwrap_or_default();
        Self {
            filtered: seccomp() == 2,
            covered: statvfs("/proc/sys").is_ok_and(|at| at.flags().contains(FsFlags::ST_RDONLY)),
            profiled: label.contains("(enforce)"),
        }
    }

    /// The options for what was found, if anything was.
    pub(super) fn options(self) -> Option<String> {
        let rows = [
            (
                self.filtered,
                ["seccomp=unconfined", "seccomp=unconfined", "seccompProfile: {type: Unconfined}"],
            ),
            (self.covered, ["unmask=ALL", "systempaths=unconfined", "procMount: Unmasked"]),
            (
                self.profiled,
                [
                    "apparmor=unconfined",
                    "apparmor=unconfined",
                    "appArmorProfile: {type: Unconfined}",
                ],
            ),
        ];
        let found: Vec<_> =
            rows.into_iter().filter_map(|(found, row)| found.then_some(row)).collect();
        if found.is_empty() {
            return None;
        }
        let column = |runtime: usize| found.iter().map(move |row| row[runtime]);
        let flags = |runtime| {
            column(runtime)
                .map(|option| format!("--security-opt {option}"))
                .collect::<Vec<_>>()
                .join(" ")
        };
        let fields = column(2).collect::<Vec<_>>().join(", ");
        Some(format!(
            "in a container: podman run {}; or docker run {}; or in a Kubernetes pod, spec: {{hostUsers: false}} and the container's \
             securityContext: {{{fields}}}",
            flags(0),
            flags(1),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_confinement_has_its_options() {
        let usual = Confinement { filtered: true, covered: true, profiled: false };
        let told = [
            usual,
            Confinement { profiled: true, ..usual },
            Confinement { filtered: false, ..usual },
        ];
        insta::assert_snapshot!(told.map(|it| it.options().unwrap()).join("\n"), @"");
        assert_eq!(Confinement::default().options(), None);
    }
}
