//! The directory datastore: the objects of all manifests in one directory.
//!
//! Files named `*.yaml`, `*.yml` and `*.json` directly in the directory are read, in the order of their names. Names
//! that begin with a dot are skipped, and subdirectories are not read, because editors and `ConfigMap` mounts keep
//! incomplete copies there.
//!
//! - If a file cannot be read or is not YAML, its last valid state stays in force, and the fault is reported. If it
//!   never had a valid state (at the start), the store is not in sync until the file has one. An agent that is not in
//!   sync passes nothing. A broken file that is added later is treated like an object that the API server refuses: it
//!   is reported and has no effect.
//! - If a file lacks an object that it had before, or was rewritten in place and became shorter, it may be a partial
//!   save, because editors empty a file before they write it. If a policy were lost, nothing would isolate its pods. So
//!   the last valid state stays in force, and this is reported, until the file has been unchanged for [`STANDS`]. If a
//!   file lacks all its objects, they stay in force permanently.
//! - An invalid object is present as [`State::Invalid`], and fails closed.
//! - If a file is removed, its objects are removed. This is the way to remove objects. If a directory cannot be read,
//!   nothing is removed.
//! - An object of any kind that two places define differently is invalid, and neither definition is used. The same
//!   content twice only causes a warning.
//!
//! A program that writes files here should write a temporary file (such as `.policy.yaml.tmp`) and rename it.

mod encoding;
mod file;
mod secrets;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use manx_objects::Entry;
use manx_objects::code::Code;
use manx_objects::contents::{Assembly, Changes, Contents};
use manx_objects::object::ObjectKey;
use manx_objects::problem::{Cause, Problem, Severity};

pub use file::STANDS;
use file::{File, Moment, PreviousText, Refreshed};
pub(crate) use secrets::read_secrets;

/// A directory of manifests, with the last valid state of each file and the objects of all files.
#[derive(Debug, Default)]
pub struct Store {
    directory: PathBuf,
    files: BTreeMap<String, File>,
    fault: Option<Problem>,
    contents: Arc<Contents>,
    /// The objects that more than one place defines.
    repeated: BTreeSet<ObjectKey>,
}

