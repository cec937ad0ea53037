//! The last state on disk, for an agent that starts while the API server does not answer.
//!
//! It is a table of JSON texts in one file, written on a thread of its own: a slow disk delays nobody. Changes are
//! written in the order in which they came, and nothing is written behind one that was lost: what the file holds was
//! the state at some time. A state that was never complete counts for nothing.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, SystemTime};

use manx_objects::object::{Kind, ObjectKey};
use redb::{Database, ReadableTable as _, TableDefinition};

use super::event::Event;
use super::reading::Reading;

/// Objects by name, as JSON.
const OBJECTS: TableDefinition<'_, &str, &str> = TableDefinition::new("objects");
/// See the constants below.
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
/// The form of the file.
const FORM: (&str, u64) = ("form", 1);
/// When all objects were last known to be these, in seconds since 1970.
const COMPLETE: &str = "complete";
/// The most bytes of the file that are kept in memory: it is read once, and written in bursts.
const CACHE: usize = 4 << 20;
/// The most changes that wait for the disk.
const WAITING: usize = 16_384;
/// Changes of this time are written at once.
const BURST: Duration = Duration::from_millis(500);

/// Why the file cannot be used: each step has an error type of its own.
type Failure = Box<dyn std::error::Error>;

/// What the writer is told.
enum Change {
    Put(ObjectKey, String),
    Remove(ObjectKey),
    Replace(Kind, Vec<(ObjectKey, String)>),
    Complete(SystemTime),
}

/// The way to the writer.
pub(super) struct Snapshot {
    changes: SyncSender<Change>,
    /// Whether a change was lost. Nothing may follow it.
    lost: AtomicBool,
}

/// A state that was read.
pub(super) struct Loaded {
    /// The texts of all objects.
    pub(super) texts: Vec<String>,
    /// When it was last known to be complete.
    pub(super) complete: SystemTime,
}

fn name(key: &ObjectKey) -> String {
    format!("{:?}/{}/{}", key.kind, key.namespace, key.name)
}

/// Says in [`META`] that objects of a kind were listed.
fn listed(kind: Kind) -> String {
    format!("listed {kind:?}")
}

/// Reads the state in `file`. `Ok(None)`: there is none that is complete for these kinds. That of an earlier version may
/// lack a kind of policy, and without policies more passes.
fn load(database: &Database, kinds: &[Kind]) -> Result<Option<Loaded>, Failure> {
    let read = database.begin_read()?;
    let meta = match read.open_table(META) {
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok(None),
        meta => meta?,
    };
    let value = |key: &str| meta.get(key).map(|it| it.map(|it| it.value()));
    if value(FORM.0)? != Some(FORM.1) {
        return Ok(None);
    }
    let Some(complete) = value(COMPLETE)? else { return Ok(None) };
    let complete = SystemTime::UNIX_EPOCH + Duration::from_secs(complete);
    for kind in kinds {
        if value(&listed(*kind))?.is_none() {
            return Ok(None);
        }
    }
    let mut texts = Vec::new();
    for entry in read.open_table(OBJECTS)?.iter()? {
        texts.push(entry?.1.value().to_owned());
    }
    Ok(Some(Loaded { texts, complete }))
}

impl Snapshot {
    /// Opens the state in `file`, and reads what it holds. A file that cannot be used is set aside: an agent that
    /// reaches the server needs none.
    pub(super) fn open(file: &Path, kinds: &[Kind]) -> (Option<Self>, Option<Loaded>) {
        let opened = Database::builder().set_cache_size(CACHE).create(file).map_err(Failure::from);
        let (loaded, database) = match opened.and_then(|it| Ok((load(&it, kinds)?, it))) {
            Ok(opened) => opened,
            Err(error) => {
                tracing::error!(
                    file = %file.display(), %error,
                    "the last state cannot be used, and none is kept: an agent that starts while the API server does not \
                     answer will pass nothing; remove the file"
                );
                return (None, None);
            }
        };
        let (changes, receiver) = sync_channel(WAITING);
        let path = file.to_owned();
        let spawned = thread::Builder::new()
            .name("snapshot".to_owned())
            .spawn(move || write_all(&database, &receiver, &path));
        (spawned.ok().map(|_| Self { changes, lost: AtomicBool::new(false) }), loaded)
    }

