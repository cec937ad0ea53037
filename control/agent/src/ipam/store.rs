//! The bookkeeping in a file: an agent that starts again gives no address out twice.
//!
//! The file is JSON, written beside its place, synced and renamed onto it: it is always one whole state. One that does
//! not parse or contradicts itself is refused rather than forgotten: forgetting would give a living pod's address to
//! another.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::{Block, Ipam};
use manx_api::{AttachmentId, ErrorKind, PodName};

/// The version of the file that is written. Version 1, which has no pinned addresses, and version 2, which has no
/// attachments of container runtimes, are read, too.
const VERSION: u32 = 3;

/// Why the bookkeeping cannot be kept.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No address.
    #[error(transparent)]
    Ipam(#[from] super::Error),
    /// The file cannot be read or written.
    #[error("the address file {path} cannot be {verb}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// `read` or `written`.
        verb: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The file is not a state.
    #[error(
        "the address file {path} is damaged: {reason}. No address is given out, lest two pods share one: restore the file, or \
         remove it when no pod of this node runs"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Pods live in other blocks than the node has.
    #[error(
        "the node's pod CIDRs are {} but the address file {path} holds pods ({pods}) of {}: detach those pods first, or set \
         Node.spec.podCIDRs back",
        list(wanted),
        list(found)
    )]
    OtherBlocks {
        /// The file.
        path: PathBuf,
        /// What the node has.
        wanted: Vec<IpNet>,
        /// What the file has.
        found: Vec<IpNet>,
        /// How many pods.
        pods: usize,
    },
}

fn list(blocks: &[IpNet]) -> String {
    blocks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl Error {
    /// The kind that the agent's socket reports.
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Ipam(error) => error.kind(),
            Self::OtherBlocks { .. } => ErrorKind::Invalid,
            Self::File { .. } | Self::Damaged { .. } => ErrorKind::Internal,
        }
    }
}

/// An [`Ipam`] whose every change is in the file before anybody hears of it.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    pub(super) ipam: Ipam,
}

