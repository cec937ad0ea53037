//! The state that survives a restart. The [holder](manx_devices::holder) keeps pods' devices and flow records of this agent
//! for the next one, and has kept those of the last agent for this one.
//!
//! The agent has a duplicate of each descriptor in the holder. So nothing is lost when a holder ends: the CNI plugin starts
//! another one, which gets all descriptors at the next attachment. Flow records are kept while there are pods.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::mem;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use manx_api::{Attach, PodName, Sandbox};
use manx_dataplane::flow::FlowRecordFile;
use manx_dataplane::sys::shared_file::SharedFile;
use manx_devices::device::{DeviceSpec, OpenDevice};
use manx_devices::holder::{self, Client, Error, Held, Kept, Note};
use manx_devices::pod_device::{self, PodDevice};
use tokio::net::UnixStream;

use crate::fault::Fault;

/// After a holder has not answered, no calls are made to it for this time. Otherwise every attachment would wait for
/// it.
const PAUSE: Duration = Duration::from_secs(10);
/// The interval at which the holder's existence is checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// See the module.
pub(crate) struct RestartState {
    path: PathBuf,
    entries: Mutex<Entries>,
    /// The reason why the holder lacks entries. It has its own lock, because the control loop, which reads it, must not
    /// wait for the holder.
    fault: Mutex<Fault>,
}

/// The entries that the holder should have.
#[derive(Default)]
struct Entries {
    pods: BTreeMap<PodName, (Held, Vec<OwnedFd>)>,
    /// The flow records, by worker.
    flows: Vec<(Note, Arc<SharedFile>)>,
    /// Whether the holder has all current entries. Otherwise it may have older ones under the same names: flows of the last
    /// agent, or a device with its former sandbox.
    is_complete: bool,
    /// The entries that the holder still has to release.
    released: BTreeSet<String>,
    paused_until: Option<Instant>,
}

/// The devices and flow records that the last agent has left.
#[derive(Default)]
pub(crate) struct LastAgent {
    pub(crate) devices: Vec<Result<RestoredDevice, RefusedEntry>>,
    /// The flow records, by worker.
    pub(crate) flows: BTreeMap<usize, FlowRecordFile>,
}

/// A pod's device of the last agent.
pub(crate) struct RestoredDevice {
    pub(crate) held: Held,
    pub(crate) queues: Vec<OwnedFd>,
    pub(crate) device: PodDevice,
    pub(crate) open: OpenDevice,
}

/// An entry of the holder that this agent does not use.
pub(crate) struct RefusedEntry {
    pub(crate) entry: String,
    /// The pod. `None` if the entry is no pod's, or comes from another version of this program.
    pub(crate) attach: Option<Box<Attach>>,
    pub(crate) reason: String,
}

impl RestartState {
    /// The state of the agent that listens at `agent`, without entries.
    pub(crate) fn new(agent: &Path) -> Self {
        Self { path: holder::path(agent), entries: Mutex::default(), fault: Mutex::default() }
    }

    /// Loads the devices and flow records of the last agent. Devices that do not match `pattern` are refused. May block.
    pub(crate) fn load(&self, pattern: &DeviceSpec<'_>) -> LastAgent {
        match Client::connect(&self.path).and_then(|mut holder| holder.entries()) {
            Ok(entries) => LastAgent::from_entries(entries, pattern),
            Err(error @ Error::NoHolder { .. }) => {
                tracing::info!(%error, "there are no devices of a last agent");
                LastAgent::default()
            }
            Err(error) => {
                tracing::error!(%error, "pods of the last agent have to be attached anew");
                LastAgent::default()
            }
        }
    }

    /// Records a device that the holder already has.
    pub(crate) fn insert(&self, held: Held, queues: Vec<OwnedFd>) {
        lock(&self.entries).pods.insert(held.attach.pod.clone(), (held, queues));
    }

    /// Makes the holder keep a device with these queues. May block.
    pub(crate) fn keep(&self, held: Held, queues: io::Result<Vec<OwnedFd>>) {
        let pod = held.attach.pod.clone();
        let queues = match queues {
            Ok(queues) => queues,
            Err(error) => return self.record(Err(format!("the queues of {pod}: {error}"))),
        };
        let mut entries = lock(&self.entries);
        entries.pods.insert(pod.clone(), (held, queues));
        self.send(&mut entries, Some(&pod));
    }

