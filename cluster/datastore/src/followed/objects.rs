//! All objects of a server, in the form that the agent uses.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use manx_objects::contents::{Changes, Contents, Stored, fingerprint};
use manx_objects::object::{Kind, Object, ObjectKey, Pod};
use manx_objects::problem::{Cause, Place, Problem, Severity};
use manx_objects::{Entry, State};

use super::event::Event;
use super::faults::{Faults, Stale};
use super::reading::Reading;
use super::server::Server;

/// See the module.
#[derive(Debug)]
pub(crate) struct Objects {
    pub(crate) contents: Arc<Contents>,
    /// The server as the place of all objects; it is stored once.
    place: Option<Arc<Place>>,
    /// Whether an agent follows the objects. If so, an unsupported annotation is not reported as a problem of its pod;
    /// the agent of the pod's node reports it instead. Otherwise each change of such a pod would cause a complete
    /// import.
    follows: bool,
    /// The problems of objects, by the names that the server uses.
    problems: BTreeMap<ObjectKey, Vec<Problem>>,
    /// The names that several objects claim.
    conflicts: BTreeMap<ObjectKey, Problem>,
    /// The fingerprint of each object's text, by the fingerprint of the object's key.
    fingerprints: HashMap<u64, u64>,
    /// The objects whose own name may differ from the server's name (Calico's kinds). They are sorted by their own name
    /// and then by the server's name.
    claims: BTreeMap<ObjectKey, BTreeMap<ObjectKey, Entry>>,
    /// The own names of these objects, by the names that the server uses.
    own_keys: BTreeMap<ObjectKey, ObjectKey>,
    /// The addresses that this node's agent has assigned to pods.
    assigned: BTreeMap<ObjectKey, Vec<IpAddr>>,
    /// The pods with assigned addresses, as the server sends them: without addresses.
    bare: BTreeMap<ObjectKey, Arc<Object>>,
    /// The time when the state on disk was complete, if this state is in use.
    restored: Option<SystemTime>,
    /// The kinds that are not listed yet.
    missing: BTreeSet<Kind>,
    /// The faults that may cause objects to be out of date.
    faults: Faults,
}

/// The differences that result from events.
#[derive(Debug, Default)]
struct Differences {
    before: BTreeMap<ObjectKey, Option<Stored>>,
    /// Whether the difference is more than some single objects.
    everything: bool,
}

impl Objects {
    /// Returns a value without objects. It is in sync as soon as all of `kinds` are listed. `server` is the server's
    /// name in sentences.
    pub(crate) fn new(server: &'static str, kinds: &[Kind]) -> Self {
        Self {
            contents: Arc::default(),
            place: None,
            follows: false,
            problems: BTreeMap::new(),
            conflicts: BTreeMap::new(),
            fingerprints: HashMap::new(),
            claims: BTreeMap::new(),
            own_keys: BTreeMap::new(),
            assigned: BTreeMap::new(),
            bare: BTreeMap::new(),
            restored: None,
            missing: kinds.iter().copied().collect(),
            faults: Faults::new(server),
        }
    }

    /// Returns a value without objects, for an agent that follows them.
    pub(super) fn followed(server: Server) -> Self {
        Self { follows: true, ..Self::new(server.name, server.kinds) }
    }

    /// Applies a state that was complete at an earlier time. Kinds that were listed in the meantime are not changed,
    /// because a list is newer.
    pub(super) fn restore(&mut self, complete: SystemTime, readings: Vec<Reading>) {
        let mut differences = Differences::default();
        for reading in readings {
            if self.missing.contains(&reading.key.kind) {
                self.put(reading, &mut differences);
            }
        }
        Arc::make_mut(&mut self.contents).in_sync = true;
        self.restored = Some(complete);
        self.collect_problems();
    }

    /// Returns since when and why objects may be out of date, or `None` if they are up to date.
    pub(super) fn stale(&self) -> Option<Stale> {
        self.faults.stale(self.restored.filter(|_| !self.missing.is_empty()))
    }

    /// Returns whether changes of a kind may be missed now.
    pub(super) fn is_behind(&self, kind: Kind) -> bool {
        self.faults.include(kind)
    }

    /// Returns the names by which the server knows an object. There are several if several objects claim the object's
    /// name.
    pub(crate) fn known_as(&self, own: &ObjectKey) -> Vec<ObjectKey> {
        match self.claims.get(own) {
            Some(claims) => claims.keys().cloned().collect(),
            None => vec![own.clone()],
        }
    }

