//! What is wrong in all objects together, or probably not meant: each object is valid by itself.
//!
//! - `references`: names that no object defines.
//! - `selectors`: selectors that match nothing, and named ports that no container has.
//! - `node_peers`: `nodes` of cluster-wide policies that fit no Node.
//! - `addresses`: addresses that two objects have.
//! - `passes`: `Pass` that skips more than its author may expect.
//! - `only_denies`: policies that deny more than their rules say, because their tier does.
//! - `own_sides`: rules whose own side fits no endpoint of their policy.
//! - `service_addresses`, `service_ports`: addresses and ports of Services, which policy never sees.
//! - `allows`: `Allow` that does.
//! - `unreachable`: rules that no packet reaches.
//! - `priorities`: policies of one priority that contradict each other.
//!
//! Each is a function over a `Scene`; the last three ask `cells`, what rules decide between any two ends. What shows in
//! one object alone is found where the object is read, in `manx-objects`.

mod addresses;
mod allows;
mod cells;
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

use manx_objects::contents::Contents;
use manx_objects::problem::Problem;

use self::cells::Cells;
use self::report::Report;
use self::scene::Scene;
use self::selected::Selected;

/// The problems of all objects together, errors first.
pub fn problems(contents: &Contents) -> Vec<Problem> {
    let scene = Scene::new(contents);
    let mut report = Report::new(contents);
    check_one_by_one(contents, &scene, &mut report);
    if let Some(cells) = Cells::new(&scene) {
        unreachable::check(&cells, &mut report);
        allows::check(&cells, &mut report);
        priorities::check(&cells, &mut report);
    }
    let mut problems = scene.into_problems();
    problems.extend(report.finish());
    problems.sort_by_key(|problem| problem.severity);
    problems
}

/// The checks that need no cells.
fn check_one_by_one<'a>(contents: &'a Contents, scene: &Scene<'a>, report: &mut Report<'a>) {
    let members = scene.members();
    references::check(contents, report);
    // What a name without a definition leads to is not reported again.
    selectors::check(scene, &members, report);
    node_peers::check(contents, scene, report);
    addresses::check(contents, report);
    passes::check(scene, report);
    if scene.in_doubt {
        return;
    }
    let mut selected = Selected::new(&members);
    own_sides::check(scene, &mut selected, report);
    only_denies::check(contents, scene, &mut selected, report);
    service_addresses::check(contents, scene, &mut selected, report);
    service_ports::check(contents, scene, &mut selected, report);
}
