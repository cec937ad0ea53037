//! All objects of one file.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use super::calico;
use super::claimed_kind::{ClaimedKind, OF_ITSELF, holds_policies};
use super::cluster;
use super::cursor::{Cursor, Finding, Findings, Tally};
use super::infrastructure;
use super::metadata::{self, Metadata};
use super::network_policy;
use super::object::{Kind, Object, ObjectKey, Pairs, Subject};
use super::pod;
use super::problem::{Cause, Place, Problem, Severity};
use super::service;
use super::tree::{Document, Flaw, Node, Position, Value, shown};
use super::yaml;

/// Most bytes of an object as JSON: the longest request that the API server takes (apiserver, `MaxRequestBodyBytes`). What it
/// takes still has to fit into etcd's 1.5 MiB, in another form.
pub(super) const MAX_OBJECT: usize = 3 << 20;
/// Problems of one severity that are told of a file.
pub(super) const MAX_PROBLEMS: usize = 10_000;

/// What a file says.
#[derive(Debug, Clone, Default)]
pub struct Manifest {
    /// Its objects, in the file's order; the same object may stand there twice.
    pub entries: Vec<Entry>,
    /// What is wrong with them, and what was passed over.
    pub problems: Vec<Problem>,
}

/// One object of a file.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Which object it is.
    pub key: ObjectKey,
    /// Whether that could be read. If not, the key is of what stands for it.
    pub identified: bool,
    /// Where it begins.
    pub place: Place,
    /// The object.
    pub state: State,
}

/// An object, or that it is not valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// A valid object.
    Valid(Arc<Object>),
    /// What stands there is not valid; why is among the problems.
    Invalid(Invalid),
}

/// What is known of an object that is not valid.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Invalid {
    /// Of a policy: whom it selects, if that much could be read.
    pub subject: Option<Subject>,
    /// Of a set of networks: its labels, if they could be read.
    pub labels: Option<Pairs>,
    /// Of a pod: those of its addresses that could be read.
    pub addresses: BTreeSet<IpAddr>,
}

/// Reads `text`, the content of the file called `file`. `Err`: it is no YAML or JSON, and nothing of it can be used.
pub fn read(file: &str, text: &str) -> Result<Manifest, Box<Problem>> {
    let file: Arc<str> = file.into();
    let mut reader = Reader {
        file: &file,
        lines: text.lines().collect(),
        manifest: Manifest::default(),
        reported: Tally::default(),
    };
    let documents = yaml::parse(text).map_err(|error| {
        let place = Place { file: Arc::clone(&file), document: 0, at: error.position() };
        Box::new(Problem {
            line: reader.line(error.position()),
            place,
            ..Problem::of_file(&file, Cause::Syntax(error.to_string()))
        })
    })?;
    for document in &documents {
        reader.document(document);
    }
    Ok(reader.finish())
}

struct Reader<'a> {
    file: &'a Arc<str>,
    lines: Vec<&'a str>,
    manifest: Manifest,
    reported: Tally,
}