impl Store {
    /// Returns a store for `directory` that has not read anything yet.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into(), ..Self::default() }
    }

    /// Reads `directory` once.
    pub fn load(directory: impl Into<PathBuf>) -> Contents {
        let mut store = Self::new(directory);
        store.refresh();
        Arc::unwrap_or_clone(store.contents)
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns all objects as of the last [`Store::refresh`].
    pub fn contents(&self) -> &Contents {
        &self.contents
    }

    /// Returns all objects as a shared value. The caller may read it while the store continues, because the store then
    /// changes a copy.
    pub fn shared(&self) -> Arc<Contents> {
        Arc::clone(&self.contents)
    }

    /// Reads the files that have changed since the last refresh. Returns the differences, or `None` if there are none.
    pub fn refresh(&mut self) -> Option<Changes> {
        self.refresh_at(Moment::now())
    }

    /// Returns whether a file may be a partial save. Its new text is used when the file has been unchanged for
    /// [`STANDS`].
    pub fn has_unsettled_file(&self) -> bool {
        self.files.values().any(File::is_unsettled)
    }

    fn refresh_at(&mut self, now: Moment) -> Option<Changes> {
        let names = match file::names(&self.directory) {
            Ok(names) => names,
            Err(error) => {
                let name: Arc<str> = self.directory.display().to_string().into();
                let fault = Problem::of_file(&name, Cause::Unreadable(error.to_string()));
                if self.fault.as_ref() == Some(&fault) {
                    return None;
                }
                self.fault = Some(fault);
                return Some(self.rebuild());
            }
        };
        let mut whole = self.fault.take().is_some();
        let mut said = Vec::new();
        let gone: Vec<String> =
            self.files.keys().filter(|name| !names.contains(*name)).cloned().collect();
        for name in gone {
            if let Some(file) = self.files.remove(&name) {
                said.push((name, file.into_previous_text()));
            }
        }
        for name in names {
            let path = self.directory.join(&name);
            let file = self.files.entry(name.clone()).or_default();
            match file.refresh(&name, &path, now) {
                Refreshed::Same => {}
                Refreshed::Reported => whole = true,
                Refreshed::Changed(before) => said.push((name, before)),
            }
        }
        let in_sync = self.contents.in_sync || self.files.values().all(File::was_read);
        whole |= in_sync != self.contents.in_sync;
        if !whole && said.is_empty() {
            return None;
        }
        let changes = if whole { None } else { self.apply_texts(&said) };
        Some(changes.unwrap_or_else(|| self.rebuild()))
    }

    /// Replaces the previous contents of these files with the current ones. Returns `None` if the contents must be
    /// rebuilt from all files, because one of these files has or had a fault, or because an object is or was defined
    /// twice.
    fn apply_texts(&mut self, said: &[(String, PreviousText)]) -> Option<Changes> {
        let mut changed = BTreeMap::new();
        let contents = Arc::make_mut(&mut self.contents);
        for (name, before) in said {
            let file = self.files.get(name);
            if before.faulty || file.is_some_and(File::is_faulty) {
                return None;
            }
            let mut gone: BTreeMap<&ObjectKey, &Entry> =
                before.entries().iter().map(|entry| (&entry.key, entry)).collect();
            for entry in file.into_iter().flat_map(File::entries) {
                let stood_here = gone.remove(&entry.key).is_some();
                let before = contents.put(entry);
                if self.repeated.contains(&entry.key) || stood_here != before.is_some() {
                    return None;
                }
                let stands = contents.objects.get(&entry.key);
                if before.as_ref() != stands {
                    changed.entry(entry.key.clone()).or_insert(before);
                }
            }
            for key in gone.into_keys() {
                if self.repeated.contains(key) {
                    return None;
                }
                changed.entry(key.clone()).or_insert(contents.objects.remove(key));
            }
            contents.fingerprint = contents.fingerprint.wrapping_sub(before.fingerprint(name));
            if let Some(file) = file {
                contents.fingerprint = contents.fingerprint.wrapping_add(file.fingerprint(name));
            }
        }
        contents.texts = self.files.len();
        Some(Changes::Objects(changed))
    }

    /// Assembles the contents from all files.
    fn rebuild(&mut self) -> Changes {
        let mut assembly = Assembly::default();
        assembly.report(self.fault.iter());
        for (name, file) in &self.files {
            assembly.add_text(file.fingerprint(name), file.problems(), file.entries());
        }
        let in_sync = self.contents.in_sync || self.files.values().all(File::was_read);
        let (contents, repeated) = assembly.finish(in_sync);
        self.contents = Arc::new(contents);
        self.repeated = repeated;
        Changes::Everything
    }
}

/// The objects that were read, and the texts from which they were read.
#[derive(Debug)]
pub struct Read {
    pub contents: Contents,
    /// The text of each readable file, by its name in [`Place::file`](manx_objects::problem::Place::file).
    pub texts: BTreeMap<String, String>,
}