    /// Makes the holder keep a device under the pod's new sandbox. May block.
    pub(crate) fn rename(&self, pod: &PodName, sandbox: &Sandbox) {
        let mut entries = lock(&self.entries);
        let Some((held, _)) = entries.pods.get_mut(pod) else { return };
        let before = held.attach.sandbox.replace(sandbox.clone());
        if before.as_ref() != Some(sandbox) || !entries.is_complete {
            self.send(&mut entries, Some(pod));
        }
    }

    /// Makes the holder keep the flow records of each worker in place of those of the last agent, which may have had more
    /// workers. May block.
    pub(crate) fn keep_flows(&self, records: Vec<Arc<SharedFile>>, last: &[usize]) {
        let mut entries = lock(&self.entries);
        let has_pods = !entries.pods.is_empty();
        for worker in last.iter().filter(|worker| !has_pods || **worker >= records.len()) {
            self.release_entry(Note::Flows { worker: *worker }.name());
        }
        let all = records.into_iter().enumerate();
        entries.flows = all.map(|(worker, file)| (Note::Flows { worker }, file)).collect();
        if has_pods {
            self.send(&mut entries, None);
        }
    }

    /// Sends the holder a pod's device, or all entries.
    fn send(&self, entries: &mut Entries, pod: Option<&PodName>) {
        // The state is incomplete until the holder has taken all entries.
        let was_complete = mem::replace(&mut entries.is_complete, false);
        if entries.is_paused() {
            return;
        }
        let sent = Client::connect(&self.path)
            .and_then(|holder| entries.send(holder, pod.filter(|_| was_complete)));
        entries.pause_after(&sent);
        self.record(sent.map_err(|error| error.to_string()));
    }

    fn record(&self, sent: Result<(), String>) {
        let text = |reason| {
            format!("when the agent ends, pods have no network until they are made anew: {reason}")
        };
        lock(&self.fault).record(sent.map_err(text));
    }

