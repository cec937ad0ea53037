//! The decision of a list, given the matching rules.

use std::sync::Arc;

use crate::model::{Decision, Noted, Reason};
use crate::resolve::ResolvedList;

/// The decision of a list if these rules match (in ascending order), and whether the first of them alone determines it.
pub(super) fn decide(
    list: &ResolvedList,
    matching: impl Iterator<Item = u32>,
) -> (Arc<Decision>, bool) {
    let ResolvedList { steps, list, .. } = list;
    let mut noted: Vec<&Noted> = Vec::new();
    let matching = matching.map(|rule| rule as usize);
    let decided = steps.walk(matching, |rule| noted.push(rule));
    let decision = decided.and_then(|decided| steps.decision(decided)).cloned();
    let unknown = || Arc::new(Reason::Unknown(list.direction).into());
    let decision = decision.unwrap_or_else(unknown);
    // Rules after the first one matter only if the first one is noted and the evaluation continues.
    if noted.is_empty() {
        return (decision, true);
    }
    let noted = noted.into_iter().cloned().collect();
    (Arc::new(Decision { reason: decision.reason.clone(), noted }), false)
}
