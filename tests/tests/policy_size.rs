//! The cost of policies is proportional to their length, in whatever way they are written. This is
//! the only test of this binary, because it counts the allocations of all threads of the process.

use manx_calculation::import::import_for;
use manx_fixtures::heavy::{NODE, SHAPES, Shape};
use manx_objects::contents::Contents;
use manx_objects::problem::Severity;
use manx_policy_compiler::compile::Compiler;
use manx_policy_compiler::model::ObjectName;
use manx_tests::allocations::{Counting, bytes_of_all_threads};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The number of pods of a node. It is fixed, so that it does not grow with the text.
const LOCAL: usize = 20;

/// The lengths of the shorter text and of the longer one, in bytes.
const LENGTHS: [usize; 2] = [50_000, 200_000];

/// The same for overlapping sets. Their cost grows faster until their pods are left out, which
/// happens at these lengths.
const LENGTHS_OF_OVERLAPS: [usize; 2] = [1_000_000, 4_000_000];

/// The bytes that small tables need in addition to their share by length.
const LEAST_BYTES: u64 = 4 << 20;

/// The bytes that chains use in vain before their rules are evaluated one by one.
const GIVEN_UP_BYTES: u64 = 64 << 20;

/// The evaluations of rules that every chain may need, however small it is.
const LEAST_LOOKS: u64 = 4 << 20;

/// The cost to import and compile a text.
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

/// A measure that grows faster than the text, with half as much again allowed.
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