    /// Records what an event says. Its texts are moved: the agent needs none.
    pub(super) fn record(&self, event: &mut Event) {
        let text = |reading: &mut Reading| (reading.key.clone(), std::mem::take(&mut reading.text));
        self.send(match event {
            Event::Listed { kind, readings } => {
                Change::Replace(*kind, readings.iter_mut().map(text).collect())
            }
            Event::Changed(reading) => {
                let (key, text) = text(reading);
                Change::Put(key, text)
            }
            Event::Gone(key) => Change::Remove(key.clone()),
            Event::Fault { .. } => return,
        });
    }

    /// All objects were known, and the server answered, at `now`.
    pub(super) fn complete(&self, now: SystemTime) {
        self.send(Change::Complete(now));
    }

    fn send(&self, change: Change) {
        if !self.lost.load(Ordering::Relaxed) && self.changes.try_send(change).is_err() {
            self.lost.store(true, Ordering::Relaxed);
            tracing::error!(
                "the disk is too slow for the last state: it stays as it is on disk until the agent starts anew"
            );
        }
    }
}

fn write_all(database: &Database, changes: &Receiver<Change>, file: &Path) {
    while let Ok(first) = changes.recv() {
        let mut batch = vec![first];
        let until = std::time::Instant::now() + BURST;
        while let Some(left) = until.checked_duration_since(std::time::Instant::now())
            && let Ok(change) = changes.recv_timeout(left)
        {
            batch.push(change);
        }
        if let Err(error) = write(database, batch) {
            tracing::error!(
                file = %file.display(), %error,
                "the last state cannot be written, and is not kept any more"
            );
            return;
        }
    }
}

fn write(database: &Database, batch: Vec<Change>) -> Result<(), Failure> {
    let write = database.begin_write()?;
    {
        let mut objects = write.open_table(OBJECTS)?;
        let mut meta = write.open_table(META)?;
        meta.insert(FORM.0, FORM.1)?;
        for change in batch {
            match change {
                Change::Put(key, text) => _ = objects.insert(name(&key).as_str(), text.as_str())?,
                Change::Remove(key) => _ = objects.remove(name(&key).as_str())?,
                Change::Replace(kind, all) => {
                    meta.insert(listed(kind).as_str(), 1)?;
                    let prefix = format!("{kind:?}/");
                    objects.retain(|name, _| !name.starts_with(&prefix))?;
                    for (key, text) in all {
                        objects.insert(name(&key).as_str(), text.as_str())?;
                    }
                }
                Change::Complete(now) => {
                    let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                    meta.insert(COMPLETE, since.as_secs())?;
                }
            }
        }
    }
    write.commit()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_complete_only_for_kinds_that_were_listed() {
        let folder = tempfile::tempdir().unwrap();
        let database = Database::create(folder.path().join("state")).unwrap();
        let web =
            ObjectKey { kind: Kind::Pod, namespace: "shop".to_owned(), name: "web".to_owned() };
        let pods = Change::Replace(Kind::Pod, vec![(web, "{}".to_owned())]);
        write(&database, vec![pods]).unwrap();
        assert!(load(&database, &[Kind::Pod]).unwrap().is_none(), "it was never complete");
        write(&database, vec![Change::Complete(SystemTime::now())]).unwrap();
        assert_eq!(load(&database, &[Kind::Pod]).unwrap().unwrap().texts, ["{}"]);
        let kinds = [Kind::Pod, Kind::NetworkPolicy];
        assert!(load(&database, &kinds).unwrap().is_none(), "policies were not followed then");
        write(&database, vec![Change::Replace(Kind::NetworkPolicy, Vec::new())]).unwrap();
        assert!(load(&database, &kinds).unwrap().is_some());
    }
}
