//! The file with the last state. It is used only if all of its content was written completely.
//!
//! ```text
//! block 0, block 1   heads: `manx-state 2 SEQUENCE LENGTH SUM COMPLETE OWN-SUM`, 512 bytes each
//! from byte 1024     log, LENGTH bytes, one change a line:
//!                    `+"Pod/shop/web"` tab `{..}`   the object is this
//!                    `-"Pod/shop/web"`              the object is gone
//!                    `=Pod`                         all objects of the kind follow; those from before are gone
//! ```
//!
//! A commit appends lines, syncs them to disk, and then overwrites the older head. So after a crash at any time, a head
//! contains the length and the sum of the log at some commit. The log is used only if all of it has this sum. A single
//! different bit makes the file [`UnusableFile`]. The sum is FNV-1a. It detects damage but not forgery, so the file is
//! trusted only if no other user can write to it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::geteuid;

/// The format of the file, with which a head begins.
const FORM: &str = "manx-state 2";
/// The length of a head, in bytes.
const HEAD: u64 = 512;
/// The offset of the log.
const LOG: u64 = 2 * HEAD;
/// The number of bytes of lines that are written at once.
const PIECE: usize = 1 << 20;
/// The log is rewritten when it has grown by this many bytes and is also at least twice as long as when it was new.
const GROWTH: u64 = 1 << 20;
/// Only the owner may read and write the file.
const MODE: u32 = 0o600;

/// The reason why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum UnusableFile {
    /// The file is damaged or was not written by Manx. It is renamed and kept.
    #[error("{0}")]
    File(String),
    /// Another process has locked the file.
    #[error("another process keeps its state there: expected a file for each agent (--state)")]
    InUse,
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// One change. Names of objects have the form `KIND/NAMESPACE/NAME`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    Put(String, String),
    Remove(String),
    /// Replaces all objects of a kind.
    Replace(String, Vec<(String, String)>),
}

/// The content of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct State {
    /// The texts of all objects, by name.
    pub(super) objects: BTreeMap<String, String>,
    /// The kinds whose objects were completely written.
    pub(super) listed: BTreeSet<String>,
    /// The time of the last complete state, in seconds since 1970. 0 means never.
    pub(super) complete: u64,
}

/// A head: the length of the log at a commit, and the log's sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    sequence: u64,
    length: u64,
    sum: u64,
    complete: u64,
}

/// The file, open and locked.
#[derive(Debug)]
pub(super) struct StateFile {
    path: PathBuf,
    file: Flock<File>,
    head: Head,
    /// The length of the log when it was last rewritten. After opening, it is the estimated length that a rewritten log
    /// would have.
    fresh: u64,
}

