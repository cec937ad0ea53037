//! The verbs (specification 1.1.0, section 2, "CNI operations").

use std::collections::BTreeSet;
use std::io::{Write as _, stderr};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use manx_api::client::{self, Client};
use manx_api::{Attach, Attached, Attachment, AttachmentId, Detach, ErrorKind, PodName};
use manx_dataplane::worker::Polling;
use manx_devices::device::{self, DeviceSpec};
use manx_devices::pod_device;
use manx_linux::{netlink, netns};
use serde_json::json;

use crate::agent::{attached_as, connect, detach_all, ensure_holder, id};
use crate::config::Config;
use crate::error::{Code, Error};
use crate::namespace;
use crate::parameters::Container;
use crate::policy_only;
use crate::success::{Success, default_route, mac_text};
use crate::version::VERSIONS;

/// The time that CHECK waits for a pod's object ("a reasonable convergence delay").
const SETTLED: Duration = Duration::from_secs(2);
/// The interval at which CHECK looks for the pod's object.
const LOOK: Duration = Duration::from_millis(50);

fn netns_of(container: &Container) -> Result<&Path, Error> {
    let missing = || Error::new(Code::Environment, "CNI_NETNS: it is not set");
    container.netns.as_deref().ok_or_else(missing)
}

pub(crate) fn version(spoken: &str) -> String {
    format!("{:#}\n", json!({"cniVersion": spoken, "supportedVersions": VERSIONS}))
}

/// ADD: the agent makes the interface, and replies when the pod's policy is in force. The same ADD again has the same
/// result.
pub(crate) fn add(config: &Config, container: &Container) -> Result<String, Error> {
    let options = config.attachment_options()?;
    let (netns, Container { interface, pod, .. }) = (netns_of(container)?, container);
    namespace::check(netns)?;
    if config.policy_only {
        return policy_only::add(config, container, netns);
    }
    if config.previous.as_ref().is_some_and(|it| it.find(netns, interface).is_some()) {
        let text = format!(
            "`prevResult` has {interface} already: manx-cni makes a pod's interface, and does not take over that of another plugin; name it \
             before other plugins, or behind one with `policyOnly`"
        );
        return Err(Error::new(Code::Config, text));
    }
    let attach = Attach {
        addresses: options.addresses,
        sandbox: Some(id(config, container).sandbox),
        device: options.device,
        ..Attach::new(pod.clone(), netns, interface)
    };
    let made = attach_with_device(config, attach)?;
    config.previous_result().with_interface(netns, interface, &made).to_json()
}

/// Attaches a pod. If the pod's namespace may be entered, a TUN or TAP device is made here and its queues are handed to
/// the agent, so the agent does not need that right. The agent makes veths itself.
fn attach_with_device(config: &Config, attach: Attach) -> Result<Attached, Error> {
    let mut client = connect(config)?;
    let (path, interface) = (attach.netns.clone(), attach.interface.clone());
    let netns = netns::open(&path).map_err(device::Error::from)?;
    let reserved = match client.reserve(attach.clone(), netns.as_fd())? {
        Ok(reserved) => reserved,
        Err(attached) if has_interface(&netns, &interface)? => return Ok(attached),
        // The namespace has the inode number of an earlier namespace, which ended together with its interface. So the agent
        // treats the two namespaces as one.
        Err(_) => {
            let pod = attach.pod.clone();
            client.detach(Detach { pod: pod.clone(), id: attach.id() })?;
            match client.reserve(attach, netns.as_fd())? {
                Ok(reserved) => reserved,
                Err(attached) if has_interface(&netns, &interface)? => return Ok(attached),
                Err(_) => {
                    let text = format!(
                        "the agent has attached {pod} again meanwhile, and {interface} is not in its network namespace"
                    );
                    return Err(Error::new(Code::TryAgain, text));
                }
            }
        }
    };
    ensure_holder(config);
    let wanted = DeviceSpec {
        interface: &interface,
        device: reserved.device,
        addresses: &reserved.addresses,
        mtu: reserved.mtu,
        segments: reserved.segments,
        queues: reserved.queues,
        polling: Polling::Adaptive,
    };
    let queues = pod_device::make(&netns, &path, &wanted)?;
    let queues: Vec<BorrowedFd<'_>> = queues.iter().map(AsFd::as_fd).collect();
    Ok(client.hand_over(&queues)?)
}

