//! The differences of the truth table from that of the run before.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::truth::{self, Column, Place, Seen};
use crate::plan::prober::Prober;
use crate::traffic::check::Finding;
use crate::world::service::Service;

/// A cell whose content has changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The prober that sends.
    pub source: Prober,
    /// The prober that receives.
    pub destination: Prober,
    pub service: Service,
    /// Whether the destination listens there.
    pub listening: bool,
    /// Whether the probe goes over IPv6.
    pub ipv6: bool,
    /// The content in the run before; absent if the cell is new.
    pub before: Option<Seen>,
    /// The content now; absent if the cell no longer exists.
    pub after: Option<Seen>,
}

/// A change of a cell: its content before and after.
pub(crate) type BeforeAfter = (Option<Seen>, Option<Seen>);

/// The cells whose expected or observed result has changed.
pub(crate) fn changes(before: &[Finding], after: &[Finding]) -> Vec<Change> {
    let seen = |findings: &[Finding]| -> BTreeMap<Place, Seen> {
        findings.iter().map(|it| (truth::place(&it.cell), Seen::of(it))).collect()
    };
    let mut cells: BTreeMap<Place, BeforeAfter> = BTreeMap::new();
    for (place, seen) in seen(before) {
        cells.entry(place).or_default().0 = Some(seen);
    }
    for (place, seen) in seen(after) {
        cells.entry(place).or_default().1 = Some(seen);
    }
    let changed = cells.into_iter().filter(|(_, (before, after))| before != after);
    let changes = changed.map(|((source, destination, column), (before, after))| {
        let Column { closed, service, v6: ipv6 } = column;
        Change { source, destination, service, listening: !closed, ipv6, before, after }
    });
    changes.collect()
}

/// The changes as cells of a table.
pub(crate) fn cells(changes: &[Change]) -> BTreeMap<Place, BeforeAfter> {
    let cells = changes.iter().map(|change| {
        let column = Column { closed: !change.listening, service: change.service, v6: change.ipv6 };
        let place = (change.source.clone(), change.destination.clone(), column);
        (place, (change.before.clone(), change.after.clone()))
    });
    cells.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::check::Observed;
    use crate::traffic::matrix::{Cell, Outcome};

    fn finding(source: &str, expected: Outcome, observed: Observed) -> Finding {
        let cell = Cell {
            source: Prober::from(source.to_owned()),
            destination: Prober::from("shop/db".to_owned()),
            address: "10.1.1.3".parse().unwrap(),
            seen_as: None,
            service: Service::Echo,
            listening: true,
            expected,
            because: String::new(),
        };
        Finding { cell, observed, from: None, denied_by: None, tries: 1 }
    }

    #[test]
    fn a_cell_has_changed_if_it_expects_or_sees_something_else_or_is_new_or_gone() {
        use Outcome::{Allowed, Denied};
        let clear = |source, outcome| finding(source, outcome, Observed::Clear(outcome));
        let before = [
            clear("same", Denied),
            clear("seen", Denied),
            clear("both", Denied),
            clear("expected", Denied),
            clear("gone", Denied),
        ];
        let after = [
            clear("same", Denied),
            finding("seen", Denied, Observed::Lost),
            clear("both", Allowed),
            finding("expected", Allowed, Observed::Clear(Denied)),
            clear("new", Denied),
        ];
        let changed = changes(&before, &after);
        let names: Vec<String> = changed.iter().map(|it| it.source.to_string()).collect();
        let expected = ["both", "expected", "gone", "new", "seen"];
        assert_eq!(names, expected.map(|name| format!("default/{name}")));
        assert_eq!((&changed[2].after, &changed[3].before), (&None, &None));
        assert_eq!(cells(&changed).len(), 5);
        assert_eq!(changes(&after, &after), []);
    }
}
