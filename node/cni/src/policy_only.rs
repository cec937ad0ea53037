//! The verbs if another plugin connects the pod (`policyOnly`).
//!
//! ADD moves the host end of that plugin's veth into the [shelter], and gives the agent the shelter. DEL first removes
//! the stand-in of the host end, even without an agent, so that no packets pass the pod any more. The host end itself
//! ends with the pod's interface, which the other plugin removes.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use manx_api::client::{self, Client};
use manx_api::{Attach, AttachmentId, ErrorKind, MadeLink};
use manx_devices::shelter::{self, GivenBack, Lock, Pair, Shelter};
use manx_linux::netlink::{self, Link};
use manx_linux::netns::{self, sysctl};

use crate::agent::{attached_as, connect, detach_all, ensure_holder, id};
use crate::config::Config;
use crate::error::{Code, Error};
use crate::parameters::Container;
use crate::success::Success;

/// The result of [`give_all_back`].
#[derive(Debug, Default)]
pub(crate) struct Returned {
    /// The number of host ends that have their former configuration.
    pub(crate) whole: usize,
    /// The names of host ends that have lost their configuration.
    pub(crate) bare: Vec<String>,
    /// The reasons why others were not given back, each with its pod's attachment.
    pub(crate) failed: Vec<String>,
}

/// Gives every host end back to the node. If one fails, the others are given back, but the shelter stays, because the
/// pods' interfaces would end with it.
pub(crate) fn give_all_back(socket: &Path) -> Result<Returned, Error> {
    let path = shelter::path(socket);
    let lock = Lock::exclusive(&path)?;
    let mut returned = Returned::default();
    let Some(shelter) = Shelter::open(&path)? else {
        lock.map_or(Ok(()), |lock| lock.remove(&path))?;
        return Ok(returned);
    };
    // In the agent's container /proc/sys is read-only. If it stays so, the setting that needs it reports the error.
    let _ = sysctl::make_writable();
    let node = netns::current()?;
    let pairs = shelter.pairs()?;
    for pair in &pairs {
        match shelter.give_back(&node, pair) {
            Ok(GivenBack::Whole) => returned.whole += 1,
            Ok(GivenBack::Bare { host_end }) => returned.bare.push(host_end),
            Ok(GivenBack::Gone) => {}
            Err(error) => {
                let of = pair.attachment.as_ref().map(|it| format!("{it}: ")).unwrap_or_default();
                returned.failed.push(format!("{of}{error}"));
            }
        }
    }
    let left = shelter.pairs()?;
    if returned.failed.is_empty() && !left.is_empty() {
        returned.failed.push(format!("{} more have come meanwhile", left.len()));
    }
    if returned.failed.is_empty() {
        netns::delete(&path)?;
        lock.map_or(Ok(()), |lock| lock.remove(&path))?;
    }
    detach_given_back(socket, &pairs)?;
    Ok(returned)
}

/// Allows later ADDs to move host ends, if the socket's folder exists. The agent does the same at its start.
pub(crate) fn allow(socket: &Path) -> Result<(), shelter::Error> {
    match socket.parent() {
        Some(folder) if folder.is_dir() => Lock::create(&shelter::path(socket)),
        _ => Ok(()),
    }
}

/// Makes the agent, if there is one, detach pods whose links were given back.
fn detach_given_back(socket: &Path, given_back: &[Pair]) -> Result<(), Error> {
    let Ok(mut client) = Client::connect(socket) else { return Ok(()) };
    if matches!(client.ready(), Err(client::Error::Refused(it)) if it.kind == ErrorKind::Starting) {
        return Ok(());
    }
    let is_given_back =
        |id: &AttachmentId| given_back.iter().any(|pair| pair.attachment.as_ref() == Some(id));
    let known = attached_as(&mut client, is_given_back)?;
    detach_all(&mut client, known)
}

/// The shelter, if there is one. There is none after the machine was restarted.
fn open(config: &Config) -> Result<Option<Shelter>, Error> {
    match Shelter::open(&shelter::path(&config.socket)) {
        Err(shelter::Error::Namespace(netns::Error::NotANamespace(_))) => Ok(None),
        other => Ok(other?),
    }
}

fn pair_of(shelter: &Shelter, wanted: &AttachmentId) -> Result<Option<Pair>, Error> {
    let pairs = shelter.pairs()?;
    Ok(pairs.into_iter().find(|pair| pair.attachment.as_ref() == Some(wanted)))
}

/// ADD. The same ADD again has the same result. After an error no packets pass the pod.
pub(crate) fn add(config: &Config, container: &Container, netns: &Path) -> Result<String, Error> {
    let Container { interface, pod, .. } = container;
    let (previous, addresses) = addresses(config, netns, interface)?;
    let (node, of_pod) = (netns::current()?, netns::open(netns)?);
    let attachment = id(config, container);
    let [of_pod_link, host_end] = links(config, &attachment, [&node, &of_pod], interface)?;
    let made = MadeLink {
        index: host_end.index,
        // Every Ethernet device has an address of six bytes.
        pod: of_pod_link.mac.unwrap_or_default(),
        node: host_end.mac.unwrap_or_default(),
        mtu: host_end.mtu,
        gateways: gateways(&node, host_end.index)?,
    };
    let attach = Attach {
        addresses,
        sandbox: Some(attachment.sandbox.clone()),
        made: Some(made),
        ..Attach::new(pod.clone(), netns, interface)
    };
    let mut client = connect(config)?;
    if client.reserve(attach, of_pod.as_fd())?.is_ok() {
        hand_over(config, client, &node, &host_end, &attachment)?;
    }
    previous.in_version(&config.version).to_json()
}

