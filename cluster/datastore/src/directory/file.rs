//! One file: its last valid state, its current fault, and whether it must be read again.

use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use manx_objects::contents::{fingerprint, fingerprint_of_text};
use manx_objects::object::{Controller, Kind, ObjectKey};
use manx_objects::problem::{Cause, Problem, Severity};
use manx_objects::yaml::MAX_BYTES;
use manx_objects::{Entry, Manifest, few};

use super::encoding;

/// The time within which a file may change again without a new time stamp. The clocks of file systems have a resolution
/// of up to two seconds (FAT), and commonly 4 ms.
const STAMP_SETTLES: Duration = Duration::from_secs(2);

/// The time for which a file with less content than before must stay unchanged before it is used. No program waits
/// longer between two parts of one save.
pub const STANDS: Duration = Duration::from_secs(2);

/// The properties of a file that show whether it is still the file that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    length: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn from_metadata(metadata: &std::fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            length: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    fn settled(self, now: SystemTime) -> bool {
        let seconds = u64::try_from(self.changed.0).unwrap_or(0);
        let nanoseconds = u32::try_from(self.changed.1).unwrap_or(0);
        let changed = SystemTime::UNIX_EPOCH + Duration::new(seconds, nanoseconds);
        now.duration_since(changed).is_ok_and(|age| age > STAMP_SETTLES)
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct File {
    /// The stamp of the text that was read last, if the file cannot have changed since then without a new stamp.
    stamp: Option<Stamp>,
    digest: Option<u64>,
    /// The hash has a random key, so that an attacker cannot write two texts with the same digest.
    hashing: RandomState,
    good: Option<Version>,
    /// The version that was read last, while it may be a partial save because it has less content than `good`.
    unsettled: Option<(Version, Instant)>,
    fault: Option<Problem>,
    /// Whether the text is stored, and the text that was read last.
    keeps_text: bool,
    text: Option<String>,
}

/// The contents of a file at one time.
#[derive(Debug)]
struct Version {
    manifest: Manifest,
    /// The fingerprint of the text. It is the same in every process.
    fingerprint: u64,
    length: usize,
    /// Device and inode. A file that was renamed to this name has different ones.
    file: (u64, u64),
}

impl Version {
    /// Returns the keys of the objects that affect agents. Workloads of unread kinds are left out, because they do not.
    /// Placeholders are left out, too: a placeholder may come from a partial save, so its disappearance is not a loss.
    fn keys(&self) -> BTreeSet<&ObjectKey> {
        let entries = self.manifest.entries.iter();
        let is_other = |key: &ObjectKey| key.kind == Kind::Workload(Controller::Other);
        let entries = entries.filter(|entry| entry.identified && !is_other(&entry.key));
        entries.map(|entry| &entry.key).collect()
    }

    /// Returns the reason why `newer` may be a partial save, or `None` if it is not one.
    fn looks_half_written(&self, newer: &Self) -> Option<Cause> {
        let (before, after) = (self.keys(), newer.keys());
        let missing = before.difference(&after).count();
        if after.is_empty() && missing > 0 {
            return Some(Cause::Emptied { before: missing });
        }
        // If a file is written in place, it may end anywhere during the write. A renamed file is complete. But a
        // program that creates a new file and then fills it also changes the inode.
        let broken_off = self.file == newer.file && newer.length < self.length;
        (missing > 0 || broken_off).then(|| Cause::SaysLess { missing, seconds: STANDS.as_secs() })
    }
}

/// The result of reading a file again.
#[derive(Debug)]
pub(super) enum Refreshed {
    /// The file has not changed.
    Same,
    /// Only the fault of the file has changed.
    Reported,
    /// The objects of the file have changed. The value contains the previous ones.
    Changed(PreviousText),
}

/// The previous contents of a file.
#[derive(Debug)]
pub(super) struct PreviousText {
    version: Option<Version>,
    /// Whether the file had a fault.
    pub(super) faulty: bool,
}

impl PreviousText {
    pub(super) fn entries(&self) -> &[Entry] {
        self.version.as_ref().map_or(&[], |version| &version.manifest.entries)
    }

    /// Like [`File::fingerprint`].
    pub(super) fn fingerprint(&self, name: &str) -> u64 {
        fingerprint_of(name, self.version.as_ref())
    }
}

impl File {
    /// Returns a file that could not be read.
    pub(super) fn from_fault(name: &str, cause: Cause) -> Self {
        Self { fault: Some(Problem::of_file(&Arc::from(name), cause)), ..Self::default() }
    }

    /// Returns a file whose text will be stored.
    pub(super) fn keeping_text() -> Self {
        Self { keeps_text: true, ..Self::default() }
    }

