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
use std::io;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::manifest::object::{Kind, Object, ObjectKey};
use crate::manifest::problem::{Cause, MOST_OF_OBJECT, Place, Problem, Severity};
use crate::manifest::{Entry, Invalid, State, Tally};

pub use file::STANDS;
use file::{File, Moment, PreviousText, Refreshed};
pub use watch::{WakeUp, Watcher};

/// A directory of manifests, the last good state of each, and the objects that they define together.
#[derive(Debug, Default)]
pub struct Store {
    directory: PathBuf,
    files: BTreeMap<String, File>,
    fault: Option<Problem>,
    contents: Arc<Contents>,
    /// The objects that are defined in more than one place, with how often that was reported.
    repeated: BTreeMap<ObjectKey, Tally>,
}

/// All objects at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
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

/// How contents differ from those before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Changes {
    /// By these objects, with what each was if it was there; by their texts' names; and by nothing else. An object that has
    /// only moved in its file is among them.
    Objects(BTreeMap<ObjectKey, Option<Stored>>),
    /// In any way.
    Everything,
}

/// An object and where it is defined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The object.
    pub state: State,
    /// Where it is defined; the first place if there are several.
    pub place: Place,
}

impl Store {
    /// A store of `directory` that has not read anything yet.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into(), ..Self::default() }
    }

    /// Reads `directory` once.
    pub fn load(directory: impl Into<PathBuf>) -> Contents {
        let mut store = Self::new(directory);
        store.refresh();
        Arc::unwrap_or_clone(store.contents)
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// All objects as of the last [`Store::refresh`].
    pub fn contents(&self) -> &Contents {
        &self.contents
    }

    /// The same, for whoever looks at them while the store goes on: it then changes a copy.
    pub fn shared(&self) -> Arc<Contents> {
        Arc::clone(&self.contents)
    }

    /// Reads what has changed since the last time, and tells what follows; `None` if nothing has.
    pub fn refresh(&mut self) -> Option<Changes> {
        self.refresh_at(Moment::now())
    }

    /// Whether a file may be half written. Its new text is used once it has stood for [`STANDS`].
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

    /// Takes in what files say now in the place of what they said. `None` where it takes more: something is or was wrong
    /// with one of them, or an object is or was defined twice.
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
                if self.repeated.contains_key(&entry.key) || stood_here != before.is_some() {
                    return None;
                }
                let stands = contents.objects.get(&entry.key);
                if before.as_ref() != stands {
                    changed.entry(entry.key.clone()).or_insert(before);
                }
            }
            for key in gone.into_keys() {
                if self.repeated.contains_key(key) {
                    return None;
                }
                changed.entry(key.clone()).or_insert(contents.objects.remove(key));
            }
            contents.fingerprint = contents.fingerprint.wrapping_sub(before.fingerprint(name));
            if let Some(file) = file {
                contents.fingerprint = contents.fingerprint.wrapping_add(file.fingerprint(name));
            }
        }
        contents.files = self.files.len();
        Some(Changes::Objects(changed))
    }

    /// Puts the contents together from all files.
    fn rebuild(&mut self) -> Changes {
        let in_sync = self.contents.in_sync || self.files.values().all(File::was_read);
        let mut fingerprint = 0_u64;
        let mut contents = Contents { in_sync, files: self.files.len(), ..Contents::default() };
        contents.problems.extend(self.fault.clone());
        self.repeated.clear();
        for (name, file) in &self.files {
            fingerprint = fingerprint.wrapping_add(file.fingerprint(name));
            contents.problems.extend(file.problems().cloned());
            for entry in file.entries() {
                contents.add(entry, &mut self.repeated);
            }
        }
        for (key, tally) in &self.repeated {
            let Some(stored) = contents.objects.get(key) else { continue };
            let untold = tally.beyond(MOST_OF_OBJECT);
            contents.problems.extend(
                untold.map(|(severity, count)| {
                    Problem::of_untold(key, &stored.place, severity, count)
                }),
            );
        }
        contents.fingerprint = fingerprint;
        // Stable: within one severity the files' order stays.
        contents.problems.sort_by_key(|problem| problem.severity);
        self.contents = Arc::new(contents);
        Changes::Everything
    }
}

