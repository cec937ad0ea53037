//! The agent's health for probes, and its metrics for Prometheus.

use std::collections::BTreeMap;
use std::time::{Instant, SystemTime};

use manx_policy_compiler::model::Verdict;

use super::Agent;
use super::dataplane::Dataplane;
use super::peering::Peering;
use super::pod_state::AttachedPod;
use super::status::{current_rules, is_enforced, policy, worker};
use manx_objects::State;
use manx_objects::object::Kind;
use manx_objects::problem::Severity;
use manx_observe::agent_metrics::{AgentMetrics, BlockUse};
use manx_observe::health::{Health, Running};

impl Agent {
    /// Reports a turn of the control loop and the agent's health.
    pub(crate) fn report_health(&mut self, health: &mut Health, now: Instant) {
        if let Health::Starting(_) = health {
            *health = Health::Running(Running::new(now));
        }
        let Health::Running(running) = health else { return };
        let Self { inputs, view, dataplane, calculated, peering, .. } = self;
        let workers = dataplane.ports.workers.iter();
        running.turn(now, workers.map(|worker| worker.counters().turns.read()));
        running.published = view.cluster.in_sync && calculated.tables.version > 0;
        running.stale = inputs.source.stale().map(|stale| (stale.since, stale.reason));
        running.refuted = calculated.is_refuted();
        let peering = peering.as_mut().filter(|_| running.published);
        running.awaits_peers = peering.and_then(|it| it.holds_back(now));
        running.is_leaving = view.is_leaving(inputs);
    }

    /// The agent's metrics now.
    pub(crate) fn metrics(&mut self) -> AgentMetrics {
        let ports = self.dataplane.ports.traffic();
        let Self { inputs, view, dataplane, calculated, attachments, peering, .. } = &*self;
        let (contents, model) = (inputs.contents(), &view.cluster.model);
        let mut objects = BTreeMap::new();
        for (key, stored) in &contents.objects {
            let valid = matches!(stored.state, State::Valid(_));
            *objects.entry((group(key.kind), key.kind.name(), valid)).or_default() += 1;
        }
        let problems = |severity| {
            view.cluster.problems.iter().filter(|it| it.severity == severity).count() as u64
        };
        let enforced = |(_, pod): &(_, &AttachedPod)| is_enforced(&calculated.tables, &pod.local);
        let (attached, enforced) =
            (attachments.attached().count(), attachments.attached().filter(enforced).count());
        let leases = attachments.leases();
        let calculation = &calculated.calculation;
        let workers = &dataplane.ports.workers;
        AgentMetrics {
            started: SystemTime::now() - self.started.elapsed(),
            in_sync: view.cluster.in_sync,
            stale_since: inputs.source.stale().map(|stale| stale.since),
            objects,
            errors: problems(Severity::Error),
            warnings: problems(Severity::Warning),
            known_endpoints: model.endpoints.len() as u64,
            known_policies: model.policies.len() as u64,
            enforced: enforced as u64,
            unenforced: (attached - enforced) as u64,
            not_judged: attachments.not_judged(view).count() as u64,
            leases: leases.iter().count() as u64,
            blocks: leases
                .usage()
                .map(|(net, used, left)| BlockUse { net: net.to_string(), used, left })
                .collect(),
            tables: calculated.tables.version,
            pods_in_place: calculated.changed_in_place,
            routes_in_place: calculated.routes_changed_in_place,
            refuted: calculated.is_refuted(),
            policy: policy(&calculated.tables.image),
            ports,
            workers: workers.iter().map(worker).collect(),
            flow_capacity: Dataplane::flow_capacity() as u64,
            rules: current_rules(self).filter(|rule| rule.packets > 0).collect(),
            former: [Verdict::Allow, Verdict::Deny]
                .map(|verdict| calculation.reclaimed_count(verdict)),
            denied_flows: dataplane.denials.noted(),
            unreported_flows: workers.sum(|counters| counters.reports_lost.read()),
            bgp: peering.as_ref().map(Peering::metrics),
        }
    }
}

/// The API group of a kind; empty for the core.
fn group(kind: Kind) -> &'static str {
    let version = kind.api_versions().first().and_then(|version| version.split_once('/'));
    version.map_or("", |(group, _)| group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_one_name_have_different_groups() {
        let names: Vec<_> = Kind::ALL.iter().map(|kind| (group(*kind), kind.name())).collect();
        let distinct: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len(), "{names:?}");
        assert_eq!(group(Kind::Pod), "");
        assert_eq!(group(Kind::CalicoNetworkPolicy), "projectcalico.org");
    }
}
