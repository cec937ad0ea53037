//! The directory datastore: the objects of all manifests in one directory.
//!
//! Files named `*.yaml`, `*.yml` and `*.json` directly in the directory are read, in the order of their names; names that
//! begin with a dot are not, and subdirectories are not entered (editors and `ConfigMap` mounts keep their half-done copies
//! in such places).
//!
//! - A file that cannot be read or is no YAML keeps the state that it last had; the fault is reported. If it never had one
//!   (at start), the store is not in sync until it has, and an agent that is not in sync passes nothing. A broken file that
//!   appears later is like an object that the API server refuses: reported, and without effect.
//! - A file that lacks an object that it had, or was written in place and got shorter, may be half of a save: an editor
//!   empties a file before it writes it. Without a policy nothing isolates, so such a file keeps the state that it last had,
//!   and is reported, until it has stayed as it is for [`STANDS`]. One that lacks all its objects keeps them for good.
//! - An object that is not valid is there as [`State::Invalid`], and fails closed.
//! - A file that is gone takes its objects with it: that is how objects are removed. A directory that cannot be read does not: it keeps everything.
//! - An object defined differently in two places is invalid, whichever kind it is: neither definition is used. The same
//!   content twice is only warned of.
//!
//! Whoever writes here should write a temporary file (say `.policy.yaml.tmp`) and rename it.

mod file;
mod watch;

use std::collections::btree_map;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::manifest::object::{Object, ObjectKey};
use crate::manifest::problem::{Cause, Place, Problem, Severity};
use crate::manifest::{Entry, Invalid, State};

pub use file::STANDS;
use file::{File, Moment};
pub use watch::{Change, Watcher};

/// A directory of manifests and the last good state of each.
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
    files: BTreeMap<String, File>,
    in_sync: bool,
    fault: Option<Problem>,
}

/// All objects at one moment.
#[derive(Debug, Clone, Default)]
pub struct Contents {
    /// The objects.
    pub objects: BTreeMap<ObjectKey, Stored>,
    /// What is wrong with them and with the files, errors first, then in the order of the files.
    pub problems: Vec<Problem>,
    /// Whether every file has been read at least once: until then something is missing that nobody knows of, and nothing
    /// may pass. It stays true from then on.
    pub in_sync: bool,
    /// How many files there are, readable or not.
    pub files: usize,
    /// Names this content: two processes of one version that have read the same files have the same.
    pub fingerprint: u64,
}

/// An object and where it is defined.
#[derive(Debug, Clone)]
pub struct Stored {
    /// The object.
    pub state: State,
    /// Where it is defined; the first place if there are several.
    pub place: Place,
}

impl Store {
    /// A store of `directory` that has not read anything yet.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into(), files: BTreeMap::new(), in_sync: false, fault: None }
    }

    /// Reads `directory` once.
    pub fn load(directory: impl Into<PathBuf>) -> Contents {
        let mut store = Self::new(directory);
        store.refresh();
        store.contents()
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Reads what has changed since the last time. Returns whether anything has.
    pub fn refresh(&mut self) -> bool {
        self.refresh_at(Moment::now())
    }

    /// Whether a file is in doubt that will be believed if it is as it is after [`STANDS`].
    pub fn is_doubtful(&self) -> bool {
        self.files.values().any(File::is_doubtful)
    }

    fn refresh_at(&mut self, now: Moment) -> bool {
        let names = match file::names(&self.directory) {
            Ok(names) => names,
            Err(error) => {
                let name: Arc<str> = self.directory.display().to_string().into();
                let fault = Problem::of_file(&name, Cause::Unreadable(error.to_string()));
                let changed = self.fault.as_ref() != Some(&fault);
                self.fault = Some(fault);
                return changed;
            }
        };
        let mut changed = self.fault.take().is_some();
        let before = self.files.len();
        self.files.retain(|name, _| names.contains(name));
        changed |= self.files.len() != before;
        for name in names {
            let path = self.directory.join(&name);
            let file = self.files.entry(name.clone()).or_default();
            changed |= file.refresh(&name, &path, now);
        }
        let was = self.in_sync;
        self.in_sync |= self.files.values().all(File::was_read);
        changed || was != self.in_sync
    }

    /// All objects as of the last [`Store::refresh`].
    pub fn contents(&self) -> Contents {
        let files: Vec<(&str, u64)> =
            self.files.iter().map(|(name, file)| (name.as_str(), file.fingerprint())).collect();
        let mut contents = Contents {
            in_sync: self.in_sync,
            files: self.files.len(),
            fingerprint: file::fingerprint(files),
            ..Contents::default()
        };
        contents.problems.extend(self.fault.clone());
        for file in self.files.values() {
            contents.problems.extend(file.problems().cloned());
            for entry in file.entries() {
                contents.add(entry);
            }
        }
        // Stable: within one severity the files' order stays.
        contents.problems.sort_by_key(|problem| problem.severity);
        contents
    }
}

