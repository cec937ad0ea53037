//! The processor time and memory that a process uses.

use std::fs;
use std::time::Duration;

use crate::error::{Error, io};

/// The processor time that a process has used, and its current memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Usage {
    /// The processor time of its threads, in user mode and in the kernel.
    pub(crate) processor: Duration,
    /// The number of bytes of its anonymous memory (`proc(5)`: `smaps_rollup`). Pages that belong to files, such as
    /// programs and libraries, are not counted.
    pub(crate) memory: u64,
}

impl Usage {
    /// The sum of the usages of two processes.
    pub(super) fn with(self, other: Self) -> Self {
        let processor = self.processor + other.processor;
        Self { processor, memory: self.memory + other.memory }
    }
}

/// The usage of a process up to now.
pub(super) fn of(process: u32) -> Result<Usage, Error> {
    let path = format!("/proc/{process}/smaps_rollup");
    let rollup = fs::read_to_string(&path).map_err(io(format!("{path} cannot be read")))?;
    let memory = rollup.lines().find_map(|line| line.strip_prefix("Anonymous:"));
    let kib = memory.and_then(|it| it.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    let kib = kib.ok_or_else(|| Error::Failed(format!("{path} says no memory")))?;
    Ok(Usage { processor: processor_time(process)?, memory: kib * 1024 })
}

/// The sum of the processor times of a process's threads (`proc(5)`: `schedstat`).
pub(super) fn processor_time(process: u32) -> Result<Duration, Error> {
    let folder = format!("/proc/{process}/task");
    let threads = fs::read_dir(&folder).map_err(io(format!("{folder} cannot be read")))?;
    let times = threads.flatten().filter_map(|thread| {
        // A thread that ends while this runs is not counted.
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
