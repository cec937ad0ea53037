//! Records whether Manx can evaluate a rule of a cluster-wide policy.

use super::super::cursor::{Cursor, Findings};
use super::super::problem::Cause;
use super::super::tree::Position;

/// Whether Manx can evaluate a rule (`lacking` is then false), and the effect on the rule if it cannot.
#[derive(Debug)]
pub(super) struct Support {
    pub(super) effect: &'static str,
    pub(super) lacking: bool,
}

impl Support {
    /// Records a field that Manx cannot evaluate, and warns of it.
    pub(super) fn lacks(&mut self, field: &Cursor<'_>, at: Position, out: &mut Findings) {
        self.lacking = true;
        field.warning_at(out, at, Cause::Unsupported { effect: self.effect });
    }

    /// Records the fields of `cursor` that are not in `known`. Returns whether all are known.
    pub(super) fn fields(
        &mut self,
        cursor: &Cursor<'_>,
        known: &[&str],
        out: &mut Findings,
    ) -> bool {
        let mut all = true;
        for (field, at) in cursor.others(known) {
            self.lacks(&field, at, out);
            all = false;
        }
        all
    }
}
