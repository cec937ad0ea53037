//! The holder itself: one thread, which serves one connection at a time.

use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use manx_api::descriptors;
use manx_linux::socket::{self, Listening};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::{SFlag, fstat};
use nix::sys::statfs::{NSFS_MAGIC, fstatfs};
use serde_json::Value;

use super::{Call, MAX_ENTRIES, Reply, Request, Response, SILENCE, VERSION, prepare, receive};

/// The interval at which the holder looks for devices that are gone because their namespaces ended without a DEL.
const LOOK: Duration = Duration::from_secs(5);
/// The time that the holder stays without a device and a connection. The plugin checks that there is a holder before it
/// makes a device, and the agent hands the queues over when the device is made.
const IDLE: Duration = Duration::from_mins(1);

/// See the module.
#[derive(Debug)]
pub struct Holder {
    socket: Listening,
    entries: BTreeMap<String, Entry>,
}

#[derive(Debug)]
struct Entry {
    note: Value,
    descriptors: Vec<OwnedFd>,
    /// Whether the descriptors keep a device or a namespace. It is `false` for files of flow records, which are useless
    /// when all devices are gone.
    has_device: bool,
}

impl Holder {
    /// Listens, without entries. The error `InUse` means that there is another holder.
    pub fn bind(path: &Path) -> Result<Self, socket::Error> {
        Ok(Self { socket: Listening::bind(path)?, entries: BTreeMap::new() })
    }

    /// Serves until a client asks it to end, or until it has no device and no client has called for a minute.
    pub fn run(self) -> io::Result<()> {
        self.run_for(IDLE, LOOK)
    }

    pub(super) fn run_for(mut self, idle: Duration, look: Duration) -> io::Result<()> {
        let mut asked = Instant::now();
        loop {
            if self.wait(look)? {
                // Only the client is affected if a connection breaks.
                match self.socket.listener().accept().and_then(|(stream, _)| self.serve(&stream)) {
                    Ok(true) => return Ok(()),
                    Ok(false) | Err(_) => asked = Instant::now(),
                }
            }
            self.entries.retain(|_, entry| !entry.is_gone());
            if !self.entries.values().any(|it| it.has_device) && asked.elapsed() > idle {
                return Ok(());
            }
        }
    }

    /// Waits for a connection. Returns whether there is one.
    fn wait(&self, patience: Duration) -> io::Result<bool> {
        let timeout = PollTimeout::try_from(patience).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(self.socket.listener().as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(ready) => Ok(ready > 0),
            Err(nix::errno::Errno::EINTR) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Answers all requests of a connection. Returns whether one of them asked the holder to end.
    fn serve(&mut self, stream: &UnixStream) -> io::Result<bool> {
        if prepare(stream, SILENCE)?.is_some() {
            return Ok(false);
        }
        while let Some((Request { version, call }, brought)) = receive(stream)? {
            let ends = matches!(call, Call::End);
            let (response, given) = if version == VERSION {
                self.answer(call, brought)
            } else {
                let text = format!("it speaks version {VERSION} of its protocol, not {version}");
                (Err(text), Vec::new())
            };
            let bytes = manx_api::encode(&response).map_err(io::Error::other)?;
            descriptors::send(stream, &bytes, &given)?;
            if ends && response.is_ok() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn answer(&mut self, call: Call, brought: Vec<OwnedFd>) -> (Response, Vec<BorrowedFd<'_>>) {
        let reply = match call {
            Call::Keep { name, note, descriptors } => {
                return (self.keep(name, note, descriptors, brought), Vec::new());
            }
            Call::Next { after } => return self.next(after),
            Call::Release { name } => {
                self.entries.remove(&name);
                Reply::Released
            }
            Call::End => Reply::Ending,
        };
        (Ok(reply), Vec::new())
    }

    fn keep(&mut self, name: String, note: Value, told: usize, brought: Vec<OwnedFd>) -> Response {
        // The kernel leaves out the descriptors beyond the limit of open files.
        if brought.len() != told || told == 0 {
            let came = brought.len();
            return Err(format!(
                "{came} of {told} descriptors of {name} came: raise its limit of open files, which has to be larger than all queues \
                 of the node together"
            ));
        }
        if !self.entries.contains_key(&name) && self.entries.len() >= MAX_ENTRIES {
            return Err(format!("it keeps {MAX_ENTRIES} entries already, and no more"));
        }
        self.entries.insert(name, Entry::new(note, brought));
        Ok(Reply::Kept { entries: self.entries.len() })
    }

    fn next(&self, after: Option<String>) -> (Response, Vec<BorrowedFd<'_>>) {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let Some((name, entry)) = self.entries.range((from, Bound::Unbounded)).next() else {
            return (Ok(Reply::NoMore), Vec::new());
        };
        let (name, note, count) = (name.clone(), entry.note.clone(), entry.descriptors.len());
        let reply = Reply::Entry { name, note, descriptors: count };
        (Ok(reply), entry.descriptors.iter().map(AsFd::as_fd).collect())
    }
}

impl Entry {
    fn new(note: Value, descriptors: Vec<OwnedFd>) -> Self {
        // A namespace is also a regular file. It contains the links of pods that another plugin has connected.
        let is_namespace =
            |it: &OwnedFd| fstatfs(it).is_ok_and(|it| it.filesystem_type() == NSFS_MAGIC);
        let is_file = |it: &OwnedFd| {
            fstat(it).is_ok_and(|it| it.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFREG.bits())
                && !is_namespace(it)
        };
        let has_device = !descriptors.iter().all(is_file);
        Self { note, descriptors, has_device }
    }

    /// Whether the device of these queues is gone. Queues of such a device report an error (Linux, `tun_chr_poll`).
    fn is_gone(&self) -> bool {
        self.descriptors.iter().any(|it| {
            let mut one = [PollFd::new(it.as_fd(), PollFlags::empty())];
            let polled = poll(&mut one, PollTimeout::ZERO);
            polled.is_ok()
                && one[0].revents().is_some_and(|found| found.contains(PollFlags::POLLERR))
        })
    }
}
