//! Searches for UDP flows that are not translated although their destination now belongs to a service.
//!
//! A flow that was opened before the service existed continues unchanged while its client sends. A UDP client does not
//! open another flow by itself. So its flow is removed, and its next packet opens a translated one. The table is
//! searched in parts: one turn covers at most a twentieth of it. So a new service does not delay packets for long.

use std::time::Duration;

use crate::flow::FlowTable;
use crate::services::FrontendKey;
use crate::tables::{NextHop, Tables};

/// The time in which the whole table is searched.
const ROUND: Duration = Duration::from_secs(2);

/// The progress of the search, which goes round the table in a circle. A new frontend makes it continue for one more
/// round from its present place, but does not restart it. So a stream of new frontends cannot keep a part of the table
/// from being searched.
#[derive(Debug, Default)]
pub(super) struct Search {
    /// The count of new frontends when the remaining part was last set to the whole table.
    known: u32,
    /// The bucket that is searched next.
    next: usize,
    /// The number of buckets that are still to be searched.
    left: usize,
}

impl Search {
    /// Searches the part of the table that is due after `time`, and at most a twentieth of the table.
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
