//! Flows that are not translated, although they would be translated if they were opened now.

use std::ops::Range;

use super::bucket::WAYS;
use super::end::EndReason;
use super::key::{FlowKey, Orientation};
use super::table::{FlowTable, Found};
use crate::wire::protocol::UDP;

impl FlowTable {
    /// Removes UDP flows in these buckets whose destination is not translated although it `is_frontend` now.
    pub fn remove_untranslated(
        &mut self,
        buckets: Range<usize>,
        now: u32,
        is_frontend: impl Fn(&FlowKey, Orientation) -> bool,
    ) {
        for bucket in buckets.start..buckets.end.min(self.buckets.len()) {
            for way in 0..WAYS {
                let Some(slot) = self.slot_at(bucket, way) else { continue };
                let line = &self.first_lines[slot as usize];
                if !line.state.is_of(UDP) {
                    continue;
                }
                let (key, original) = (line.key(&self.second_lines[slot as usize]), line.original);
                let asked = key.destination(original);
                let behind = self.second_key(Found(Some(slot)));
                let is_translated =
                    behind.is_some_and(|it| it.key.destination(it.original) != asked);
                if !is_translated && is_frontend(&key, original) {
                    self.remove(slot, now, EndReason::Replaced);
                }
            }
        }
    }
}
