//! Policies cost in proportion to their length, however they are made. The only test of this binary: it counts what all
//! threads of the process allocate.

use manx_calculation::import::import_for;
use manx_fixtures::heavy::{NODE, SHAPES, Shape};
use manx_objects::contents::Contents;
use manx_objects::problem::Severity;
use manx_policy_compiler::compile::Compiler;
use manx_policy_compiler::model::ObjectName;
use manx_tests::allocations::{Counting, bytes_of_all_threads};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The pods of a node, so that their number does not grow with the text.
const LOCAL: usize = 20;

/// The length of the shorter text, and of the longer one.
const LENGTHS: [usize; 2] = [50_000, 200_000];

/// The same of sets that overlap: they cost more than in proportion until their pods are left out, and do so here.
const LENGTHS_OF_OVERLAPS: [usize; 2] = [1_000_000, 4_000_000];

/// The bytes that small tables take beside what follows from their length.
const LEAST_BYTES: u64 = 4 << 20;

/// The bytes that chains take in vain before their rules are evaluated one by one.
const GIVEN_UP_BYTES: u64 = 64 << 20;

/// The looks at rules that every chain may take, however small it is.
const LEAST_LOOKS: u64 = 4 << 20;

/// What it costs to import and compile a text.
#[derive(Debug)]
struct Cost {
    bytes: u64,
    looks: u64,
    /// Whether there are chains without rows.
    given_up: bool,
}

fn cost(shape: &Shape, text: &str) -> Cost {
    let contents = Contents::from_texts([("file.yaml", text)]);
    let errors = contents.problems.iter().filter(|it| it.severity == Severity::Error);
    assert_eq!(errors.count(), 0, "{}", shape.name);
    let mut compiler = Compiler::new();
    let mut given_up = false;
    let bytes = bytes_of_all_threads(|| {
        let cluster = import_for(&contents, NODE);
        let pods = cluster.pods_by_node.keys().take(LOCAL);
        let local = pods.map(|pod| ObjectName::clone(pod)).collect();
        let image = compiler.compile(&cluster.model, &local);
        let left_out = compiler.left_out().len();
        assert_eq!(image.counts().endpoints + left_out, local.len(), "{}", shape.name);
        given_up = image.counts().linear > 0;
    });
    Cost { bytes, looks: compiler.looks(), given_up }
}

/// What grows faster than the text, half as much again to spare.
fn grows_faster(shape: &Shape) -> Option<String> {
    let lengths = if shape.name == "heavy-overlaps" { LENGTHS_OF_OVERLAPS } else { LENGTHS };
    let texts = lengths.map(|length| shape.text(length));
    let [short, long] = [0, 1].map(|at| cost(shape, &texts[at]));
    let growth = texts[1].len() as f64 / texts[0].len() as f64;
    println!("{:20} {growth:.1} times the text: {short:?} and then {long:?}", shape.name);
    let least = if long.given_up { GIVEN_UP_BYTES } else { LEAST_BYTES };
    let is_faster = |short: u64, long: u64, least: u64| {
        long as f64 > short as f64 * growth * 1.5 + least as f64
    };
    let faster = is_faster(short.bytes, long.bytes, least)
        || is_faster(short.looks, long.looks, LEAST_LOOKS);
    faster.then(|| format!("{}: {short:?}, and {long:?} of {growth:.1} times the text", shape.name))
}

#[test]
fn policies_cost_in_proportion_to_their_length() {
    assert_eq!(SHAPES.iter().filter_map(grows_faster).collect::<Vec<_>>(), [""; 0]);
}
