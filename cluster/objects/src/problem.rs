//! Problems of manifests: their causes, their places, and the messages for users.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use manx_policy_compiler::selector::SelectorError;

use super::code::Code;
use super::object::ObjectKey;
pub use super::severity::Severity;
use super::tree::{FlawKind, Position};

/// The maximum number of problems of one severity that are reported for an object. It applies in the reader and in the
/// import separately.
pub const MOST_OF_OBJECT: usize = 100;

/// A place in a file, or an API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The name of the file as it was passed to the reader, or the URL of an API server.
    pub file: Arc<str>,
    /// The number of the document in the file, counted from 1. It is 0 for the whole file, and for objects from an API
    /// server.
    pub document: usize,
    /// The position, if there is one.
    pub at: Option<Position>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at {
            Some(at) => write!(f, "{}:{at}", self.file),
            None => f.write_str(&self.file),
        }
    }
}

/// One problem of a manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub severity: Severity,
    pub place: Place,
    /// The object, if its identity could be read.
    pub object: Option<ObjectKey>,
    /// The field's path in the object, e.g. `spec.ingress[0].ports[1].endPort`; empty for the object itself.
    pub field: String,
    pub cause: Cause,
    /// The line of the file that contains the problem.
    pub line: Option<String>,
}

/// The cause of a problem.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// The file or directory cannot be read.
    #[error("cannot be read: {0}")]
    Unreadable(String),
    /// A named directory contains no manifest.
    #[error(
        "holds no manifest: found {found}, expected *.yaml, *.yml or *.json {}",
        .recursive.then_some("in it or below it").unwrap_or("directly in it")
    )]
    NoManifest {
        /// The files that it contains.
        found: String,
        /// Whether its subdirectories were read.
        recursive: bool,
    },
    /// None of the named files contains an object.
    #[error("holds no object: found {found}, expected one object or more")]
    NoObject {
        /// The content that was found instead.
        found: &'static str,
    },
    /// A list without items.
    #[error("is a list without items")]
    EmptyList,
    /// A template of Helm.
    #[error(
        "is a template of Helm that is not rendered: found `{{{{ ... }}}}`, expected YAML or JSON ({error})"
    )]
    Template {
        /// The reason why the file is not YAML.
        error: String,
    },
    /// A document that is not a Kubernetes object and does not look like one.
    #[error("is no Kubernetes object: found {found}, expected apiVersion, kind and metadata")]
    NotAnObject {
        /// A description of the document.
        found: String,
    },
    /// The file held objects and now holds none.
    #[error(
        "held {before} objects and holds none any more: they stay in force, because a save may have failed; remove the file to remove \
         its objects"
    )]
    Emptied {
        /// The number of objects that the file contained.
        before: usize,
    },
    /// The file has less content than before and may be a partial save.
    #[error(
        "has less content than before ({missing} objects fewer) and may be half written: its previous content stays in force until the file has not \
         changed for {seconds} s"
    )]
    SaysLess {
        /// The number of objects that are missing.
        missing: usize,
        /// The seconds for which the file must stay unchanged.
        seconds: u64,
    },
    /// The file is not YAML or JSON, or is too large.
    #[error("{0}")]
    Syntax(String),
    /// The document has a flaw as a tree, such as a duplicate key or an unknown tag.
    #[error("{0}")]
    Flaw(FlawKind),
    /// Some problems of this severity are not reported, because their number exceeds the limit.
    #[error("{count} further problems of this {of} are not shown: correct those above first")]
    Untold {
        /// The number of problems that are not reported.
        count: usize,
        /// What the problems belong to: `object` or `file`.
        of: &'static str,
    },
    /// Something else was expected here.
    #[error("found {found}, expected {expected}")]
    Unexpected { found: String, expected: String },
    /// A selector does not parse.
    #[error("is no selector: {0}")]
    Selector(SelectorError),
    /// A required field is missing.
    #[error("is missing, expected {expected}")]
    Missing {
        /// The values that are allowed there.
        expected: String,
    },
    /// This field and another one exclude each other.
    #[error("{0}")]
    Conflict(String),
    /// A field that the kind does not have.
    #[error("unknown field{}", .similar.as_ref().map(|name| format!(": perhaps {name} is meant")).unwrap_or_default())]
    UnknownField {
        /// A field of the kind with a similar name.
        similar: Option<String>,
    },
    /// A rule contains something that Manx cannot evaluate, and fails closed.
    #[error("is not supported: this rule {effect}")]
    Unsupported {
        /// The effect on the rule.
        effect: &'static str,
    },
    /// A kind that is not read.
    #[error(
        "{kind} ({api_version}) is not a kind that Manx reads; {}",
        .makes_pods.then_some("it is assumed that each of this file makes the pods of its spec.template").unwrap_or("each of this file is skipped")
    )]
    UnknownKind {
        kind: String,
        api_version: String,
        /// Whether the kind has a template of pods, so that its objects count as workloads.
        makes_pods: bool,
        /// The namespaces of this kind's objects in the file. An empty name means any namespace: an object names none,
        /// an object is cluster-wide, or the objects have very many namespaces.
        namespaces: BTreeSet<String>,
        /// Advice, if there is any for the kind.
        help: Option<&'static str>,
    },
    /// A kind of policy that is not supported.
    #[error("{kind} ({api_version}) is not supported: this policy is NOT ENFORCED")]
    UnsupportedPolicy { kind: String, api_version: String },
    /// Two places define the same object with different content.
    #[error("defined differently at {other}; neither definition is used")]
    Duplicate {
        /// The other place.
        other: String,
    },
    /// Two places define the same object with the same content.
    #[error("defined again, with the same content, at {other}")]
    Repeated {
        /// The other place.
        other: String,
    },
    /// A setting that Manx does not implement.
    #[error("{message}")]
    NotDone {
        code: Code,
        /// The part that Manx does not implement, as text after the field's name.
        message: &'static str,
        help: &'static str,
    },
    /// Any other cause, with its own code.
    #[error("{message}")]
    Told {
        code: Code,
        /// The problem and its consequence.
        message: String,
    },
}

