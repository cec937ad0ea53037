//! Finds the reason why a selector matches nothing: the requirement that no member meets, the nearest member, and other
//! places where an object meets the requirement.

use std::collections::{BTreeSet, HashMap};

use manx_objects::code::Code;
use manx_policy_compiler::model::NAMESPACE;
use manx_policy_compiler::selector::{LabelSource as _, Selector};

use super::asked::{Asked, Language};
use super::found::Found;
use crate::check::parts::{Nearest, Part, Whose, listed};
use crate::check::scene::{Member, Role};

/// A selector that matches nothing, divided into its parts.
pub(super) struct Question<'q, 'm> {
    pub(super) asked: Asked<'q>,
    pub(super) found: &'q Found<'q, 'm>,
    /// The parts that limit the selector's place: its namespace, and whether it is for pods only.
    pub(super) place: Vec<Part<'q>>,
    /// The other parts.
    pub(super) rest: Vec<Part<'q>>,
    /// The members in the selector's place.
    scope: Vec<&'m Member<'m>>,
}

/// The maximum number of comparisons for all reasons together. A comparison tests one part of a selector with one
/// member, such as a pod. This number is enough except in very large inputs in which almost no selector matches. When
/// it is used up, the reason is a general one.
const MOST_COMPARISONS: usize = 3_000_000;

/// The inputs of a reason: the selector, the language of its policy, whether the selector is the policy's own, and
/// whether the policy is cluster-wide.
type Key = (Selector, Language, bool, bool);

/// The reasons why selectors match nothing, each found once.
pub(super) struct Reasons<'f, 'm> {
    pub(super) found: Found<'f, 'm>,
    known: HashMap<Key, Option<(Code, String)>>,
    comparisons: usize,
}

impl<'f, 'm> Reasons<'f, 'm> {
    pub(super) fn new(found: Found<'f, 'm>) -> Self {
        Self { found, known: HashMap::new(), comparisons: 0 }
    }

    /// Returns the reason why a selector matches nothing, and the code of the problem. Returns `None` if the selector
    /// may be meant for objects that the input does not contain.
    pub(super) fn why(&mut self, asked: Asked<'_>) -> Option<(Code, String)> {
        let of_cluster = asked.namespace.is_empty();
        let key = (asked.selector.clone(), asked.language, asked.subject, of_cluster);
        if let Some(reason) = self.known.get(&key) {
            return reason.clone();
        }
        self.comparisons += self.found.members().len() * (asked.selector.conjuncts().len() + 1)
            + self.found.labelled.len()
            + self.found.scene.namespaces().len();
        let reason = if self.comparisons > MOST_COMPARISONS {
            let reason = "nothing in the input fits all of it".to_owned();
            let is_meant = !self.found.lacks_place_of(asked);
            if !is_meant {
                self.found.selected.leave_out();
            }
            is_meant.then_some((Code::SelectorMatchesNothing, reason))
        } else {
            why(asked, &self.found)
        };
        self.known.insert(key, reason.clone());
        reason
    }
}

/// Like [`Reasons::why`], for a reason that is not stored yet.
fn why(asked: Asked<'_>, found: &Found<'_, '_>) -> Option<(Code, String)> {
    let question = Question::new(asked, found);
    let reason = question.reason()?;
    Some(match question.makers() {
        None => (Code::SelectorMatchesNothing, reason),
        Some(makers) => {
            let skipped = format!("objects that are skipped may make such pods: {makers}");
            (Code::SelectorMayMatchSkipped, format!("{reason}; {skipped}"))
        }
    })
}

impl<'q, 'm> Question<'q, 'm> {
    fn new(asked: Asked<'q>, found: &'q Found<'q, 'm>) -> Self {
        let (place, rest): (Vec<_>, Vec<_>) =
            Part::all(asked.selector).into_iter().partition(|part| part.is_of_place());
        let scope = found.candidates(asked.selector).filter(|member| {
            asked.may_mean(member.role) && place.iter().all(|part| part.0.matches(&member.labels))
        });
        let scope = scope.collect();
        Self { asked, found, place, rest, scope }
    }

    fn reason(&self) -> Option<String> {
        let elsewhere = self.fits_elsewhere();
        let missing: Vec<_> = self.rest.iter().copied().filter(|part| !self.has(*part)).collect();
        // A pod on its node's network is no near match, because no selector of a rule matches it.
        let near = self.scope.iter().filter(|member| member.role != Role::OnHost);
        let nearest = Nearest::among(&self.rest, near.map(|member| (*member, &member.labels)));
        if self.found.lacks_place_of(self.asked)
            && elsewhere.is_none()
            && !nearest
                .as_ref()
                .is_some_and(|it| matches!(&it.lacking[..], [one] if one.whose() == Whose::Own))
        {
            return None;
        }
        let here = self.here();
        let mut said = Vec::new();
        if self.scope.is_empty() {
            said.push(format!("there is no {} {here}", self.what()));
        } else {
            said.push(match missing.first() {
                Some(part) => self.nothing_has(*part, &here),
                None => format!("no {} {here} fits all of it", self.what()),
            });
            if let (Some(nearest), None) = (nearest, elsewhere) {
                let title = nearest.object.title();
                let alone = !missing.is_empty() && nearest.lacking.len() == 1;
                said.push(if alone {
                    format!("without it {title} fits")
                } else {
                    nearest.text(&title)
                });
            }
        }
        said.extend(match elsewhere {
            Some(member) => Some(self.reach(member)),
            None if self.scope.is_empty() => None,
            None => missing.iter().find_map(|part| self.other_place_of(*part)),
        });
        Some(said.join("; "))
    }

    /// Returns whether a member in the selector's place matches a part.
    fn has(&self, part: Part<'_>) -> bool {
        self.scope.iter().any(|member| part.0.matches(&member.labels))
    }

    /// Returns a text that says that no member in the selector's place matches a part, and what the members have
    /// instead.
    fn nothing_has(&self, part: Part<'_>, here: &str) -> String {
        let (what, wanted) = (self.what(), part.text());
        let Some(label) = part.label() else {
            return format!("no {what} {here} fits {}", part.wanted());
        };
        let values = self.scope.iter().filter_map(|member| member.labels.label(label.seen));
        let values: BTreeSet<&str> = values.collect();
        let values = if values.is_empty() {
            String::new()
        } else {
            format!(" (its values there: {})", listed(values, ", "))
        };
        match part.whose() {
            Whose::Own => format!("no {what} {here} has the label {wanted}{values}"),
            Whose::Namespace => {
                format!("no namespace with a {what} {here} has the label {wanted}{values}")
            }
            Whose::Account => {
                format!("no service account of a {what} {here} has the label {wanted}{values}")
            }
            Whose::AccountName => format!("no {what} {here} has the service account {wanted}"),
        }
    }

    /// Returns the selector's place as text.
    fn here(&self) -> String {
        match self.asked.selector.required_values(NAMESPACE) {
            Some(within) => format!("in namespace {}", listed(within, " or ")),
            None => "in the input".to_owned(),
        }
    }

    /// Returns the type of objects that the selector is for, as text.
    fn what(&self) -> &'static str {
        let global = Selector::not_has(NAMESPACE);
        if !self.place.iter().any(|part| *part.0 == global) {
            "pod"
        } else if self.asked.subject {
            "host endpoint"
        } else {
            "host endpoint or global network set"
        }
    }
}
