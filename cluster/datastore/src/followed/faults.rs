//! The faults that may leave objects out of date.

use std::collections::BTreeMap;
use std::time::SystemTime;

use manx_objects::few;
use manx_objects::object::Kind;

use super::event::Reason;

/// The most causes that are named.
const CAUSES: usize = 3;
/// The most kinds that are named with a cause.
const KINDS: usize = 3;

/// The time since which objects may be out of date, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stale {
    /// The time when they were last known to be up to date.
    pub since: SystemTime,
    /// The reason, as one sentence.
    pub reason: String,
}

/// The faults that keep objects from being followed: of one kind, or (`None`) of all.
#[derive(Debug)]
pub(super) struct Faults {
    /// The server's name in sentences.
    server: &'static str,
    all: BTreeMap<Option<Kind>, (SystemTime, Reason)>,
}

impl Faults {
    /// There are none.
    pub(super) const fn new(server: &'static str) -> Self {
        Self { server, all: BTreeMap::new() }
    }

    /// Records a fault, or its end. The first time and the last reason are kept.
    pub(super) fn note(&mut self, kind: Option<Kind>, fault: Option<(SystemTime, Reason)>) {
        match fault {
            None => {
                if self.all.remove(&kind).is_some() {
                    tracing::info!(kind = kind.map(Kind::name), "{} answers again", self.server);
                }
            }
            Some((since, reason)) => {
                if let Some((_, known)) = self.all.get_mut(&kind) {
                    *known = reason;
                } else {
                    let (name, text) = (kind.map(Kind::name), &reason.text);
                    tracing::warn!(kind = name, reason = %text, "objects cannot be followed");
                    self.all.insert(kind, (since, reason));
                }
            }
        }
    }

    /// Whether changes of a kind are missed: because of its own fault, or of one of the whole server.
    pub(super) fn include(&self, kind: Kind) -> bool {
        [None, Some(kind)].iter().any(|it| self.all.contains_key(it))
    }

    /// The time since which objects may be out of date, and the reason; `None`: they are not. `restored`: when the last
    /// state was complete, if that is in force. The reason is one sentence: if the server as a whole does not answer,
    /// it leaves out faults of single kinds, and kinds with the same fault are joined.
    pub(super) fn stale(&self, restored: Option<SystemTime>) -> Option<Stale> {
        let since = self.all.values().map(|(since, _)| *since).chain(restored).min()?;
        if let Some((_, reason)) = self.all.get(&None) {
            return Some(Stale { since, reason: reason.text.clone() });
        }
        let mut causes = BTreeMap::<&str, Vec<Kind>>::new();
        for (kind, (_, reason)) in &self.all {
            causes.entry(&reason.cause).or_default().extend(kind);
        }
        let left = causes.len().saturating_sub(CAUSES);
        let restored = restored.map(|_| "not all objects were listed since the start".to_owned());
        let causes = causes.into_iter().take(CAUSES);
        let causes = causes.map(|(cause, kinds)| {
            format!("{}: {cause}", few(kinds.iter().map(|kind| kind.name()), KINDS))
        });
        let more = (left > 0).then(|| format!("and {left} other causes"));
        let all: Vec<String> = restored.into_iter().chain(causes).chain(more).collect();
        Some(Stale { since, reason: all.join("; ") })
    }
}