impl Contents {
    /// The contents of files and directories, read once, as if all files were of one directory. Each file is named by the
    /// path that led to it; one that several paths lead to is read once. `-` is standard input. A directory without a manifest
    /// is at fault, and so are files without an object among them: who names them believes that they hold some.
    pub fn from_paths<'a>(paths: impl IntoIterator<Item = &'a Path>, recursive: bool) -> Self {
        let now = Moment::now();
        let mut files: BTreeMap<String, File> = BTreeMap::new();
        let mut seen = BTreeSet::new();
        for path in paths {
            let name = path.display().to_string();
            let fault = match listed(path, recursive) {
                Err(error) => Cause::Unreadable(error.to_string()),
                Ok(listed) if !listed.is_empty() => {
                    for path in listed {
                        if seen.insert(path.canonicalize().unwrap_or_else(|_| path.clone())) {
                            let name = path.display().to_string();
                            files.entry(name.clone()).or_default().refresh(&name, &path, now);
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
        let first = files.keys().next().map(|name| Arc::from(name.as_str()));
        let mut contents = Self::from_files(files);
        if contents.objects.is_empty() && contents.problems.is_empty() {
            contents.problems.extend(first.map(|name| Problem::of_file(&name, Cause::NoObject)));
        }
        contents
    }

    /// The contents of manifests that are in memory, each a name and a text, as if they were the files of a directory.
    pub fn from_texts<'a>(texts: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let mut files = BTreeMap::new();
        for (name, text) in texts {
            files.insert(name.to_owned(), File::from_text(name, text));
        }
        Self::from_files(files)
    }

    fn from_files(files: BTreeMap<String, File>) -> Self {
        let mut store = Store { files, ..Store::default() };
        store.rebuild();
        Arc::unwrap_or_clone(store.contents)
    }

    /// The objects of a kind.
    pub fn of_kind(&self, kind: Kind) -> impl Iterator<Item = (&ObjectKey, &Stored)> {
        let first = ObjectKey { kind, namespace: String::new(), name: String::new() };
        self.objects.range(first..).take_while(move |(key, _)| key.kind == kind)
    }

    /// The objects of a kind in a namespace.
    pub fn of_kind_in(
        &self,
        kind: Kind,
        namespace: &str,
    ) -> impl Iterator<Item = (&ObjectKey, &Stored)> {
        let first = ObjectKey { kind, namespace: namespace.to_owned(), name: String::new() };
        let end = first.clone();
        let all = self.objects.range(first..);
        all.take_while(move |(key, _)| (key.kind, &key.namespace) == (end.kind, &end.namespace))
    }

    /// Puts an object in the place of another definition of it, which is returned. Of one that says the same only the place
    /// is new.
    fn put(&mut self, entry: &Entry) -> Option<Stored> {
        let Some(stored) = self.objects.get_mut(&entry.key) else {
            let stored = Stored { state: entry.state.clone(), place: entry.place.clone() };
            self.objects.insert(entry.key.clone(), stored);
            return None;
        };
        let state =
            if stored.state == entry.state { stored.state.clone() } else { entry.state.clone() };
        Some(mem::replace(stored, Stored { state, place: entry.place.clone() }))
    }

    /// Adds a definition. One of an object that is there already is reported, and counted in `repeated`.
    fn add(&mut self, entry: &Entry, repeated: &mut BTreeMap<ObjectKey, Tally>) {
        match self.objects.entry(entry.key.clone()) {
            btree_map::Entry::Vacant(vacant) => {
                vacant.insert(Stored { state: entry.state.clone(), place: entry.place.clone() });
            }
            btree_map::Entry::Occupied(mut occupied) => {
                let stored = occupied.get_mut();
                let other = stored.place.to_string();
                let same = stored.state == entry.state;
                if !same {
                    // Taken and not copied: of very many definitions each would copy what all before it have added.
                    let before = mem::replace(&mut stored.state, entry.state.clone());
                    stored.state = State::Invalid(either(before, entry.state.clone()));
                }
                let severity = if same { Severity::Warning } else { Severity::Error };
                let tally = repeated.entry(entry.key.clone()).or_default();
                if tally.count(severity) > MOST_OF_OBJECT {
                    return;
                }
                self.problems.push(Problem {
                    severity,
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

/// The manifests that a path leads to.
fn listed(path: &Path, recursive: bool) -> io::Result<Vec<PathBuf>> {
    if path == Path::new("-") {
        return Ok(vec![PathBuf::from("/dev/stdin")]);
    }
    if path.is_dir() { file::paths(path, recursive) } else { Ok(vec![path.to_path_buf()]) }
}

/// What is known of an object with two definitions: of its subject and labels what both say, the addresses of both.
fn either(one: State, other: State) -> Invalid {
    let (mut one, other) = (remains(one), remains(other));
    one.subject = one.subject.filter(|subject| other.subject.as_ref() == Some(subject));
    one.labels = one.labels.filter(|labels| other.labels.as_ref() == Some(labels));
    one.addresses.extend(other.addresses);
    one
}

/// What of an object stays known when it is not valid.
fn remains(state: State) -> Invalid {
    let object = match state {
        State::Valid(object) => object,
        State::Invalid(invalid) => return invalid,
    };
    Invalid {
        subject: object.subject(),
        labels: match &*object {
            Object::NetworkSet(set) => Some(set.labels.clone()),
            _ => None,
        },
        addresses: match &*object {
            Object::Pod(pod) => pod.every_address(),
            _ => BTreeSet::new(),
        },
    }
}

#[cfg(test)]
mod tests;
