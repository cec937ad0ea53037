//! The rules that have their own series.
//!
//! Policies may have very many rules, and a label's values must be bounded. Each of the first [`MOST`] rules that
//! decide a packet has its own series, as long as the rule exists. All others share one series for each verdict. A
//! shared series never decreases: each call adds the packets since the last call, even if rules were added or removed
//! meanwhile.

use std::collections::BTreeMap;

use manx_api::RuleCount;

/// The most rules with their own series.
pub(crate) const MOST: usize = 500;
/// The label of the shared series.
pub(crate) const OTHER: &str = "(others)";
/// The verdicts, in the order of [`AgentMetrics::former`](crate::agent_metrics::AgentMetrics).
const VERDICTS: [&str; 2] = ["allow", "deny"];

/// See the module. A series is a rule and a verdict.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    named: BTreeMap<(String, String), u64>,
    /// The number of all packets, by verdict.
    totals: [u64; 2],
    others: [u64; 2],
}

impl Rules {
    /// Records the rules' current counts.
    pub(crate) fn count(&mut self, rules: &[RuleCount], former: [u64; 2]) {
        // A rule has several counts if it can decide after different other rules.
        let mut counts = BTreeMap::<(&str, &str), u64>::new();
        for RuleCount { rule, verdict, packets } in rules {
            *counts.entry((rule, verdict)).or_default() += packets;
        }
        let before = std::mem::take(&mut self.named);
        let known = |rule: &str, verdict: &str| before.get(&(rule.to_owned(), verdict.to_owned()));
        let (kept, new): (Vec<_>, Vec<_>) =
            counts.iter().partition(|((rule, verdict), _)| known(rule, verdict).is_some());
        let room = MOST.saturating_sub(kept.len());
        for (at, verdict) in VERDICTS.into_iter().enumerate() {
            let of_verdict = counts.iter().filter(|((_, it), _)| *it == verdict);
            let total = of_verdict.map(|(_, packets)| packets).sum::<u64>() + former[at];
            let own = kept.iter().chain(new.iter().take(room));
            let own = own.filter(|((_, it), _)| *it == verdict).map(|((rule, it), packets)| {
                packets.saturating_sub(known(rule, it).copied().unwrap_or(0))
            });
            let came = total.saturating_sub(self.totals[at]);
            self.others[at] += came.saturating_sub(own.sum());
            self.totals[at] = total;
        }
        let own = kept.into_iter().chain(new.into_iter().take(room));
        self.named = own
            .map(|((rule, verdict), packets)| {
                (((*rule).to_owned(), (*verdict).to_owned()), *packets)
            })
            .collect();
    }

    /// The series: rule, verdict, packets.
    pub(crate) fn series(&self) -> impl Iterator<Item = ([&str; 2], u64)> {
        let named = self.named.iter();
        let named =
            named.map(|((rule, verdict), packets)| ([rule.as_str(), verdict.as_str()], *packets));
        let others = VERDICTS.into_iter().zip(self.others);
        named.chain(others.map(|(verdict, packets)| ([OTHER, verdict], packets)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(number: usize, packets: u64) -> RuleCount {
        RuleCount { rule: format!("r{number:05}"), verdict: "allow".to_owned(), packets }
    }

    fn others(rules: &Rules) -> u64 {
        rules.series().find(|(labels, _)| *labels == [OTHER, "allow"]).unwrap().1
    }

    #[test]
    fn counts_of_one_rule_are_one_series() {
        let mut rules = Rules::default();
        rules.count(&[rule(1, 2), rule(1, 3)], [0, 0]);
        let series: Vec<_> = rules.series().collect();
        assert_eq!(series, [(["r00001", "allow"], 5), ([OTHER, "allow"], 0), ([OTHER, "deny"], 0)]);
    }

    #[test]
    fn series_are_bounded_and_the_shared_one_has_all_that_is_left() {
        let mut rules = Rules::default();
        let all: Vec<RuleCount> = (0..2 * MOST).map(|number| rule(number, 10)).collect();
        rules.count(&all, [3, 0]);
        assert_eq!(rules.series().count(), MOST + 2);
        assert_eq!(rules.series().map(|(_, packets)| packets).sum::<u64>(), 20 * MOST as u64 + 3);
    }

    #[test]
    fn the_shared_series_never_goes_back_and_does_not_jump() {
        let mut rules = Rules::default();
        let all: Vec<RuleCount> = (0..=MOST).map(|number| rule(number, 10)).collect();
        rules.count(&all, [0, 0]);
        assert_eq!(others(&rules), 10);
        // A rule is deleted and its packets are counted as former ones; another rule takes its series.
        rules.count(&all[1..], [10, 0]);
        assert_eq!(others(&rules), 10);
        assert_eq!(rules.series().count(), MOST + 2);
        let grown: Vec<RuleCount> = (1..=MOST + 1).map(|number| rule(number, 15)).collect();
        rules.count(&grown, [10, 0]);
        assert_eq!(others(&rules), 25, "the new rule's");
    }
}