impl Cause {
    /// Returns a cause with this code and this message.
    pub fn told(code: Code, message: impl Into<String>) -> Self {
        Self::Told { code, message: message.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "note",
        };
        if self.field.is_empty() {
            writeln!(f, "{severity}[{}]: {}", self.code(), self.cause)?;
        } else {
            writeln!(f, "{severity}[{}]: {}: {}", self.code(), self.field, self.cause)?;
        }
        let gutter = match self.place.at {
            Some(at) => at.line.to_string().len(),
            None => 1,
        };
        write!(f, "{:gutter$}--> {}", "", self.place)?;
        if let (Some(line), Some(at)) = (&self.line, self.place.at) {
            write!(f, "\n{:gutter$} |\n{} | {line}\n{:gutter$} | ", "", at.line, "")?;
            // The caret stands under its column, even after tabs.
            for character in line.chars().take(at.column.saturating_sub(1)) {
                f.write_str(if character == '\t' { "\t" } else { " " })?;
            }
            f.write_str("^")?;
        }
        let document =
            (self.place.document > 0).then(|| format!("document {}", self.place.document));
        let object = self.object.as_ref().map(ToString::to_string);
        let which: Vec<String> = object.into_iter().chain(document).collect();
        if which.is_empty() {
            return Ok(());
        }
        write!(f, "\n{:gutter$} = {}", "", which.join(", "))
    }
}

impl std::error::Error for Problem {}

impl Problem {
    /// Returns a problem of a whole file or directory.
    pub fn of_file(file: &Arc<str>, cause: Cause) -> Self {
        Self {
            severity: Severity::Error,
            place: Place { file: Arc::clone(file), document: 0, at: None },
            object: None,
            field: String::new(),
            cause,
            line: None,
        }
    }

