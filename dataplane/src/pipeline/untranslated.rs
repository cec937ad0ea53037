//! Looks for flows of UDP that are not translated although a service has their destination now.
//!
//! A flow that was opened before the service came goes on as it is while its client sends. A client of UDP opens no other
//! one by itself, so its flow is removed, and its next packet opens one that is translated. The table is looked through in
//! parts: whoever makes services costs each turn of the worker no more than a few microseconds.

use std::time::Duration;

use crate::flow::FlowTable;
use crate::services::FrontendKey;
use crate::tables::{NextHop, Tables};

/// The time in which the whole table is looked through.
const ROUND: Duration = Duration::from_secs(2);

/// How far the look has come.
#[derive(Debug, Default)]
pub(super) struct Search {
    /// The frontends that have come until the last look began.
    known: u32,
    /// The buckets that are still to be looked at.
    left: usize,
}

impl Search {
    /// Goes on for a part of the round: as much as is due after `time`.
    pub(super) fn go_on(
        &mut self,
        flows: &mut FlowTable,
        tables: &Tables,
        (time, now): (Duration, u32),
    ) {
        let Some(services) = &tables.services else { return };
        let new = services.new_frontends();
        if new != self.known {
            *self = Self { known: new, left: flows.buckets() };
        }
        if self.left == 0 {
            return;
        }
        let due = flows.buckets() as u128 * time.as_millis() / ROUND.as_millis();
        let last = self.left;
        self.left = last.saturating_sub(due as usize + 1);
        flows.remove_untranslated(self.left..last, now, |key, original| {
            let asked = FrontendKey::asked_by(key, original);
            let may_lead =
                || matches!(tables.next_hop(asked.address), NextHop::Service | NextHop::Node);
            services.frontend(&asked).is_some() && may_lead()
        });
    }
}