/// Reads files and directories once, as if all files were in one directory. The name of each file is the path by which
/// it was found. A file that is found through several paths is read once. `-` stands for standard input. A directory
/// without a manifest is an error, because the caller expects objects. For the same reason it is an error if all files
/// together have no object. Text that is not an object is an error in a file that was named, and a warning in a file of
/// a directory.
pub fn read_with_texts<'a>(paths: impl IntoIterator<Item = &'a Path>, recursive: bool) -> Read {
    let now = Moment::now();
    let mut files: BTreeMap<String, File> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    let mut skipped = Vec::new();
    for path in paths {
        let name = path.display().to_string();
        if !recursive && path.is_dir() {
            skipped.extend(skipped_folders(path, &name));
        }
        let fault = match manifests(path, recursive) {
            Err(error) => Cause::Unreadable(error.to_string()),
            Ok(listed) if !listed.is_empty() => {
                let named = !path.is_dir();
                for path in listed {
                    let name = path.display().to_string();
                    if seen.insert(path.canonicalize().unwrap_or_else(|_| path.clone())) {
                        let file = files.entry(name.clone()).or_insert_with(File::keeping_text);
                        file.refresh(&name, &path, now);
                        if named {
                            file.expect_objects();
                        }
                    }
                }
                continue;
            }
            Ok(_) => match file::others(path) {
                Err(error) => Cause::Unreadable(error.to_string()),
                Ok(found) => Cause::NoManifest { found, recursive },
            },
        };
        files.insert(name.clone(), File::from_fault(&name, fault));
    }
    let texts = files.iter_mut().filter_map(|(name, file)| Some((name.clone(), file.take_text()?)));
    let texts: BTreeMap<String, String> = texts.collect();
    let first = files.keys().next().map(|name| Arc::from(name.as_str()));
    let mut contents = from_files(files);
    contents.problems.extend(skipped);
    if let Some(first) = first {
        let mut written = texts.values().flat_map(|text| text.lines());
        let blank =
            |line: &str| matches!(line.trim(), "" | "---" | "...") || line.trim().starts_with('#');
        expect_objects(&mut contents, &first, written.all(blank));
    }
    Read { contents, texts }
}

/// Returns a problem if there are subdirectories with manifests, because these are not read. A directory without any
/// manifest of its own causes a different problem.
fn skipped_folders(directory: &Path, name: &str) -> Option<Problem> {
    if file::names(directory).ok()?.is_empty() {
        return None;
    }
    let folders = file::folders(directory).ok()?;
    let found = file::first_of(&folders)?;
    let message = format!("found manifests in {found}, which are read with --recursive (-R) only");
    let cause = Cause::told(Code::SkippedFolder, message);
    Some(Problem { severity: Severity::Warning, ..Problem::of_file(&name.into(), cause) })
}

/// Like [`read_with_texts`], without the texts.
pub fn read_paths<'a>(paths: impl IntoIterator<Item = &'a Path>, recursive: bool) -> Contents {
    read_with_texts(paths, recursive).contents
}

/// Reports that no object was read, unless another error already explains this. `blank` says that all texts are empty
/// or consist of comments.
fn expect_objects(contents: &mut Contents, first: &Arc<str>, blank: bool) {
    let told = contents.problems.iter().any(|problem| problem.severity == Severity::Error);
    if !contents.objects.is_empty() || told {
        return;
    }
    let empty = contents.problems.iter().position(|it| it.cause == Cause::EmptyList);
    let problem = match empty {
        // One cause should be reported as one problem.
        Some(empty) => {
            let problem = contents.problems.remove(empty);
            let cause = Cause::NoObject { found: "a list without items" };
            Problem { severity: Severity::Error, cause, ..problem }
        }
        None if blank => Problem::of_file(
            first,
            Cause::NoObject { found: "nothing but comments and white space" },
        ),
        None => Problem::of_file(first, Cause::NoObject { found: "only what is skipped" }),
    };
    contents.problems.insert(0, problem);
}

fn from_files(files: BTreeMap<String, File>) -> Contents {
    let mut store = Store { files, ..Store::default() };
    store.rebuild();
    Arc::unwrap_or_clone(store.contents)
}

/// Returns the files of the manifests at a path. If the path is a directory, these are the files in it; otherwise it is
/// the path itself. `-` stands for standard input.
pub fn manifests(path: &Path, recursive: bool) -> io::Result<Vec<PathBuf>> {
    if path == Path::new("-") {
        return Ok(vec![PathBuf::from("/dev/stdin")]);
    }
    if path.is_dir() { file::paths(path, recursive) } else { Ok(vec![path.to_path_buf()]) }
}

#[cfg(test)]
mod tests;
