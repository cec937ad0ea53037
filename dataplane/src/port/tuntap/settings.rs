//! Settings of a TUN or TAP device that hold for all its queues: the user that may open further queues, and the format
//! of packets.
//!
//! A process that holds a queue can change these settings. A process with `CAP_NET_ADMIN` over the device's namespace
//! can open a queue, if the device has several. This program cannot prevent that inside a pod: it detects the change
//! and restores the format.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use super::super::virtio::HEADER_LEN;
use crate::sys;

const OFFLOAD_TCP: u32 =
    libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
/// These flags exist in Linux 6.2 and later.
const OFFLOAD_UDP: u32 = libc::TUN_F_USO4 | libc::TUN_F_USO6;

/// Another handle of a device, with which the control loop restores changed settings. The control loop does it, because
/// the kernel changes the settings under the lock of its whole network configuration, for which no worker may wait. The
/// device exists as long as this handle.
#[derive(Debug)]
pub struct Settings(File);

/// The packet format that was found instead of this program's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Changed {
    /// The number of bytes of header in front of each packet.
    header_len: i32,
    /// Whether the header's fields are in this machine's byte order.
    our_order: bool,
}

impl fmt::Display for Changed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.our_order {
            write!(f, "a header of {} bytes instead of {HEADER_LEN}", self.header_len)
        } else {
            write!(f, "a header of {} bytes in another byte order", self.header_len)
        }
    }
}

impl Settings {
    pub(super) fn of(queue: &File) -> io::Result<Self> {
        queue.try_clone().map(Self)
    }

    /// Restores all settings if packets have another format, and returns that format.
    ///
    /// Returns an error if the device is gone.
    pub fn restore(&self) -> io::Result<Option<Changed>> {
        let device = self.0.as_fd();
        let found = Changed {
            header_len: sys::tun::vnet_header_len(device)?,
            our_order: sys::tun::is_little_endian(device)? == LITTLE_ENDIAN,
        };
        if found == (Changed { header_len: OUR_LEN, our_order: true }) {
            return Ok(None);
        }
        set(device)?;
        Ok(Some(found))
    }
}

const OUR_LEN: i32 = HEADER_LEN as u16 as i32;
/// Whether the device is set to little-endian headers. It is set even if the machine's own order is little-endian, so
/// that a setting of big-endian order has no effect.
const LITTLE_ENDIAN: bool = cfg!(target_endian = "little");

/// Sets all settings. Returns whether the device delivers UDP super-packets.
pub(super) fn set(device: BorrowedFd<'_>) -> io::Result<bool> {
    if let Some((user, group)) = owner()? {
        sys::tun::set_owner(device, user, group)?;
    }
    sys::tun::set_vnet_header_len(device, OUR_LEN)?;
    sys::tun::set_little_endian(device, LITTLE_ENDIAN)?;
    match sys::tun::set_offload(device, OFFLOAD_TCP | OFFLOAD_UDP) {
        Ok(()) => Ok(true),
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
            sys::tun::set_offload(device, OFFLOAD_TCP).map(|()| false)
        }
        Err(e) => Err(e),
    }
}

/// The user and the group that own devices: the highest ids that the calling process's user namespace has. In the
/// initial namespace both are 4294967294. Kubernetes runs no pod with that id (`runAsUser` ends at 2147483647). `None`:
/// the namespace has only one id, which all its processes share, so an owner would exclude no process.
pub fn owner() -> io::Result<Option<(u32, u32)>> {
    let highest = |map: &str| fs::read_to_string(map).map(|map| highest(&map));
    Ok(highest("/proc/self/uid_map")?.zip(highest("/proc/self/gid_map")?))
}

/// The highest id of a map, unless it is 0. The lines of a map have the form of `user_namespaces(7)`: first id inside,
/// first id outside, count.
fn highest(map: &str) -> Option<u32> {
    let last = |line: &str| {
        let mut numbers = line.split_whitespace().map(|number| number.parse::<u32>().ok());
        let (first, _, count) = (numbers.next()??, numbers.next()??, numbers.next()??);
        first.checked_add(count.checked_sub(1)?)
    };
    map.lines().filter_map(last).max().filter(|id| *id > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_id_of_a_map_is_the_owner_unless_it_is_roots() {
        let maps = [
            "         0          0 4294967295\n",
            "0 1000 1\n1 100000 65536\n",
            "0 100000 65536",
            "0 1000 1\n",
            "5 5 1\n1 1 1\n",
            "",
            "0 0 0\n4294967295 0 2\nx y z\n",
        ];
        let expected = [Some(4_294_967_294), Some(65_536), Some(65_535), None, Some(5), None, None];
        assert_eq!(maps.map(highest), expected);
    }
}