    /// Returns the problem which says that an object has more problems of this severity than are reported. Its own
    /// severity is at least a warning.
    pub fn of_untold(key: &ObjectKey, place: &Place, severity: Severity, count: usize) -> Self {
        Self {
            severity: severity.of_untold(),
            place: place.clone(),
            object: Some(key.clone()),
            field: String::new(),
            cause: Cause::Untold { count, of: "object" },
            line: None,
        }
    }

    /// Returns the warning for a valid host endpoint.
    pub fn of_host_endpoint(key: &ObjectKey, place: &Place) -> Self {
        let message = "for forwarded traffic (applyOnForward) its policies are enforced; for traffic of the node's own processes, doNotTrack and preDNAT they are NOT ENFORCED";
        Self {
            severity: Severity::Warning,
            place: place.clone(),
            object: Some(key.clone()),
            field: String::new(),
            cause: Cause::told(Code::HostPolicyNotEnforced, message),
            line: None,
        }
    }

    /// Returns the code. The code and the severity always agree.
    pub fn code(&self) -> Code {
        let warns = self.severity == Severity::Warning;
        match &self.cause {
            Cause::Unreadable(_) => Code::Unreadable,
            Cause::NoManifest { .. } => Code::NoManifest,
            Cause::NoObject { .. } => Code::NoObject,
            Cause::EmptyList => Code::EmptyList,
            Cause::Template { .. } => Code::UnrenderedTemplate,
            Cause::NotAnObject { .. } if warns => Code::SkippedDocument,
            Cause::NotAnObject { .. } => Code::NotAnObject,
            Cause::Emptied { .. } => Code::EmptiedFile,
            Cause::SaysLess { .. } => Code::ShrunkFile,
            Cause::Syntax(_) => Code::NotYaml,
            Cause::Flaw(FlawKind::DuplicateKey { .. }) => Code::DuplicateKey,
            Cause::Flaw(_) => Code::NotJsonTypes,
            Cause::Untold { .. } if warns => Code::FurtherWarnings,
            Cause::Untold { .. } => Code::FurtherErrors,
            Cause::Unexpected { .. } if warns => Code::IgnoredAnnotation,
            Cause::Unexpected { .. } => Code::UnexpectedValue,
            Cause::Selector(_) => Code::BadSelector,
            Cause::Missing { .. } => Code::MissingField,
            Cause::Conflict(_) => Code::ConflictingFields,
            Cause::UnknownField { .. } if warns => Code::IgnoredField,
            Cause::UnknownField { .. } => Code::UnknownField,
            Cause::Unsupported { .. } => Code::UnsupportedRule,
            Cause::UnknownKind { .. } if self.severity == Severity::Note => {
                Code::KindOfAnotherProject
            }
            Cause::UnknownKind { .. } => Code::UnknownKind,
            Cause::UnsupportedPolicy { .. } => Code::UnsupportedPolicy,
            Cause::Duplicate { .. } => Code::DuplicateObject,
            Cause::Repeated { .. } => Code::RepeatedObject,
            Cause::NotDone { code, .. } | Cause::Told { code, .. } => *code,
        }
    }

    /// Returns the consequence and advice, if they are not obvious.
    pub fn help(&self) -> Option<&'static str> {
        match &self.cause {
            Cause::NoManifest { recursive: false, .. } => Some(
                "subdirectories are not entered: name the files or the directory that hold the manifests, or say --recursive",
            ),
            Cause::NotDone { help, .. } => Some(help),
            Cause::UnknownKind { help, .. } => *help,
            _ if self.severity != Severity::Error => self.code().help(),
            _ => self.code().help().or_else(|| Some(self.object.as_ref()?.kind.when_invalid())),
        }
    }

    /// Returns the whole problem in one line, for logs and `manx status`.
    pub fn summary(&self) -> String {
        let object = self.object.as_ref().map(|object| format!("{object}: ")).unwrap_or_default();
        format!("{}: {object}{}", self.place, self.finding())
    }

    /// Returns the summary without the object's name.
    pub fn finding(&self) -> String {
        let field = if self.field.is_empty() { String::new() } else { format!("{}: ", self.field) };
        format!("{field}{}", self.cause)
    }
}