    /// Records that all changes are missed from now on.
    pub(super) fn mark_stale(&mut self, reason: String) {
        self.faults.note(None, Some((SystemTime::now(), reason.into())));
    }

    /// Applies events. Returns the differences, or `None` if there are none.
    pub(crate) fn apply(&mut self, events: impl IntoIterator<Item = Event>) -> Option<Changes> {
        let mut differences = Differences::default();
        for event in events {
            match event {
                Event::Listed { kind, readings } => self.list(kind, readings, &mut differences),
                Event::Changed(reading) => self.put(*reading, &mut differences),
                Event::Gone(key) => self.remove(&key, &mut differences),
                Event::Fault { kind, fault } => self.faults.note(kind, fault),
            }
        }
        self.changes(differences)
    }

    fn changes(&mut self, Differences { before, everything }: Differences) -> Option<Changes> {
        if everything {
            self.collect_problems();
            return Some(Changes::Everything);
        }
        let objects = &self.contents.objects;
        let changed: BTreeMap<_, _> = before
            .into_iter()
            .filter(|(key, before)| before.as_ref() != objects.get(key))
            .collect();
        (!changed.is_empty()).then_some(Changes::Objects(changed))
    }

    fn list(&mut self, kind: Kind, readings: Vec<Reading>, differences: &mut Differences) {
        let listed: BTreeSet<ObjectKey> = readings.iter().map(|it| it.key.clone()).collect();
        for reading in readings {
            self.put(reading, differences);
        }
        let plain = self.contents.of_kind(kind).map(|(key, _)| key);
        let plain = plain.filter(|key| !self.claims.contains_key(*key));
        // If nothing of an object could be read, the object has only problems.
        let known = plain.chain(self.own_keys.keys()).chain(self.problems.keys());
        let gone: BTreeSet<ObjectKey> =
            known.filter(|key| key.kind == kind && !listed.contains(*key)).cloned().collect();
        for key in &gone {
            self.remove(key, differences);
        }
        if self.missing.remove(&kind) && self.missing.is_empty() {
            let contents = Arc::make_mut(&mut self.contents);
            differences.everything |= !contents.in_sync;
            contents.in_sync = true;
            contents.pack();
        }
    }

    fn put(&mut self, reading: Reading, differences: &mut Differences) {
        let Reading { key, entry, mut problems, fingerprint, .. } = reading;
        if self.follows && key.kind == Kind::Pod {
            problems.retain(|problem| !matches!(problem.cause, Cause::NotDone { .. }));
        }
        let known = fingerprint_of(&mut self.fingerprints, &key, Some(fingerprint));
        if known == Some(fingerprint) {
            return;
        }
        self.add_fingerprint(known, Some(fingerprint));
        self.set_problems(&key, problems, differences);
        let Some(mut entry) = entry else { return self.withdraw(&key, differences) };
        let place = self.place.get_or_insert_with(|| Arc::clone(&entry.place));
        if *place == entry.place {
            entry.place = Arc::clone(place);
        }
        if entry.key == key && !key.kind.is_calicos() {
            return self.set(&entry, differences);
        }
        let own = entry.key.clone();
        if self.own_keys.get(&key).is_some_and(|earlier| *earlier != own) {
            self.withdraw(&key, differences);
        }
        self.own_keys.insert(key.clone(), own.clone());
        self.claims.entry(own.clone()).or_default().insert(key, entry);
        self.decide_claims(&own, differences);
    }

    fn remove(&mut self, key: &ObjectKey, differences: &mut Differences) {
        let known = fingerprint_of(&mut self.fingerprints, key, None);
        self.add_fingerprint(known, None);
        self.set_problems(key, Vec::new(), differences);
        self.withdraw(key, differences);
    }

    /// Removes an object, by the name that the server uses.
    fn withdraw(&mut self, key: &ObjectKey, differences: &mut Differences) {
        let Some(own) = self.own_keys.remove(key) else {
            // The name that the server uses may be another object's own name.
            if !self.claims.contains_key(key) {
                self.unset(key, differences);
            }
            return;
        };
        if let Some(claims) = self.claims.get_mut(&own) {
            claims.remove(key);
        }
        self.decide_claims(&own, differences);
    }

