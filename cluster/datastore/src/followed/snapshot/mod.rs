//! The last state on disk. An agent uses it if it starts while its server does not answer.
//!
//! A separate thread writes it, so that a slow disk does not delay the agent. Changes are written in their order. After
//! a lost change nothing more is written, so the file always contains the state of some moment. A state that was never
//! complete is not used, and a damaged file is not used either ([`file`]).

mod file;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use manx_objects::object::{Kind, ObjectKey};

use self::file::{Change, State, StateFile, UnusableFile, beside};
use super::event::Event;
use super::reading::Reading;
use super::server::Server;

/// The maximum number of changes that wait for the disk.
const WAITING: usize = 16_384;
/// The maximum number of bytes that wait while writes fail. While writes succeed, all objects of a large cluster may
/// wait.
const REFUSED: usize = 32 << 20;
/// Changes within this time are written together.
const BURST: Duration = Duration::from_millis(500);
/// The time after which a failed write is tried again; the disk may have been full.
const AGAIN: Duration = Duration::from_secs(5);

/// A message to the writer.
enum WriterMessage {
    Change(Change),
    /// The state was complete at this time, in seconds since 1970.
    Complete(u64),
}

impl WriterMessage {
    /// Returns the approximate number of bytes in the message.
    fn size(&self) -> usize {
        match self {
            Self::Change(Change::Put(name, text)) => name.len() + text.len(),
            Self::Change(Change::Remove(name)) => name.len(),
            Self::Change(Change::Replace(_, all)) => {
                all.iter().map(|(name, text)| name.len() + text.len()).sum()
            }
            Self::Complete(_) => 0,
        }
    }
}

/// The changes that wait for the disk.
#[derive(Debug, Default)]
struct Backlog {
    bytes: AtomicUsize,
    /// Whether the last write failed.
    is_refused: AtomicBool,
}

/// The sender of messages to the writer.
pub(crate) struct Snapshot {
    messages: SyncSender<WriterMessage>,
    backlog: Arc<Backlog>,
    /// Whether a change was lost. After a lost change, nothing more may be written.
    lost: AtomicBool,
    trouble: Trouble,
}

/// The reason why the next start may find no usable state on disk, for `manx status`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Trouble(Arc<Mutex<Reasons>>);

#[derive(Debug, Default)]
struct Reasons {
    /// A reason that stays as long as the agent runs.
    lasting: Option<String>,
    /// A reason that stays until a complete state is on disk.
    passing: Option<String>,
}

impl Trouble {
    /// Returns the current reason.
    pub(crate) fn text(&self) -> Option<String> {
        let reasons = self.reasons();
        reasons.lasting.as_ref().or(reasons.passing.as_ref()).cloned()
    }

    fn reasons(&self) -> MutexGuard<'_, Reasons> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the reason that may pass. A new reason is logged.
    fn set(&self, text: Option<String>) {
        let mut reasons = self.reasons();
        if let Some(text) = text.as_ref().filter(|text| reasons.passing.as_ref() != Some(*text)) {
            tracing::error!("{text}");
        }
        reasons.passing = text;
    }

    fn set_for_good(&self, text: String) {
        tracing::error!("{text}");
        self.reasons().lasting = Some(text);
    }
}

/// A state that was read from the file.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// The texts of all objects.
    pub(super) texts: Vec<String>,
    /// The last time at which the state was known to be complete.
    pub(super) complete: SystemTime,
}

fn name(key: &ObjectKey) -> String {
    format!("{:?}/{}/{}", key.kind, key.namespace, key.name)
}

/// Returns the usable part of a state, or `None` if the state is not complete for these kinds. A state from an earlier
/// version of Manx may lack a kind of policy. Without these policies, more traffic would pass.
fn loaded(state: State, kinds: &[Kind]) -> Option<Loaded> {
    let is_whole = kinds.iter().all(|kind| state.listed.contains(&format!("{kind:?}")));
    (is_whole && state.complete != 0).then(|| Loaded {
        texts: state.objects.into_values().collect(),
        complete: SystemTime::UNIX_EPOCH + Duration::from_secs(state.complete),
    })
}