    /// Takes the text, if it is stored.
    pub(super) fn take_text(&mut self) -> Option<String> {
        self.text.take()
    }

    /// Changes the severity of text that is not an object to an error, because the user named the file.
    pub(super) fn expect_objects(&mut self) {
        let problems = self.good.iter_mut().flat_map(|version| &mut version.manifest.problems);
        for problem in problems {
            if matches!(problem.cause, Cause::NotAnObject { .. }) {
                problem.severity = Severity::Error;
            }
        }
    }

    pub(super) fn was_read(&self) -> bool {
        self.good.is_some()
    }

    /// Returns whether reading again, after some time, may change the result although the file does not change.
    pub(super) fn is_unsettled(&self) -> bool {
        self.unsettled.is_some()
    }

    /// Returns the fingerprint of the file's text and name, or 0 if there is no text.
    pub(super) fn fingerprint(&self, name: &str) -> u64 {
        fingerprint_of(name, self.good.as_ref())
    }

    pub(super) fn is_faulty(&self) -> bool {
        self.problems().next().is_some()
    }

    /// Returns the contents, when the file is removed or replaced.
    pub(super) fn into_previous_text(self) -> PreviousText {
        PreviousText { faulty: self.is_faulty(), version: self.good }
    }

    pub(super) fn problems(&self) -> impl Iterator<Item = &Problem> {
        let good = self.good.iter().flat_map(|version| &version.manifest.problems);
        self.fault.iter().chain(good)
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.good.iter().flat_map(|version| &version.manifest.entries)
    }

    /// Reads the file if it may have changed.
    pub(super) fn refresh(&mut self, name: &str, path: &Path, at: Moment) -> Refreshed {
        match read(path, self.stamp) {
            Ok(None) => self.accept_settled(at.monotonic),
            Ok(Some((stamp, text))) => {
                self.stamp = stamp.settled(at.wall).then_some(stamp);
                if self.digest == Some(self.hashing.hash_one(text.as_str())) && !self.unreadable() {
                    return self.accept_settled(at.monotonic);
                }
                let file = (stamp.device, stamp.inode);
                self.read_text(name, &text, file, at.monotonic)
            }
            // A missing file is an error, too. It is either a link without a target, or it was removed after the
            // directory was listed; in that case the next refresh removes its state.
            Err(error) => {
                self.stamp = None;
                self.unsettled = None;
                let mut message = error.to_string();
                if error.kind() == io::ErrorKind::NotFound
                    && name.contains(char::REPLACEMENT_CHARACTER)
                {
                    "its name is not UTF-8: rename it".clone_into(&mut message);
                }
                let cause = Cause::Unreadable(message);
                let fault = Some(Problem::of_file(&Arc::from(name), cause));
                if self.fault == fault {
                    return Refreshed::Same;
                }
                self.fault = fault;
                Refreshed::Reported
            }
        }
    }

    fn unreadable(&self) -> bool {
        self.fault.as_ref().is_some_and(|fault| matches!(fault.cause, Cause::Unreadable(_)))
    }

    fn read_text(&mut self, name: &str, text: &str, file: (u64, u64), now: Instant) -> Refreshed {
        let faulty = self.is_faulty();
        self.unsettled = None;
        self.fault = None;
        self.digest = Some(self.hashing.hash_one(text));
        self.text = self.keeps_text.then(|| text.to_owned());
        match manx_objects::read(name, text) {
            Ok(manifest) => {
                let version =
                    Version { manifest, fingerprint: fingerprint(text), length: text.len(), file };
                let Some(cause) =
                    self.good.as_ref().and_then(|good| good.looks_half_written(&version))
                else {
                    return Refreshed::Changed(PreviousText {
                        version: self.good.replace(version),
                        faulty,
                    });
                };
                // The objects of an emptied file stay in force. To remove them, the user must remove the file.
                if !matches!(cause, Cause::Emptied { .. }) {
                    self.unsettled = Some((version, now));
                }
                self.fault = Some(Problem::of_file(&Arc::from(name), cause));
            }
            Err(fault) => self.fault = Some(*fault),
        }
        Refreshed::Reported
    }

    /// Uses the new text of a possible partial save, if the file has been unchanged long enough.
    fn accept_settled(&mut self, now: Instant) -> Refreshed {
        match self.unsettled.take_if(|(_, since)| now.saturating_duration_since(*since) >= STANDS) {
            Some((version, _)) => {
                self.fault = None;
                Refreshed::Changed(PreviousText {
                    version: self.good.replace(version),
                    faulty: true,
                })
            }
            None => Refreshed::Same,
        }
    }
}

