//! Denied flows. The last ones are kept for requests, and denials are logged at a bounded rate.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use manx_dataplane::report::Denied;

use manx_api::Denial;

/// The number of denials that are kept.
const KEPT: usize = 65_536;
/// The most log lines about one source in a period. Further lines are left out, and the next period logs their number.
/// So many denials of one source do not hide the lines about other sources.
const LINES: u32 = 20;
/// The most log lines about all sources in a period.
const ALL_LINES: u32 = 1_000;
const PERIOD: Duration = Duration::from_secs(1);

/// The last denials.
pub(super) struct Denials {
    kept: VecDeque<Denial>,
    /// The number of all denials, kept or not.
    noted: u64,
    period: Instant,
    /// The lines of this period by source. There are no more sources than lines.
    lines: HashMap<IpAddr, u32>,
    all_lines: u32,
    silent: u64,
}

impl Default for Denials {
    fn default() -> Self {
        Self {
            kept: VecDeque::new(),
            noted: 0,
            period: Instant::now(),
            lines: HashMap::new(),
            all_lines: 0,
            silent: 0,
        }
    }
}

impl Denials {
    /// Keeps a denial and logs it; `rule` describes the rule that decided.
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
        if self.admit(denial.source) {
            log(&denial);
        }
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back(denial);
        self.noted += 1;
    }

    /// Counts a denial of a packet from `source`, and returns whether to log it.
    fn admit(&mut self, source: IpAddr) -> bool {
        if self.period.elapsed() >= PERIOD {
            if self.silent > 0 {
                tracing::info!(
                    left_out = self.silent,
                    "more flows were denied than are logged a second"
                );
            }
            (self.period, self.all_lines, self.silent) = (Instant::now(), 0, 0);
            self.lines.clear();
        }
        let lines = self.lines.get(&source).copied().unwrap_or(0);
        let admitted = lines < LINES && self.all_lines < ALL_LINES;
        if admitted {
            self.lines.insert(source, lines + 1);
            self.all_lines += 1;
        } else {
            self.silent += 1;
        }
        admitted
    }

    /// The number of all denials.
    pub(super) fn noted(&self) -> u64 {
        self.noted
    }

    /// The denials after the first `point` ones, oldest first, and the number of those that are no longer kept.
    pub(super) fn since(&self, point: u64) -> (Vec<Denial>, u64) {
        let kept = self.kept.len() as u64;
        let wanted = self.noted.saturating_sub(point);
        let denials = self.kept.iter().skip(kept.saturating_sub(wanted) as usize);
        (denials.cloned().collect(), wanted.saturating_sub(kept))
    }

    /// The denials that are kept, oldest first.
    pub(super) fn all(&self) -> Vec<Denial> {
        self.kept.iter().cloned().collect()
    }
}

fn log(denial: &Denial) {
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

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use manx_dataplane::drop_reason::DropReason;

    use super::*;

    #[test]
    fn one_sources_denials_leave_the_others_their_lines() {
        // The period lasts longer than the test.
        let period = Instant::now() + Duration::from_hours(1);
        let mut denials = Denials { period, ..Denials::default() };
        let [attacker, neighbour] = ["10.244.1.2", "10.244.1.3"].map(|it| it.parse().unwrap());
        let lines = (0..1000).filter(|_| denials.admit(attacker)).count();
        assert_eq!((lines, denials.silent), (LINES as usize, 1000 - u64::from(LINES)));
        assert!(denials.admit(neighbour));
        let many = (0..10_000u32).filter(|n| denials.admit(IpAddr::from(n.to_be_bytes())));
        assert_eq!(many.count() as u32, ALL_LINES - LINES - 1);
        assert_eq!(denials.lines.len() as u32, ALL_LINES - LINES + 1, "no more than lines");
    }

    /// The text of a log.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_denial_that_is_not_admitted_is_kept_and_not_logged() {
        let period = Instant::now() + Duration::from_hours(1);
        let mut denials = Denials { period, ..Denials::default() };
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(subscriber, || {
            for port in 0..1000 {
                denials.note(&denied(port), String::new());
            }
        });
        let told = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        assert_eq!(told.lines().filter(|line| line.contains("denied")).count(), LINES as usize);
        assert_eq!(denials.all().len(), 1000);
    }

    fn denied(port: u16) -> Denied {
        Denied {
            source: "10.244.1.2".parse().unwrap(),
            destination: "10.244.1.3".parse().unwrap(),
            protocol: 6,
            source_port: port,
            destination_port: 80,
            reason: DropReason::PolicyIngress,
            slot: 0,
        }
    }

    #[test]
    fn only_the_last_ones_are_kept() {
        let mut denials = Denials::default();
        for port in 0..(KEPT + 10) {
            denials.note(&denied(port as u16), String::new());
        }
        let all = denials.all();
        assert_eq!((all.len(), all[0].source_port), (KEPT, 10));
        let noted = denials.noted();
        assert_eq!(noted, KEPT as u64 + 10);
        let since = |point| {
            let (denials, forgotten) = denials.since(point);
            (denials.len() as u64, forgotten)
        };
        assert_eq!([since(noted), since(noted - 3)], [(0, 0), (3, 0)]);
        assert_eq!(
            [since(10), since(4), since(0)],
            [10, 4, 0].map(|point| (KEPT as u64, 10 - point))
        );
        assert_eq!(since(noted + 5), (0, 0), "of another agent");
    }
}
