//! The problems that the checks find. For each object, the first problems are stored and the others
//! are only counted.

use std::collections::BTreeMap;

use manx_objects::Tally;
use manx_objects::code::Code;
use manx_objects::contents::Contents;
use manx_objects::object::ObjectKey;
use manx_objects::problem::{Cause, MOST_OF_OBJECT, Place, Problem};

/// See the module.
pub(super) struct Report<'a> {
    contents: &'a Contents,
    problems: BTreeMap<&'a ObjectKey, (Vec<Problem>, Tally)>,
    /// The codes of the checks that stopped at their bound.
    left_out: Vec<Code>,
}

impl<'a> Report<'a> {
    pub(super) fn new(contents: &'a Contents) -> Self {
        Self { contents, problems: BTreeMap::new(), left_out: Vec::new() }
    }

    /// Reports a problem at a field of an object.
    pub(super) fn tell(&mut self, key: &'a ObjectKey, field: &str, code: Code, message: String) {
        let Some(stored) = self.contents.objects.get(key) else { return };
        let (problems, tally) = self.problems.entry(key).or_default();
        if tally.count(code.severity()) > MOST_OF_OBJECT {
            return;
        }
        problems.push(Problem {
            severity: code.severity(),
            place: Place::clone(&stored.place),
            object: Some(key.clone()),
            field: field.to_owned(),
            cause: Cause::told(code, message),
            line: None,
        });
    }

    /// Records that the check for these codes reached its bound.
    pub(super) fn leave_out(&mut self, codes: &[Code]) {
        self.left_out.extend(codes);
    }

    /// Returns whether a problem was already reported at a field of an object, or below this field.
    pub(super) fn has_told(&self, key: &ObjectKey, field: &str) -> bool {
        let problems = self.problems.get(key).map_or(&[][..], |(problems, _)| problems);
        problems.iter().any(|problem| {
            problem
                .field
                .strip_prefix(field)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        })
    }

    /// Returns all problems, in the order of their objects.
    pub(super) fn finish(self) -> Vec<Problem> {
        let mut all: Vec<Problem> = self.bounds_note().into_iter().collect();
        for (key, (problems, tally)) in self.problems {
            all.extend(problems);
            let place = self.contents.objects.get(key).map(|stored| &stored.place);
            all.extend(place.into_iter().flat_map(|place| {
                let untold = tally.beyond(MOST_OF_OBJECT);
                untold.map(move |(severity, count)| Problem::of_untold(key, place, severity, count))
            }));
        }
        all
    }

    /// Returns a note about the checks that reached their bounds, if any did.
    fn bounds_note(&self) -> Option<Problem> {
        // The note does not concern a single object, so it is placed at the first policy, which is
        // the first object that people look at.
        let objects = &self.contents.objects;
        let policy = objects.iter().find(|(key, _)| key.kind.enforced_policy());
        let (_, first) = policy.or_else(|| objects.iter().next())?;
        let codes: Vec<String> = self.left_out.iter().map(Code::to_string).collect();
        let message = format!(
            "the input is too large to compare everything with everything, so not all are reported of {}",
            codes.join(", ")
        );
        (!codes.is_empty()).then(|| Problem {
            severity: Code::NotAllChecked.severity(),
            place: Place { document: 0, at: None, ..Place::clone(&first.place) },
            object: None,
            field: String::new(),
            cause: Cause::told(Code::NotAllChecked, message),
            line: None,
        })
    }
}