    /// Checks at an interval that there is a holder while it should have entries; never ends.
    pub(crate) async fn watch(self: Arc<Self>) {
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            // The lock is held while a device is sent; that call reports errors itself. A holder without entries ends if no
            // client calls.
            let has_pods = self.entries.try_lock().is_ok_and(|entries| !entries.pods.is_empty());
            if has_pods && let Err(source) = UnixStream::connect(&self.path).await {
                self.record(Err(Error::NoHolder { path: self.path.clone(), source }.to_string()));
            }
        }
    }

    /// Makes the holder release a pod's device, if it has it. May block.
    pub(crate) fn release(&self, pod: &PodName) {
        let mut entries = lock(&self.entries);
        if entries.pods.remove(pod).is_none() {
            return;
        }
        let Entries { pods, flows, is_complete, released, .. } = &mut *entries;
        released.insert(holder::name(pod));
        if pods.is_empty() {
            self.record(Ok(()));
            *is_complete = false;
            released.extend(flows.iter().map(|(note, _)| note.name()));
        }
        if entries.is_paused() {
            return;
        }
        let sent = Client::connect(&self.path).and_then(|mut it| entries.send_released(&mut it));
        entries.pause_after(&sent);
        match sent {
            Ok(()) => {}
            Err(Error::NoHolder { .. }) => entries.released.clear(),
            Err(error) => tracing::warn!(%pod, %error, "the holder keeps the pod's device for now"),
        }
    }

    /// Makes the holder release an entry that this agent does not use. May block.
    pub(crate) fn release_entry(&self, entry: String) {
        let released = Client::connect(&self.path).and_then(|mut it| it.release(entry));
        if let Err(error) = released {
            tracing::warn!(%error, "the holder may keep what is not taken over");
        }
    }

    /// The reason why pods would lose their network when this agent ends.
    pub(crate) fn problem(&self) -> Option<String> {
        lock(&self.fault).message().map(str::to_owned)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Entries {
    /// Whether calls to the holder are paused, because it has not answered.
    fn is_paused(&self) -> bool {
        self.paused_until.is_some_and(|until| Instant::now() < until)
    }

    /// Pauses calls to a holder that has not answered.
    fn pause_after(&mut self, sent: &Result<(), Error>) {
        let is_broken = matches!(sent, Err(Error::Broken { .. }));
        self.paused_until = is_broken.then(|| Instant::now() + PAUSE);
    }

    /// Makes the holder release the entries that it should not have any more.
    fn send_released(&mut self, holder: &mut Client) -> Result<(), Error> {
        while let Some(name) = self.released.first() {
            holder.release(name.clone())?;
            self.released.pop_first();
        }
        Ok(())
    }

    /// Sends the holder the device of a pod, if only that has changed, and all entries if the holder lacks some. With
    /// `None`, it may lack any entry.
    fn send(&mut self, mut holder: Client, changed: Option<&PodName>) -> Result<(), Error> {
        self.send_released(&mut holder)?;
        let mut keep_pod = |(held, queues): &(Held, Vec<OwnedFd>)| {
            let queues: Vec<BorrowedFd<'_>> = queues.iter().map(OwnedFd::as_fd).collect();
            holder.keep(&held.clone().into(), &queues)
        };
        let count = self.pods.len() + self.flows.len();
        let kept = changed.and_then(|pod| self.pods.get(pod)).map(&mut keep_pod).transpose()?;
        if kept != Some(count) {
            for pod in self.pods.values() {
                keep_pod(pod)?;
            }
            for (note, file) in &self.flows {
                holder.keep(note, &[file.as_fd()])?;
            }
        }
        self.is_complete = true;
        Ok(())
    }
}

impl LastAgent {
    fn from_entries(entries: Vec<Kept>, pattern: &DeviceSpec<'_>) -> Self {
        let (mut devices, mut flows) = (Vec::new(), BTreeMap::new());
        for Kept { name, note, descriptors } in entries {
            let refused = |reason| RefusedEntry { entry: name.clone(), attach: None, reason };
            match note {
                Ok(Note::Pod(held)) => {
                    devices.push(restore_device(name, *held, descriptors, pattern));
                }
                Ok(Note::Flows { worker }) => match open_records(descriptors) {
                    Ok(file) => drop(flows.insert(worker, file)),
                    Err(reason) => devices.push(Err(refused(reason))),
                },
                Err(error) => {
                    let reason = format!("its note is not known to this version: {error}");
                    devices.push(Err(refused(reason)));
                }
            }
        }
        Self { devices, flows }
    }
}

fn open_records(mut descriptors: Vec<OwnedFd>) -> Result<FlowRecordFile, String> {
    let count = descriptors.len();
    let file = descriptors.pop().filter(|_| count == 1);
    let file = file.ok_or_else(|| format!("it has {count} descriptors: expected one"))?;
    let file = SharedFile::open(file).map_err(|error| error.to_string())?;
    FlowRecordFile::open(file).map_err(|error| error.to_string())
}

fn restore_device(
    name: String,
    held: Held,
    queues: Vec<OwnedFd>,
    pattern: &DeviceSpec<'_>,
) -> Result<RestoredDevice, RefusedEntry> {
    let attach = Some(Box::new(held.attach.clone()));
    let refused = |reason| RefusedEntry { entry: name, attach, reason };
    let wanted = DeviceSpec {
        interface: &held.attach.interface,
        addresses: &held.attach.addresses,
        mtu: held.mtu,
        ..*pattern
    };
    let own: Result<Vec<OwnedFd>, _> = queues.iter().map(OwnedFd::try_clone).collect();
    let own = match own {
        Ok(own) => own,
        Err(error) => return Err(refused(format!("its queues cannot be opened: {error}"))),
    };
    let restored = match held.attach.made {
        None => pod_device::restore(queues, &held.attach.netns, &wanted),
        Some(_) => pod_device::restore_relay(queues, &held.attach, &wanted),
    };
    match restored {
        Ok((device, open)) => Ok(RestoredDevice { held, queues: own, device, open }),
        Err(error) => Err(refused(error.to_string())),
    }
}

#[cfg(test)]
mod tests;
