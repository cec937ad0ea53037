//! The faults that may cause objects to be out of date.

use std::collections::BTreeMap;
use std::time::SystemTime;

use manx_objects::few;
use manx_objects::object::Kind;

use super::event::Reason;

/// The maximum number of causes in the text.
const CAUSES: usize = 3;
/// The maximum number of kinds for each cause in the text.
const KINDS: usize = 3;

/// Since when and why objects may be out of date.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stale {
    /// The last time at which the objects were known to be up to date.
    pub since: SystemTime,
    /// The reason, as one sentence.
    pub reason: String,
}

/// The faults that prevent objects from being followed, each of one kind or (`None`) of all kinds.
#[derive(Debug)]
pub(super) struct Faults {
    /// The server's name in sentences.
    server: &'static str,
    all: BTreeMap<Option<Kind>, (SystemTime, Reason)>,
}

impl Faults {
    /// Returns a value without faults.
    pub(super) const fn new(server: &'static str) -> Self {
        Self { server, all: BTreeMap::new() }
    }

    /// Records a fault, or its end. The time of the first report and the reason of the last report are stored.
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

    /// Returns whether changes of a kind are missed, because of a fault of this kind or of the whole server.
    pub(super) fn include(&self, kind: Kind) -> bool {
        [None, Some(kind)].iter().any(|it| self.all.contains_key(it))
    }

    /// Returns since when and why objects may be out of date, or `None` if they are up to date. `restored` is the time
    /// at which the state on disk was complete, if this state is in use. The reason is one sentence. If the server as a
    /// whole does not answer, faults of single kinds are left out. Kinds with the same fault are joined.
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