/// Opens the file, or creates it. An unusable file is renamed and kept for inspection, and the reason is reported. An
/// agent that reaches the server needs no file.
fn open(path: &Path, server: &str, trouble: &Trouble) -> Option<(StateFile, State)> {
    let opened = match StateFile::open(path) {
        Err(UnusableFile::File(reason)) => set_aside(path).map(|aside| {
            trouble.set(Some(format!(
                "the last state {} is not used: {reason}. It is set aside as {}; until {server} has told all \
                 objects, an agent that starts while the server does not answer passes nothing",
                path.display(),
                aside.display()
            )));
            None
        }),
        opened => opened,
    };
    let made = opened.and_then(|opened| match opened {
        Some(opened) => Ok(opened),
        None => Ok((StateFile::create(path, &State::default())?, State::default())),
    });
    let unusable = |error: &UnusableFile| {
        trouble.set_for_good(format!(
            "no last state is kept in {}: {error}. An agent that starts while {server} does not answer passes \
             nothing; correct it, or name another file by --state",
            path.display()
        ));
    };
    made.inspect_err(unusable).ok()
}

/// Renames the file. A file that was renamed earlier is replaced.
fn set_aside(path: &Path) -> Result<PathBuf, UnusableFile> {
    let aside = beside(path, "damaged");
    fs::rename(path, &aside)?;
    Ok(aside)
}

impl Snapshot {
    /// Opens the state in the file at `path`, and reads its content.
    pub(crate) fn open(
        path: &Path,
        server: Server,
        trouble: &Trouble,
    ) -> (Option<Self>, Option<Loaded>) {
        let Some((mut file, state)) = open(path, server.name, trouble) else { return (None, None) };
        let (messages, receiver) = sync_channel(WAITING);
        let (backlog, lost) = (Arc::<Backlog>::default(), AtomicBool::new(false));
        let of_writer = (Arc::clone(&backlog), trouble.clone());
        let write = move || write_all(&mut file, &receiver, &of_writer.0, &of_writer.1);
        let spawned = thread::Builder::new().name("snapshot".to_owned()).spawn(write);
        let this = spawned.ok().map(|_| Self { messages, backlog, lost, trouble: trouble.clone() });
        (this, loaded(state, server.kinds))
    }

    /// Records an event. The texts are moved out of the event, because the agent does not need them.
    pub(super) fn record(&self, event: &mut Event) {
        let text = |reading: &mut Reading| (name(&reading.key), std::mem::take(&mut reading.text));
        self.send(WriterMessage::Change(match event {
            Event::Listed { kind, readings } => {
                Change::Replace(format!("{kind:?}"), readings.iter_mut().map(text).collect())
            }
            Event::Changed(reading) => {
                let (name, text) = text(reading);
                Change::Put(name, text)
            }
            Event::Gone(key) => Change::Remove(name(key)),
            Event::Fault { .. } => return,
        }));
    }

    /// Records that the state was complete at `now`.
    pub(super) fn complete(&self, now: SystemTime) {
        let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.send(WriterMessage::Complete(since.as_secs()));
    }

    fn send(&self, message: WriterMessage) {
        if self.lost.load(Ordering::Relaxed) {
            return;
        }
        let waiting = self.backlog.bytes.fetch_add(message.size(), Ordering::Relaxed);
        let is_refused = self.backlog.is_refused.load(Ordering::Relaxed);
        let sent = match message {
            _ if is_refused && waiting > REFUSED => Err("the disk takes nothing"),
            message => self.messages.try_send(message).map_err(|error| match error {
                TrySendError::Full(_) => "the disk is too slow, or takes nothing",
                TrySendError::Disconnected(_) => "its writer has ended",
            }),
        };
        let Err(why) = sent else { return };
        self.lost.store(true, Ordering::Relaxed);
        self.trouble.set_for_good(format!(
            "the last state stays as it is on disk until the agent starts anew: {why}"
        ));
    }
}

