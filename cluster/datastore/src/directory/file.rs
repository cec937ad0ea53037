//! One file: its last good state, its present fault, and whether it has to be read again.

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

/// The time in which a file may change again without a new time stamp: file systems have clocks as coarse as two
/// seconds (FAT), commonly 4 ms.
const STAMP_SETTLES: Duration = Duration::from_secs(2);

/// The time for which a file with less content than before must stay unchanged before it is used: longer than any
/// program waits between two parts of one save.
pub const STANDS: Duration = Duration::from_secs(2);

/// Shows whether a file is still the one that was read.
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
    /// The stamp of the text that was read last, if the file cannot have changed unnoticed since then.
    stamp: Option<Stamp>,
    digest: Option<u64>,
    /// Randomly keyed, so that an attacker cannot write two texts with one digest.
    hashing: RandomState,
    good: Option<Version>,
    /// The version that was read last, while it has less content than `good` and may be a partial save.
    unsettled: Option<(Version, Instant)>,
    fault: Option<Problem>,
    /// Whether the text is kept, and the text that was read last.
    keeps_text: bool,
    text: Option<String>,
}

/// The contents of a file at some time.
#[derive(Debug)]
struct Version {
    manifest: Manifest,
    /// The fingerprint of its text; the same in every process.
    fingerprint: u64,
    length: usize,
    /// Device and inode: a file that was renamed to this name differs in them.
    file: (u64, u64),
}

impl Version {
    /// The objects that it has and that agents heed, without placeholders: a placeholder may come from a partial save, so
    /// it cannot get lost.
    fn keys(&self) -> BTreeSet<&ObjectKey> {
        let entries = self.manifest.entries.iter();
        let is_other = |key: &ObjectKey| key.kind == Kind::Workload(Controller::Other);
        let entries = entries.filter(|entry| entry.identified && !is_other(&entry.key));
        entries.map(|entry| &entry.key).collect()
    }

    /// The reason why `newer` may be a partial save; `None` if it is none.
    fn looks_half_written(&self, newer: &Self) -> Option<Cause> {
        let (before, after) = (self.keys(), newer.keys());
        let missing = before.difference(&after).count();
        if after.is_empty() && missing > 0 {
            return Some(Cause::Emptied { before: missing });
        }
        // A file that is written in place may end anywhere. A renamed file is complete; but a program that creates a
        // file and then fills it also gives it a new inode.
        let broken_off = self.file == newer.file && newer.length < self.length;
        (missing > 0 || broken_off).then(|| Cause::SaysLess { missing, seconds: STANDS.as_secs() })
    }
}

/// The result of reading a file again.
#[derive(Debug)]
pub(super) enum Refreshed {
    /// It has not changed.
    Same,
    /// Its objects are the same; its fault has changed.
    Reported,
    /// Its objects changed; these are the previous ones.
    Changed(PreviousText),
}

/// The previous contents of a file.
#[derive(Debug)]
pub(super) struct PreviousText {
    version: Option<Version>,
    /// Whether it had a fault.
    pub(super) faulty: bool,
}

impl PreviousText {
    pub(super) fn entries(&self) -> &[Entry] {
        self.version.as_ref().map_or(&[], |version| &version.manifest.entries)
    }

    /// As [`File::fingerprint`].
    pub(super) fn fingerprint(&self, name: &str) -> u64 {
        fingerprint_of(name, self.version.as_ref())
    }
}

impl File {
    /// A file that could not be read.
    pub(super) fn from_fault(name: &str, cause: Cause) -> Self {
        Self { fault: Some(Problem::of_file(&Arc::from(name), cause)), ..Self::default() }
    }

    /// A file whose text is kept.
    pub(super) fn keeping_text() -> Self {
        Self { keeps_text: true, ..Self::default() }
    }

    /// The text, if it is kept.
    pub(super) fn take_text(&mut self) -> Option<String> {
        self.text.take()
    }

    /// Makes text that is no object an error, because the user named the file.
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

    /// Whether another look, after some time, will have another result.
    pub(super) fn is_unsettled(&self) -> bool {
        self.unsettled.is_some()
    }

    /// Identifies the text of its objects, and the file by its name; 0 if there is no text.
    pub(super) fn fingerprint(&self, name: &str) -> u64 {
        fingerprint_of(name, self.good.as_ref())
    }

    pub(super) fn is_faulty(&self) -> bool {
        self.problems().next().is_some()
    }

    /// Its contents, when they are replaced.
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
            // A missing file is an error, too: it is a link to nowhere, or it was removed since the directory was
            // listed, and then the next refresh forgets it.
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
                // An emptied file keeps its objects; to remove them, the file has to be removed.
                if !matches!(cause, Cause::Emptied { .. }) {
                    self.unsettled = Some((version, now));
                }
                self.fault = Some(Problem::of_file(&Arc::from(name), cause));
            }
            Err(fault) => self.fault = Some(*fault),
        }
        Refreshed::Reported
    }

    /// Uses the doubtful text if it has stayed unchanged for long enough.
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
    /// By the clock of file time stamps.
    pub(super) wall: SystemTime,
    /// By the clock that measures the time for which a file stays unchanged.
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

/// Whether a file of this name counts as a manifest.
fn is_manifest(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    matches!(extension, Some("yaml" | "yml" | "json"))
}

/// Opens a manifest, or a link to one. `O_NONBLOCK`, because opening a FIFO of such a name would wait for a writer. A
/// file with another name was named by the user, who may mean `/dev/stdin`.
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

/// The file's text; `None` if the file still has the `known` stamp, which is read without opening the file. (A network
/// file system may give an old stamp while it caches attributes, where opening would have asked the server: NFS for up
/// to a minute by default, `acregmax`.)
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
    // One byte more than a manifest may have is enough: the reader then refuses it.
    let mut bytes = Vec::new();
    file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(Some((stamp, encoding::decode(bytes)?)))
}

/// The text of a manifest.
pub(super) fn text(path: &Path) -> io::Result<String> {
    Ok(read(path, None)?.map(|(_, text)| text).unwrap_or_default())
}

/// The manifests in a directory and, if `recursive`, below it. A directory whose name begins with a dot is not entered,
/// and neither is a link to a directory.
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

/// The files of a directory without manifests, for messages.
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

/// The directories directly in a directory that [`paths`] would enter and that have manifests.
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

/// The first names of a list, for messages. `None`: there is none.
pub(super) fn first_of(names: &[String]) -> Option<String> {
    (!names.is_empty()).then(|| few(names, 3))
}

/// The names of the manifests in a directory. A name that is not UTF-8 has replacement characters, so that no such file
/// is found and the user gets a message.
pub(super) fn names(directory: &Path) -> io::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !is_manifest(Path::new(&name)) || name.starts_with('.') {
            continue;
        }
        // A link to a file counts as a file; a link to nowhere is reported when it is opened.
        let kind = entry.file_type();
        if kind.is_ok_and(|kind| kind.is_file()) || !entry.path().is_dir() {
            names.insert(name);
        }
    }
    Ok(names)
}
