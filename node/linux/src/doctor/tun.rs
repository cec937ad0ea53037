//! `/dev/net/tun`.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::MetadataExt;

use manx_dataplane::port::tuntap::{Kind, Queue};

use super::lack::{Capability, Lack};

const DEVICE: &str = "/dev/net/tun";
/// The name of the probe's device. The kernel replaces `%d` with a free number.
const PROBE: &str = "manx-probe%d";
const COST: &str = "pods are attached by veth pairs, which carry less";
/// The owner that the kernel shows if the real owner has no number in this user namespace (`user_namespaces(7)`).
const OVERFLOW: u32 = 65_534;

/// Opens `/dev/net/tun` and makes a device with two queues in the calling thread's network namespace; the device is
/// removed at once. Opening the device node is not enough: making the device needs `CAP_NET_ADMIN` in the namespace,
/// and a driver.
pub fn tun() -> Result<Queue, Lack> {
    tun_opens()?;
    let queues = Queue::create(Kind::Tun, PROBE, 2).map_err(|error| device_refused(&error))?;
    queues.into_iter().next().ok_or_else(|| device_refused(&io::Error::other("no queue")))
}

/// Whether `/dev/net/tun` opens for this process. Changes nothing: without a name the descriptor makes no device.
pub fn tun_opens() -> Result<(), Lack> {
    let Err(error) = OpenOptions::new().read(true).write(true).open(DEVICE) else {
        return Ok(());
    };
    let node = std::fs::metadata(DEVICE)
        .ok()
        .map(|node| Node { mode: node.mode() & 0o7777, owner: node.uid() });
    Err(lack(&error, node, nix::unistd::geteuid().as_raw()))
}

/// The message if the device node opens but no device can be made with it.
fn device_refused(error: &io::Error) -> Lack {
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
                "to make it: sudo modprobe tun; in a container, add the device (podman or docker run --device {DEVICE})"
            ),
        ),
        _ => {
            // ENODEV, ENXIO: the node exists, but the driver is missing.
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
    use std::process::Command;

    use super::*;
    use crate::testing::{Need, skip};

    /// Set in a process without `CAP_NET_ADMIN`.
    const POWERLESS: &str = "MANX_TEST_WITHOUT_NET_ADMIN";

    #[test]
    fn a_node_that_opens_and_makes_no_device_is_a_lack() {
        let test = "doctor::tun::tests::a_node_that_opens_and_makes_no_device_is_a_lack";
        if std::env::var_os(POWERLESS).is_some() {
            tun_opens().unwrap();
            let found = tun().unwrap_err().found;
            assert!(found.contains("opens and makes no device"), "{found}");
            return;
        }
        let setpriv = || {
            let mut command = Command::new("setpriv");
            command.args(["--bounding-set", "-net_admin", "--inh-caps", "-net_admin", "--"]);
            command
        };
        let is_there = setpriv().arg("true").status().is_ok_and(|status| status.success());
        if !nix::unistd::geteuid().is_root() || !is_there || tun_opens().is_err() {
            return skip(Need::Root, test, "it takes root, setpriv and /dev/net/tun");
        }
        let again = setpriv()
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", test])
            .env(POWERLESS, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&again.stdout);
        assert!(again.status.success() && said.contains("1 passed"), "{said}");
    }

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
        /dev/net/tun is not there: pods are attached by veth pairs, which carry less; to make it: sudo modprobe tun; in a container, add the device (podman or docker run --device /dev/net/tun)
        /dev/net/tun does not open (No such device (os error 19)): pods are attached by veth pairs, which carry less; to load the driver: sudo modprobe tun
        ");
    }
}
