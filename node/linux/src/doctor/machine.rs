//! The checks that only read: the kernel's version, its settings, the cores.

use std::fs;
use std::io;
use std::panic::resume_unwind;
use std::thread;

use manx_dataplane::sys::capabilities::{CapabilitySet, keep_only};
use manx_dataplane::sys::uring;
use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

use super::lack::{Capability, Check, Lack};

/// The oldest kernel that is supported.
const KERNEL: (u32, u32) = (5, 15);

/// The running kernel.
pub(super) fn kernel() -> Check {
    let release = nix::sys::utsname::uname()
        .map(|name| name.release().to_string_lossy().into_owned())
        .unwrap_or_default();
    judge_kernel(&release)
}

fn judge_kernel(release: &str) -> Check {
    let mut parts = release.split(['.', '-']).map(|part| part.parse::<u32>().ok());
    match (parts.next().flatten(), parts.next().flatten()) {
        (Some(major), Some(minor)) if (major, minor) >= KERNEL => Ok(format!("Linux {release}")),
        _ => Err(Lack {
            capability: Capability::Kernel,
            found: format!("the kernel is {release:?}, older than {}.{}", KERNEL.0, KERNEL.1),
            cost: "Manx is not tried on it".to_owned(),
            remedy: format!("boot Linux {}.{} or newer", KERNEL.0, KERNEL.1),
        }),
    }
}

/// The cores that this process may run on, by number; empty if they cannot be determined.
pub fn usable_cores() -> Vec<usize> {
    let set = sched_getaffinity(Pid::from_raw(0)).unwrap_or_default();
    (0..CpuSet::count()).filter(|core| set.is_set(*core).unwrap_or(false)).collect()
}

/// Whether there are enough cores.
pub(super) fn cores() -> Check {
    judge_cores(thread::available_parallelism().map_or(1, usize::from))
}

fn judge_cores(cores: usize) -> Check {
    if cores > 1 {
        return Ok(format!("{cores} cores may be used"));
    }
    Err(Lack {
        capability: Capability::Cores,
        found: "one core may be used".to_owned(),
        cost: "the worker shares it with the pods' own programs, so throughput is a fraction"
            .to_owned(),
        remedy: "widen the affinity (taskset -c 0-N), the container's --cpus or the machine"
            .to_owned(),
    })
}

/// Checks `io_uring_setup(2)` in a thread without capabilities, because workers call it without them.
pub(super) fn io_uring() -> Check {
    let setting = read_number("/proc/sys/kernel/io_uring_disabled");
    let asked = thread::scope(|scope| {
        scope.spawn(|| keep_only(CapabilitySet::empty()).and_then(|_| uring::available())).join()
    });
    judge_io_uring(asked.unwrap_or_else(|panic| resume_unwind(panic)), setting)
}

fn judge_io_uring(answer: io::Result<()>, setting: Option<u64>) -> Check {
    let Err(error) = answer else { return Ok("io_uring_setup answers".to_owned()) };
    let (found, remedy) = match setting {
        Some(1 | 2) => (
            format!("kernel.io_uring_disabled is {}", setting.unwrap_or_default()),
            "to allow it: sudo sysctl -w kernel.io_uring_disabled=0",
        ),
        _ => (
            format!("io_uring_setup is refused ({error})"),
            "in a container, allow it in the seccomp profile (podman or docker run --security-opt seccomp=unconfined)",
        ),
    };
    Err(Lack {
        capability: Capability::IoUring,
        found,
        cost: "small packets to pods are written one by one: some three for every five with it"
            .to_owned(),
        remedy: remedy.to_owned(),
    })
}

/// Whether the kernel leaves IPIP packets alone, that is, does not decapsulate them.
pub fn no_ipip_module() -> Check {
    let modules = fs::read_to_string("/proc/modules").unwrap_or_default();
    let loaded = modules.lines().any(|line| line.starts_with("ipip "));
    judge_ipip(loaded || fs::exists("/sys/module/ipip").unwrap_or(false))
}

fn judge_ipip(loaded: bool) -> Check {
    if !loaded {
        return Ok("the kernel's ipip module is not loaded".to_owned());
    }
    Err(Lack {
        capability: Capability::NoIpipModule,
        found: "the kernel's ipip module is loaded".to_owned(),
        cost: "it takes Manx's tunnel packets apart a second time, or answers them with errors; the agent does not start"
            .to_owned(),
        remedy: "to unload it: sudo ip link delete tunl0; sudo modprobe -r ipip".to_owned(),
    })
}

/// The process's seccomp mode (proc(5)): 0 none, 1 strict, 2 filter.
pub(super) fn seccomp() -> u64 {
    status("Seccomp").and_then(|mode| mode.parse().ok()).unwrap_or(0)
}

/// Whether this process has `CAP_SETFCAP`.
pub(super) fn may_set_file_capabilities() -> bool {
    const SETFCAP: u32 = 31;
    let effective = status("CapEff").and_then(|bits| u64::from_str_radix(&bits, 16).ok());
    effective.unwrap_or(0) & (1 << SETFCAP) != 0
}

/// A field of `/proc/self/status`.
fn status(field: &str) -> Option<String> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.find(|(name, _)| *name == field).map(|(_, value)| value.trim().to_owned())
}

/// The number in a file, if the file exists and holds one.
pub(super) fn read_number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_compared_by_number() {
        for release in ["5.15.0-91-generic", "6.1.0", "6.18.44-fc", "10.0"] {
            assert!(judge_kernel(release).is_ok(), "{release}");
        }
        for release in ["5.4.0", "4.19.0", "3.10", "", "unknown"] {
            assert!(judge_kernel(release).is_err(), "{release}");
        }
    }

    #[test]
    fn each_lack_has_its_sentence() {
        let told = [
            judge_kernel("5.4.0-1"),
            judge_cores(1),
            judge_io_uring(Err(io::Error::from_raw_os_error(libc::EPERM)), Some(2)),
            judge_io_uring(Err(io::Error::from_raw_os_error(libc::ENOSYS)), None),
            judge_ipip(true),
        ];
        let told = told.map(|check| check.unwrap_err().to_string());
        insta::assert_snapshot!(told.join("\n"), @r#"
        the kernel is "5.4.0-1", older than 5.15: Manx is not tried on it; boot Linux 5.15 or newer
        one core may be used: the worker shares it with the pods' own programs, so throughput is a fraction; widen the affinity (taskset -c 0-N), the container's --cpus or the machine
        kernel.io_uring_disabled is 2: small packets to pods are written one by one: some three for every five with it; to allow it: sudo sysctl -w kernel.io_uring_disabled=0
        io_uring_setup is refused (Function not implemented (os error 38)): small packets to pods are written one by one: some three for every five with it; in a container, allow it in the seccomp profile (podman or docker run --security-opt seccomp=unconfined)
        the kernel's ipip module is loaded: it takes Manx's tunnel packets apart a second time, or answers them with errors; the agent does not start; to unload it: sudo ip link delete tunl0; sudo modprobe -r ipip
        "#);
        assert!(
            judge_cores(2).is_ok()
                && judge_io_uring(Ok(()), Some(0)).is_ok()
                && judge_ipip(false).is_ok()
        );
    }
}
