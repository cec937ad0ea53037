//! Law: a store reports exactly the changes that happened.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use proptest::test_runner::{Config, TestRunner};

use super::super::{Changes, STANDS, Store};
use super::{Moment, namespace, put};

/// Generates a file that does not exist, or that contains some of a few objects after some
/// meaningless lines.
fn file() -> impl Strategy<Value = Option<String>> {
    let object = (select(&["a", "b", "c", "d"][..]), select(&["x", "y"][..]));
    let object = object.prop_map(|(name, team)| namespace(name, team));
    let pods = subsequence(vec!["p", "q", "r"], 0..3).prop_map(|names| {
        names
            .into_iter()
            .map(|name| format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\n"))
    });
    let broken = prop::option::weighted(0.05, select(&["kind: Unknown\n", "["][..]));
    let file = (0..3_usize, vec(object, 0..2), pods, broken);
    let text = file.prop_map(|(lines, objects, pods, broken)| {
        let all: Vec<String> =
            objects.into_iter().chain(pods).chain(broken.map(str::to_owned)).collect();
        "#\n".repeat(lines) + &all.join("---\n")
    });
    prop::option::weighted(0.8, text)
}

#[test]
fn changes_are_what_differs_and_contents_what_all_files_say() {
    let [objects, everything] = [const { Cell::new(0) }; 2];
    let events = vec((select(&["1.yaml", "2.yaml", "3.yaml"][..]), file()), 1..16);
    let config = Config { cases: 128, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&events, |events| {
            let directory = tempfile::tempdir().unwrap();
            let mut store = Store::new(directory.path());
            let Moment { wall, monotonic } = Moment::now();
            for (at, (name, text)) in (0..).zip(events) {
                match text {
                    Some(text) => put(directory.path(), name, &text),
                    None => drop(fs::remove_file(directory.path().join(name))),
                }
                // At every second step, the text of a possible partial save has been unchanged long
                // enough.
                let later = STANDS.mul_f64(0.75) * at + Duration::from_hours(1);
                let before = store.contents().clone();
                let now = Moment { wall: wall + later, monotonic: monotonic + later };
                let changes = store.refresh_at(now);
                let after = store.contents().clone();
                match changes {
                    None => prop_assert_eq!(&before, &after),
                    Some(Changes::Everything) => everything.set(everything.get() + 1),
                    Some(Changes::Objects(changed)) => {
                        objects.set(objects.get() + 1);
                        let keys = before.objects.keys().chain(after.objects.keys());
                        let differ =
                            keys.filter(|key| before.objects.get(key) != after.objects.get(key));
                        let expected: BTreeMap<_, _> = differ
                            .map(|key| (key.clone(), before.objects.get(key).cloned()))
                            .collect();
                        prop_assert_eq!(changed, expected);
                        prop_assert_eq!(&before.problems, &after.problems);
                    }
                }
                store.rebuild();
                prop_assert_eq!(&after, store.contents());
            }
            Ok(())
        })
        .unwrap();
    let counts = [objects.get(), everything.get()];
    assert!(counts.iter().all(|count| *count > 40), "{counts:?}");
}