    /// Decides which object has a name. If several objects claim the name, the object with this name is invalid.
    fn decide_claims(&mut self, own: &ObjectKey, differences: &mut Differences) {
        let mut claims = self.claims.get(own).into_iter().flatten();
        let (first, second) = (claims.next(), claims.next());
        let conflict = second.map(|(other, entry)| Problem {
            severity: Severity::Error,
            place: Place::clone(&entry.place),
            object: Some(own.clone()),
            field: String::new(),
            cause: Cause::Duplicate { other: other.to_string() },
            line: None,
        });
        let entry = first.map(|(_, entry)| match conflict {
            None => entry.clone(),
            Some(_) => Entry { state: State::Invalid(Box::default()), ..entry.clone() },
        });
        let before = match conflict {
            Some(problem) => self.conflicts.insert(own.clone(), problem),
            None => self.conflicts.remove(own),
        };
        differences.everything |= before.as_ref() != self.conflicts.get(own);
        if let Some(entry) = entry {
            self.set(&entry, differences);
        } else {
            self.claims.remove(own);
            self.unset(own, differences);
        }
    }

    /// Assigns addresses on this node to a pod, or withdraws them. They are used as if the pod's status contained them,
    /// until it really does. This is needed because kubelet reports addresses only after the pod is attached. Returns
    /// the differences.
    pub(crate) fn assign(
        &mut self,
        pod: ObjectKey,
        addresses: Option<Vec<IpAddr>>,
    ) -> Option<Changes> {
        match addresses {
            Some(addresses) => _ = self.assigned.insert(pod.clone(), addresses),
            None => _ = self.assigned.remove(&pod),
        }
        let stored = self.contents.objects.get(&pod)?;
        let State::Valid(object) = &stored.state else { return None };
        let object = self.bare.get(&pod).unwrap_or(object);
        let (state, place) = (State::Valid(Arc::clone(object)), stored.place.clone());
        let mut differences = Differences::default();
        self.set(&Entry { key: pod, identified: true, place, uid: None, state }, &mut differences);
        self.changes(differences)
    }

    /// Returns the pod with its assigned addresses. Returns `None` if no addresses are assigned to it, or if its status
    /// already contains addresses. Also returns `None` if an annotation contains an address that was not assigned: the
    /// agent has not written this annotation, so the assigned addresses are not used.
    fn fill(&mut self, entry: &Entry) -> Option<Entry> {
        self.bare.remove(&entry.key);
        let addresses = self.assigned.get(&entry.key)?;
        let State::Valid(object) = &entry.state else { return None };
        let Object::Pod(pod) = &**object else { return None };
        let is_reported = pod.reported_addresses().next().is_some();
        if is_reported || !pod.annotated_ips.every().all(|address| addresses.contains(&address)) {
            return None;
        }
        let filled = Pod { pod_ips: addresses.clone(), ..Pod::clone(pod) };
        self.bare.insert(entry.key.clone(), Arc::clone(object));
        let state = State::Valid(Arc::new(Object::Pod(Box::new(filled))));
        Some(Entry { state, ..entry.clone() })
    }

    fn set(&mut self, entry: &Entry, differences: &mut Differences) {
        let filled = self.fill(entry);
        let entry = filled.as_ref().unwrap_or(entry);
        let before = Arc::make_mut(&mut self.contents).put(entry);
        differences.before.entry(entry.key.clone()).or_insert(before);
    }

    fn unset(&mut self, own: &ObjectKey, differences: &mut Differences) {
        self.bare.remove(own);
        if let Some(before) = Arc::make_mut(&mut self.contents).objects.remove(own) {
            differences.before.entry(own.clone()).or_insert(Some(before));
        }
    }

    fn set_problems(&mut self, key: &ObjectKey, problems: Vec<Problem>, to: &mut Differences) {
        let before = self.problems.remove(key).unwrap_or_default();
        to.everything |= before != problems;
        if !problems.is_empty() {
            self.problems.insert(key.clone(), problems);
        }
    }

    fn add_fingerprint(&mut self, before: Option<u64>, now: Option<u64>) {
        let contents = Arc::make_mut(&mut self.contents);
        let sum = contents.fingerprint.wrapping_sub(before.unwrap_or(0));
        contents.fingerprint = sum.wrapping_add(now.unwrap_or(0));
    }

    /// Collects the problems of all objects, errors first.
    fn collect_problems(&mut self) {
        let contents = Arc::make_mut(&mut self.contents);
        let problems = self.problems.values().flatten().chain(self.conflicts.values());
        contents.problems = problems.cloned().collect();
        contents.problems.sort_by_key(|problem| problem.severity);
    }
}

/// Replaces the fingerprint of an object's text, and returns the previous one.
fn fingerprint_of(all: &mut HashMap<u64, u64>, key: &ObjectKey, text: Option<u64>) -> Option<u64> {
    let key = fingerprint(key);
    match text {
        Some(text) => all.insert(key, text),
        None => all.remove(&key),
    }
}
