//! Reads all objects of one file.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::claimed_kind::{
    ClaimedKind, OF_ITSELF, holds_policies, is_another_vendors, is_of_another_vendor,
};
use super::cursor::{Cursor, Finding, Findings, Tally};
use super::decode::decode;
use super::invalid::Invalid;
use super::metadata;
use super::object::{Kind, Object, ObjectKey};
use super::other_workload;
use super::problem::{Cause, Place, Problem, Severity};
use super::revision_order::{Age, RevisionOrder};
use super::settings;
use super::tree::{Document, Flaw, FlawKind, Node, Position, Value, shown};
use super::unrelated::is_unrelated;
use super::yaml;

/// The maximum size of an object, in bytes of JSON: the API server accepts no longer request (apiserver,
/// `MaxRequestBodyBytes`). The API server also refuses an object that does not fit into etcd's limit of 1.5 MiB, in
/// another encoding.
pub(super) const MAX_OBJECT: usize = 3 << 20;
/// The maximum number of problems of one severity that are reported for a file.
pub(super) const MAX_PROBLEMS: usize = 10_000;
/// The maximum number of namespaces that are recorded for a kind that Manx does not read.
const MAX_NAMESPACES: usize = 64;

/// Advice about another vendor's policy.
const ANOTHER_VENDORS: &str = "it is another vendor's policy, which Manx does not enforce: if Manx is to enforce it, write it as a kind that Manx reads";

/// The contents of a file.
#[derive(Debug, Clone, Default)]
pub struct Manifest {
    /// Its objects, in the order of the file; an object may occur twice.
    pub entries: Vec<Entry>,
    /// The problems of the objects, including warnings about ignored fields.
    pub problems: Vec<Problem>,
}

/// One object of a file.
#[derive(Debug, Clone)]
pub struct Entry {
    pub key: ObjectKey,
    /// Whether the identity could be read. If it could not, the key is that of a placeholder.
    pub identified: bool,
    /// The place where the object begins.
    pub place: Arc<Place>,
    /// `metadata.uid`, which distinguishes two objects with the same name.
    pub uid: Option<Arc<str>>,
    pub state: State,
}

/// A valid object, or the known parts of an invalid one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    Valid(Arc<Object>),
    /// The object is invalid. Its problems say why.
    Invalid(Box<Invalid>),
}

impl State {
    /// Returns the object, if it is valid.
    pub fn valid(&self) -> Option<&Object> {
        match self {
            Self::Valid(object) => Some(object),
            Self::Invalid(_) => None,
        }
    }
}

/// Reads `text`, the content of the file `file`. Returns `Err` if the text is neither YAML nor JSON; no part of it can
/// then be used.
pub fn read(file: &str, text: &str) -> Result<Manifest, Box<Problem>> {
    let file: Arc<str> = file.into();
    let mut reader = Reader {
        file: &file,
        lines: text.lines().collect(),
        manifest: Manifest::default(),
        reported: Tally::default(),
        known: HashMap::new(),
        unknown: HashMap::new(),
    };
    let documents = yaml::parse(text).map_err(|error| {
        let (at, cause) = match reader.lines.iter().position(|line| is_template(line)) {
            Some(index) => {
                let at = Position { line: index + 1, column: 1 };
                (Some(at), Cause::Template { error: error.to_string() })
            }
            None => (error.position(), Cause::Syntax(error.to_string())),
        };
        let place = Place { file: Arc::clone(&file), document: 0, at };
        Box::new(Problem { line: reader.line(at), place, ..Problem::of_file(&file, cause) })
    })?;
    for document in &documents {
        reader.document(document);
    }
    Ok(reader.finish())
}

/// Returns whether a kind of this name is a policy, in any API group.
fn is_policy(name: &str) -> bool {
    Kind::ALL.into_iter().any(|kind| kind.enforced_policy() && kind.name() == name)
}