impl Contents {
    /// The contents of files and directories, read once, as if all files were of one directory. Each file is named by the
    /// path that led to it; one that several paths lead to is read once.
    pub fn of_paths<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Self {
        let now = Moment::now();
        let mut files: BTreeMap<String, File> = BTreeMap::new();
        let mut seen = BTreeSet::new();
        for path in paths {
            let name = path.display().to_string();
            let listed = if path.is_dir() {
                file::names(path).map(|names| names.iter().map(|name| path.join(name)).collect())
            } else {
                Ok(vec![path.to_path_buf()])
            };
            match listed {
                Err(error) => {
                    let fault = Cause::Unreadable(error.to_string());
                    files.insert(name.clone(), File::of_fault(&name, fault));
                }
                Ok(listed) => {
                    for path in listed {
                        if seen.insert(path.canonicalize().unwrap_or_else(|_| path.clone())) {
                            let name = path.display().to_string();
                            files.entry(name.clone()).or_default().refresh(&name, &path, now);
                        }
                    }
                }
            }
        }
        Self::of_files(files)
    }

    /// The contents of manifests that are in memory, each a name and a text, as if they were the files of a directory.
    pub fn of_texts<'a>(texts: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let mut files = BTreeMap::new();
        for (name, text) in texts {
            files.insert(name.to_owned(), File::of_text(name, text));
        }
        Self::of_files(files)
    }

    fn of_files(files: BTreeMap<String, File>) -> Self {
        let in_sync = files.values().all(File::was_read);
        Store { directory: PathBuf::new(), files, in_sync, fault: None }.contents()
    }

    fn add(&mut self, entry: &Entry) {
        match self.objects.entry(entry.key.clone()) {
            btree_map::Entry::Vacant(vacant) => {
                vacant.insert(Stored { state: entry.state.clone(), place: entry.place.clone() });
            }
            btree_map::Entry::Occupied(mut occupied) => {
                let stored = occupied.get_mut();
                let other = stored.place.to_string();
                let same = stored.state == entry.state;
                if !same {
                    stored.state = State::Invalid(either(&stored.state, &entry.state));
                }
                self.problems.push(Problem {
                    severity: if same { Severity::Warning } else { Severity::Error },
                    place: entry.place.clone(),
                    object: Some(entry.key.clone()),
                    field: String::new(),
                    cause: if same {
                        Cause::Repeated { other }
                    } else {
                        Cause::Duplicate { other }
                    },
                    line: None,
                });
            }
        }
    }
}

/// What is known of an object with two definitions: of its subject and labels what both say, the addresses of both.
fn either(one: &State, other: &State) -> Invalid {
    let (mut one, other) = (known(one), known(other));
    one.subject = one.subject.filter(|subject| other.subject.as_ref() == Some(subject));
    one.labels = one.labels.filter(|labels| other.labels.as_ref() == Some(labels));
    one.addresses.extend(other.addresses);
    one
}

/// What of an object stays known when it is not valid.
fn known(state: &State) -> Invalid {
    let object = match state {
        State::Valid(object) => &**object,
        State::Invalid(invalid) => return invalid.clone(),
    };
    Invalid {
        subject: object.subject(),
        labels: match object {
            Object::NetworkSet(set) => Some(set.labels.clone()),
            _ => None,
        },
        addresses: match object {
            Object::Pod(pod) => pod.every_address(),
            _ => BTreeSet::new(),
        },
    }
}

#[cfg(test)]
mod tests;
