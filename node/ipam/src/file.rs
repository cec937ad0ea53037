//! One record in a file.
//!
//! The file is written beside its place, synced, and renamed onto it: it is always one whole record. The revision is a
//! digest of the content. The kernel does not compare and swap in one step, so only one process may use the file: the
//! lock of an agent's socket sees to that.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use sha2::{Digest, Sha256};

use crate::store::{Error, Key, Record, Revision, Store, Swap};

/// See the module.
#[derive(Debug, Clone)]
pub struct FileStore {
    path: PathBuf,
    key: Key,
    /// Held while the file is read or written: work that is given up goes on to its end.
    turn: Arc<Mutex<()>>,
}

impl FileStore {
    /// The file at `path` holds the record `key`, and no other.
    pub fn new(path: impl Into<PathBuf>, key: Key) -> Self {
        Self { path: path.into(), key, turn: Arc::default() }
    }

    fn error(&self, verb: &'static str, Failed { source, is_undone }: Failed) -> Error {
        Error { record: self.describe(&self.key), verb, source, is_undone }
    }

    /// Runs what may block on a thread of its own.
    async fn run<T: Send + 'static>(
        &self,
        verb: &'static str,
        work: impl FnOnce(&Path) -> Result<T, Failed> + Send + 'static,
    ) -> Result<T, Error> {
        let (path, turn) = (self.path.clone(), Arc::clone(&self.turn));
        let in_turn = move || {
            let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
            work(&path)
        };
        let done = tokio::task::spawn_blocking(in_turn).await;
        let cut_off = |error| Err(Failed { source: io::Error::other(error), is_undone: false });
        done.unwrap_or_else(cut_off).map_err(|failed| self.error(verb, failed))
    }
}

/// Why the file cannot be read or written.
struct Failed {
    source: io::Error,
    /// Whether it is certainly as it was.
    is_undone: bool,
}

impl From<io::Error> for Failed {
    fn from(source: io::Error) -> Self {
        Self { source, is_undone: true }
    }
}

impl Store for FileStore {
    async fn get(&self, key: &Key) -> Result<Option<Record>, Error> {
        if *key != self.key {
            return Ok(None);
        }
        let key = key.clone();
        let value = self.run("read", |path| Ok(read(path)?)).await?;
        Ok(value.map(|value| Record { key, revision: revision(&value), value }))
    }

    async fn compare_and_swap(
        &self,
        key: &Key,
        expected: Option<&Revision>,
        value: Vec<u8>,
    ) -> Result<Swap, Error> {
        if *key != self.key {
            let message = format!("it holds {:?}, not {key:?}", self.key);
            return Err(self.error("written", io::Error::other(message).into()));
        }
        let expected = expected.cloned();
        let swap = move |path: &Path| {
            if read(path)?.as_deref().map(revision) != expected {
                return Ok(Swap::Conflict);
            }
            write(path, &value)?;
            Ok(Swap::Done(revision(&value)))
        };
        self.run("written", swap).await
    }

    async fn list(&self, host: &str) -> Result<Vec<Record>, Error> {
        if *host != self.key.host {
            return Ok(Vec::new());
        }
        Ok(self.get(&self.key).await?.into_iter().collect())
    }

    fn describe(&self, _key: &Key) -> String {
        format!("the address file {}", self.path.display())
    }
}

fn revision(value: &[u8]) -> Revision {
    Revision(format!("{:x?}", Sha256::digest(value)))
}

fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn write(path: &Path, value: &[u8]) -> Result<(), Failed> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    // What a crash left; a link would be removed, and not followed.
    match fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
    file.write_all(value)?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    // The rename itself is on disk only when the folder is.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let synced = folder.map_or(Ok(()), |folder| File::open(folder)?.sync_all());
    synced.map_err(|source| Failed { source, is_undone: false })
}