struct Reader<'a> {
    file: &'a Arc<str>,
    lines: Vec<&'a str>,
    manifest: Manifest,
    reported: Tally,
    /// For each object that has a `uid`: its age, and its index in the manifest.
    known: HashMap<ObjectKey, (Age, usize)>,
    /// The kinds and API versions that were reported as unknown, and whether they make pods. Each is reported once; the
    /// value is the index of its problem.
    unknown: HashMap<(String, String, bool), usize>,
}

impl Reader<'_> {
    fn finish(mut self) -> Manifest {
        for (severity, count) in self.reported.beyond(MAX_PROBLEMS) {
            let cause = Cause::Untold { count, of: "file" };
            let severity = severity.of_untold();
            let problem = Problem { severity, ..Problem::of_file(self.file, cause) };
            self.manifest.problems.push(problem);
        }
        self.manifest
    }

    fn line(&self, at: Option<Position>) -> Option<String> {
        shown_line(&self.lines, at?)
    }

    fn report(&mut self, document: usize, object: Option<&ObjectKey>, finding: Finding) {
        let Finding { severity, at, field, mut cause } = finding;
        // A template within quotes is a string for YAML.
        if let Cause::Unexpected { found, expected } = &cause
            && found.starts_with("the string")
            && found.contains("{{")
        {
            cause = Cause::Template { error: format!("found {found}, expected {expected}") };
        }
        if self.reported.count(severity) > MAX_PROBLEMS {
            return;
        }
        let place = Place { file: Arc::clone(self.file), document, at: Some(at) };
        let line = self.line(Some(at));
        let object = object.cloned();
        self.manifest.problems.push(Problem { severity, place, object, field, cause, line });
    }

    fn report_all(
        &mut self,
        document: usize,
        object: Option<&ObjectKey>,
        found: Findings,
        node: &Node,
    ) {
        for finding in found.reported(node.at) {
            self.report(document, object, finding);
        }
    }

    fn document(&mut self, document: &Document) {
        let before = self.manifest.problems.len();
        self.value(&document.root, document.number, (None, None), &document.flaws);
        // The objects fail closed, and one problem gives the reason.
        if let Some(flaw) = document.flaws.iter().find(|flaw| self.is_of_template(flaw)) {
            self.manifest.problems.truncate(before);
            let cause = Cause::Template { error: flaw.kind.to_string() };
            let (severity, at) = (Severity::Error, flaw.at);
            self.report(
                document.number,
                None,
                Finding { severity, at, field: String::new(), cause },
            );
        }
    }

    /// Returns whether a flaw comes from a template: `{{ .Values.name }}` is a mapping whose key is a mapping.
    fn is_of_template(&self, flaw: &Flaw) -> bool {
        let line = self.lines.get(flaw.at.line.saturating_sub(1));
        matches!(flaw.kind, FlawKind::KeyNotText { .. })
            && line.is_some_and(|line| is_template(line))
    }

    /// Reads an object or a list of objects. The document's `flaws` apply to every object in it. `default` is the kind
    /// and API version that the enclosing list gives to its items.
    fn value(
        &mut self,
        node: &Node,
        document: usize,
        default: (Option<&str>, Option<&str>),
        flaws: &[Flaw],
    ) {
        let text = |key| match node.get(key).map(|field| &field.value) {
            Some(Value::String(text)) => Some(&**text),
            _ => None,
        };
        let kind = text("kind").or(default.0);
        let version = text("apiVersion").or(default.1);
        let items = match node.get("items").map(|items| &items.value) {
            Some(Value::Sequence(items)) => Some(items.as_slice()),
            // The API server may write an empty list as null.
            Some(Value::Null) if kind.is_some() => Some(&[][..]),
            _ => None,
        };
        let item_kind = kind.map_or(Some(""), |kind| kind.strip_suffix("List"));
        if let (Some(item_kind), Some(items)) = (item_kind, items) {
            // The items fail closed even if the kind of the list is missing.
            if kind.is_none() || version.is_none() {
                self.unidentified(node, document, kind, &[]);
            }
            self.list(node, document, (item_kind, version), items, flaws);
            return;
        }
        if let Some(claim) = ClaimedKind::new(node, kind, version) {
            self.object(node, document, claim, flaws);
            return;
        }
        let (Some(kind), Some(version)) = (kind, version) else {
            if default == (None, None) && flaws.is_empty() && !resembles_object(node) {
                let cause = Cause::NotAnObject { found: outline(&node.value) };
                let (severity, field) = (Severity::Warning, String::new());
                self.report(document, None, Finding { severity, at: node.at, field, cause });
                return;
            }
            self.unidentified(node, document, kind, flaws);
            return;
        };
        if is_unrelated(kind, version) {
            return;
        }
        self.unread(node, document, (&shown(kind), &shown(version)), flaws);
    }

    /// Reads the items of a list. `item_kind` is empty if the list may have items of any kind.
    fn list(
        &mut self,
        node: &Node,
        document: usize,
        (item_kind, version): (&str, Option<&str>),
        items: &[Node],
        flaws: &[Flaw],
    ) {
        // An empty list of one kind states that there are no objects of this kind, as in the output of `kubectl
        // cluster-info dump`.
        let of_kind = !item_kind.is_empty() && !is_policy(item_kind);
        if items.is_empty() && flaws.is_empty() && !of_kind {
            let (severity, field) = (Severity::Warning, "items".to_owned());
            let at = node.get("items").map_or(node.at, |items| items.at);
            self.report(document, None, Finding { severity, at, field, cause: Cause::EmptyList });
        }
        let item_kind = (!item_kind.is_empty()).then_some(item_kind);
        // It is not known to which item a flaw belongs. So the first flaw is reported for every item, which makes every
        // item invalid. The other flaws are reported once.
        let (first, further) = flaws.split_at(flaws.len().min(items.len()).min(1));
        self.report_all(document, None, Findings::of_flaws(further), node);
        for item in items {
            self.value(item, document, (item_kind, version), first);
        }
    }

    /// Reports a document of a kind that Manx does not read. If it has a template of pods, it counts as a workload.
    fn unread(
        &mut self,
        node: &Node,
        document: usize,
        (kind, api_version): (&str, &str),
        flaws: &[Flaw],
    ) {
        let is_vendors = is_another_vendors(kind, api_version);
        // An ignored policy would let traffic pass that its author believes denied, so this is an error. The exception
        // is another vendor's kind, which the vendor's own agents enforce.
        let of_policies = kind.contains("Policy") && holds_policies(api_version);
        if (kind.contains("NetworkPolicy") && !is_vendors) || of_policies {
            let (kind, api_version) = (kind.to_owned(), api_version.to_owned());
            let cause = Cause::UnsupportedPolicy { kind, api_version };
            self.report_at(document, node, Severity::Error, cause);
            return;
        }
        let workload =
            other_workload::decode(node, (kind, api_version)).filter(|_| flaws.is_empty());
        let makes_pods = workload.as_ref().is_some_and(|(_, workload)| !workload.idle);
        if let Some((key, workload)) = workload {
            let state = State::Valid(Arc::new(Object::Workload(Box::new(workload))));
            self.put(node, document, (key, true), state);
        }
        self.unknown_kind(node, document, (kind, api_version), makes_pods);
    }

    /// Reports a kind that Manx does not read. A single problem covers all objects of this kind in the file, and names
    /// their namespaces.
    fn unknown_kind(
        &mut self,
        node: &Node,
        document: usize,
        (kind, api_version): (&str, &str),
        makes_pods: bool,
    ) {
        let namespace = metadata::written_namespace(node);
        let named = (kind.to_owned(), api_version.to_owned(), makes_pods);
        if let Some(number) = self.unknown.get(&named) {
            // The problem with this index may be another one by now, because the problems of a document are removed if
            // the document turns out to be a template.
            if let Some(problem) = self.manifest.problems.get_mut(*number)
                && let Cause::UnknownKind { kind: of, namespaces, .. } = &mut problem.cause
                && *of == kind
            {
                let anywhere = namespaces.len() >= MAX_NAMESPACES;
                namespaces.insert(if anywhere { String::new() } else { namespace });
            }
            return;
        }
        self.unknown.insert(named, self.manifest.problems.len());
        let of_vendor = is_another_vendors(kind, api_version) && is_policy(kind);
        let help = settings::unread(kind, api_version).or(of_vendor.then_some(ANOTHER_VENDORS));
        let namespaces = BTreeSet::from([namespace]);
        let cause = Cause::UnknownKind {
            kind: kind.to_owned(),
            api_version: api_version.to_owned(),
            makes_pods,
            namespaces,
            help,
        };
        let severity = if of_vendor || !is_of_another_vendor(api_version) {
            Severity::Warning
        } else {
            Severity::Note
        };
        self.report_at(document, node, severity, cause);
    }

    /// Reports a problem of a whole document.
    fn report_at(&mut self, document: usize, node: &Node, severity: Severity, cause: Cause) {
        let finding = Finding { severity, at: node.at, field: String::new(), cause };
        self.report(document, None, finding);
    }

    /// Reports a document whose kind of object is not known.
    fn unidentified(&mut self, node: &Node, document: usize, kind: Option<&str>, flaws: &[Flaw]) {
        let mut out = Findings::of_flaws(flaws);
        let root = Cursor::root(node);
        if matches!(node.value, Value::Mapping(_)) {
            let field = if kind.is_none() { "kind" } else { "apiVersion" };
            root.missing(&mut out, field, OF_ITSELF);
        } else {
            root.expected(&mut out, "a Kubernetes object");
        }
        self.report_all(document, None, out, node);
    }

    fn object(&mut self, node: &Node, document: usize, claim: ClaimedKind<'_>, flaws: &[Flaw]) {
        let root = Cursor::root(node);
        let mut out = Findings::of_flaws(flaws);
        let bytes = node.json_len();
        if bytes > MAX_OBJECT {
            let found = format!("an object of {bytes} bytes as JSON");
            let expected =
                format!("at most {MAX_OBJECT}, the API server's limit: split it into several");
            root.error(&mut out, Cause::Unexpected { found, expected });
        }
        claim.check(&root, &mut out);
        let kind = claim.kind;
        let identity = metadata::identity(&root, kind);
        let identified = identity.is_some();
        let key = identity.or_else(|| self.placeholder(&root, kind, document));
        let metadata = metadata::metadata(&root, kind, &mut out);
        let name = key.as_ref().map_or("", |key| key.name.as_str());
        let (object, invalid) = if claim.certain {
            decode(&root, kind, name, metadata, &mut out)
        } else {
            (None, Invalid::default())
        };
        let state = match object {
            Some(object) if !out.errors() => State::Valid(Arc::new(object)),
            // The placeholder of a namespaced policy may be a global policy. The policy's subject selects pods of one
            // namespace only, so it is not used for such a placeholder.
            _ if key.as_ref().is_some_and(|key| key.kind != kind) => State::Invalid(Box::default()),
            _ => State::Invalid(Box::new(invalid)),
        };
        self.report_all(document, key.as_ref(), out, node);
        if let Some(key) = key {
            self.put(node, document, (key, identified), state);
        }
    }

    /// Adds an object. If an object with the same key is already there, a later state of it, or a successor with the
    /// same name, replaces it.
    fn put(
        &mut self,
        node: &Node,
        document: usize,
        (key, identified): (ObjectKey, bool),
        state: State,
    ) {
        let place = Place { file: Arc::clone(self.file), document, at: Some(node.at) };
        let age = Age::read(node);
        let uid = age.as_ref().map(|age| Arc::clone(&age.uid));
        let entry = Entry { key: key.clone(), identified, place: Arc::new(place), uid, state };
        let entries = &mut self.manifest.entries;
        if let Some(age) = age {
            match self.known.get_mut(&key) {
                None => {
                    self.known.insert(key, (age, entries.len()));
                }
                Some((known, at)) => match known.followed_by(&age, key.kind) {
                    RevisionOrder::Later => {
                        entries[*at] = entry;
                        *known = age;
                        return;
                    }
                    RevisionOrder::Earlier => return,
                    RevisionOrder::Unknown => {}
                },
            }
        }
        entries.push(entry);
    }

    /// Returns the key of the placeholder for an object whose name or namespace cannot be read, so that the object
    /// fails closed. No object can have the placeholder's name. If the object may affect any endpoint, the placeholder
    /// is an invalid policy that denies everything, or everything in the object's namespace if the object affects only
    /// that. Returns `None` if nothing more is allowed without the object.
    fn placeholder(&self, root: &Cursor<'_>, kind: Kind, document: usize) -> Option<ObjectKey> {
        let namespace =
            if kind.namespaced() { metadata::namespace(root) } else { Some(String::new()) };
        let mut name = format!("(no name: {kind}, {} document {document})", self.file);
        let everywhere = (Kind::GlobalNetworkPolicy, String::new());
        let (kind, namespace) = match (kind, namespace) {
            // Any selector may match pods by the labels of this namespace, and any policy may be in this tier.
            (Kind::Namespace | Kind::Tier, _) => everywhere,
            (Kind::ServiceAccount, Some(namespace)) => (Kind::CalicoNetworkPolicy, namespace),
            // Nothing passes from or to the addresses of an invalid pod, whatever its namespace is, so any namespace
            // will do.
            (Kind::Pod, None) => (kind, "default".to_owned()),
            // The object may be the configuration of every node.
            (Kind::FelixConfiguration | Kind::BgpConfiguration, _) => {
                "default".clone_into(&mut name);
                (kind, String::new())
            }
            // If one of these objects is missing, nothing more is allowed. Nothing is routed to a missing node or for a
            // missing affinity. A missing `BGPPeer` makes no peer, a missing filter rejects all routes, and a missing
            // profile denies. Services, workloads and staged policies enforce nothing.
            (
                Kind::Node
                | Kind::BlockAffinity
                | Kind::BgpPeer
                | Kind::BgpFilter
                | Kind::Profile
                | Kind::Service
                | Kind::Endpoints
                | Kind::Workload(_)
                | Kind::StagedNetworkPolicy
                | Kind::StagedGlobalNetworkPolicy
                | Kind::StagedKubernetesNetworkPolicy,
                _,
            ) => return None,
            (kind, Some(namespace)) => (kind, namespace),
            (_, None) => everywhere,
        };
        Some(ObjectKey { kind, namespace, name })
    }
}

