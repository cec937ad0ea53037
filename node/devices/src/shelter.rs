//! The shelter: a named network namespace for the host ends of other plugins' veths, so that packets between their pods
//! and the node pass only through the agent.
//!
//! ```text
//!  node                         shelter                                            pod
//!  stand-in  <--- veth --->  inner end   (agent)   host end  <--- veth --->  its interface
//! ```
//!
//! The stand-in has the name, index, hardware address and configuration of the host end. Only the stand-in stores that
//! configuration, and it is read from there when the host end is given back. The inner end's alias names the pair's
//! attachment. The namespace is kept by its name, because the kernel deletes veths with their namespace, and the pod's
//! interface with them.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use manx_api::{AttachmentId, Sandbox};
use manx_linux::netlink::{self, InterfaceConfig, Link, Netlink, Peer, Veth};
use manx_linux::netns::{self, sysctl};
use nix::fcntl::FlockArg;

mod lock;

pub use lock::Lock;

/// The longest alias that the kernel takes, in bytes (`IFALIASZ`, with the zero at its end).
const ALIAS_MAX: usize = 255;
/// The name of an inner end is this prefix, followed by the host end's index.
const PREFIX: &str = "manx-";
/// The difference between the inner end's index and the host end's. Host ends keep their indexes, so the low indexes
/// must be free for them.
const ABOVE: u32 = 0x100_0000;

/// The reason why a host end cannot be moved into the shelter, or cannot be given back.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refuses a request.
    #[error(transparent)]
    Netlink(#[from] netlink::Error),
    /// A namespace cannot be made, named or entered.
    #[error(transparent)]
    Namespace(#[from] netns::Error),
    /// The file of the shelter's name, or the lock file, cannot be used.
    #[error("{path} cannot be {verb}: {source}")]
    Lock {
        path: PathBuf,
        /// `made`, `opened`, `locked`, `read` or `removed`.
        verb: &'static str,
        source: std::io::Error,
    },
    /// The pod's interface has no host end that can be moved.
    #[error(
        "{interface} in the pod is {found}; expected: one end of a veth pair whose other end is in the node's namespace, as the \
         plugins ptp and bridge make it (macvlan, ipvlan and host-device cannot be judged beside another plugin)"
    )]
    NoHostEnd {
        interface: String,
        /// A description of the interface.
        found: String,
    },
    /// The host end has a setting that would be lost.
    #[error(
        "{host_end}, the host end of the pod's interface, has {found}, which it would lose; name manx-cni directly behind the \
         plugin that makes the interface, or let that plugin do without"
    )]
    WouldLose {
        host_end: String,
        /// The setting that would be lost.
        found: String,
    },
    /// The lock file does not exist.
    #[error(
        "{0} is not there: Manx was taken away from this node, and its pods were given back to the plugin that connected them; \
         expected an agent with --policy-only, which makes that file at its start, or `manx-cni install --policy-only`"
    )]
    GivenBack(PathBuf),
    /// The host end has another index after its move, so that no other program recognises it.
    #[error(
        "{host_end} had the index {index} and has {found} after its move, because another interface has that index there; nothing \
         passes the pod: make it anew"
    )]
    IndexTaken {
        host_end: String,
        /// The index before the move.
        index: u32,
        /// The index after the move.
        found: u32,
    },
    /// The host end is gone.
    #[error("{0}, the host end of the pod's interface, is gone: its pod has ended meanwhile")]
    Gone(String),
    /// The attachment's names cannot be written into an alias.
    #[error(
        "the attachment ({0}) cannot be noted on an interface: expected names without spaces, {ALIAS_MAX} bytes together"
    )]
    Name(AttachmentId),
}

/// The namespace that contains host ends.
#[derive(Debug)]
pub struct Shelter {
    netns: OwnedFd,
}

/// A host end in the shelter and its stand-in, or the part of them that still exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    /// The index that the host end and the stand-in both have.
    pub index: u32,
    /// The pair's attachment. `None` if the move was not finished, or there is no stand-in.
    pub attachment: Option<AttachmentId>,
}

