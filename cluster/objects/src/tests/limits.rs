//! A small text costs little, whatever its content, and no object exceeds the API server's limit.

use std::fmt::Write as _;

use proptest::prelude::*;

use super::super::cursor::Findings;
use super::super::read::{MAX_OBJECT, MAX_PROBLEMS};
use super::super::yaml::{self, MAX_REPEATED, SyntaxError};
use super::super::{State, read};
use super::{clean, invalid, only, problems};
use crate::object::Object;
use crate::problem::{Cause, Problem, Severity};

const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: p\n  namespace: d\n";

fn each(count: usize, one: impl Fn(usize) -> String) -> String {
    (0..count).map(one).collect()
}

/// Returns levels of ten aliases each. All aliases refer to the level below.
fn bomb(levels: usize, bottom: &str) -> String {
    let mut text = format!("a0: &a0 {bottom}\n");
    for level in 1..levels {
        let alias = format!("*a{}", level - 1);
        writeln!(text, "a{level}: &a{level} [{}]", [alias.as_str(); 10].join(", ")).unwrap();
    }
    text
}

#[test]
fn anchors_and_aliases_repeat_as_much_as_the_file_is_long_and_little_more() {
    let long = format!("'{}'", "x".repeat(100_000));
    let mut nested = String::new();
    for number in 0..50 {
        write!(nested, "&b{number} [").unwrap();
    }
    let small = bomb(5, "[x, x, x, x, x, x, x, x, x, x]");
    for text in [
        bomb(10, "[x, x, x, x, x, x, x, x, x, x]"),
        bomb(10, &long),
        bomb(60, "[1]"),
        format!("a: &a {long}\nb: [{}]\n", "*a, ".repeat(5000)),
        format!("a: &a {{k: {long}}}\nb: {{<<: [{}]}}\n", "*a, ".repeat(5000)),
        format!("a: {nested}{long}{}\n", "]".repeat(50)),
        // Each single document is harmless.
        [small.as_str(); 10].join("---\n"),
    ] {
        let Err(SyntaxError::Repeats { most, .. }) = yaml::parse(&text) else {
            panic!("{text:.90}")
        };
        assert_eq!(most, text.len() + MAX_REPEATED);
    }
    let common = "&a {app: web, tier: front, note: 'some text that is the same everywhere'}";
    let text = format!("base: {common}\nall: [{}]\n", "*a, ".repeat(10_000));
    assert_eq!(yaml::parse(&text).unwrap().len(), 1);
}