/// The addresses that the other plugin has given the interface.
fn addresses<'a>(
    config: &'a Config,
    netns: &Path,
    interface: &str,
) -> Result<(&'a Success, Vec<IpAddr>), Error> {
    let missing = || {
        let text = format!(
            "`policyOnly`: found no {interface} of {} in `prevResult`; expected manx-cni behind the plugin that makes it",
            netns.display()
        );
        Error::new(Code::Config, text)
    };
    let previous = config.previous.as_ref().ok_or_else(missing)?;
    let addresses: Option<BTreeSet<IpAddr>> =
        previous.addresses_of(previous.find(netns, interface).ok_or_else(missing)?).collect();
    let addresses = addresses.filter(|all| !all.is_empty()).ok_or_else(|| {
        let text =
            format!("`prevResult.ips`: expected the addresses of {interface}, one of a family");
        Error::new(Code::Config, text)
    })?;
    Ok((previous, addresses.into_iter().collect()))
}

/// The pod's interface and its host end, in whichever namespace that is.
fn links(
    config: &Config,
    attachment: &AttachmentId,
    [node, pod]: [&OwnedFd; 2],
    interface: &str,
) -> Result<[Link; 2], Error> {
    if let Some(shelter) = open(config)?
        && let Some(pair) = pair_of(&shelter, attachment)?
    {
        return moved(&shelter, &pair, pod, interface);
    }
    Ok(shelter::host_end(node, pod, interface)?)
}

/// Moves the host end into the shelter if it is not yet there, and gives the agent the shelter.
fn hand_over(
    config: &Config,
    mut client: Client,
    node: &OwnedFd,
    host_end: &Link,
    attachment: &AttachmentId,
) -> Result<(), Error> {
    ensure_holder(config);
    let path = shelter::path(&config.socket);
    let _lock = Lock::shared(&path)?;
    let shelter = Shelter::ensure(&path)?;
    shelter.remove_stale_stand_ins()?;
    let (pair, is_new) = match pair_of(&shelter, attachment)? {
        Some(pair) => (pair, false),
        None => (shelter.take_in(node, host_end, attachment)?, true),
    };
    let handed = client.hand_over(&[shelter.netns().as_fd()]);
    if handed.is_err() && is_new {
        // The first error is the one to report.
        let _ = shelter.remove(&pair);
    }
    Ok(handed.map(drop)?)
}

/// The node's addresses on this interface, which is the host end or its stand-in: its own addresses, and its bridge's.
fn gateways(node: &OwnedFd, index: u32) -> Result<Vec<IpAddr>, Error> {
    let (links, addresses) = netlink::in_netns(node, async |netlink| {
        Ok((netlink.links().await?, netlink.addresses().await?))
    })?;
    let bridge = links.iter().find(|link| link.index == index).and_then(|link| link.master);
    let own = addresses.iter().filter(|it| it.index == index || Some(it.index) == bridge);
    let is_link_local = |it: &IpAddr| matches!(it, IpAddr::V6(v6) if v6.is_unicast_link_local());
    Ok(own.map(|it| it.net.addr()).filter(|it| !is_link_local(it)).collect())
}

/// The pod's interface and its host end, which is already in the shelter.
fn moved(
    shelter: &Shelter,
    pair: &Pair,
    pod: &OwnedFd,
    interface: &str,
) -> Result<[Link; 2], Error> {
    let links = |netns| netlink::in_netns(netns, async |netlink| netlink.links().await);
    let of_pod = links(pod)?.into_iter().find(|link| link.name == interface);
    let host_end = links(shelter.netns())?.into_iter().find(|link| link.index == pair.index);
    let both = of_pod.zip(host_end).map(|(of_pod, host_end)| [of_pod, host_end]);
    both.ok_or_else(|| changed("the other end of its interface is gone: make the pod anew"))
}

fn changed(text: &str) -> Error {
    Error::new(Code::Changed, text)
}

/// Removes the stand-ins of the host ends of such attachments, so that no packets pass these pods any more. If one
/// fails, the others are removed nevertheless.
pub(crate) fn remove_stand_ins(
    config: &Config,
    is_gone: impl Fn(&AttachmentId) -> bool,
) -> Result<(), Error> {
    let Some(shelter) = open(config)? else { return Ok(()) };
    let mut pairs = shelter.pairs()?;
    pairs.retain(|pair| pair.attachment.as_ref().is_some_and(&is_gone));
    Error::of_all(pairs.iter().map(|pair| shelter.remove(pair)))
}

/// CHECK: the stand-in of the host end is up, and the agent has the pod.
pub(crate) fn check(config: &Config, wanted: &AttachmentId) -> Result<(), Error> {
    let pair = match open(config)? {
        Some(shelter) => pair_of(&shelter, wanted)?,
        None => None,
    };
    let node = netns::current()?;
    let pair =
        pair.ok_or_else(|| changed("no link of the pod passes the agent: make the pod anew"))?;
    let links = netlink::in_netns(&node, async |netlink| netlink.links().await)?;
    let stand_in = links.iter().find(|link| pair.is_stand_in(link));
    match stand_in {
        Some(link) if link.up => Ok(()),
        Some(link) => Err(changed(&format!("{} in the node's namespace is down", link.name))),
        None => {
            Err(changed("what stands in for the pod's host end is gone from the node's namespace"))
        }
    }
}