/// The time at which a file is read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    /// The time on the clock of file time stamps.
    pub(super) wall: SystemTime,
    /// The time on the clock that measures how long a file stays unchanged.
    pub(super) monotonic: Instant,
}

impl Moment {
    pub(super) fn now() -> Self {
        Self { wall: SystemTime::now(), monotonic: Instant::now() }
    }
}

fn fingerprint_of(name: &str, version: Option<&Version>) -> u64 {
    version.map_or(0, |version| fingerprint_of_text(name, version.fingerprint))
}

/// Returns whether a file with this name counts as a manifest.
fn is_manifest(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    matches!(extension, Some("yaml" | "yml" | "json"))
}

/// Opens a manifest, or a link to one. `O_NONBLOCK` is set because opening a FIFO with such a name would otherwise wait
/// for a writer. If the name is not that of a manifest, the user has named the file and may mean `/dev/stdin`, so the
/// flag is not set.
fn open(path: &Path) -> io::Result<(std::fs::File, std::fs::Metadata)> {
    let flags = if is_manifest(path) { libc::O_NONBLOCK } else { 0 };
    let file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    if is_manifest(path) && !metadata.is_file() {
        let message = "is no regular file, nor a link to one: replace it by one";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    Ok((file, metadata))
}

/// Reads the file's text. Returns `None` if the file still has the `known` stamp; this is checked without opening the
/// file. (A network file system may return an old stamp while it caches attributes, whereas opening the file would have
/// asked the server. NFS caches them for up to a minute by default, `acregmax`.)
fn read(path: &Path, known: Option<Stamp>) -> io::Result<Option<(Stamp, String)>> {
    if known.is_some()
        && std::fs::metadata(path).is_ok_and(|it| known == Some(Stamp::from_metadata(&it)))
    {
        return Ok(None);
    }
    let (file, metadata) = open(path)?;
    let stamp = Stamp::from_metadata(&metadata);
    if known == Some(stamp) {
        return Ok(None);
    }
    // One byte more than the maximum is enough for the reader to refuse the file.
    let mut bytes = Vec::new();
    file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(Some((stamp, encoding::decode(bytes)?)))
}

/// Reads the text of a manifest.
pub(super) fn text(path: &Path) -> io::Result<String> {
    Ok(read(path, None)?.map(|(_, text)| text).unwrap_or_default())
}

/// Returns the manifests in a directory and, if `recursive`, in its subdirectories. Directories whose names begin with
/// a dot are not read, and neither are links to directories.
pub(super) fn paths(directory: &Path, recursive: bool) -> io::Result<Vec<PathBuf>> {
    let mut paths: Vec<PathBuf> =
        names(directory)?.iter().map(|name| directory.join(name)).collect();
    if recursive {
        for entry in std::fs::read_dir(directory)? {
            let entry = entry?;
            let hidden = entry.file_name().to_string_lossy().starts_with('.');
            if !hidden && entry.file_type()?.is_dir() {
                paths.extend(self::paths(&entry.path(), recursive)?);
            }
        }
    }
    Ok(paths)
}

/// Returns the files of a directory without manifests, for messages.
pub(super) fn others(directory: &Path) -> io::Result<String> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let slash = if entry.path().is_dir() { "/" } else { "" };
        names.push(format!("{}{slash}", entry.file_name().to_string_lossy()));
    }
    names.sort_by_key(|name| (name.starts_with('.'), name.clone()));
    Ok(first_of(&names).unwrap_or_else(|| "nothing".to_owned()))
}

/// Returns the subdirectories of a directory that [`paths`] would read and that contain manifests.
pub(super) fn folders(directory: &Path) -> io::Result<Vec<String>> {
    let mut folders = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // A directory that cannot be listed counts as one without manifests.
        let has_manifests = || names(&entry.path()).is_ok_and(|names| !names.is_empty());
        if !name.starts_with('.') && entry.file_type()?.is_dir() && has_manifests() {
            folders.push(format!("{name}/"));
        }
    }
    folders.sort();
    Ok(folders)
}

/// Returns the first names of a list, for messages. Returns `None` if the list is empty.
pub(super) fn first_of(names: &[String]) -> Option<String> {
    (!names.is_empty()).then(|| few(names, 3))
}

/// Returns the names of the manifests in a directory. A name that is not UTF-8 gets replacement characters. The file is
/// then not found, and the user gets a message.
pub(super) fn names(directory: &Path) -> io::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !is_manifest(Path::new(&name)) || name.starts_with('.') {
            continue;
        }
        // A link to a file counts as a file. A link without a target causes a report when it is opened.
        let kind = entry.file_type();
        if kind.is_ok_and(|kind| kind.is_file()) || !entry.path().is_dir() {
            names.insert(name);
        }
    }
    Ok(names)
}