impl Store {
    /// Reads the file, or starts anew where there is none. Blocks may change only while no pod has an address of them.
    /// Without blocks all addresses are another plugin's, and are forgotten when there are some.
    pub fn open(path: &Path, fresh: Ipam) -> Result<Self, Error> {
        let path = path.to_owned();
        let ipam = match fs::read(&path) {
            Ok(bytes) => {
                let damaged = |reason| Error::Damaged { path: path.clone(), reason };
                let saved = parse(&bytes).map_err(damaged)?;
                if saved.blocks() == fresh.blocks() {
                    saved
                } else if saved.pods.is_empty() || saved.blocks().is_empty() {
                    fresh
                } else {
                    let (wanted, found, pods) = (fresh.blocks(), saved.blocks(), saved.pods.len());
                    return Err(Error::OtherBlocks { path, wanted, found, pods });
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => fresh,
            Err(source) => return Err(Error::File { path, verb: "read", source }),
        };
        Ok(Self { path, ipam })
    }

    /// Gives the pod the addresses that are wanted ([`Ipam::pin`]), or else the next in turn ([`Ipam::assign`]), and
    /// keeps what a container runtime calls its attachment. None of `others` is next.
    pub fn reserve(
        &mut self,
        pod: &PodName,
        wanted: &[IpAddr],
        id: Option<AttachmentId>,
        others: &BTreeMap<IpAddr, String>,
    ) -> Result<Vec<IpAddr>, Error> {
        let mut next = self.ipam.clone();
        let addresses = match wanted {
            [] => next.assign(pod, others),
            wanted => next.pin(pod, wanted),
        }?;
        if let Some(id) = id {
            next.set_id(pod, id);
        }
        self.become_saved(next)?;
        Ok(addresses)
    }

    /// [`Ipam::release`].
    pub fn release(&mut self, pod: &PodName) -> Result<Vec<IpAddr>, Error> {
        let mut next = self.ipam.clone();
        let addresses = next.release(pod);
        self.become_saved(next)?;
        Ok(addresses)
    }

    /// Takes back the addresses of all pods but these.
    pub fn retain(&mut self, keeps: impl Fn(&PodName) -> bool) -> Result<(), Error> {
        let mut next = self.ipam.clone();
        let gone: Vec<PodName> = next.pods.keys().filter(|pod| !keeps(pod)).cloned().collect();
        for pod in &gone {
            next.release(pod);
        }
        self.become_saved(next)
    }

    /// Who has what.
    pub const fn ipam(&self) -> &Ipam {
        &self.ipam
    }

    fn become_saved(&mut self, next: Ipam) -> Result<(), Error> {
        if next != self.ipam {
            save(&self.path, &next).map_err(|source| Error::File {
                path: self.path.clone(),
                verb: "written",
                source,
            })?;
            self.ipam = next;
        }
        Ok(())
    }
}

#[derive(Serialize, Deserialize)]
struct Saved {
    version: u32,
    blocks: Vec<SavedBlock>,
    /// With one address of each block.
    pods: BTreeMap<String, Vec<IpAddr>>,
    /// With other addresses, which the callers named.
    #[serde(default)]
    pinned: BTreeMap<String, Vec<IpAddr>>,
    /// The attachments of container runtimes among both.
    #[serde(default)]
    attachments: BTreeMap<String, AttachmentId>,
}

#[derive(Serialize, Deserialize)]
struct SavedBlock {
    cidr: String,
    last: IpAddr,
}

fn save(path: &Path, ipam: &Ipam) -> io::Result<()> {
    let saved = ipam.pods.iter().map(|(pod, addresses)| (pod.to_string(), addresses.clone()));
    let (pods, pinned) = saved.partition(|(_, addresses)| ipam.is_of_blocks(addresses));
    let saved = Saved {
        version: VERSION,
        blocks: ipam
            .blocks
            .iter()
            .map(|block| SavedBlock {
                cidr: block.net.to_string(),
                last: block.address(block.last),
            })
            .collect(),
        pods,
        pinned,
        attachments: ipam.ids.iter().map(|(pod, id)| (pod.to_string(), id.clone())).collect(),
    };
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    // What a crash left; a link would be removed, and not followed.
    match fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
    // One call for all of it: the control loop waits.
    let mut text = serde_json::to_vec_pretty(&saved)?;
    text.push(b'\n');
    file.write_all(&text)?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    match path.parent() {
        // The rename itself is on disk only when the folder is.
        Some(folder) if !folder.as_os_str().is_empty() => File::open(folder)?.sync_all(),
        _ => Ok(()),
    }
}

fn parse(bytes: &[u8]) -> Result<Ipam, String> {
    let Saved { version, blocks, pods, pinned, attachments } =
        serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if !(1..=VERSION).contains(&version) {
        return Err(format!("it has version {version}, this manx reads versions up to {VERSION}"));
    }
    let net = |block: &SavedBlock| {
        block.cidr.parse::<IpNet>().map_err(|_| format!("{:?} is not a CIDR", block.cidr))
    };
    let nets = blocks.iter().map(net).collect::<Result<Vec<_>, _>>()?;
    let mut ipam = match nets.as_slice() {
        [] => Ipam::without_blocks(),
        nets => Ipam::new(nets).map_err(|error| error.to_string())?,
    };
    for (block, SavedBlock { last, .. }) in ipam.blocks.iter_mut().zip(blocks) {
        if last != block.address(1) {
            block.last = number(block, last)?;
        }
    }
    for (name, addresses) in pods {
        let pod = pod(&name)?;
        if addresses.len() != ipam.blocks.len() {
            return Err(format!(
                "{pod} has {} addresses of {} blocks",
                addresses.len(),
                ipam.blocks.len()
            ));
        }
        for (block, address) in ipam.blocks.iter().zip(&addresses) {
            number(block, *address)?;
        }
        adopt(&mut ipam, &pod, &addresses)?;
    }
    for (name, addresses) in pinned {
        let pod = pod(&name)?;
        if addresses.is_empty() {
            return Err(format!("{pod} has no address"));
        }
        adopt(&mut ipam, &pod, &addresses)?;
    }
    for (name, id) in attachments {
        let pod = pod(&name)?;
        if !ipam.pods.contains_key(&pod) {
            return Err(format!("{pod} is attached ({id}) and has no address"));
        }
        ipam.set_id(&pod, id);
    }
    Ok(ipam)
}

fn adopt(ipam: &mut Ipam, pod: &PodName, addresses: &[IpAddr]) -> Result<(), String> {
    if let Some(address) = addresses.iter().find(|address| ipam.used.contains(*address)) {
        return Err(format!("{pod} is not the only pod with {address}"));
    }
    if ipam.pods.contains_key(pod) {
        return Err(format!("{pod} is there twice"));
    }
    ipam.pin(pod, addresses).map(drop).map_err(|error| error.to_string())
}

fn pod(name: &str) -> Result<PodName, String> {
    match name.split_once('/') {
        Some((namespace, name)) => {
            Ok(PodName { namespace: namespace.to_owned(), name: name.to_owned() })
        }
        None => Err(format!("{name:?} is not a pod's namespace/name")),
    }
}

fn number(block: &Block, address: IpAddr) -> Result<u128, String> {
    block
        .number(address)
        .ok_or_else(|| format!("{address} is not a pod's address of {}", block.net))
}