fn write_all(
    file: &mut StateFile,
    messages: &Receiver<WriterMessage>,
    backlog: &Backlog,
    trouble: &Trouble,
) {
    while let Ok(first) = messages.recv() {
        let (mut changes, mut complete, mut bytes) = (Vec::new(), None, 0);
        let mut take = |message: WriterMessage| {
            bytes += message.size();
            match message {
                WriterMessage::Change(change) => changes.push(change),
                WriterMessage::Complete(at) => complete = Some(at),
            }
        };
        take(first);
        let until = Instant::now() + BURST;
        while let Some(left) = until.checked_duration_since(Instant::now())
            && let Ok(more) = messages.recv_timeout(left)
        {
            take(more);
        }
        // The same commit is tried until it succeeds, because nothing may be written after a lost change.
        while let Err(error) = file.commit(&changes, complete) {
            trouble.set(Some(format!(
                "the last state cannot be written, and stays as it is on disk: {error}"
            )));
            backlog.is_refused.store(true, Ordering::Relaxed);
            thread::sleep(AGAIN);
        }
        backlog.is_refused.store(false, Ordering::Relaxed);
        backlog.bytes.fetch_sub(bytes, Ordering::Relaxed);
        if complete.is_some() {
            trouble.set(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: Server = Server { name: "the API server", kinds: &[Kind::Pod] };

    #[test]
    fn what_waits_for_a_disk_that_takes_nothing_is_bounded() {
        let (messages, waiting) = sync_channel(WAITING);
        let (backlog, trouble) = (Arc::<Backlog>::default(), Trouble::default());
        let snapshot = Snapshot {
            messages,
            backlog: Arc::clone(&backlog),
            lost: AtomicBool::new(false),
            trouble: trouble.clone(),
        };
        let send = || {
            snapshot.send(WriterMessage::Change(Change::Put("a".to_owned(), "x".repeat(1 << 20))));
        };
        (0..100).for_each(|_| send());
        assert_eq!(
            (waiting.try_iter().count(), trouble.text()),
            (100, None),
            "it takes them later"
        );
        backlog.bytes.store(0, Ordering::Relaxed);
        backlog.is_refused.store(true, Ordering::Relaxed);
        (0..100).for_each(|_| send());
        assert_eq!(waiting.try_iter().count(), 32);
        assert!(trouble.text().unwrap().ends_with("the disk takes nothing"));
    }

    #[test]
    fn a_state_is_complete_only_for_kinds_that_were_listed() {
        let listed = |kinds: &[Kind]| kinds.iter().map(|kind| format!("{kind:?}")).collect();
        let objects = [("Pod/shop/web".to_owned(), "{}".to_owned())];
        let pods = State { objects: objects.into(), listed: listed(&[Kind::Pod]), complete: 0 };
        assert!(loaded(pods.clone(), &[Kind::Pod]).is_none(), "it was never complete");
        let pods = State { complete: 7, ..pods };
        assert_eq!(loaded(pods.clone(), &[Kind::Pod]).unwrap().texts, ["{}"]);
        let kinds = [Kind::Pod, Kind::NetworkPolicy];
        assert!(loaded(pods.clone(), &kinds).is_none(), "policies were not followed then");
        assert!(loaded(State { listed: listed(&kinds), ..pods }, &kinds).is_some());
    }

    #[test]
    fn a_damaged_state_is_told_for_as_long_as_there_is_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        fs::write(&state, [0; 5000]).unwrap();
        let trouble = Trouble::default();
        let (snapshot, loaded) = Snapshot::open(&state, SERVER, &trouble);
        assert!(snapshot.is_some() && loaded.is_none());
        let text = trouble.text().unwrap().replace(folder.path().to_str().unwrap(), "/var/lib");
        insta::assert_snapshot!(text, @r#"the last state /var/lib/state is not used: found no whole head, expected one that begins with "manx-state 2". It is set aside as /var/lib/state.damaged; until the API server has told all objects, an agent that starts while the server does not answer passes nothing"#);
        // In this directory no file can be created.
        let trouble = Trouble::default();
        let (snapshot, _) = Snapshot::open(Path::new("/proc/self/none/state"), SERVER, &trouble);
        assert!(snapshot.is_none());
        insta::assert_snapshot!(trouble.text().unwrap(), @"no last state is kept in /proc/self/none/state: No such file or directory (os error 2). An agent that starts while the API server does not answer passes nothing; correct it, or name another file by --state");
    }
}
