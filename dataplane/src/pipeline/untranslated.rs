//! Looks for flows of UDP that are not translated although a service has their destination now.
//!
//! A flow that was opened before the service came goes on as it is while its client sends. A client of UDP opens no other
//! one by itself, so its flow is removed, and its next packet opens one that is translated. The table is looked through in
//! parts: one turn looks at a twentieth of it at most. So a new service delays no packet for long.

use std::time::Duration;

use crate::flow::FlowTable;
use crate::services::FrontendKey;
use crate::tables::{NextHop, Tables};

/// The time in which the whole table is looked through.
const ROUND: Duration = Duration::from_secs(2);

/// How far the look has come. It goes round: new frontends keep it going, and do not have it begin anew, so nobody who
/// makes them all the time keeps a part of the table from it.
#[derive(Debug, Default)]
pub(super) struct Search {
    /// The frontends that had come when the round was made whole.
    known: u32,
    /// The bucket that is next.
    next: usize,
    /// The buckets that are still to be looked at.
    left: usize,
}

impl Search {
    /// Goes on for a part of the round: as much as is due after `time`, and a twentieth at most.
    pub(super) fn go_on(
        &mut self,
        flows: &mut FlowTable,
        tables: &Tables,
        (time, now): (Duration, u32),
    ) {
        let Some(services) = &tables.services else { return };
        let buckets = flows.buckets();
        let new = services.new_frontends();
        if new != self.known {
            (self.known, self.left) = (new, buckets);
        }
        if self.left == 0 {
            return;
        }
        let due = buckets as u128 * time.min(ROUND / 20).as_millis() / ROUND.as_millis();
        let count = self.left.min(due as usize + 1).min(buckets - self.next);
        flows.remove_untranslated(self.next..self.next + count, now, |key, original| {
            let asked = FrontendKey::asked_by(key, original);
            let may_lead =
                || matches!(tables.next_hop(asked.address), NextHop::Service | NextHop::Node);
            services.frontend(&asked).is_some() && may_lead()
        });
        self.left -= count;
        self.next = (self.next + count) % buckets;
    }
}