#[test]
fn names_of_ports_for_many_peers_are_not_valid_and_few_of_either_are() {
    let policy = |peers: usize, names: usize| {
        let peers = each(peers, |at| format!("{{podSelector: {{matchLabels: {{v: v{at}}}}}}}, "));
        let names = each(names, |at| format!("{{port: n{at}}}, "));
        format!(
            "{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: p, namespace: d}}, \
             spec: {{podSelector: {{}}, egress: [{{to: [{peers}], ports: [{names}]}}], policyTypes: [Egress, Ingress]}}}}"
        )
    };
    for (peers, names) in [(20, 20), (2, 5_000), (5_000, 3), (1, 20_000), (200, 5)] {
        clean(&policy(peers, names));
    }
    // A port name at the policy's own pods stands for the same ports for every peer.
    clean(&policy(5_000, 500).replace("egress", "ingress").replace("to: ", "from: "));
    for (peers, names) in [(30, 30), (5, 2_000), (2_000, 5), (5_000, 5_000)] {
        assert!(invalid(&policy(peers, names)).is_some(), "{peers} {names}");
    }
    // These lists contain many numbers and either one name, so that the ports differ for each peer,
    // or no name.
    let numbers = each(100, |at| format!("{{port: {}}}, ", at + 1));
    let mixed = |name: &str| policy(100, 1).replace("{port: n0}, ", &format!("{numbers}{name}"));
    assert!(invalid(&mixed("{port: n0}")).is_some());
    clean(&mixed("{port: 65000}"));
    insta::assert_snapshot!(problems(&policy(30, 30)), @r"
    error[conflicting-fields]: spec.egress[0]: names ports, and has 30 ports for 30 peers with selectors: found 900 pairs, expected 496 at most; make several rules of it, or give the ports by number
     --> file.yaml:1:125
      = NetworkPolicy d/p, document 1
    ");
}

#[test]
fn an_alias_bomb_is_no_yaml_and_says_so() {
    let text = format!("{POD}{}", bomb(9, "[x, x, x, x, x, x]"));
    insta::assert_snapshot!(read("file.yaml", &text).unwrap_err(), @r"
    error[not-yaml]: anchors and aliases repeat more than 1049135 bytes, the length of the file and 1048576: write out what they stand for
      --> file.yaml:11:15
       |
    11 | a5: &a5 [*a4, *a4, *a4, *a4, *a4, *a4, *a4, *a4, *a4, *a4]
       |               ^
    ");
}

#[test]
fn calicos_own_metadata_is_json_and_repeats_nothing() {
    let policy = |stored: &str| {
        format!(
            "apiVersion: crd.projectcalico.org/v1\nkind: GlobalNetworkPolicy\nmetadata:\n  name: default.p\n  annotations:\n    \
             projectcalico.org/metadata: '{stored}'\nspec: {{selector: all()}}\n"
        )
    };
    only(&policy(r#"{"name": "p", "labels": {"a": "b", "c": "b"}}"#));
    insta::assert_snapshot!(problems(&policy(r#"{"name": "p", "labels": {"a": &b "b", "c": *b}}"#)), @r#"
    error[unexpected-value]: metadata.annotations["projectcalico.org/metadata"]: found the string "{\"name\": \"p\", \"labels\": {\"a\": &b \"b\", \"c\": *b}}", expected the metadata of Calico's own object as JSON, with legal labels
     --> file.yaml:6:33
      |
    6 |     projectcalico.org/metadata: '{"name": "p", "labels": {"a": &b "b", "c": *b}}'
      |                                 ^
      = GlobalNetworkPolicy default.p, document 1
    "#);
}

#[test]
fn many_merged_mappings_are_compared_by_their_keys_hashes() {
    let keys = each(20_000, |key| format!("k{key}: 1, "));
    let own = keys.replace('k', "o");
    let text = format!("a: &a {{{keys}}}\nb: {{{own} <<: *a}}\n");
    let document = yaml::parse(&text).unwrap().remove(0);
    let bytes = |key| document.root.get(key).unwrap().json_len();
    assert_eq!(bytes("b"), 2 * bytes("a") - 1);
}

fn pod_of(bytes: usize) -> String {
    let start = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":"d"},"spec":{"tolerations":[""#;
    let end = r#""]},"status":{"podIP":"10.0.0.1"}}"#;
    format!("{start}{}{end}", "x".repeat(bytes - start.len() - end.len()))
}

#[test]
fn an_object_is_no_larger_than_a_request_to_the_api_server() {
    only(&pod_of(MAX_OBJECT));
    let text = pod_of(MAX_OBJECT + 1);
    let manifest = read("file.yaml", &text).unwrap();
    let State::Invalid(known) = &manifest.entries[0].state else { panic!() };
    assert_eq!(known.reported.len(), 1, "its address closes");
    insta::assert_snapshot!(problems(&text), @r"
    error[unexpected-value]: found an object of 3145729 bytes as JSON, expected at most 3145728, the API server's limit: split it into several
     --> file.yaml:1:1
      = Pod d/p, document 1
    ");
    // The limit applies to each item.
    let list = |items: &[String]| {
        format!("{{apiVersion: v1, kind: List, items: [{}]}}", items.join(",\n"))
    };
    let pods: Vec<String> =
        (0..40).map(|n| pod_of(200_000).replace("\"p\"", &format!("\"p{n}\""))).collect();
    assert_eq!(clean(&list(&pods)).entries.len(), 40);
    let manifest = read("file.yaml", &list(&[&pods[..2], &[text]].concat())).unwrap();
    let valid = |entry: &super::Entry| matches!(entry.state, State::Valid(_));
    assert_eq!(manifest.entries.iter().map(valid).collect::<Vec<_>>(), [true, true, false]);
}

#[test]
fn more_labels_or_values_than_the_api_server_takes_are_refused_and_what_closes_is_known() {
    let labels = each(350_000, |number| format!("    l{number}: v\n"));
    let pod = format!("{POD}  labels:\n{labels}status: {{podIP: 10.0.0.1}}\n");
    let State::Invalid(known) = read("file.yaml", &pod).unwrap().entries.remove(0).state else {
        panic!()
    };
    assert_eq!(known.reported.len(), 1);

    let values = each(350_000, |number| format!("v{number},"));
    let policy = format!(
        "{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: a}}, spec: {{podSelector: {{matchLabels: {{a: b}}}}, \
         ingress: [{{from: [{{podSelector: {{matchExpressions: [{{key: a, operator: In, values: [{values}]}}]}}}}]}}]}}}}"
    );
    let State::Invalid(known) = read("file.yaml", &policy).unwrap().entries.remove(0).state else {
        panic!()
    };
    assert!(known.subject.is_some());
}

#[test]
fn annotations_are_no_longer_than_the_api_servers() {
    let text = |bytes: usize| {
        let half = "x".repeat(bytes / 2);
        format!("{POD}  annotations: {{a: {half}, b: {half}}}\n")
    };
    let Object::Pod(_) = only(&text((256 << 10) - 2)) else { panic!() };
    insta::assert_snapshot!(problems(&text(256 << 10)), @r"
    error[unexpected-value]: metadata.annotations: found 262146 bytes of keys and values, expected at most 262144, the API server's limit: keep long ones elsewhere
     --> file.yaml:6:16
      = Pod d/p, document 1
    ");
    assert!(invalid(&text(256 << 10)).is_some());
}

#[test]
fn of_very_many_problems_of_an_object_the_first_are_told_and_the_others_counted() {
    let mut text = format!("{POD}spec:\n");
    for number in 0..Findings::MOST * 3 {
        writeln!(text, "  field{number}: 1").unwrap();
    }
    text.push_str("  nodeName: [1]\n  hostNetwork: 3\n");
    let manifest = read("file.yaml", &text).unwrap();
    let of =
        |severity| manifest.problems.iter().filter(move |problem| problem.severity == severity);
    // Warnings do not use up the limit of errors.
    assert_eq!(
        (of(Severity::Error).count(), of(Severity::Warning).count()),
        (2, Findings::MOST + 1)
    );
    assert!(matches!(manifest.entries[0].state, State::Invalid(_)));
    insta::assert_snapshot!(manifest.problems.last().unwrap().summary(), @"file.yaml:1:1: Pod d/p: 200 further problems of this object are not shown: correct those above first");
}

#[test]
fn of_very_many_flaws_the_first_are_told_and_each_item_of_a_list_has_one() {
    let doubles = "a: 1, ".repeat(Findings::MOST * 3);
    let items = "- {apiVersion: v1, kind: Pod, metadata: {name: p, namespace: d}}\n".repeat(50);
    let text = format!("apiVersion: v1\nkind: List\nitems:\n{items}more: {{{doubles}}}\n");
    let manifest = read("file.yaml", &text).unwrap();
    assert_eq!(manifest.problems.len(), Findings::MOST + 1 + 50);
    assert_eq!(manifest.entries.len(), 50);
    assert!(manifest.entries.iter().all(|entry| matches!(entry.state, State::Invalid(_))));
    // Problems of a list without items are reported, too.
    let empty = "{apiVersion: v1, kind: List, items: [], a: 1, a: 2, a: 3}";
    assert_eq!(read("file.yaml", empty).unwrap().problems.len(), 2);
}

#[test]
fn of_very_many_documents_each_closes_and_the_first_problems_are_told() {
    let count = MAX_PROBLEMS + 10;
    let mut text = String::new();
    for number in 0..count {
        let object = format!("apiVersion: v1, kind: Pod, metadata: {{name: p{number}}}, spec: 3");
        writeln!(text, "---\n{{{object}}}").unwrap();
    }
    let manifest = read("file.yaml", &text).unwrap();
    assert_eq!(manifest.entries.len(), count);
    assert!(manifest.entries.iter().all(|entry| matches!(entry.state, State::Invalid(_))));
    assert_eq!(manifest.problems.len(), MAX_PROBLEMS + 1);
    insta::assert_snapshot!(manifest.problems.last().unwrap().summary(), @"file.yaml: 10 further problems of this file are not shown: correct those above first");
}

#[test]
fn of_a_kind_that_is_not_read_one_warning_keeps_the_namespaces_or_says_that_they_are_many() {
    let namespaces = |names: &[String]| {
        let thing = |name: &String| {
            format!("---\n{{apiVersion: a.b/v1, kind: Thing, metadata: {{name: t{name}}}}}\n")
        };
        let text: String = names.iter().map(thing).collect();
        let problems = read("file.yaml", &text).unwrap().problems;
        let [Problem { cause: Cause::UnknownKind { namespaces, .. }, .. }] = &problems[..] else {
            panic!("{problems:?}")
        };
        namespaces.clone()
    };
    let named = |name: &str| format!(", namespace: {name}");
    let few = namespaces(&[named("a"), named("b"), named("a")]);
    assert_eq!(few, ["a", "b"].map(str::to_owned).into());
    assert!(namespaces(&[named("a"), String::new()]).contains(""));
    let many: Vec<String> = (0..100).map(|number| named(&format!("n{number}"))).collect();
    let many = namespaces(&many);
    assert!(many.len() < 100 && many.contains(""), "{many:?}");
}

#[test]
fn a_message_is_no_longer_than_people_read() {
    let long = "x".repeat(1 << 20);
    let doubles = "a: 1, ".repeat(10);
    for text in [
        format!("{POD}spec: {{{long}: 1}}\n"),
        format!("{POD}  labels: {{{long}: a, a/{long}: a}}\n"),
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {long}, namespace: {long}}}\nspec: {{{doubles}}}\n"
        ),
        format!("apiVersion: v1\nkind: {long}\n"),
        format!("apiVersion: {long}\nkind: Pod\n"),
        format!("apiVersion: {long}\nkind: {long}NetworkPolicy\n"),
        format!("{POD}spec: !{long} {{}}\n"),
        format!("{POD}spec: !!int {long}\n"),
        format!("{POD}spec: {{{long}: 1, {long}: 2}}\n"),
        format!(
            "{{apiVersion: projectcalico.org/v3, kind: GlobalNetworkPolicy, metadata: {{name: a}}, spec: {{selector: \"{long} {long}\"}}}}"
        ),
    ] {
        let manifest = read("file.yaml", &text).unwrap();
        assert!(!manifest.problems.is_empty());
        for problem in manifest.problems {
            let told = problem.to_string();
            assert!(told.len() < 3000, "{} bytes: {}", told.len(), &told[..200]);
        }
    }
}

#[test]
fn a_name_that_was_cut_is_no_objects() {
    let text = |last: char| {
        let name = format!("{}{last}", "n".repeat(500));
        format!("{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: d}}}}")
    };
    let key = invalid(&text('a')).unwrap();
    assert!(key.name.ends_with("n...") && key.name.len() < 400, "{key}");
    assert_eq!(invalid(&text('b')), Some(key));
}

/// Generates JSON in the form of another library, without characters that this library would
/// escape.
fn json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        "[a-z é]{0,9}".prop_map(Into::into),
    ];
    leaf.prop_recursive(4, 30, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Into::into),
            prop::collection::btree_map("[a-z]{1,5}", inner, 0..5)
                .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn the_length_as_json_is_that_of_json(value in json()) {
        let text = value.to_string();
        prop_assume!(value != serde_json::Value::Null);
        let document = yaml::parse(&text).unwrap().remove(0);
        prop_assert_eq!(document.root.json_len(), text.len());
    }
}
