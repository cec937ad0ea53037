//! `/dev/net/tun`.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::MetadataExt;

use super::lack::{Capability, Check, Lack};

const DEVICE: &str = "/dev/net/tun";
const COST: &str = "pods are attached by veth pairs, which carry less";
/// Whom the kernel shows where the owner has no number in this user namespace (`user_namespaces(7)`).
const OVERFLOW: u32 = 65_534;

/// Whether `/dev/net/tun` opens for this process. Cheap, and changes nothing: a descriptor that names no device makes
/// none.
pub fn tun() -> Check {
    let Err(error) = OpenOptions::new().read(true).write(true).open(DEVICE) else {
        return Ok(format!("{DEVICE} opens"));
    };
    let node = std::fs::metadata(DEVICE)
        .ok()
        .map(|node| Node { mode: node.mode() & 0o7777, owner: node.uid() });
    Err(lack(&error, node, nix::unistd::geteuid().as_raw()))
}

/// The sentence when the device node opens and no device can be made by it.
pub(super) fn device_refused(error: &io::Error) -> Lack {
    Lack {
        capability: Capability::Tun,
        found: format!("{DEVICE} opens and makes no device ({error})"),
        cost: COST.to_owned(),
        remedy: "it takes CAP_NET_ADMIN; in a container: docker run --cap-add NET_ADMIN".to_owned(),
    }
}

#[derive(Debug, Clone, Copy)]
struct Node {
    mode: u32,
    owner: u32,
}

fn lack(error: &io::Error, node: Option<Node>, user: u32) -> Lack {
    let (found, remedy) = match (error.kind(), node) {
        (io::ErrorKind::PermissionDenied, Some(Node { mode, owner })) => (
            match owner {
                OVERFLOW => format!(
                    "{DEVICE} may not be opened (mode {mode:04o}, owner outside of this user namespace)"
                ),
                _ => format!(
                    "{DEVICE} may not be opened (mode {mode:04o}, owner {owner}, this user {user})"
                ),
            },
            format!("to allow it: sudo chmod 0666 {DEVICE}"),
        ),
        (io::ErrorKind::NotFound, _) => (
            format!("{DEVICE} is not there"),
            format!(
                "to make it: sudo modprobe tun; in a container, add the device (docker run --device {DEVICE})"
            ),
        ),
        _ => {
            // ENODEV, ENXIO: the node is there and the driver is not.
            (
                format!("{DEVICE} does not open ({error})"),
                "to load the driver: sudo modprobe tun".to_owned(),
            )
        }
    };
    Lack { capability: Capability::Tun, found, cost: COST.to_owned(), remedy }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_of_not_opening_has_its_sentence() {
        let node = Some(Node { mode: 0o600, owner: 0 });
        let told = [
            lack(&io::Error::from_raw_os_error(libc::EACCES), node, 1000),
            lack(
                &io::Error::from_raw_os_error(libc::EACCES),
                Some(Node { mode: 0o600, owner: OVERFLOW }),
                0,
            ),
            device_refused(&io::Error::from_raw_os_error(libc::EPERM)),
            lack(&io::Error::from_raw_os_error(libc::ENOENT), None, 1000),
            lack(&io::Error::from_raw_os_error(libc::ENODEV), node, 0),
        ];
        insta::assert_snapshot!(told.map(|lack| lack.to_string()).join("\n"), @r"
        /dev/net/tun may not be opened (mode 0600, owner 0, this user 1000): pods are attached by veth pairs, which carry less; to allow it: sudo chmod 0666 /dev/net/tun
        /dev/net/tun may not be opened (mode 0600, owner outside of this user namespace): pods are attached by veth pairs, which carry less; to allow it: sudo chmod 0666 /dev/net/tun
        /dev/net/tun opens and makes no device (Operation not permitted (os error 1)): pods are attached by veth pairs, which carry less; it takes CAP_NET_ADMIN; in a container: docker run --cap-add NET_ADMIN
        /dev/net/tun is not there: pods are attached by veth pairs, which carry less; to make it: sudo modprobe tun; in a container, add the device (docker run --device /dev/net/tun)
        /dev/net/tun does not open (No such device (os error 19)): pods are attached by veth pairs, which carry less; to load the driver: sudo modprobe tun
        ");
    }
}