impl StateFile {
    /// Opens the state at `path`. Returns `Ok(None)` if there is no file.
    pub(super) fn open(path: &Path) -> Result<Option<(Self, State)>, UnusableFile> {
        let mut options = OpenOptions::new();
        // Links are not followed, and opening a FIFO does not wait.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = match options.read(true).write(true).custom_flags(flags).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) if not_a_file(&error) => {
                return Err(UnusableFile::File(format!("found no regular file ({error})")));
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(UnusableFile::File(format!("it cannot be opened ({error})")));
            }
            opened => opened?,
        };
        check_owner(&file)?;
        let file = lock(file)?;
        let head = newest_head(&file)?;
        check_log(&file, head)?;
        let mut this = Self { path: path.to_owned(), file, head, fresh: 0 };
        let state = this.read()?;
        this.fresh =
            state.objects.iter().map(|(name, text)| (name.len() + text.len()) as u64).sum();
        Ok(Some((this, state)))
    }

    /// Creates the file with a state in it. A file at `path` is replaced atomically.
    pub(super) fn create(path: &Path, state: &State) -> Result<Self, UnusableFile> {
        let new = beside(path, "new");
        // A crash may have left a temporary file with this name.
        if let Err(error) = fs::remove_file(&new)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error.into());
        }
        let file =
            OpenOptions::new().read(true).write(true).create_new(true).mode(MODE).open(&new)?;
        let head = Head { sequence: 0, length: 0, sum: SUM_OF_NOTHING, complete: state.complete };
        let mut this = Self { path: path.to_owned(), file: lock(file)?, head, fresh: 0 };
        let mut lines = Vec::new();
        for kind in &state.listed {
            let of_kind = state.objects.iter().filter(|(name, _)| kind_of(name) == kind);
            this.append_all(kind, of_kind, &mut lines)?;
        }
        this.write_piece(&mut lines, 1)?;
        this.file.sync_data()?;
        // Both heads are written, because a new block of a disk may contain anything.
        this.write_head()?;
        this.write_head()?;
        this.fresh = this.head.length;
        fs::rename(&new, path)?;
        sync_folder(path)?;
        Ok(this)
    }

    /// Writes changes to disk. If this fails, none of the changes takes effect, and the caller may try the same changes
    /// again. `complete` is the time at which the state was complete.
    pub(super) fn commit(
        &mut self,
        changes: &[Change],
        complete: Option<u64>,
    ) -> Result<(), UnusableFile> {
        let before = self.head;
        let committed = self.append(changes).and_then(|()| {
            self.head.complete = complete.unwrap_or(self.head.complete);
            self.write_head()
        });
        if let Err(error) = committed {
            self.head = before;
            return Err(error.into());
        }
        if self.head.length > 2 * self.fresh + GROWTH {
            match self.read().and_then(|state| Self::create(&self.path, &state)) {
                Ok(fresh) => *self = fresh,
                Err(error) => {
                    tracing::warn!(%error, "the file of the last state cannot be made shorter yet");
                    self.fresh = self.head.length;
                }
            }
        }
        Ok(())
    }

    fn append(&mut self, changes: &[Change]) -> io::Result<()> {
        let mut lines = Vec::new();
        for change in changes {
            match change {
                Change::Put(name, text) => put(&mut lines, name, text)?,
                Change::Remove(name) => {
                    lines.push(b'-');
                    serde_json::to_writer(&mut lines, name)?;
                    lines.push(b'\n');
                }
                Change::Replace(kind, all) => {
                    self.append_all(kind, all.iter().map(|(name, text)| (name, text)), &mut lines)?;
                }
            }
            self.write_piece(&mut lines, PIECE)?;
        }
        self.write_piece(&mut lines, 1)?;
        if changes.is_empty() { Ok(()) } else { self.file.sync_data() }
    }

    fn append_all<'a>(
        &mut self,
        kind: &str,
        all: impl Iterator<Item = (&'a String, &'a String)>,
        lines: &mut Vec<u8>,
    ) -> io::Result<()> {
        lines.extend_from_slice(format!("={kind}\n").as_bytes());
        for (name, text) in all {
            put(lines, name, text)?;
            self.write_piece(lines, PIECE)?;
        }
        Ok(())
    }

    /// Appends lines to the log if they have at least this many bytes.
    fn write_piece(&mut self, lines: &mut Vec<u8>, least: usize) -> io::Result<()> {
        if lines.len() >= least {
            self.file.write_all_at(lines, LOG + self.head.length)?;
            self.head.length += lines.len() as u64;
            self.head.sum = sum(self.head.sum, lines);
            lines.clear();
        }
        Ok(())
    }

    /// Writes the length and the sum of the log to the older of the two heads.
    fn write_head(&mut self) -> io::Result<()> {
        self.head.sequence += 1;
        let mut block = self.head.text().into_bytes();
        block.resize(HEAD as usize, b'\n');
        self.file.write_all_at(&block, (self.head.sequence % 2) * HEAD)?;
        self.file.sync_data()
    }

    /// Reads the log, whose sum was already checked.
    fn read(&mut self) -> Result<State, UnusableFile> {
        let mut state = State { complete: self.head.complete, ..State::default() };
        self.file.seek(SeekFrom::Start(LOG))?;
        let mut lines = BufReader::new((&*self.file).take(self.head.length));
        let mut line = Vec::new();
        loop {
            line.clear();
            if lines.read_until(b'\n', &mut line)? == 0 {
                return Ok(state);
            }
            let text = std::str::from_utf8(&line).ok().and_then(|it| it.strip_suffix('\n'));
            text.and_then(|text| state.take(text)).ok_or_else(|| {
                UnusableFile::File("found a line that is no change in its log".to_owned())
            })?;
        }
    }
}

impl State {
    /// Applies one line of the log. Returns `None` if the line is not valid.
    fn take(&mut self, line: &str) -> Option<()> {
        let name = |text: &str| serde_json::from_str::<String>(text).ok();
        if let Some(rest) = line.strip_prefix('+') {
            let (key, text) = rest.split_once('\t')?;
            self.objects.insert(name(key)?, text.to_owned());
        } else if let Some(rest) = line.strip_prefix('-') {
            self.objects.remove(&name(rest)?);
        } else {
            let kind = line.strip_prefix('=')?;
            self.objects.retain(|name, _| kind_of(name) != kind);
            self.listed.insert(kind.to_owned());
        }
        Some(())
    }
}

