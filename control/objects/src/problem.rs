//! What is wrong with a manifest, where, and how it is said.

use std::fmt;
use std::sync::Arc;

use manx_policy_compiler::selector::SelectorError;

use super::object::ObjectKey;
use super::tree::Position;

/// Problems of one severity that are told of an object, by whoever finds them.
pub const MOST_OF_OBJECT: usize = 100;

/// How bad a [`Problem`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Something is not in force as it was written.
    Error,
    /// Something was passed over.
    Warning,
}

/// Where in which file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The file, as it was named to the reader.
    pub file: Arc<str>,
    /// The document in it, counted from 1; 0 where the whole file is meant.
    pub document: usize,
    /// The position, where there is one.
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

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// How bad it is.
    pub severity: Severity,
    /// Where it is.
    pub place: Place,
    /// The object, if its identity could be read.
    pub object: Option<ObjectKey>,
    /// The field's path in the object, e.g. `spec.ingress[0].ports[1].endPort`; empty where the object itself is meant.
    pub field: String,
    /// What is wrong.
    pub cause: Cause,
    /// The line of the file that it is on.
    pub line: Option<String>,
}

/// What is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// The file or directory cannot be read.
    #[error("cannot be read: {0}")]
    Unreadable(String),
    /// A directory that was named has no manifest.
    #[error(
        "holds no manifest: found {found}, expected *.yaml, *.yml or *.json {}",
        .recursive.then_some("in it or below it").unwrap_or("directly in it")
    )]
    NoManifest {
        /// What it has.
        found: String,
        /// Whether its subdirectories were entered.
        recursive: bool,
    },
    /// No object is in anything that was named.
    #[error(
        "holds no object: found nothing but comments and white space, expected one object or more"
    )]
    NoObject,
    /// The file held objects and holds none any more.
    #[error(
        "held {before} objects and holds none any more: they stay in force, because a save may have failed; remove the file to remove \
         its objects"
    )]
    Emptied {
        /// How many there were.
        before: usize,
    },
    /// The file says less than before and may be half of a save.
    #[error(
        "says less than it did ({missing} objects fewer) and may be half written: what it said stays in force until it has stayed as \
         it is for {seconds} s"
    )]
    SaysLess {
        /// How many objects it no longer has.
        missing: usize,
        /// How long it is waited for.
        seconds: u64,
    },
    /// The file is no YAML or JSON, or is too large.
    #[error("{0}")]
    Syntax(String),
    /// The document is flawed as a tree: a key twice, a tag without meaning.
    #[error("{0}")]
    Flaw(String),
    /// There are more of this severity than are told.
    #[error("{count} further problems of this {of} are not told: correct those above first")]
    Untold {
        /// How many.
        count: usize,
        /// `object` or `file`.
        of: &'static str,
    },
    /// Something else was expected here.
    #[error("found {found}, expected {expected}")]
    Unexpected {
        /// What stands here.
        found: String,
        /// What may.
        expected: String,
    },
    /// A selector does not parse.
    #[error("is no selector: {0}")]
    Selector(SelectorError),
    /// A field that must be there is not.
    #[error("is missing, expected {expected}")]
    Missing {
        /// What may stand there.
        expected: String,
    },
    /// A field that these other fields exclude.
    #[error("{0}")]
    Conflict(String),
    /// A field that the kind does not have.
    #[error("unknown field{}", .similar.as_ref().map(|name| format!(": perhaps {name} is meant")).unwrap_or_default())]
    UnknownField {
        /// A field that it has and that is spelled alike.
        similar: Option<String>,
    },
    /// A field that stands for less than its author may believe.
    #[error("{0}")]
    Notice(String),
    /// A rule asks for what cannot be decided here, and fails closed.
    #[error("is not supported: this rule {effect}")]
    Unsupported {
        /// What becomes of the rule.
        effect: &'static str,
    },
    /// A kind that is not read.
    #[error("{kind} ({api_version}) is not a kind that Manx reads; skipped")]
    UnknownKind {
        /// The kind.
        kind: String,
        /// Its API version.
        api_version: String,
    },
    /// A kind of policy that is not supported.
    #[error("{kind} ({api_version}) is not supported: this policy is NOT ENFORCED")]
    UnsupportedPolicy {
        /// The kind.
        kind: String,
        /// Its API version.
        api_version: String,
    },
    /// The same object, with other content, in two places.
    #[error("defined differently at {other}; neither definition is used")]
    Duplicate {
        /// The other place.
        other: String,
    },
    /// The same object, with the same content, in two places.
    #[error("defined again, with the same content, at {other}")]
    Repeated {
        /// The other place.
        other: String,
    },
    /// It names what no manifest defines.
    #[error("{0}")]
    Undefined(String),
    /// Something about the object in its cluster, found by the import.
    #[error("{0}")]
    Cluster(String),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        if self.field.is_empty() {
            writeln!(f, "{severity}: {}", self.cause)?;
        } else {
            writeln!(f, "{severity}: {}: {}", self.field, self.cause)?;
        }
        let gutter = match self.place.at {
            Some(at) => at.line.to_string().len(),
            None => 1,
        };
        write!(f, "{:gutter$}--> {}", "", self.place)?;
        if let (Some(line), Some(at)) = (&self.line, self.place.at) {
            write!(f, "\n{:gutter$} |\n{} | {line}\n{:gutter$} | ", "", at.line, "")?;
            // The caret stands under its column, whatever tabs come before it.
            for character in line.chars().take(at.column.saturating_sub(1)) {
                f.write_str(if character == '\t' { "\t" } else { " " })?;
            }
            f.write_str("^")?;
        }
        if let Some(object) = &self.object {
            write!(f, "\n{:gutter$} = {object}, document {}", "", self.place.document)?;
        } else if self.place.document > 0 {
            write!(f, "\n{:gutter$} = document {}", "", self.place.document)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problem {}

impl Problem {
    /// A problem of a whole file or directory.
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

    /// That there are more of an object than are told.
    pub fn of_untold(key: &ObjectKey, place: &Place, severity: Severity, count: usize) -> Self {
        Self {
            severity,
            place: place.clone(),
            object: Some(key.clone()),
            field: String::new(),
            cause: Cause::Untold { count, of: "object" },
            line: None,
        }
    }

    /// What everybody is told of a valid host endpoint.
    pub fn of_host_endpoint(key: &ObjectKey, place: &Place) -> Self {
        let message = "for forwarded traffic (applyOnForward) its policies are enforced; for traffic of the node's own processes, doNotTrack and preDNAT they are NOT ENFORCED";
        Self {
            severity: Severity::Warning,
            place: place.clone(),
            object: Some(key.clone()),
            field: String::new(),
            cause: Cause::Cluster(message.to_owned()),
            line: None,
        }
    }

    /// What follows from it, and what to do, where that is not plain.
    pub fn help(&self) -> Option<String> {
        let what = match &self.cause {
            Cause::Unreadable(_) | Cause::Syntax(_) => {
                "nothing of it is known: an agent that starts with it passes nothing, one that runs keeps what it read before"
            }
            Cause::NoManifest { recursive: true, .. } | Cause::NoObject => {
                "name the files or the directory that hold the manifests"
            }
            Cause::NoManifest { recursive: false, .. } => {
                "subdirectories are not entered: name the files or the directory that hold the manifests, or say --recursive"
            }
            Cause::UnsupportedPolicy { .. } => {
                "nothing of it is in force: write it as a kind that is read"
            }
            Cause::UnknownKind { .. } | Cause::Repeated { .. } => return None,
            _ if self.severity == Severity::Warning => return None,
            _ => self.object.as_ref()?.kind.when_invalid(),
        };
        Some(what.to_owned())
    }

    /// All of it in one line, for logs and `manx status`.
    pub fn summary(&self) -> String {
        let object = self.object.as_ref().map(|object| format!("{object}: ")).unwrap_or_default();
        let field = if self.field.is_empty() { String::new() } else { format!("{}: ", self.field) };
        format!("{}: {object}{field}{}", self.place, self.cause)
    }
}
