//! Helpers for tests that need namespaces, for root and ordinary users. Built for tests only.
#![expect(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "a test stops where it cannot go on"
)]

use std::os::fd::OwnedFd;
use std::process::Command;

pub use manx_fixtures::skip::{Need, skip};

use crate::{doctor, netlink, netns};

/// The variable that is set in a test binary that runs itself again inside a user namespace.
const INSIDE: &str = "MANX_TEST_IN_USER_NAMESPACE";

/// A network namespace whose loopback device is up.
pub fn with_loopback() -> OwnedFd {
    let made = netns::create().unwrap();
    netlink::in_netns(&made, async |netlink| {
        let link = netlink.existing("lo").await?;
        netlink.set_up(link.index).await
    })
    .unwrap();
    made
}

/// Whether the calling test may make namespaces and should continue.
///
/// Without the privilege the same test is run again, alone, as root of a new user namespace. The calling test then has
/// the result of that run, and this returns false. If that is not allowed either, the test [cannot run](skip).
pub fn namespaces_allowed() -> bool {
    let reason = match netns::create() {
        Ok(_) => return true,
        Err(error) => error.to_string(),
    };
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("main");
    if std::env::var_os(INSIDE).is_none()
        && Command::new("unshare")
            .args(["-Urnm", "true"])
            .status()
            .is_ok_and(|status| status.success())
    {
        let output = Command::new("unshare")
            .args(["-Urnm", "--"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture", "--include-ignored"])
            .env(INSIDE, "1")
            .env_remove(Need::Namespaces.variable())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && text.contains("1 passed"),
            "{test} in a user namespace of its own:\n{text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        return false;
    }
    skip(Need::Namespaces, test, &reason);
    false
}

/// Whether TUN and TAP devices can be made. If not, the part of the calling test that needs them [cannot run](skip).
pub fn tun_allowed() -> bool {
    let Err(lack) = doctor::tun() else { return true };
    skip(Need::Tun, "the part with TUN and TAP devices", &lack.to_string());
    false
}

/// Whether there is a second user, which only root has. If not, the calling test [cannot run](skip).
pub fn users_allowed() -> bool {
    if manx_dataplane::port::tuntap::owner().unwrap().is_some() {
        return true;
    }
    skip(Need::Root, "a test with two users", "this user namespace knows one user");
    false
}
