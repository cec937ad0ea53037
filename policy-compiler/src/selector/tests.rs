use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::sample::select;

use super::*;

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn parsed(text: &str) -> Selector {
    Selector::parse(text).unwrap_or_else(|error| panic!("{text:?}: {error}"))
}

fn error(text: &str) -> String {
    match Selector::parse(text) {
        Ok(selector) => panic!("{text:?} is {selector}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn with_the_label_absent_only_the_negations_hold() {
    let nothing = labels(&[]);
    for text in ["a != 'b'", "a not in {'b'}", "a notin {}", "!has(a)", "!a == 'b'"] {
        assert!(parsed(text).matches(&nothing), "{text}");
    }
    for text in [
        "a == 'b'",
        "a == ''",
        "a in {'b'}",
        "a contains ''",
        "a starts with ''",
        "a ends with ''",
        "has(a)",
        "a in {}",
    ] {
        assert!(!parsed(text).matches(&nothing), "{text}");
    }
}

/// The ids are Calico's own, from the tests of its parser.
#[test]
fn ids_are_calicos_and_belong_to_the_canonical_form() {
    for (texts, id) in [
        (["all()", "", " (all() )"], "s:5y5I3VdRZfDU01O--xXAPx2yxCQQqMf0M6IWug"),
        (
            ["!(has(b) || !has(a))", "! (has( b)||! has(a ))", "!!!(has(b)||!has(a))"],
            "s:Iss0uCleLYv1GSv_pNm7hAO58kE9jAx1NKyG3Q",
        ),
        (
            [
                r#"!(a == "b" && !c != "d")"#,
                r#"! (a == "b"&&! c != "d")"#,
                "!(a == 'b' && !c != 'd')",
            ],
            "s:lh3haoY1ikTRkd4UZu0nWSaIBknYLPJLX16d-w",
        ),
    ] {
        for text in texts {
            assert_eq!(parsed(text).id(), id, "{text}");
        }
    }
    assert_ne!(parsed("a == 'b'").id(), parsed("a in {'b'}").id());
}

#[test]
fn comparisons_look_at_the_value() {
    let labels = labels(&[("a", "bcd")]);
    for text in [
        "a == 'bcd'",
        "a != 'b'",
        "a in {'x', 'bcd',}",
        "a not in {'b'}",
        "a contains 'c'",
        "a starts with 'bc'",
        "a startswith \"b\"",
        "a ends with 'd'",
        "a endswith 'cd'",
        "has(a)",
    ] {
        assert!(parsed(text).matches(&labels), "{text}");
    }
}

#[test]
fn not_binds_looser_than_the_match_and_and_tighter_than_or() {
    assert_eq!(parsed("!a == 'b'").to_string(), r#"!a == "b""#);
    assert!(!parsed("!a == 'b'").matches(&labels(&[("a", "b")])));
    assert_eq!(
        parsed("has(a) || has(b) && !has(c)").to_string(),
        "(has(a) || (has(b) && !has(c)))"
    );
    assert_eq!(parsed("!!!has(a)"), parsed("!has(a)"));
    assert_eq!(parsed("! ! has(a)"), parsed("has(a)"));
}

/// Calico's parser ignores an even number of `!` in a row and keeps one before a parenthesis; its canonical form has no
/// parenthesis, and its id is the hash of that form.
#[test]
fn a_negation_of_a_negation_in_parentheses_stays_in_the_canonical_form_and_in_the_id() {
    let twice = parsed("!(!has(a))");
    assert_eq!(twice.to_string(), "!!has(a)");
    assert_eq!(twice.id(), "s:VZFYmDV_Drir7seXQB5vQXF8-34s2nf1b8ItRA");
    assert_ne!(twice.id(), parsed("has(a)").id());
    assert_eq!(parsed("!!(!has(a))").to_string(), "!has(a)");
    assert_eq!(parsed("!(! (!a == 'b'))").to_string(), r#"!!!a == "b""#);
    assert_eq!(parsed(&twice.to_string()), parsed("has(a)"));
    for labels in [labels(&[]), labels(&[("a", "")])] {
        assert_eq!(twice.matches(&labels), parsed("has(a)").matches(&labels));
    }
    // With a prefix, no trace of it is left: Calico puts the prefix into the text and parses the text again.
    assert_eq!(Selector::parse_namespace("!(!has(a))"), Ok(Selector::has("pcns.a")));
}

#[test]
fn space_is_blank_and_tab_and_needed_nowhere_round_an_operator() {
    for text in ["a=='b'", " a\t==\t'b' ", "(a == 'b')", "( ( a=='b'))"] {
        assert_eq!(parsed(text), Selector::equals("a", "b"), "{text}");
    }
    assert_eq!(parsed("a starts  \t with 'b'"), parsed("a startswith'b'"));
    assert_eq!(parsed("a not \t in{'b'}"), parsed("a notin {'b'}"));
    assert_eq!(parsed("has( a )&&all( )").to_string(), "(has(a) && all())");
    assert!(error("a == 'b'\n").contains(r#""\n""#));
    assert!(error("has (a)").contains("expected an operator"));
}

#[test]
fn a_keyword_may_be_a_label_and_a_key_has_any_of_its_characters() {
    for key in ["in", "not", "contains", "starts", "has", "all", "global", "a/b.c_d-e", "9"] {
        assert_eq!(parsed(&format!("{key} == 'x'")), Selector::equals(key, "x"));
    }
    assert_eq!(parsed("in in {'in'}"), Selector::is_in("in", ["in".to_owned()]));
    assert!(parsed(&format!("has({})", "k".repeat(512))) != Selector::all());
    assert!(error(&format!("has({})", "k".repeat(513))).contains("512"));
}

#[test]
fn sets_are_sorted_without_doubles_and_may_be_empty_or_end_with_a_comma() {
    assert_eq!(parsed("a in {'c', \"b\",'c' , }").to_string(), r#"a in {"b", "c"}"#);
    assert_eq!(parsed("a in {}").to_string(), "a in {}");
    assert!(error("a in {,}").contains("expected a value"));
}

#[test]
fn a_value_is_whatever_stands_between_its_quotes() {
    assert_eq!(parsed(r#"a == '"'"#).to_string(), r#"a == '"'"#);
    assert_eq!(parsed(r#"a == "it's""#).to_string(), r#"a == "it's""#);
    assert!(parsed(r"a == '\n'").matches(&labels(&[("a", r"\n")])), "there are no escapes");
}

#[test]
fn the_empty_text_is_all_and_global_stands_alone_in_namespace_selectors() {
    for text in ["", " \t", "all()", "all( )"] {
        assert_eq!(parsed(text), Selector::all());
        assert_eq!(Selector::parse_namespace(text), Ok(Selector::has(NAMESPACE)));
    }
    assert_eq!(Selector::parse_namespace(" global( ) "), Ok(Selector::not_has(NAMESPACE)));
    assert_eq!(Selector::parse_namespace("a == 'b'"), Ok(Selector::equals("pcns.a", "b")));
    assert_eq!(
        Selector::parse_namespace("!(a == 'b' || all())").unwrap().to_string(),
        r#"!(pcns.a == "b" || has(projectcalico.org/namespace))"#
    );
    for text in ["global()", "!global()", "global() || has(a)", "(global())"] {
        assert!(error(text).contains("stand alone"), "{text}");
        if text != "global()" {
            assert!(Selector::parse_namespace(text).is_err(), "{text}");
        }
    }
}

#[test]
fn errors_say_where_and_what_instead() {
    let texts = [
        "a",
        "a = 'b'",
        "a == b",
        "a == 'b",
        "a in 'b'",
        "a in {'b' 'c'}",
        "has(",
        "has()",
        "all(",
        "&& has(a)",
        "has(a) &&",
        "has(a) has(b)",
        "(has(a)",
        "has(a))",
        "a starts 'b'",
        "a | b",
        "ü == 'b'",
        "a starts in {'b'}",
        "a starts ends with 'b'",
        "a ends not in {}",
        "a not == 'b'",
        "a == 'ü' ü",
    ];
    let all: Vec<String> = texts.iter().map(|text| format!("{text}: {}", error(text))).collect();
    insta::assert_snapshot!(all.join("\n"), @r#"
    a: found the end at character 2, expected an operator: ==, !=, in, not in, contains, starts with or ends with
    a = 'b': found "= 'b'" at character 3, expected an operator: ==, !=, in, not in, contains, starts with or ends with
    a == b: found "b" at character 6, expected a value in quotes
    a == 'b: found "'b" at character 6, expected a value with a quote at its end, too
    a in 'b': found "'b'" at character 6, expected a set of values in braces
    a in {'b' 'c'}: found "'c'}" at character 11, expected a value in quotes, a comma or }
    has(: found the end at character 5, expected the key of a label
    has(): found ")" at character 5, expected the key of a label
    all(: found the end at character 5, expected )
    && has(a): found "&& has(a)" at character 1, expected a term: the key of a label, has(KEY), all(), ! or (
    has(a) &&: found the end at character 10, expected a term: the key of a label, has(KEY), all(), ! or (
    has(a) has(b): found "has(b)" at character 8, expected &&, || or the end
    (has(a): found the end at character 8, expected &&, || or )
    has(a)): found ")" at character 7, expected &&, || or the end
    a starts 'b': found "starts 'b'" at character 3, expected an operator: ==, !=, in, not in, contains, starts with or ends with
    a | b: found "| b" at character 3, expected an operator: ==, !=, in, not in, contains, starts with or ends with
    ü == 'b': found "ü == 'b'" at character 1, expected a term: the key of a label, has(KEY), all(), ! or (
    a starts in {'b'}: found "starts in {'" at character 3, expected an operator: ==, !=, in, not in, contains, starts with or ends with
    a starts ends with 'b': found "starts ends " at character 3, expected an operator: ==, !=, in, not in, contains, starts with or ends with
    a ends not in {}: found "ends not in " at character 3, expected an operator: ==, !=, in, not in, contains, starts with or ends with
    a not == 'b': found "not == 'b'" at character 3, expected an operator: ==, !=, in, not in, contains, starts with or ends with
    a == 'ü' ü: found "ü" at character 10, expected &&, || or the end
    "#);
}

#[test]
fn depth_is_bounded() {
    let nested = |depth: usize| format!("{}has(a){}", "(".repeat(depth), ")".repeat(depth));
    assert_eq!(parsed(&nested(128)), Selector::has("a"));
    assert!(error(&nested(100_000)).contains("128"));
    let deep = |levels: usize| {
        format!("{}has(a){}", "has(b) || (has(b) && (".repeat(levels / 2), "))".repeat(levels / 2))
    };
    let canonical = parsed(&deep(64)).to_string();
    assert_eq!(parsed(&canonical).to_string(), canonical);
    assert!(error(&deep(66)).contains("64"));
    assert_eq!(parsed(&format!("{}has(a)", "!".repeat(100_001))), Selector::not_has("a"));
    let wide = vec!["has(a)"; 20_000].join(" && ");
    assert!(parsed(&wide).matches(&labels(&[("a", "")])));
}

fn selector() -> impl Strategy<Value = Selector> {
    let key = || select(&["a", "b", "in"][..]).prop_map(str::to_owned);
    let value = || select(&["", "x", "xy", "y\"", "it's"][..]).prop_map(str::to_owned);
    let values = || prop::collection::vec(value(), 0..3);
    let how = select(
        &[
            Comparison::Equal,
            Comparison::NotEqual,
            Comparison::Contains,
            Comparison::StartsWith,
            Comparison::EndsWith,
        ][..],
    );
    let leaf = prop_oneof![
        Just(Selector::all()),
        key().prop_map(Selector::has),
        (key(), how, value()).prop_map(|(key, how, value)| Selector::compare(key, how, value)),
        (key(), values()).prop_map(|(key, values)| Selector::is_in(key, values)),
        (key(), values()).prop_map(|(key, values)| Selector::not_in(key, values)),
    ];
    leaf.prop_recursive(3, 16, 3, |inner| {
        let several = || prop::collection::vec(inner.clone(), 2..4);
        prop_oneof![
            inner.clone().prop_map(Selector::negated),
            several().prop_map(|all| Node::And(all).into()),
            several().prop_map(|all| Node::Or(all).into()),
        ]
    })
}

fn some_labels() -> impl Strategy<Value = BTreeMap<String, String>> {
    prop::collection::btree_map(
        select(&["a", "b", "in"][..]).prop_map(str::to_owned),
        select(&["", "x", "xy", "y\"", "it's", "z"][..]).prop_map(str::to_owned),
        0..4,
    )
}

proptest! {
    #[test]
    fn the_canonical_form_is_read_as_the_same_selector(selector in selector()) {
        prop_assert_eq!(Selector::parse(&selector.to_string()), Ok(selector));
    }

    #[test]
    fn any_text_is_read_or_refused(text in r#"[ab'"{}()=!&|, \t\nü]{0,24}|.{0,12}|(has\(|in |not |all\(\)|a |'x'|[{}()!&|=,]){0,12}"#) {
        let _ = Selector::parse(&text);
        let _ = Selector::parse_namespace(&text);
    }

    #[test]
    fn what_is_required_is_there_whenever_a_selector_matches(
        selector in selector(), labels in some_labels(),
    ) {
        if selector.matches(&labels) {
            for (key, values) in selector.required_labels() {
                let value = labels.get(key);
                prop_assert!(value.is_some(), "{selector}");
                if let Some(values) = values {
                    prop_assert!(values.contains(&value.unwrap().as_str()), "{selector}");
                }
            }
            for key in ["a", "b", "in"] {
                if let Some(values) = selector.required_values(key) {
                    let value = labels.get(key).map(String::as_str);
                    prop_assert!(value.is_some_and(|value| values.contains(&value)), "{selector}");
                }
            }
        }
    }

    #[test]
    fn a_prefix_moves_the_keys_and_nothing_else(selector in selector(), labels in some_labels()) {
        let moved: BTreeMap<String, String> =
            labels.iter().map(|(key, value)| (format!("p.{key}"), value.clone())).collect();
        prop_assert_eq!(selector.replaced("p.", &Selector::all()).matches(&moved), selector.matches(&labels));
    }

    #[test]
    fn and_is_the_conjunction(
        all in prop::collection::vec(selector(), 0..4), labels in some_labels(),
    ) {
        let expected = all.iter().all(|one| one.matches(&labels));
        prop_assert_eq!(Selector::and(all).matches(&labels), expected);
    }
    #[test]
    fn a_selector_is_the_conjunction_of_its_conjuncts(
        selector in selector(), labels in some_labels(),
    ) {
        let conjuncts = selector.conjuncts();
        prop_assert!(conjuncts.iter().all(|one| !matches!(one.node(), Node::And(_) | Node::All)));
        let expected = conjuncts.iter().all(|one| one.matches(&labels));
        prop_assert_eq!(selector.matches(&labels), expected);
    }

    #[test]
    fn only_labels_of_its_keys_decide(selector in selector(), labels in some_labels()) {
        let keys = selector.keys();
        let mut fewer = labels.clone();
        fewer.retain(|key, _| keys.contains(key.as_str()));
        prop_assert_eq!(selector.matches(&fewer), selector.matches(&labels));
    }
}
