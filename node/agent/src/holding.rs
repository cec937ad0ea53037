//! What the [holder](manx_devices::holder) keeps for the next agent, and what it has kept for this one.
//!
//! The agent has a duplicate of each descriptor that the holder has. So a holder that ends costs nothing: the CNI plugin
//! starts another, which gets all at the next attachment. Flow records are kept as long as there are pods.

use std::collections::BTreeMap;
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

/// How long a holder that did not answer is left alone: attachments must not wait for it one after the other.
const REST: Duration = Duration::from_secs(10);
/// How often it is looked whether there still is one.
const LOOK: Duration = Duration::from_secs(10);

/// See the module.
pub(crate) struct Holding {
    path: PathBuf,
    entries: Mutex<Entries>,
    /// Why the holder does not have all of them. The control loop reads it, and must not wait for the holder.
    fault: Mutex<Fault>,
}

/// What the holder is to have.
#[derive(Default)]
struct Entries {
    pods: BTreeMap<PodName, (Held, Vec<OwnedFd>)>,
    /// By worker.
    flows: Vec<(Note, Arc<SharedFile>)>,
    /// Whether the holder was brought all of these. If not, it may have others under the same names: the flows of the
    /// last agent, or a device with its former sandbox.
    is_brought: bool,
    rests_until: Option<Instant>,
}

/// What the last agent has left.
#[derive(Default)]
pub(crate) struct LastAgent {
    pub(crate) devices: Vec<Result<Resumed, Refused>>,
    /// The records of its flows, by worker.
    pub(crate) flows: BTreeMap<usize, FlowRecordFile>,
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
    pub(crate) attach: Option<Box<Attach>>,
    pub(crate) reason: String,
}

impl Holding {
    /// For the agent that listens at `agent`.
    pub(crate) fn new(agent: &Path) -> Self {
        Self { path: holder::path(agent), entries: Mutex::default(), fault: Mutex::default() }
    }

    /// Takes over what the last agent has left, as far as its devices are like `pattern`. May block.
    pub(crate) fn resume(&self, pattern: &DeviceSpec<'_>) -> LastAgent {
        match Client::connect(&self.path).and_then(|mut holder| holder.entries()) {
            Ok(entries) => LastAgent::from_entries(entries, pattern),
            Err(Error::NoHolder { .. }) => LastAgent::default(),
            Err(error) => {
                tracing::error!(%error, "pods of the last agent have to be attached anew");
                LastAgent::default()
            }
        }
    }

    /// The agent has a device that the holder has, too.
    pub(crate) fn insert(&self, held: Held, queues: Vec<OwnedFd>) {
        lock(&self.entries).pods.insert(held.attach.pod.clone(), (held, queues));
    }

    /// Has the holder keep a device with these queues. May block.
    pub(crate) fn keep(&self, held: Held, queues: io::Result<Vec<OwnedFd>>) {
        let pod = held.attach.pod.clone();
        let queues = match queues {
            Ok(queues) => queues,
            Err(error) => return self.settle(Err(format!("the queues of {pod}: {error}"))),
        };
        let mut entries = lock(&self.entries);
        entries.pods.insert(pod.clone(), (held, queues));
        self.bring(&mut entries, Some(&pod));
    }

    /// Tells the holder which sandbox has a device now, if it keeps the device. May block.
    pub(crate) fn rename(&self, pod: &PodName, sandbox: &Sandbox) {
        let mut entries = lock(&self.entries);
        let Some((held, _)) = entries.pods.get_mut(pod) else { return };
        if held.attach.sandbox.as_ref() != Some(sandbox) {
            held.attach.sandbox = Some(sandbox.clone());
            self.bring(&mut entries, Some(pod));
        }
    }

    /// Has the holder keep the records of each worker's flows, in place of those of the last agent's workers, of which
    /// there may have been more. May block.
    pub(crate) fn keep_flows(&self, records: Vec<Arc<SharedFile>>, last: &[usize]) {
        let mut entries = lock(&self.entries);
        let has_pods = !entries.pods.is_empty();
        for worker in last.iter().filter(|worker| !has_pods || **worker >= records.len()) {
            self.let_go(Note::Flows { worker: *worker }.name());
        }
        let all = records.into_iter().enumerate();
        entries.flows = all.map(|(worker, file)| (Note::Flows { worker }, file)).collect();
        if has_pods {
            self.bring(&mut entries, None);
        }
    }

