//! What the [holder](manx_devices::holder) keeps for the next agent, and what it has kept for this one.
//!
//! The agent has a duplicate of each queue that the holder has. So a holder that ends costs nothing: the CNI plugin
//! starts another, which gets all at the next attachment.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use manx_api::{Device, PodName};
use manx_devices::device::{DeviceSpec, OpenDevice};
use manx_devices::holder::{self, Client, Error, Held, Kept};
use manx_devices::pod_device::{self, PodDevice};
use tokio::net::UnixStream;

use crate::fault::Fault;

/// How long a holder that did not answer is left alone: attachments must not wait for it one after the other.
const REST: Duration = Duration::from_secs(10);
/// How often it is looked whether there still is one.
const LOOK: Duration = Duration::from_secs(10);

/// See the module.
pub(crate) struct Holding {
    path: PathBuf,
    pods: Mutex<Pods>,
    /// Why the holder does not have all of them. The control loop reads it, and must not wait for the holder.
    fault: Mutex<Fault>,
}

#[derive(Default)]
struct Pods {
    kept: BTreeMap<PodName, (Held, Vec<OwnedFd>)>,
    rests_until: Option<Instant>,
}

/// A pod's device of the last agent.
pub(crate) struct Resumed {
    pub(crate) held: Held,
    pub(crate) queues: Vec<OwnedFd>,
    pub(crate) device: PodDevice,
    pub(crate) open: OpenDevice,
}

/// An entry of the holder's that is not taken over.
pub(crate) struct Refused {
    pub(crate) entry: String,
    /// `None`: it is no pod's, or of another version of this program.
    pub(crate) pod: Option<PodName>,
    pub(crate) reason: String,
}

impl Holding {
    /// For the agent that listens at `agent`.
    pub(crate) fn new(agent: &Path) -> Self {
        Self { path: holder::path(agent), pods: Mutex::default(), fault: Mutex::default() }
    }

    /// Takes the devices of the last agent over, as far as they are like `pattern`. May block.
    pub(crate) fn resume(&self, pattern: &DeviceSpec<'_>) -> Vec<Result<Resumed, Refused>> {
        match Client::connect(&self.path).and_then(|mut holder| holder.entries()) {
            Ok(entries) => entries.into_iter().map(|entry| resume(entry, pattern)).collect(),
            Err(Error::NoHolder { .. }) => Vec::new(),
            Err(error) => {
                tracing::error!(%error, "pods of the last agent have to be attached anew");
                Vec::new()
            }
        }
    }

    /// The agent has a device that the holder has, too.
    pub(crate) fn insert(&self, held: Held, queues: Vec<OwnedFd>) {
        lock(&self.pods).kept.insert(held.attach.pod.clone(), (held, queues));
    }

    /// Has the holder keep a device with these queues. May block.
    pub(crate) fn keep(&self, held: Held, queues: io::Result<Vec<OwnedFd>>) {
        let mut pods = lock(&self.pods);
        let pod = held.attach.pod.clone();
        let queues = match queues {
            Ok(queues) => queues,
            Err(error) => return self.settle(Err(format!("the queues of {pod}: {error}"))),
        };
        pods.kept.insert(pod.clone(), (held, queues));
        if pods.rests_until.is_some_and(|until| Instant::now() < until) {
            return;
        }
        let brought = pods.bring(&self.path, &pod);
        let is_broken = matches!(brought, Err(Error::Broken { .. }));
        pods.rests_until = is_broken.then(|| Instant::now() + REST);
        self.settle(brought.map_err(|error| error.to_string()));
    }

    fn settle(&self, brought: Result<(), String>) {
        let text = |reason| format!("pods lose their interfaces when the agent ends: {reason}");
        lock(&self.fault).settle(brought.map_err(text));
    }

    /// Looks now and then whether there still is a holder, as long as it has something; never ends.
    pub(crate) async fn watch(self: Arc<Self>) {
        loop {
            tokio::time::sleep(LOOK).await;
            let found = UnixStream::connect(&self.path).await;
            // While the lock is held, a device is on its way.
            let has_pods = self.pods.try_lock().is_ok_and(|pods| !pods.kept.is_empty());
            if let (true, Err(source)) = (has_pods, found) {
                self.settle(Err(Error::NoHolder { path: self.path.clone(), source }.to_string()));
            }
        }
    }

    /// Has the holder let a device go, if it is one of its own. May block.
    pub(crate) fn release(&self, pod: &PodName) {
        let mut pods = lock(&self.pods);
        if pods.kept.remove(pod).is_none() {
            return;
        }
        if pods.kept.is_empty() {
            self.settle(Ok(()));
        }
        match Client::connect(&self.path).and_then(|mut holder| holder.release(pod)) {
            Ok(()) | Err(Error::NoHolder { .. }) => {}
            Err(error) => tracing::warn!(%pod, %error, "the holder may keep the pod's device"),
        }
    }

    /// Has the holder let an entry go that the agent does not take over.
    pub(crate) fn let_go(&self, entry: String) {
        let released = Client::connect(&self.path).and_then(|mut it| it.release_entry(entry));
        if let Err(error) = released {
            tracing::warn!(%error, "the holder may keep what is not taken over");
        }
    }

    /// Why pods lose their interfaces when this agent ends.
    pub(crate) fn problem(&self) -> Option<String> {
        lock(&self.fault).message().map(str::to_owned)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pods {
    /// Brings a pod's device to the holder, and all others if it does not have them.
    fn bring(&self, path: &Path, pod: &PodName) -> Result<(), Error> {
        let mut holder = Client::connect(path)?;
        let mut send = |(held, queues): &(Held, Vec<OwnedFd>)| {
            let queues: Vec<BorrowedFd<'_>> = queues.iter().map(OwnedFd::as_fd).collect();
            holder.keep(held, &queues)
        };
        let has = self.kept.get(pod).map_or(Ok(0), &mut send)?;
        if has == self.kept.len() {
            return Ok(());
        }
        self.kept.values().try_for_each(|one| send(one).map(drop))
    }
}

fn resume(Kept { name, held, queues }: Kept, pattern: &DeviceSpec<'_>) -> Result<Resumed, Refused> {
    let held = held.map_err(|error| {
        let reason = format!("its note is not known to this version: {error}");
        Refused { entry: name.clone(), pod: None, reason }
    })?;
    let pod = Some(held.attach.pod.clone());
    let refused = |reason| Refused { entry: name, pod, reason };
    let wanted = DeviceSpec {
        interface: &held.attach.interface,
        addresses: &held.attach.addresses,
        mtu: held.mtu,
        device: Device::Tun,
        ..*pattern
    };
    let own: Result<Vec<OwnedFd>, _> = queues.iter().map(OwnedFd::try_clone).collect();
    let own = match own {
        Ok(own) => own,
        Err(error) => return Err(refused(format!("its queues cannot be opened: {error}"))),
    };
    match pod_device::resume(queues, &held.attach.netns, &wanted) {
        Ok((device, open)) => Ok(Resumed { held, queues: own, device, open }),
        Err(error) => Err(refused(error.to_string())),
    }
}