/// The state of a host end after it should have been given back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GivenBack {
    /// The host end has its former configuration.
    Whole,
    /// The host end is up and has no other configuration, because it had no stand-in.
    Bare { host_end: String },
    /// The host end was deleted with its pod.
    Gone,
}

impl Pair {
    fn of(link: &Link) -> Option<Self> {
        let index = link.name.strip_prefix(PREFIX)?.parse().ok()?;
        let attachment = link.alias.as_deref().and_then(read_alias);
        let pair = Self { index, attachment };
        (link.index == pair.inner_index()).then_some(pair)
    }

    fn inner_end(&self) -> String {
        format!("{PREFIX}{}", self.index)
    }

    /// Whether an interface of the node's namespace is the stand-in.
    pub fn is_stand_in(&self, link: &Link) -> bool {
        link.index == self.index && link.veth_peer == Some(self.inner_index())
    }

    /// The index of the inner end.
    pub const fn inner_index(&self) -> u32 {
        self.index.saturating_add(ABOVE)
    }
}

fn alias(attachment: &AttachmentId) -> Result<String, Error> {
    let AttachmentId { sandbox: Sandbox { network, container }, interface } = attachment;
    let alias = [interface, container, network].map(String::as_str).join(" ");
    if read_alias(&alias).as_ref() != Some(attachment) || alias.len() > ALIAS_MAX {
        return Err(Error::Name(attachment.clone()));
    }
    Ok(alias)
}

fn read_alias(alias: &str) -> Option<AttachmentId> {
    let mut parts = alias.split(' ').map(str::to_owned);
    let [interface, container, network] = [parts.next()?, parts.next()?, parts.next()?];
    let whole = parts.next().is_none() && !network.is_empty();
    whole.then_some(AttachmentId { sandbox: Sandbox { network, container }, interface })
}

/// The shelter's path, next to the agent's socket.
pub fn path(agent: &Path) -> PathBuf {
    agent.with_extension("netns")
}

/// A pod's interface and its host end in the node's namespace.
///
/// # Errors
/// [`Error::NoHostEnd`], and [`Error::WouldLose`] if it has a setting that an [`InterfaceConfig`] does not contain.
pub fn host_end(node: &OwnedFd, pod: &OwnedFd, interface: &str) -> Result<[Link; 2], Error> {
    let of_pod = netlink::in_netns(pod, async |netlink| netlink.existing(interface).await)?;
    let none =
        |found: &str| Error::NoHostEnd { interface: interface.to_owned(), found: found.to_owned() };
    let index = of_pod.veth_peer.ok_or_else(|| none("no end of a veth pair"))?;
    let found = netlink::in_netns(node, async |netlink| {
        let pods_number = netlink.number_of(pod).await?;
        let is_other_end = |link: &Link| {
            (link.index, link.veth_peer) == (index, Some(of_pod.index))
                && pods_number.is_some()
                && link.peer_namespace == pods_number
        };
        let Some(link) = netlink.links().await?.into_iter().find(is_other_end) else {
            return Ok(None);
        };
        let lost = netlink.unconfigurable(&link).await?;
        Ok(Some((link, lost)))
    })?;
    let (link, lost) = found.ok_or_else(|| none("one whose other end is elsewhere"))?;
    match lost {
        Some(found) => Err(Error::WouldLose { host_end: link.name, found }),
        None => Ok([of_pod, link]),
    }
}

impl From<OwnedFd> for Shelter {
    fn from(netns: OwnedFd) -> Self {
        Self { netns }
    }
}

impl Shelter {
    /// The shelter at this path, made if there is none. Its folder must exist. If several callers need it at once, one
    /// of them makes it.
    pub fn ensure(path: &Path) -> Result<Self, Error> {
        let netns = match netns::open(path) {
            Err(error) if is_missing(&error) => {
                lock::make_file(path)?;
                Self::make(path)?
            }
            // Nothing is mounted on the file, because the machine was restarted. The file is kept, because removing it
            // would end a namespace that another process may see mounted there.
            Err(netns::Error::NotANamespace(_)) => Self::make(path)?,
            other => other?,
        };
        netns::run_in(&netns, || sysctl::apply(sysctl::SILENT))?.map_err(netlink::Error::from)?;
        Ok(Self { netns })
    }