/// Returns whether a line has `{{ ... }}` where a value or a line begins: Helm's templates, outside of a text in
/// quotes.
fn is_template(line: &str) -> bool {
    let line = line.trim_start();
    let begins = line.starts_with("{{") || line.contains(": {{") || line.starts_with("- {{");
    begins && line.contains("}}")
}

/// Returns whether a document without a known kind may be meant as an object or a list of objects. An API version alone
/// is not enough: Helm's `Chart.yaml` has one. (Documents with an API version of policies are handled before.)
fn resembles_object(node: &Node) -> bool {
    match &node.value {
        Value::Sequence(items) => {
            items.iter().any(|item| item.get("apiVersion").is_some() || resembles_object(item))
        }
        _ => ["kind", "metadata", "spec", "items"].iter().any(|key| node.get(key).is_some()),
    }
}

/// Describes a document that is not an object, with the first keys of a mapping.
fn outline(value: &Value) -> String {
    const SHOWN: usize = 3;
    let Value::Mapping(entries) = value else { return value.describe() };
    let keys: Vec<_> = entries.iter().take(SHOWN).map(|entry| shown(&entry.key)).collect();
    let more = if entries.len() > SHOWN { ", ..." } else { "" };
    if keys.is_empty() {
        "an empty mapping".to_owned()
    } else {
        format!("a mapping with {}{more}", keys.join(", "))
    }
}

/// Returns the line at a position, for messages. A line of more than 400 bytes is left out, because some files consist
/// of one line.
pub(super) fn shown_line(lines: &[&str], at: Position) -> Option<String> {
    let line = lines.get(at.line.checked_sub(1)?)?;
    (line.len() <= 400).then(|| (*line).to_owned())
}
