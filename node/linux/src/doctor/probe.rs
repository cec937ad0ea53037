//! Checks that try the action itself, each in a child process, so that nothing remains.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use manx_dataplane::port::Reception;
use manx_dataplane::port::ipip_raw::IpipRaw;
use manx_dataplane::port::link::Link;
use manx_dataplane::port::packet::{PacketPort, Receipt};
use nix::errno::Errno;
use nix::unistd::geteuid;

use super::lack::{Capability, Check, Lack};
use super::{namespaces, rules, sandbox, sockets, tun};
use crate::netlink::{self, Peer, Veth};
use crate::netns::{self, sysctl};

/// The loopback interface's index, the same in every network namespace.
const LOOPBACK: u32 = 1;

/// The tried capabilities with the results. A capability that could not be tried is absent.
pub type ProbeResults = Vec<(Capability, Check)>;

/// Runs `manx internal STAGE` and reads its results.
pub(super) fn run(stage: &str) -> io::Result<ProbeResults> {
    // /proc/self/exe is used because the file at the program's path may have been replaced.
    let output = Command::new("/proc/self/exe")
        .args(["internal", stage])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()?;
    serde_json::from_slice(&output.stdout).map_err(|error| {
        io::Error::other(format!(
            "the probing process ended with {} and no answer ({error})",
            output.status
        ))
    })
}

/// Enters a user and a pid namespace as the supervisor of a rig does, and tries the rest in a child. Call it in a
/// process with a single thread, because it changes the process permanently.
pub fn probe() -> io::Result<ProbeResults> {
    let outside = tun::tun_opens();
    let user = sandbox::enter_user_namespace()
        .map(|()| "this user is root of a user and a pid namespace of its own".to_owned());
    // Root continues without a user namespace.
    let go_on = user.is_ok() || geteuid().is_root();
    let mut found = vec![(Capability::UserNamespaces, user)];
    if go_on {
        found.extend(run("doctor-probe-inside")?);
    }
    if let Err(lack) = outside
        && !found.iter().any(|(capability, _)| *capability == Capability::Tun)
    {
        // Even if the device node opens, it is not known whether devices can be made.
        found.push((Capability::Tun, Err(lack)));
    }
    Ok(found)
}

/// Enters the other namespaces of a rig and tries the operations of a rig there. Call it like [`probe`].
pub fn probe_inside() -> ProbeResults {
    let network = try_namespaces();
    let inside = network.is_ok();
    let mut found = vec![(Capability::NetworkNamespaces, network)];
    if inside {
        found.push((Capability::Settings, try_settings()));
        // The device is opened in these namespaces, with the rights of the process there, as by an agent in the rig.
        found.extend(try_tun());
        found.push((Capability::PacketSockets, try_packet_sockets()));
        found.push((Capability::RawSockets, try_raw_sockets()));
        found.push((Capability::PortRules, rules::try_port_rules()));
        found.push((Capability::Ipv6, try_ipv6()));
    }
    found
}

/// A folder that exists, for a mount that only the probe sees.
fn place() -> PathBuf {
    let temporary = std::env::temp_dir();
    if temporary.is_dir() { temporary } else { "/sys".into() }
}

/// Enters the namespaces and does operations that need capabilities there. They fail if `AppArmor` removed the
/// capabilities.
fn try_namespaces() -> Check {
    let refused =
        |step: &'static str| move |errno| namespaces::network_namespaces_refused(step, errno);
    let place = place();
    sandbox::enter_other_namespaces(&place)?;
    let configured = netns::current().map_err(netlink::Error::from).and_then(|here| {
        netlink::in_netns(&here, async |netlink| {
            netlink.set_up(LOOPBACK).await?;
            netlink.add_bridge("manx-doctor").await?;
            let peer = Peer { name: "manx-doctor-b", netns: None, mac: None, index: None };
            netlink
                .add_veth(&Veth { name: "manx-doctor-a", mac: None, index: None, mtu: 1500, peer })
                .await
        })
    });
    configured
        .map_err(|error| error.errno().map_or(Errno::UnknownErrno, Errno::from_raw))
        .map_err(refused("making interfaces"))?;
    netns::create_named(&place.join("netns"))
        .map_err(|error| error.errno())
        .map_err(refused("naming a network namespace"))?;
    Ok("network, mount, IPC and host name namespaces can be made and set up".to_owned())
}

/// Sets the settings of a rig and its agents in the calling process's network namespace.
fn try_settings() -> Check {
    [sysctl::RIG, sysctl::FORWARD, sysctl::PLAIN_BRIDGES, sysctl::SILENT]
        .into_iter()
        .try_for_each(sysctl::apply)
        .and_then(|()| sysctl::make_ipv6_static("lo"))
        .map_err(|error| namespaces::settings_refused(&error))?;
    Ok("settings of these namespaces can be written".to_owned())
}

fn try_tun() -> ProbeResults {
    let makes = "/dev/net/tun makes devices with queues and TCP super-packets".to_owned();
    match tun() {
        Ok(queue) if queue.capabilities().udp_segmentation => vec![
            (Capability::Tun, Ok(makes)),
            (Capability::TunUdpOffload, Ok("TUN devices carry UDP super-packets".to_owned())),
        ],
        Ok(_) => {
            vec![(Capability::Tun, Ok(makes)), (Capability::TunUdpOffload, Err(no_udp_offload()))]
        }
        Err(lack) => vec![(Capability::Tun, Err(lack))],
    }
}

fn no_udp_offload() -> Lack {
    Lack {
        capability: Capability::TunUdpOffload,
        found: "TUN devices carry no UDP super-packets (the kernel is older than 6.2)".to_owned(),
        cost: "bulk UDP between pods goes packet by packet".to_owned(),
        remedy: "boot Linux 6.2 or newer".to_owned(),
    }
}

fn try_packet_sockets() -> Check {
    let link = Link { own: [0; 6], peer: [0; 6], addresses: Vec::new() };
    match PacketPort::open(LOOPBACK, &link, 1, Receipt::Calls) {
        Ok(_) => Ok("packet sockets with virtio headers open".to_owned()),
        Err(error) => Err(sockets::packet_sockets_refused(&error)),
    }
}

fn try_raw_sockets() -> Check {
    match IpipRaw::open(Reception::Quiet) {
        Ok(_) => Ok("raw sockets of protocol 4 open".to_owned()),
        Err(error) => Err(sockets::raw_sockets_refused(&error)),
    }
}

fn try_ipv6() -> Check {
    if fs::exists("/proc/sys/net/ipv6").unwrap_or(false) {
        return Ok("the kernel speaks IPv6".to_owned());
    }
    Err(Lack {
        capability: Capability::Ipv6,
        found: "the kernel speaks no IPv6".to_owned(),
        cost: "pods have IPv4 addresses only".to_owned(),
        remedy: "boot without ipv6.disable=1".to_owned(),
    })
}
