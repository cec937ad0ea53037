//! Compares the oracle's selectors with the policy compiler's: they are two parsers of the same language.

use std::cell::Cell;
use std::collections::BTreeMap;

use manx_policy_compiler::selector::Selector as Compiled;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRng, TestRunner};

use crate::selector::{Language, parse};

const WORDS: [&str; 32] = [
    "a",
    "b.c/d",
    "in",
    "not",
    "has(",
    "has (",
    "has(a)",
    "all()",
    "all(",
    "global()",
    "(",
    ")",
    "!",
    "!=",
    "==",
    "=",
    "&&",
    "||",
    "&",
    "'x'",
    "\"x'y\"",
    "'",
    "{",
    "}",
    ",",
    "contains",
    "starts",
    "with",
    "ends",
    "notin",
    "\n",
    "startswith",
];

/// Generates tokens of the language in any order, with any whitespace between them.
fn soup() -> impl Strategy<Value = String> {
    let word = (select(&WORDS[..]), select(&["", " ", "\t "][..]));
    prop::collection::vec(word, 0..10)
        .prop_map(|words| words.into_iter().flat_map(|(word, space)| [word, space]).collect())
}

/// Generates valid selectors, with whitespace where it is allowed.
fn sound() -> impl Strategy<Value = String> {
    let key = || select(&["a", "b.c/d", "in", "not", "all", "has"][..]);
    let value = || select(&["''", "'x'", "\"xy\"", "'y'"][..]);
    let space = || select(&["", " ", " \t"][..]);
    let operator = select(
        &["==", "!=", " contains", " starts with", " startswith", " ends  with", " endswith"][..],
    );
    let listing = select(&[" in", " not in", " notin", " not  in"][..]);
    let values = prop::collection::vec(value(), 0..3);
    let leaf = prop_oneof![
        4 => (key(), operator, space(), value())
            .prop_map(|(key, operator, space, value)| format!("{key}{operator}{space}{value}")),
        2 => (key(), listing, space(), values, any::<bool>()).prop_map(
            |(key, listing, space, values, comma)| {
                let comma = if comma && !values.is_empty() { "," } else { "" };
                format!("{key}{listing}{space}{{{}{comma}}}", values.join(", "))
            }
        ),
        1 => (space(), key()).prop_map(|(space, key)| format!("has({space}{key})")),
        1 => Just("all()".to_owned()),
    ];
    leaf.prop_recursive(4, 24, 3, move |inner| {
        prop_oneof![
            (inner.clone(), space()).prop_map(|(inner, space)| format!("!{space}{inner}")),
            (inner.clone(), inner.clone(), space())
                .prop_map(|(one, other, space)| format!("{one}{space}&&{space}{other}")),
            (inner.clone(), inner.clone(), space())
                .prop_map(|(one, other, space)| format!("{one} ||{space}{other}")),
            (inner, space()).prop_map(|(inner, space)| format!("({space}{inner})")),
        ]
    })
}

fn labels() -> impl Strategy<Value = BTreeMap<String, String>> {
    let key = select(&["a", "b.c/d", "in", "not", "all", "has"][..]).prop_map(str::to_owned);
    let value = select(&["", "x", "xy", "y", "yx"][..]).prop_map(str::to_owned);
    prop::collection::btree_map(key, value, 0..4)
}

#[test]
fn both_parsers_accept_the_same_texts_and_mean_the_same_by_them() {
    let config = Config { cases: 20_000, failure_persistence: None, ..Config::default() };
    let rng = TestRng::deterministic_rng(config.rng_algorithm);
    let text = prop_oneof![soup(), sound()];
    let (accepted, refused, held) = (Cell::new(0), Cell::new(0), Cell::new(0));
    let add = |count: &Cell<u32>| count.set(count.get() + 1);
    let result = TestRunner::new_with_rng(config, rng).run(&(text, labels()), |(text, labels)| {
        let ours = parse(&text, Language::Endpoints);
        let theirs = Compiled::parse(&text);
        prop_assert_eq!(ours.is_ok(), theirs.is_ok(), "{:?}: {:?} {:?}", text, ours, theirs);
        let namespaces = parse(&text, Language::Namespaces).is_ok();
        prop_assert_eq!(namespaces, Compiled::parse_namespace(&text).is_ok(), "{:?}", text);
        let (Ok(ours), Ok(theirs)) = (ours, theirs) else {
            add(&refused);
            return Ok(());
        };
        add(&accepted);
        let holds = ours.holds(true, false, &|key| labels.get(key).map(String::as_str));
        prop_assert_eq!(holds, theirs.matches(&labels), "{:?} of {:?}", text, labels);
        // The canonical form means the same to the other parser.
        let canonical = theirs.to_string();
        let again = parse(&canonical, Language::Endpoints);
        let again =
            again.map_err(|error| TestCaseError::fail(format!("{canonical:?}: {error}")))?;
        let again = again.holds(true, false, &|key| labels.get(key).map(String::as_str));
        prop_assert_eq!(holds, again, "{:?} is {:?}", text, canonical);
        if holds {
            add(&held);
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let (accepted, refused, held) = (accepted.get(), refused.get(), held.get());
    assert!(
        accepted > 8000 && refused > 5000 && held > 2000 && held < accepted - 2000,
        "{accepted} accepted, {refused} refused, {held} held"
    );
}
