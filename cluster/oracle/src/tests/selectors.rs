//! The selector language.

use std::collections::BTreeMap;

use crate::selector::{Language, Selector, parse};

const LABELS: [(&str, &str); 6] = [
    ("a", "one"),
    ("b.c/d-e_f", "two"),
    ("in", "1"),
    ("contains", "x"),
    ("all", "2"),
    ("empty", ""),
];

fn read(text: &str) -> Option<Selector> {
    parse(text, Language::Endpoints).ok()
}

/// Returns whether the selector matches an object with [`LABELS`].
fn takes(text: &str) -> bool {
    let labels = BTreeMap::from(LABELS);
    let selector = read(text).unwrap_or_else(|| panic!("{text} is a selector"));
    selector.holds(true, false, &|key| labels.get(key).copied())
}

#[test]
fn each_operator_means_what_it_says() {
    for (text, expected) in [
        ("a == 'one'", true),
        ("a == \"one\"", true),
        ("a == 'two'", false),
        ("a != 'two'", true),
        ("a != 'one'", false),
        ("a in {'x', 'one'}", true),
        ("a in {'x'}", false),
        ("a not in {'x'}", true),
        ("a not in {'x', 'one'}", false),
        ("a contains 'n'", true),
        ("a contains 'x'", false),
        ("a starts with 'on'", true),
        ("a starts with 'ne'", false),
        ("a ends with 'ne'", true),
        ("a ends with 'on'", false),
        ("has(a)", true),
        ("has(z)", false),
        ("all()", true),
        ("has(empty)", true),
        ("empty == ''", true),
        ("b.c/d-e_f == 'two'", true),
    ] {
        assert_eq!(takes(text), expected, "{text}");
    }
}

#[test]
fn with_the_label_absent_not_equal_and_not_in_are_true_and_every_other_comparison_false() {
    for (text, expected) in [
        ("z != 'x'", true),
        ("z not in {'x'}", true),
        ("z not in {}", true),
        ("z == 'x'", false),
        ("z == ''", false),
        ("z in {'x'}", false),
        ("z contains ''", false),
        ("z starts with ''", false),
        ("z ends with ''", false),
    ] {
        assert_eq!(takes(text), expected, "{text}");
    }
}

#[test]
fn not_binds_looser_than_the_match_and_and_tighter_than_or() {
    for (text, expected) in [
        ("!a == 'one'", false),
        ("!a == 'two'", true),
        ("!!a == 'one'", true),
        ("! has(a) || a == 'one'", true),
        ("a == 'one' || a == 'one' && a == 'two'", true),
        ("(a == 'one' || a == 'one') && a == 'two'", false),
        ("!a == 'two' && a == 'one'", true),
        ("!(a == 'two' || a == 'one')", false),
    ] {
        assert_eq!(takes(text), expected, "{text}");
    }
}

#[test]
fn an_empty_selector_is_all() {
    assert_eq!(read(""), Some(Selector::All));
    assert_eq!(read(" \t "), Some(Selector::All));
}

#[test]
fn no_space_is_needed_round_an_operator_and_several_are_allowed() {
    for text in [
        "a=='one'&&b.c/d-e_f!='x'",
        " a\t==  'one' ",
        "a starts  \t with 'on'",
        "a startswith 'on'",
        "a endswith'ne'",
        "a notin{'x'}",
        "a not \t in {'x'}",
        "a in{'one'}",
        "a contains'n'",
        "has(  a )",
        "all( )",
        "(  a=='one')",
        "!\t(a=='x')",
    ] {
        assert!(takes(text), "{text}");
    }
}

#[test]
fn an_empty_list_and_a_trailing_comma_are_accepted() {
    assert!(!takes("a in {}"));
    assert!(takes("a not in { }"));
    assert!(takes("a in {'x', 'one',}"));
}

#[test]
fn a_keyword_may_be_a_label() {
    for text in ["in in {'1'}", "contains contains 'x'", "all == '2'", "has(all)", "not != 'x'"] {
        assert!(takes(text), "{text}");
    }
}

#[test]
fn strings_have_no_escapes() {
    assert!(!takes(r"a == 'on\e'"));
    assert!(read(r"a == 'it\'s'").is_none());
    assert!(takes("a != \"it's\"") && takes("a != 'say \"x\"'"));
}

#[test]
fn what_is_no_selector_is_an_error() {
    let long = format!("has({})", "k".repeat(513));
    for text in [
        "a",
        "a ==",
        "a = 'b'",
        "a == b",
        "a == 'b",
        "a == 'b' c",
        "a == 'b' && ",
        "a == 'b' & c == 'd'",
        "|| a == 'b'",
        "(a == 'b'",
        "a == 'b')",
        "a in 'b'",
        "a in {'b'",
        "a in {,}",
        "a in {'b' 'c'}",
        "a not 'b'",
        "a starts 'b'",
        "a starts in {'b'}",
        "a starts ends with 'b'",
        "has (a)",
        "has()",
        "has(a",
        "all",
        "all (",
        "a == 'b'\n",
        "a\n== 'b'",
        "a == 'b' \u{a0}",
        "ä == 'b'",
        "!",
        "a !== 'b'",
        &long,
    ] {
        assert_eq!(read(text), None, "{text:?}");
    }
    assert!(read(&format!("has({})", "k".repeat(512))).is_some());
}

#[test]
fn global_stands_alone_in_a_namespace_selector_only() {
    let namespaces = |text| parse(text, Language::Namespaces).ok();
    assert_eq!(namespaces("global()"), Some(Selector::Global));
    assert_eq!(namespaces(" global( ) "), Some(Selector::Global));
    for text in ["!global()", "global() || has(a)", "global() && all()"] {
        assert_eq!(namespaces(text), None, "{text}");
    }
    assert_eq!(read("global()"), None);
    assert!(parse("global()", Language::Accounts).is_err());
}

#[test]
fn an_error_says_what_was_expected_and_where() {
    let said = parse("a = 'b'", Language::Endpoints).unwrap_err().to_string();
    insta::assert_snapshot!(said, @"an operator expected at byte 2");
    let said = parse("!global()", Language::Namespaces).unwrap_err().to_string();
    insta::assert_snapshot!(said, @"anything but global(), which stands alone in a namespaceSelector, expected at byte 1");
}