fn has_interface(netns: &OwnedFd, interface: &str) -> Result<bool, Error> {
    let found = netlink::in_netns(netns, async |netlink| netlink.link(interface).await)?;
    Ok(found.is_some())
}

/// DEL: the agent removes the interface and the addresses, if they still belong to this container.
pub(crate) fn del(config: &Config, container: &Container) -> Result<String, Error> {
    let gone = id(config, container);
    if config.policy_only {
        policy_only::remove_stand_ins(config, |it| *it == gone)?;
    }
    let mut client = connect(config)?;
    let known = attached_as(&mut client, |id| *id == gone)?;
    let pods: Vec<PodName> = known.iter().map(|it| it.pod.clone()).collect();
    let netns = container.netns.as_deref().filter(|it| namespace::check(it).is_ok());
    let netns = netns.filter(|_| !config.policy_only && !pods.is_empty());
    let netns = netns.and_then(|path| netns::open(path).ok());
    let remove = || match &netns {
        Some(netns) => pod_device::remove(netns, &container.interface),
        None => Ok(()),
    };
    // The interface is removed here, and not by the holder, which would close the last queue: closing takes the kernel some
    // 20 ms for each queue, and the holder has one thread. While the agent knows the attachment but has no device for it,
    // the interface belongs to another sandbox of the pod, which keeps it if the attachment fails.
    let is_own = known.iter().any(|it| it.device.is_some());
    let removed = if is_own { remove() } else { Ok(()) };
    if known.is_empty() {
        // A killed agent may have taken addresses for this attachment. The next agent lists no attachment for such
        // addresses.
        client.detach(Detach { pod: container.pod.clone(), id: Some(gone.clone()) })?;
    }
    detach_all(&mut client, known)?;
    removed?;
    let is_anothers = |it: &Attachment| it.device.is_some() && pods.contains(&it.pod);
    if !is_own && netns.is_some() && !client.attachments()?.iter().any(is_anothers) {
        remove()?;
    }
    Ok(String::new())
}

/// GC: the agent frees everything in this network, except the resources of containers that the runtime still has.
pub(crate) fn gc(config: &Config) -> Result<String, Error> {
    let Some(valid) = &config.valid else {
        // "The runtime must provide" this list. A runtime that omits it must not cut off all its pods.
        let text = "manx-cni: GC without `cni.dev/valid-attachments`: nothing is known to be stale";
        let _ = writeln!(stderr(), "{text}");
        return Ok(String::new());
    };
    let is_stale = |AttachmentId { sandbox, interface }: &AttachmentId| {
        sandbox.network == config.network
            && !valid
                .iter()
                .any(|it| it.container == sandbox.container && it.interface == *interface)
    };
    if config.policy_only {
        policy_only::remove_stand_ins(config, is_stale)?;
    }
    let mut client = connect(config)?;
    let stale = attached_as(&mut client, is_stale)?;
    detach_all(&mut client, stale)?;
    Ok(String::new())
}

/// CHECK: the agent has the pod and its policy is in force, and the pod's namespace matches `prevResult`.
pub(crate) fn check(config: &Config, container: &Container) -> Result<String, Error> {
    config.attachment_options()?;
    let (netns, interface) = (netns_of(container)?, &container.interface);
    let previous = config.previous.as_ref().ok_or_else(|| {
        Error::new(Code::Config, "CHECK needs `prevResult`, the result of the ADD")
    })?;
    let index = previous.find(netns, interface).ok_or_else(|| {
        let text = format!("`prevResult` has no {interface} in {}", netns.display());
        Error::new(Code::Config, text)
    })?;
    let addresses: Option<BTreeSet<IpAddr>> = previous.addresses_of(index).collect();
    let addresses = addresses
        .ok_or_else(|| Error::new(Code::Config, "`prevResult.ips` has an address that is none"))?;
    let mac = check_agent(config, container, &addresses)?;
    if config.policy_only {
        policy_only::check(config, &id(config, container))?;
    }
    check_namespace(previous, mac, netns, interface, &addresses)?;
    Ok(String::new())
}

