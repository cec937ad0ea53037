//! What is wrong in all objects together, or probably not meant: each object is valid by itself.
//!
//! - `references`: names that no object defines.
//! - `selectors`: selectors that match nothing, and named ports that no container has.
//! - `node_peers`: `nodes` of cluster-wide policies that fit no Node.
//! - `addresses`: addresses that two objects have.
//! - `passes`: `Pass` that skips more than its author may expect.
//!
//! Each is a function over a `Scene`. What shows in one object alone is found where the object is read, in
//! `manx-objects`.

mod addresses;
#[cfg(test)]
mod made_pods_tests;
mod node_peers;
mod parts;
mod passes;
mod references;
mod report;
mod scene;
mod selectors;
#[cfg(test)]
mod tests;

use manx_objects::contents::Contents;
use manx_objects::problem::Problem;

use self::report::Report;
use self::scene::Scene;

/// The problems of all objects together, errors first.
pub fn problems(contents: &Contents) -> Vec<Problem> {
    let scene = Scene::new(contents);
    let mut report = Report::new(contents);
    references::check(contents, &mut report);
    // What a name without a definition leads to is not reported again.
    selectors::check(&scene, &mut report);
    node_peers::check(contents, &scene, &mut report);
    addresses::check(contents, &mut report);
    passes::check(&scene, &mut report);
    let mut problems = scene.into_problems();
    problems.extend(report.finish());
    problems.sort_by_key(|problem| problem.severity);
    problems
}
