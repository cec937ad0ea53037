//! The checks by trying, in a process of its own that ends afterwards, so that nothing is left behind.

use std::fs;
use std::io;
use std::path::Path;

use manx_dataplane::port::PacketIo;
use manx_dataplane::port::Reception;
use manx_dataplane::port::ipip_raw::IpipRaw;
use manx_dataplane::port::link::Link;
use manx_dataplane::port::packet::{PacketPort, Receipt};
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{getegid, geteuid};

use super::lack::{Capability, Check, Lack};
use super::{namespaces, sockets, tun};
use crate::netlink::{self, Peer, Veth};
use crate::netns;

/// The loopback interface's index, the same in every network namespace.
const LOOPBACK: u32 = 1;

/// What was tried, with the results. What could not be tried is absent.
pub type Found = Vec<(Capability, Check)>;

/// Tries everything in namespaces like those of the rig. Call it in a process with a single thread; it changes the
/// process permanently.
pub fn probe() -> Found {
    let outside = tun::tun_opens();
    let user = enter_user_namespace();
    // Root continues without a user namespace.
    let go_on = user.is_ok() || geteuid().is_root();
    let mut found = vec![(Capability::UserNamespaces, user)];
    let network = if go_on { Some(enter_other_namespaces()) } else { None };
    let inside = matches!(network, Some(Ok(_)));
    found.extend(network.map(|network| (Capability::NetworkNamespaces, network)));
    if inside {
        // As for an agent in the rig: opened in these namespaces, with the rights that the process has in them.
        found.extend(try_tun());
        found.push((Capability::PacketSockets, try_packet_sockets()));
        found.push((Capability::RawSockets, try_raw_sockets()));
        found.push((Capability::Ipv6, try_ipv6()));
    } else if let Err(lack) = outside {
        // If it opens, it is still not known whether it makes devices.
        found.push((Capability::Tun, Err(lack)));
    }
    found
}

/// Becomes root of a user namespace. Without `CAP_SETGID` a group can be mapped only after setgroups is denied
/// (`user_namespaces(7)`).
fn enter_user_namespace() -> Check {
    let refused = |step: &str| {
        let step = step.to_owned();
        move |errno| namespaces::user_namespaces_refused(&step, errno)
    };
    let (user, group) = (geteuid(), getegid());
    unshare(CloneFlags::CLONE_NEWUSER).map_err(refused("unshare"))?;
    for (file, text) in [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("0 {user} 1")),
        ("gid_map", format!("0 {group} 1")),
    ] {
        fs::write(Path::new("/proc/self").join(file), text)
            .map_err(|error| errno(&error))
            .map_err(refused(file))?;
    }
    Ok("this user is root of a user namespace of its own".to_owned())
}

/// Enters the other namespaces and does what needs capabilities in them: this shows whether `AppArmor` removed the
/// capabilities.
fn enter_other_namespaces() -> Check {
    let refused = |step: &str| {
        let step = step.to_owned();
        move |errno| namespaces::network_namespaces_refused(&step, errno)
    };
    unshare(
        CloneFlags::CLONE_NEWNS
            | CloneFlags::CLONE_NEWNET
            | CloneFlags::CLONE_NEWUTS
            | CloneFlags::CLONE_NEWIPC,
    )
    .map_err(refused("unshare"))?;
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)
        .map_err(refused("making mounts private"))?;
    let place = std::env::temp_dir();
    mount(Some("manx"), &place, Some("tmpfs"), MsFlags::MS_NOSUID | MsFlags::MS_NODEV, none)
        .map_err(refused("mounting a tmpfs"))?;
    let configured = netns::current().map_err(netlink::Error::from).and_then(|here| {
        netlink::in_netns(&here, async |netlink| {
            netlink.set_up(LOOPBACK).await?;
            netlink.add_bridge("manx-doctor").await?;
            let peer = Peer { name: "manx-doctor-b", netns: None, mac: None };
            netlink.add_veth(&Veth { name: "manx-doctor-a", mac: None, mtu: 1500, peer }).await
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

fn try_tun() -> Found {
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

fn errno(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw)
}