impl Head {
    fn text(self) -> String {
        let Self { sequence, length, sum: of_log, complete } = self;
        let text = format!("{FORM} {sequence} {length} {of_log:016x} {complete}");
        let own = sum(SUM_OF_NOTHING, text.as_bytes());
        format!("{text} {own:016x}\n")
    }

    fn read(block: &[u8]) -> Option<Self> {
        let line = std::str::from_utf8(block).ok()?.lines().next()?;
        let mut words = line.strip_prefix(FORM)?.split_ascii_whitespace();
        let mut number = |radix| u64::from_str_radix(words.next()?, radix).ok();
        let head = Self {
            sequence: number(10)?,
            length: number(10)?,
            sum: number(16)?,
            complete: number(10)?,
        };
        // The whole line is compared, including the head's own sum.
        (head.text().trim_end() == line && words.next().is_some()).then_some(head)
    }
}

/// Returns the path of another file, with this ending.
pub(super) fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    name.into()
}

/// Returns the kind in an object's name.
fn kind_of(name: &str) -> &str {
    name.split('/').next().unwrap_or_default()
}

fn put(lines: &mut Vec<u8>, name: &str, text: &str) -> io::Result<()> {
    lines.push(b'+');
    serde_json::to_writer(&mut *lines, name)?;
    lines.push(b'\t');
    // Line breaks can be replaced: outside of strings they have no meaning in JSON, and within strings they are always
    // escaped.
    lines.extend(text.bytes().map(|byte| if byte == b'\n' { b' ' } else { byte }));
    lines.push(b'\n');
    Ok(())
}

fn not_a_file(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    [libc::ELOOP, libc::EISDIR, libc::ENXIO].iter().any(|it| code == Some(*it))
}

/// Accepts only a file that no other user could write, and removes the right of others to read it.
fn check_owner(file: &File) -> Result<(), UnusableFile> {
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(UnusableFile::File("found no regular file".to_owned()));
    }
    let own = geteuid().as_raw();
    if found.uid() != own {
        let text = format!("found a file of user {}, expected one of user {own}", found.uid());
        return Err(UnusableFile::File(text));
    }
    let mode = found.mode() & 0o7777;
    if mode & 0o022 != 0 {
        let text =
            format!("found mode {mode:04o}, so other users may have written it; expected 0600");
        return Err(UnusableFile::File(text));
    }
    if mode != MODE {
        file.set_permissions(Permissions::from_mode(MODE))?;
    }
    Ok(())
}

/// The time for which a stopping agent may still hold the file while the next agent starts.
const ENDING: Duration = Duration::from_secs(3);

fn lock(mut file: File) -> Result<Flock<File>, UnusableFile> {
    let start = Instant::now();
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(locked) => return Ok(locked),
            Err((_, Errno::EWOULDBLOCK)) if start.elapsed() >= ENDING => {
                return Err(UnusableFile::InUse);
            }
            Err((again, Errno::EWOULDBLOCK)) => file = again,
            Err((_, error)) => return Err(UnusableFile::Io(error.into())),
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn newest_head(file: &File) -> Result<Head, UnusableFile> {
    let mut heads = Vec::new();
    for at in [0, HEAD] {
        let mut block = [0; HEAD as usize];
        match file.read_exact_at(&mut block, at) {
            Ok(()) => heads.extend(Head::read(&block)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
            Err(error) => return Err(error.into()),
        }
    }
    heads.into_iter().max_by_key(|head| head.sequence).ok_or_else(|| {
        UnusableFile::File(format!("found no whole head, expected one that begins with {FORM:?}"))
    })
}

/// Checks that the log has the length and the sum in the head. The log is read in pieces; its content is used only
/// after this check.
fn check_log(mut file: &File, head: Head) -> Result<(), UnusableFile> {
    let damaged = || UnusableFile::File("its log is not what was written".to_owned());
    let found = file.metadata()?.len();
    if found.checked_sub(LOG).is_none_or(|log| log < head.length) {
        return Err(damaged());
    }
    file.seek(SeekFrom::Start(LOG))?;
    let mut log = BufReader::with_capacity(PIECE, file.take(head.length));
    let mut of_log = SUM_OF_NOTHING;
    loop {
        let piece = log.fill_buf()?;
        if piece.is_empty() {
            return if of_log == head.sum { Ok(()) } else { Err(damaged()) };
        }
        of_log = sum(of_log, piece);
        let len = piece.len();
        log.consume(len);
    }
}

fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// The FNV-1a sum (Fowler, Noll, Vo; 64 bits) of an empty text.
const SUM_OF_NOTHING: u64 = 0xcbf2_9ce4_8422_2325;

fn sum(before: u64, bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(before, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests;
