//! Denied flows: the last ones kept for whoever asks, one line each in the log, at a bounded rate.

use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use manx_dataplane::report::Denied;

use crate::api::Denial;

/// Denials kept.
const KEPT: usize = 65_536;
/// Log lines in one period; the rest of the period is silent, and the next one says how many were left out.
const LINES: u32 = 20;
const PERIOD: Duration = Duration::from_secs(1);

/// The last denials.
pub(super) struct Denials {
    kept: VecDeque<Denial>,
    period: Instant,
    lines: u32,
    silent: u64,
}

impl Default for Denials {
    fn default() -> Self {
        Self { kept: VecDeque::new(), period: Instant::now(), lines: 0, silent: 0 }
    }
}

impl Denials {
    /// Keeps and logs one; `rule` is what decided, in words.
    pub(super) fn note(&mut self, denied: &Denied, rule: String) {
        let at_ms = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_millis() as u64);
        let denial = Denial {
            at_ms,
            source: denied.source,
            destination: denied.destination,
            protocol: denied.protocol,
            source_port: denied.source_port,
            destination_port: denied.destination_port,
            reason: denied.reason.name().to_owned(),
            rule,
        };
        self.log(&denial);
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back(denial);
    }

    fn log(&mut self, denial: &Denial) {
        if self.period.elapsed() >= PERIOD {
            if self.silent > 0 {
                tracing::info!(
                    left_out = self.silent,
                    "more flows were denied than are logged a second"
                );
            }
            (self.period, self.lines, self.silent) = (Instant::now(), 0, 0);
        }
        if self.lines >= LINES {
            self.silent += 1;
            return;
        }
        self.lines += 1;
        tracing::info!(
            source = %denial.source,
            source_port = denial.source_port,
            destination = %denial.destination,
            destination_port = denial.destination_port,
            protocol = denial.protocol,
            reason = denial.reason,
            rule = denial.rule,
            "denied"
        );
    }

    /// The kept ones, oldest first.
    pub(super) fn all(&self) -> Vec<Denial> {
        self.kept.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use manx_dataplane::fate::DropReason;

    #[test]
    fn only_the_last_ones_are_kept() {
        let mut denials = Denials::default();
        for port in 0..(KEPT + 10) {
            let denied = Denied {
                source: "10.244.1.2".parse().unwrap(),
                destination: "10.244.1.3".parse().unwrap(),
                protocol: 6,
                source_port: port as u16,
                destination_port: 80,
                reason: DropReason::PolicyIngress,
                slot: 0,
            };
            denials.note(&denied, String::new());
        }
        let all = denials.all();
        assert_eq!((all.len(), all[0].source_port), (KEPT, 10));
    }
}
