//! What a process has used of the machine.

use std::fs;
use std::time::Duration;

use crate::error::{Error, io};

/// What a process has used, and uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Usage {
    /// Processor time of its threads, in the program and in the kernel for it.
    pub(crate) processor: Duration,
    /// Bytes of memory that it has made itself. Programs and libraries are files, and not among them.
    pub(crate) memory: u64,
}

impl Usage {
    /// What two processes have used together.
    pub(super) fn with(self, other: Self) -> Self {
        let processor = self.processor + other.processor;
        Self { processor, memory: self.memory + other.memory }
    }
}

/// What a process has used until now.
pub(super) fn of(process: u32) -> Result<Usage, Error> {
    let path = format!("/proc/{process}/smaps_rollup");
    let rollup = fs::read_to_string(&path).map_err(io(format!("{path} cannot be read")))?;
    let memory = rollup.lines().find_map(|line| line.strip_prefix("Anonymous:"));
    let kib = memory.and_then(|it| it.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    let kib = kib.ok_or_else(|| Error::Failed(format!("{path} says no memory")))?;
    Ok(Usage { processor: processor_time(process)?, memory: kib * 1024 })
}

/// The processor time of a process's threads, in nanoseconds (`proc(5)`: `schedstat`).
pub(super) fn processor_time(process: u32) -> Result<Duration, Error> {
    let folder = format!("/proc/{process}/task");
    let threads = fs::read_dir(&folder).map_err(io(format!("{folder} cannot be read")))?;
    let times = threads.flatten().filter_map(|thread| {
        // A thread that ends meanwhile does nothing any more.
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    });
    Ok(Duration::from_nanos(times.sum()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_used_both() {
        let memory = vec![1u8; 8 << 20];
        let (before, mut sum) = (processor_time(std::process::id()).unwrap(), 0u64);
        while processor_time(std::process::id()).unwrap() < before + Duration::from_millis(30) {
            sum += memory.iter().map(|it| u64::from(*it)).sum::<u64>();
        }
        let used = of(std::process::id()).unwrap();
        assert!(used.processor >= Duration::from_millis(20), "{used:?} {sum}");
        assert!(used.memory >= memory.len() as u64, "{used:?}");
    }
}
