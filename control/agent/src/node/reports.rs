//! What the workers report.

use manx_dataplane::report::{Denied, Report};
use manx_dataplane::tables::PortId;

use super::super::error::Error;
use super::Agent;

impl Agent {
    /// Takes in what the workers have reported.
    pub(in super::super) fn read_reports(&mut self) {
        while let Ok(report) = self.reports.try_recv() {
            match report {
                Report::Denied(denied) => self.record_denial(&denied),
                Report::PortLost(port, error) => self.handle_lost_port(port, error),
                Report::PollFailed(error) => tracing::error!(%error, "epoll failed"),
                Report::Retired(tables) => self.count_retirement(tables.version),
            }
        }
    }

    /// A worker has handed tables back. Each does so in the order of publication: what the last one has handed back, and all that
    /// was before it, nobody uses any more.
    fn count_retirement(&mut self, version: u64) {
        let handed_back = self.retirements.entry(version).or_default();
        *handed_back += 1;
        if *handed_back < self.workers.len() {
            return;
        }
        self.retirements.remove(&version);
        self.port_ids.retired(version);
        self.calculation.fold(version, |slot| self.workers.rule_count(slot));
    }

    fn record_denial(&mut self, denied: &Denied) {
        let rule =
            self.calculation.reason(denied.slot).map_or_else(String::new, ToString::to_string);
        self.denials.note(denied, rule);
    }

    /// A pod's namespace that goes takes the device along: that is how most pods end. The pod keeps its addresses until it
    /// is detached, and may be attached anew. Losing a port of the node itself ends the agent.
    fn handle_lost_port(&mut self, port: PortId, error: std::io::Error) {
        let Some(known) = self.ports.get(&port) else { return };
        let pod = self.pods.iter().find(|(_, pod)| pod.port == port).map(|(name, _)| name.clone());
        let Some(pod) = pod else {
            self.failed = Some(Error::NodePortLost { port: known.name.clone(), source: error });
            return;
        };
        tracing::warn!(port = known.name, %error, "the pod's device failed; nothing passes until it is attached anew");
        self.detach_device(&pod);
    }
}
