//! One record in a file.
//!
//! The file is written under a temporary name, synced, and renamed, so it is always one whole record. The revision is a
//! digest of the content. The kernel has no compare-and-swap for files, so only one process may use the file. The lock
//! of the agent's socket ensures that.
//!
//! A thread reads and writes the file, and does nothing else, so no other work delays a call. It executes the calls one at
//! a time. The channel to it is bounded: when the disk hangs, 16 calls wait and more are refused.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread;

use sha2::{Digest, Sha256};
use tokio::sync::oneshot;

use crate::store::{Error, Key, Record, Revision, Store, Swap};

/// The most calls that wait for the thread. An allocator makes one at a time; the others are calls whose callers no longer
/// wait.
const QUEUE: usize = 16;

/// A piece of work for the thread, on the file at this path.
type Work = Box<dyn FnOnce(&Path) + Send>;

/// See the module.
#[derive(Debug)]
pub struct FileStore {
    path: PathBuf,
    key: Key,
    /// The sender of work. When it is dropped, the thread finishes the work in the channel and ends.
    thread: SyncSender<Work>,
}

impl FileStore {
    /// Opens the store for the file at `path`, which contains only the record `key`. Starts the thread.
    ///
    /// # Errors
    /// The kernel refuses to start a thread.
    pub fn new(path: impl Into<PathBuf>, key: Key) -> Result<Self, Error> {
        let (thread, all) = sync_channel::<Work>(QUEUE);
        let store = Self { path: path.into(), key, thread };
        let path = store.path.clone();
        let started = thread::Builder::new()
            .name("addresses".to_owned())
            .spawn(move || all.into_iter().for_each(|work| work(&path)));
        match started {
            Ok(_) => Ok(store),
            Err(source) => Err(store.error("read", source.into())),
        }
    }

    fn error(&self, verb: &'static str, Failed { source, is_undone }: Failed) -> Error {
        Error { record: self.describe(&self.key), verb, source, is_undone }
    }

    /// Runs work on the thread, and waits for it. If the caller stops waiting, the work still runs to its end.
    async fn run<T: Send + 'static>(
        &self,
        verb: &'static str,
        work: impl FnOnce(&Path) -> Result<T, Failed> + Send + 'static,
    ) -> Result<T, Error> {
        let (answer, answered) = oneshot::channel();
        let work = Box::new(move |path: &Path| {
            // This fails if the caller no longer waits.
            let _ = answer.send(work(path));
        });
        let done = match self.thread.try_send(work) {
            Ok(()) => answered.await.unwrap_or_else(|_| {
                Err(Failed { source: io::Error::other(ENDED), is_undone: false })
            }),
            Err(TrySendError::Full(_)) => Err(io::Error::other(format!(
                "{QUEUE} calls wait for its disk already, and no more may; see why the disk does not answer"
            ))
            .into()),
            Err(TrySendError::Disconnected(_)) => Err(io::Error::other(ENDED).into()),
        };
        done.map_err(|failed| self.error(verb, failed))
    }
}

/// The error if there is no answer.
const ENDED: &str = "the thread that reads and writes it has ended; start the agent again";

/// The reason why the file cannot be read or written.
struct Failed {
    source: io::Error,
    /// Whether the file is certainly unchanged.
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
    // A crash may have left a temporary file. A link is removed, and not followed.
    match fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
    file.write_all(value)?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    // The rename is on disk only after the folder is synced.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let synced = folder.map_or(Ok(()), |folder| File::open(folder)?.sync_all());
    synced.map_err(|source| Failed { source, is_undone: false })
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::mpsc::channel;
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;
    use tokio::runtime::Builder;

    use super::*;

    fn key() -> Key {
        Key { host: "n1".to_owned(), name: "leases".to_owned() }
    }

    #[test]
    fn other_work_that_hangs_holds_no_call_up() {
        let folder = tempfile::tempdir().unwrap();
        let pool = Builder::new_current_thread().enable_time().max_blocking_threads(1).build();
        let pool = pool.unwrap();
        let (_release, hung) = channel::<()>();
        pool.spawn_blocking(move || hung.recv());
        pool.block_on(async {
            let store = FileStore::new(folder.path().join("addresses"), key()).unwrap();
            let key = key();
            let swap = store.compare_and_swap(&key, None, b"1".to_vec());
            let swap = tokio::time::timeout(Duration::from_secs(10), swap).await;
            assert!(matches!(swap, Ok(Ok(Swap::Done(_)))), "{swap:?}");
        });
    }

    #[test]
    fn a_disk_that_hangs_has_so_many_calls_wait_and_refuses_more() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("addresses");
        // Reading a pipe waits until another process writes to it.
        mkfifo(&path, Mode::S_IRWXU).unwrap();
        let store = FileStore::new(&path, key()).unwrap();
        let poll = || {
            let key = key();
            pin!(store.get(&key)).poll(&mut Context::from_waker(Waker::noop()))
        };
        let mut waiting = 0;
        let refused = loop {
            match poll() {
                Poll::Pending => waiting += 1,
                Poll::Ready(answer) => break answer.unwrap_err(),
            }
            assert!(waiting <= QUEUE + 1);
        };
        assert!(waiting >= QUEUE, "{waiting}");
        assert!(refused.is_undone);
        let text = refused.to_string().replace(&*path.to_string_lossy(), "PATH");
        insta::assert_snapshot!(text, @"the address file PATH cannot be read: 16 calls wait for its disk already, and no more may; see why the disk does not answer");
        // The disk answers again: there is no file.
        let disk = OpenOptions::new().write(true).open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        drop(disk);
        let runtime = Builder::new_current_thread().build().unwrap();
        let key = key();
        while let Err(error) = runtime.block_on(store.get(&key)) {
            assert!(error.is_undone, "{error}");
            thread::yield_now();
        }
        assert_eq!(runtime.block_on(store.get(&key)).unwrap(), None);
    }
}