    /// Brings the holder a pod's device, or all that it is to have.
    fn bring(&self, entries: &mut Entries, pod: Option<&PodName>) {
        if entries.rests_until.is_some_and(|until| Instant::now() < until) {
            entries.is_brought = false;
            return;
        }
        let brought = Client::connect(&self.path).and_then(|holder| entries.bring(holder, pod));
        let is_broken = matches!(brought, Err(Error::Broken { .. }));
        entries.rests_until = is_broken.then(|| Instant::now() + REST);
        self.settle(brought.map_err(|error| error.to_string()));
    }

    fn settle(&self, brought: Result<(), String>) {
        let text = |reason| {
            format!("when the agent ends, pods have no network until they are made anew: {reason}")
        };
        lock(&self.fault).settle(brought.map_err(text));
    }

    /// Looks now and then whether there still is a holder, as long as it has something; never ends.
    pub(crate) async fn watch(self: Arc<Self>) {
        loop {
            tokio::time::sleep(LOOK).await;
            let found = UnixStream::connect(&self.path).await;
            // While the lock is held, a device is on its way.
            let has_pods = self.entries.try_lock().is_ok_and(|entries| !entries.pods.is_empty());
            if let (true, Err(source)) = (has_pods, found) {
                self.settle(Err(Error::NoHolder { path: self.path.clone(), source }.to_string()));
            }
        }
    }

    /// Has the holder let a device go, if it is one of its own. May block.
    pub(crate) fn release(&self, pod: &PodName) {
        let mut entries = lock(&self.entries);
        if entries.pods.remove(pod).is_none() {
            return;
        }
        let mut names = vec![holder::name(pod)];
        if entries.pods.is_empty() {
            self.settle(Ok(()));
            entries.is_brought = false;
            names.extend(entries.flows.iter().map(|(note, _)| note.name()));
        }
        let released = Client::connect(&self.path)
            .and_then(|mut holder| names.into_iter().try_for_each(|it| holder.release(it)));
        match released {
            Ok(()) | Err(Error::NoHolder { .. }) => {}
            Err(error) => tracing::warn!(%pod, %error, "the holder may keep the pod's device"),
        }
    }

    /// Has the holder let an entry go that the agent does not take over.
    pub(crate) fn let_go(&self, entry: String) {
        let released = Client::connect(&self.path).and_then(|mut it| it.release(entry));
        if let Err(error) = released {
            tracing::warn!(%error, "the holder may keep what is not taken over");
        }
    }

    /// Why pods have no network when this agent ends.
    pub(crate) fn problem(&self) -> Option<String> {
        lock(&self.fault).message().map(str::to_owned)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Entries {
    /// Brings a pod's device to the holder, and all others if it does not have them.
    fn bring(&mut self, mut holder: Client, pod: Option<&PodName>) -> Result<(), Error> {
        let mut keep_pod = |(held, queues): &(Held, Vec<OwnedFd>)| {
            let queues: Vec<BorrowedFd<'_>> = queues.iter().map(OwnedFd::as_fd).collect();
            holder.keep(&held.clone().into(), &queues)
        };
        let count = self.pods.len() + self.flows.len();
        let was_brought = mem::replace(&mut self.is_brought, false);
        let kept = pod.and_then(|pod| self.pods.get(pod)).map(&mut keep_pod).transpose()?;
        if kept != Some(count) || !was_brought {
            for pod in self.pods.values() {
                keep_pod(pod)?;
            }
            for (note, file) in &self.flows {
                holder.keep(note, &[file.as_fd()])?;
            }
        }
        self.is_brought = true;
        Ok(())
    }
}

impl LastAgent {
    fn from_entries(entries: Vec<Kept>, pattern: &DeviceSpec<'_>) -> Self {
        let (mut devices, mut flows) = (Vec::new(), BTreeMap::new());
        for Kept { name, note, descriptors } in entries {
            let refused = |reason| Refused { entry: name.clone(), attach: None, reason };
            match note {
                Ok(Note::Pod(held)) => devices.push(resume(name, *held, descriptors, pattern)),
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

fn resume(
    name: String,
    held: Held,
    queues: Vec<OwnedFd>,
    pattern: &DeviceSpec<'_>,
) -> Result<Resumed, Refused> {
    let attach = Some(Box::new(held.attach.clone()));
    let refused = |reason| Refused { entry: name, attach, reason };
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
    let resumed = match held.attach.made {
        None => pod_device::resume(queues, &held.attach.netns, &wanted),
        Some(_) => pod_device::resume_relay(queues, &held.attach, &wanted),
    };
    match resumed {
        Ok((device, open)) => Ok(Resumed { held, queues: own, device, open }),
        Err(error) => Err(refused(error.to_string())),
    }
}

#[cfg(test)]
mod tests;