fn changed(text: String) -> Error {
    Error::new(Code::Changed, text)
}

/// Checks the agent's attachment. Returns the hardware address to which packets for the pod are sent.
fn check_agent(
    config: &Config,
    container: &Container,
    addresses: &BTreeSet<IpAddr>,
) -> Result<Option<[u8; 6]>, Error> {
    let found = await_attachment(&mut connect(config)?, &id(config, container))?;
    let has: BTreeSet<IpAddr> = found.addresses.into_iter().collect();
    if has != *addresses {
        let text =
            format!("the agent has {has:?} for pod {}, `prevResult` {addresses:?}", found.pod);
        return Err(changed(text));
    }
    let pod = found.pod;
    if found.device.is_none() {
        let text = format!(
            "the agent has the addresses of pod {pod} and not its device, so that nothing passes: make the pod anew"
        );
        return Err(changed(text));
    }
    if !found.enforced {
        let text = format!(
            "the agent has no policy for pod {pod}, so that nothing passes: there is no valid Pod object of this name with its addresses"
        );
        return Err(changed(text));
    }
    Ok(found.mac)
}

/// The agent's attachment. The agent may receive the pod's object some time after the pod is attached, so this waits for
/// the object for a moment.
fn await_attachment(client: &mut Client, wanted: &AttachmentId) -> Result<Attachment, Error> {
    let start = Instant::now();
    loop {
        let found = client.attachments()?.into_iter().find(|it| it.id.as_ref() == Some(wanted));
        let Some(found) = found else {
            let text =
                format!("the agent knows no {wanted}: it was never attached, or is detached");
            return Err(Error::new(Code::UnknownContainer, text));
        };
        if found.device.is_none() || found.enforced || start.elapsed() > SETTLED {
            return Ok(found);
        }
        thread::sleep(LOOK);
    }
}

/// Checks the interface in the pod's namespace. Additions by others are ignored.
fn check_namespace(
    previous: &Success,
    mac: Option<[u8; 6]>,
    netns: &Path,
    interface: &str,
    addresses: &BTreeSet<IpAddr>,
) -> Result<(), Error> {
    let place = netns.display();
    let Some(found) = namespace::enter_and_find(netns, interface)? else {
        return Err(changed(format!("{place} has no interface {interface}")));
    };
    if !found.is_up {
        return Err(changed(format!("{interface} in {place} is down")));
    }
    if mac.is_some() && mac != found.mac {
        let [is, wanted] = [found.mac, mac].map(|mac| mac.map_or("none".to_owned(), mac_text));
        let text = format!(
            "{interface} in {place} has the hardware address {is}, and the pod's packets go to {wanted}"
        );
        return Err(changed(text));
    }
    if let Some(address) = addresses.difference(&found.addresses).next() {
        return Err(changed(format!("{interface} in {place} does not have the address {address}")));
    }
    for (is_v4, is_there) in [true, false].into_iter().zip(found.default_routes) {
        let route = default_route(is_v4);
        let is_wanted = previous.routes.iter().any(|it| it.destination == route);
        if is_wanted && addresses.iter().any(|it| it.is_ipv4() == is_v4) && !is_there {
            return Err(changed(format!("{place} has no route {route} by {interface}")));
        }
    }
    Ok(())
}

/// STATUS: whether a pod could be attached. Without an agent the attached pods have no network either, because the
/// agent carries their packets.
pub(crate) fn status(config: &Config) -> Result<String, Error> {
    config.attachment_options()?;
    let mut client = connect(config).map_err(|error| Error { code: Code::Cut, ..error })?;
    let ready = client.ready().map_err(|error| match error {
        client::Error::Refused(failure)
            if !matches!(failure.kind, ErrorKind::Version | ErrorKind::Starting) =>
        {
            Error::new(Code::Unavailable, failure.message)
        }
        other => Error::new(Code::Cut, other.to_string()),
    });
    ready.map(|()| String::new())
}