impl Reader<'_> {
    fn finish(mut self) -> Manifest {
        for (severity, count) in self.reported.beyond(MAX_PROBLEMS) {
            let cause = Cause::Untold { count, of: "file" };
            let problem = Problem { severity, ..Problem::of_file(self.file, cause) };
            self.manifest.problems.push(problem);
        }
        self.manifest
    }

    fn line(&self, at: Option<Position>) -> Option<String> {
        let line = self.lines.get(at?.line.checked_sub(1)?)?;
        // A file of one endless line would make an endless message.
        (line.len() <= 400).then(|| (*line).to_owned())
    }

    fn report(&mut self, document: usize, object: Option<&ObjectKey>, finding: Finding) {
        let Finding { severity, at, field, cause } = finding;
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
        self.value(&document.root, document.number, (None, None), &document.flaws);
    }

    /// An object or a list of objects. `flaws` of the document belong to whatever it holds; `default` is what the list that
    /// it stands in says of it: kind and API version.
    fn value(
        &mut self,
        node: &Node,
        document: usize,
        default: (Option<&str>, Option<&str>),
        flaws: &[Flaw],
    ) {
        let text = |key| match node.get(key).map(|field| &field.value) {
            Some(Value::String(text)) => Some(text.as_str()),
            _ => None,
        };
        let kind = text("kind").or(default.0);
        let version = text("apiVersion").or(default.1);
        if let (Some(item_kind), Some(Value::Sequence(items))) = (
            kind.map_or(Some(""), |kind| kind.strip_suffix("List")),
            node.get("items").map(|items| &items.value),
        ) {
            // The items of a list that does not say what it is are no less closed for that.
            if kind.is_none() || version.is_none() {
                self.unidentified(node, document, kind, &[]);
            }
            let item_kind = (!item_kind.is_empty()).then_some(item_kind);
            // Nobody knows whose the flaws are: one of them closes every item, and the others are told once.
            let (first, further) = flaws.split_at(flaws.len().min(items.len()).min(1));
            self.report_all(document, None, Findings::of_flaws(further), node);
            for item in items {
                self.value(item, document, (item_kind, version), first);
            }
            return;
        }
        if let Some(claim) = ClaimedKind::new(node, kind, version) {
            self.object(node, document, claim, flaws);
            return;
        }
        let (Some(kind), Some(version)) = (kind, version) else {
            self.unidentified(node, document, kind, flaws);
            return;
        };
        let (kind, api_version) = (shown(kind).into_owned(), shown(version).into_owned());
        // A policy that is passed over leaves open what its author believes closed: that is an error.
        let of_policies = kind.contains("Policy") && holds_policies(&api_version);
        let (severity, cause) = if kind.contains("NetworkPolicy") || of_policies {
            (Severity::Error, Cause::UnsupportedPolicy { kind, api_version })
        } else {
            (Severity::Warning, Cause::UnknownKind { kind, api_version })
        };
        let finding = Finding { severity, at: node.at, field: String::new(), cause };
        self.report(document, None, finding);
    }

    /// Reports what does not say which kind of object it is.
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
            // Whom a policy selects in its namespace is not whom it selects everywhere.
            _ if key.as_ref().is_some_and(|key| key.kind != kind) => {
                State::Invalid(Invalid::default())
            }
            _ => State::Invalid(invalid),
        };
        self.report_all(document, key.as_ref(), out, node);
        if let Some(key) = key {
            let place = Place { file: Arc::clone(self.file), document, at: Some(node.at) };
            self.manifest.entries.push(Entry { key, identified, place, state });
        }
    }

    /// What stands for an object whose name or namespace cannot be read, so that it fails closed: one of a name that no
    /// object can have. Where nobody can tell what the object means to others, that is a policy which is not valid and
    /// denies everything, of the namespace if that is known.
    fn placeholder(&self, root: &Cursor<'_>, kind: Kind, document: usize) -> Option<ObjectKey> {
        let namespace =
            if kind.namespaced() { metadata::namespace(root) } else { Some(String::new()) };
        let mut name = format!("(no name: {kind}, {} document {document})", self.file);
        let everywhere = (Kind::GlobalNetworkPolicy, String::new());
        let (kind, namespace) = match (kind, namespace) {
            // By its labels any selector may mean any namespace's pods; any policy may be of the tier.
            (Kind::Namespace | Kind::Tier, _) => everywhere,
            (Kind::ServiceAccount, Some(namespace)) => (Kind::CalicoNetworkPolicy, namespace),
            // Its addresses are closed, wherever it lives.
            (Kind::Pod, None) => (kind, "default".to_owned()),
            // It may be the one that every node obeys.
            (Kind::FelixConfiguration, _) => {
                "default".clone_into(&mut name);
                (kind, String::new())
            }
            // Nothing opens without these: to a node that is not there nothing is routed, a profile that is not there
            // denies, and of services and staged policies nothing is enforced.
            (
                Kind::Node
                | Kind::Profile
                | Kind::Service
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

/// The object as far as it could be read, and what is known of it should it not be valid.
fn decode(
    root: &Cursor<'_>,
    kind: Kind,
    name: &str,
    metadata: Metadata,
    out: &mut Findings,
) -> (Option<Object>, Invalid) {
    let policy = |object, subject| (Some(object), Invalid { subject, ..Invalid::default() });
    let object = match kind {
        Kind::Namespace => {
            Some(Object::Namespace(infrastructure::namespace(root, name, metadata, out)))
        }
        Kind::Node => Some(Object::Node(infrastructure::node(root, &metadata, out))),
        Kind::Pod => {
            let pod = pod::decode(root, metadata, out);
            let invalid = Invalid { addresses: pod.every_address(), ..Invalid::default() };
            return (Some(Object::Pod(Box::new(pod))), invalid);
        }
        Kind::ServiceAccount => {
            Some(Object::ServiceAccount(service::service_account(root, metadata, out)))
        }
        Kind::Service => Some(Object::Service(service::service(root, out))),
        Kind::EndpointSlice => {
            Some(Object::EndpointSlice(service::endpoint_slice(root, &metadata, out)))
        }
        Kind::IpPool => calico::ip_pool(root, out).map(Object::IpPool),
        Kind::NetworkPolicy | Kind::StagedKubernetesNetworkPolicy => {
            let (wire, selector) = network_policy::decode(root, kind.staged(), out);
            let object = Object::NetworkPolicy(Box::new(wire));
            return policy(object, selector.map(Subject::Kubernetes));
        }
        Kind::ClusterNetworkPolicy
        | Kind::AdminNetworkPolicy
        | Kind::BaselineAdminNetworkPolicy => {
            let (wire, pods) = cluster::decode(root, kind, out);
            let object = Object::ClusterNetworkPolicy(Box::new(wire));
            return policy(object, pods.map(Subject::Cluster));
        }
        Kind::CalicoNetworkPolicy
        | Kind::GlobalNetworkPolicy
        | Kind::StagedNetworkPolicy
        | Kind::StagedGlobalNetworkPolicy => {
            let (wire, subject) = calico::decode(root, kind, out);
            return policy(Object::CalicoPolicy(Box::new(wire)), subject.map(Subject::Calico));
        }
        Kind::Tier => Some(Object::Tier(calico::tier(root, name, out))),
        Kind::NetworkSet | Kind::GlobalNetworkSet => {
            let labels = metadata.labels_readable.then(|| metadata.labels.clone());
            let set = calico::network_set(root, metadata, out);
            let invalid = Invalid { labels, ..Invalid::default() };
            return (Some(Object::NetworkSet(Box::new(set))), invalid);
        }
        Kind::HostEndpoint => calico::host_endpoint(root, metadata, out)
            .map(|endpoint| Object::HostEndpoint(Box::new(endpoint))),
        Kind::Profile => Some(Object::Profile(Box::new(calico::profile(root, out)))),
        Kind::FelixConfiguration => {
            let felix = calico::felix_configuration(root, name, out);
            Some(Object::FelixConfiguration(Box::new(felix)))
        }
    };
    (object, Invalid::default())
}