    /// Mounts a new namespace on the file, or opens the one that another caller has mounted meanwhile.
    fn make(path: &Path) -> Result<OwnedFd, Error> {
        let _lock = lock::take(path, FlockArg::LockExclusive)?;
        match netns::open(path) {
            Err(netns::Error::NotANamespace(_)) => Ok(netns::create_on(path)?),
            other => Ok(other?),
        }
    }

    /// The shelter at this path, if there is one. It is an error if nothing is mounted on the file: the machine was
    /// restarted, or the caller does not see the mounts of the node.
    pub fn open(path: &Path) -> Result<Option<Self>, Error> {
        match netns::open(path) {
            Ok(netns) => Ok(Some(Self { netns })),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub fn netns(&self) -> &OwnedFd {
        &self.netns
    }

    /// The pairs in the shelter, and host ends without a stand-in.
    pub fn pairs(&self) -> Result<Vec<Pair>, Error> {
        let links = netlink::in_netns(&self.netns, async |netlink| netlink.links().await)?;
        let mut pairs: Vec<Pair> = links.iter().filter_map(Pair::of).collect();
        let known: BTreeSet<u32> =
            pairs.iter().flat_map(|pair| [pair.index, pair.inner_index()]).collect();
        let alone = links.iter().filter(|it| it.veth_peer.is_some() && !known.contains(&it.index));
        pairs.extend(alone.map(|host_end| Pair { index: host_end.index, attachment: None }));
        Ok(pairs)
    }

    /// The pair of the host end with this index, if it has a stand-in.
    pub fn pair(&self, index: u32) -> Result<Option<Pair>, Error> {
        let inner_end = Pair { index, attachment: None }.inner_end();
        let found = netlink::in_netns(&self.netns, async |netlink| netlink.link(&inner_end).await)?;
        Ok(found.as_ref().and_then(Pair::of))
    }

    /// Removes the stand-ins of host ends that were deleted with their pods.
    pub fn remove_stale_stand_ins(&self) -> Result<(), Error> {
        Ok(netlink::in_netns(&self.netns, async |netlink| {
            let links = netlink.links().await?;
            let is_there = |index| links.iter().any(|link| link.index == index);
            for inner_end in links.iter().filter_map(Pair::of).filter(|it| !is_there(it.index)) {
                netlink.delete_link(inner_end.inner_index()).await?;
            }
            Ok(())
        })?)
    }

    /// Moves a host end into the shelter, and puts a stand-in into its place in the node's namespace. Afterwards the
    /// host end and the inner end are up.
    ///
    /// # Errors
    /// After an error before the move nothing has changed. After a later error the pod and the node do not reach each
    /// other: the host end stays in the shelter, and no stand-in is left.
    pub fn take_in(
        &self,
        node: &OwnedFd,
        host_end: &Link,
        attachment: &AttachmentId,
    ) -> Result<Pair, Error> {
        let config = netlink::in_netns(node, async |netlink| netlink.config(&host_end.name).await)?;
        self.take_in_as(node, &config, attachment)
    }

    /// Like [`Self::take_in`], for a known configuration.
    fn take_in_as(
        &self,
        node: &OwnedFd,
        config: &InterfaceConfig,
        attachment: &AttachmentId,
    ) -> Result<Pair, Error> {
        let alias = alias(attachment)?;
        let host_end = &config.link;
        let pair = Pair { index: host_end.index, attachment: Some(attachment.clone()) };
        netlink::in_netns(node, async |netlink| {
            netlink.move_to(host_end.index, &self.netns).await
        })?;
        if !has_arrived(&self.netns, host_end)? {
            return Err(Error::Gone(host_end.name.clone()));
        }
        let put = netlink::in_netns(&self.netns, async |netlink| {
            stand_in(&netlink, node, config, &pair).await?;
            netlink.set_alias(pair.inner_index(), &alias).await?;
            netlink.set_up(pair.inner_index()).await?;
            netlink.set_up(pair.index).await
        })
        .and_then(|()| netlink::in_netns(node, async |netlink| netlink.configure(config).await));
        if let Err(error) = put {
            // The first error is the one to report. If this fails, too, no packets pass: the remaining interfaces are
            // down, or the agent does not serve them because it does not know them.
            let _ = self.remove(&pair);
            return Err(error.into());
        }
        Ok(pair)
    }

    /// Deletes a pair's inner end and with it the stand-in. The host end stays until the pod's interface is deleted. It
    /// is no error if there is none.
    pub fn remove(&self, pair: &Pair) -> Result<(), Error> {
        netlink::in_netns(&self.netns, async |netlink| {
            match netlink.link(&pair.inner_end()).await? {
                Some(link) => netlink.delete_link(link.index).await,
                None => Ok(()),
            }
        })?;
        Ok(())
    }

    /// Moves a host end back to the node's namespace, gives it the configuration of its stand-in, and deletes the
    /// stand-in. Only the stand-in stores the configuration, so after an error at a later step the host end is bare.
    pub fn give_back(&self, node: &OwnedFd, pair: &Pair) -> Result<GivenBack, Error> {
        let config = netlink::in_netns(node, async |netlink| {
            let mut links = netlink.links().await?.into_iter();
            match links.find(|link| pair.is_stand_in(link)) {
                Some(stand_in) => netlink.config(&stand_in.name).await.map(Some),
                None => Ok(None),
            }
        })?;
        self.remove(pair)?;
        let moved = netlink::in_netns(&self.netns, async |netlink| {
            let mut links = netlink.links().await?.into_iter();
            let host_end = links.find(|link| link.index == pair.index);
            if let Some(host_end) = &host_end {
                netlink.move_to(host_end.index, node).await.or_else(if_gone)?;
            }
            Ok(host_end)
        })?;
        let Some(host_end) = moved else { return Ok(GivenBack::Gone) };
        if !has_arrived(node, &host_end)? {
            return Ok(GivenBack::Gone);
        }
        netlink::in_netns(node, async |netlink| match &config {
            Some(config) => netlink.configure(config).await,
            None => netlink.set_up(pair.index).await,
        })?;
        Ok(match config {
            Some(_) => GivenBack::Whole,
            None => GivenBack::Bare { host_end: host_end.name },
        })
    }
}

/// Whether an interface has arrived after its move. If its index is taken there, the kernel silently gives it another
/// one.
fn has_arrived(netns: &OwnedFd, moved: &Link) -> Result<bool, Error> {
    let links = netlink::in_netns(netns, async |netlink| netlink.links().await)?;
    let identity = |link: &Link| (link.mac, link.veth_peer);
    let same = links.iter().filter(|link| identity(link) == identity(moved));
    match same.max_by_key(|link| link.index == moved.index) {
        None => Ok(false),
        Some(found) if found.index == moved.index => Ok(true),
        Some(Link { index: found, .. }) => {
            let (host_end, index) = (moved.name.clone(), moved.index);
            Err(Error::IndexTaken { host_end, index, found: *found })
        }
    }
}

/// Ignores the error of an interface that does not exist, because an interface may be deleted at any time.
fn if_gone(error: netlink::Error) -> Result<(), netlink::Error> {
    if error.errno() == Some(libc::ENODEV) { Ok(()) } else { Err(error) }
}

fn is_missing(error: &netns::Error) -> bool {
    let netns::Error::Open { source, .. } = error else { return false };
    source.kind() == std::io::ErrorKind::NotFound
}

/// Makes the stand-in and the inner end, both down.
async fn stand_in(
    shelter: &Netlink,
    node: &OwnedFd,
    config: &InterfaceConfig,
    pair: &Pair,
) -> Result<(), netlink::Error> {
    let Link { index, name, mac, mtu, .. } = &config.link;
    let peer = Peer { name, netns: Some(node.as_fd()), mac: *mac, index: Some(*index) };
    let (inner_end, index) = (pair.inner_end(), Some(pair.inner_index()));
    shelter.add_veth(&Veth { name: &inner_end, mac: None, index, mtu: *mtu, peer }).await
}

#[cfg(test)]
mod tests;
