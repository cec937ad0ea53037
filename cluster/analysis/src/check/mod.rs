//! Finds problems that are visible only in all objects together: errors, and policies that probably
//! do not do what their author meant. Each object is valid by itself.
//!
//! - `references`: names that no object defines.
//! - `selectors`: selectors that match nothing, and named ports that no container has.
//! - `node_peers`: `nodes` of cluster-wide policies that match no Node.
//! - `addresses`: addresses that two objects have.
//! - `passes`: `Pass` rules that skip more than their author may expect.
//! - `only_denies`: policies that deny more than their rules say, because the end of their tier
//!   denies.
//! - `own_sides`: rules whose own side matches no endpoint of their policy.
//! - `service_addresses`, `service_ports`: addresses and ports of Services. Nodes translate these
//!   before policy is evaluated.
//! - `allows`: `Allow` rules that open more than their author may expect.
//! - `unreachable`: rules that no packet reaches.
//! - `priorities`: policies of one priority that contradict each other.
//!
//! Each check is a function over a `Scene`. The last three also use `cells`, which calculates what
//! the rules decide between any two ends. Problems of a single object are found where the object is
//! read, in `manx-objects`.

mod addresses;
mod allows;
mod cells;
mod fields;
mod node_peers;
mod only_denies;
mod own_sides;
mod parts;
mod passes;
mod priorities;
mod references;
mod report;
mod scene;
mod selected;
mod selectors;
mod service_addresses;
mod service_ports;
#[cfg(test)]
mod tests;
mod unreachable;

use manx_objects::code::Code;
use manx_objects::contents::Contents;
use manx_objects::problem::Problem;

use self::cells::Cells;
use self::report::Report;
use self::scene::Scene;
use self::selected::Selected;

/// A check that needs the members that selectors match.
type OfSelected = for<'a, 'm> fn(&'m Scene<'a>, &mut Selected<'m>, &mut Report<'a>);

/// The checks that use selectors, each with the codes of the problems that it finds.
const OF_SELECTED: [(&[Code], OfSelected); 5] = [
    (
        &[
            Code::SelectorMatchesNothing,
            Code::SelectorMayMatchSkipped,
            Code::OnlyHostNetwork,
            Code::NoSuchPort,
        ],
        selectors::check,
    ),
    (&[Code::OwnSideMatchesNothing], own_sides::check),
    (&[Code::OnlyDenies], only_denies::check),
    (&[Code::ServiceAddress], service_addresses::check),
    (&[Code::ServicePort], service_ports::check),
];

/// A check that needs the decisions of rules between two ends.
type OfCells = for<'c, 'a> fn(&Cells<'c, 'a>, &mut Report<'a>);

/// The checks that use cells, each with the code of the problem that it finds.
const OF_CELLS: [(Code, OfCells); 3] = [
    (Code::UnreachableRule, unreachable::check),
    (Code::AllowSkipsPolicies, allows::check),
    (Code::ConflictingPriority, priorities::check),
];

/// Returns the problems of all objects together, errors first.
pub fn problems(contents: &Contents) -> Vec<Problem> {
    let scene = Scene::new(contents);
    let mut report = Report::new(contents);
    // An object is not reported again if the cause is a name that is already reported.
    references::check(contents, &mut report);
    node_peers::check(contents, &scene, &mut report);
    addresses::check(contents, &mut report);
    passes::check(&scene, &mut report);
    // While some labels are not known, it is also not known which members the selectors match.
    if !scene.in_doubt {
        check_selected(&scene, &mut report);
        check_cells(&scene, &mut report);
    }
    let mut problems = scene.into_problems();
    problems.extend(report.finish());
    problems.sort_by_key(|problem| problem.severity);
    problems
}

fn check_selected<'a>(scene: &Scene<'a>, report: &mut Report<'a>) {
    let members = scene.members();
    let mut selected = Selected::new(&members);
    for (codes, check) in OF_SELECTED {
        selected.begin();
        check(scene, &mut selected, report);
        if selected.is_incomplete() {
            report.leave_out(codes);
        }
    }
}

fn check_cells<'a>(scene: &Scene<'a>, report: &mut Report<'a>) {
    let Some(cells) = Cells::new(scene) else { return };
    for (code, check) in OF_CELLS {
        cells.begin();
        check(&cells, report);
        if cells.is_spent() {
            report.leave_out(&[code]);
        }
    }
}
