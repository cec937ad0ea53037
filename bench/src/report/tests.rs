use super::figures::{Breakdown, Figure, Missing, Report};
use super::files::write;
use super::goal::Goal;
use super::statistics::Summary;
use super::{chart, table};
use crate::host::machine::Machine;

fn machine() -> Machine {
    Machine {
        processor: "A & B <C>".to_owned(),
        processors: 2,
        kernel: "6.1".to_owned(),
        load: 1.5,
        noisy: true,
        debug_build: false,
    }
}

fn summary(median: f64) -> Summary {
    Summary { lowest: median * 0.9, median, highest: median * 1.2 }
}

fn report() -> Report {
    let figure = |row, ratio: f64, goal| Figure {
        row,
        head: "Here, beside <that>".to_owned(),
        what: "TCP".to_owned(),
        unit: "Gbit/s",
        beside: Some(summary(10.0)),
        manx: summary(10.0 * ratio),
        ratio: Some(summary(ratio)),
        goal,
    };
    let mut report = Report::new(machine(), vec!["2 rounds".to_owned()]);
    report.figures.push(figure("fast", 4.0, Some(Goal::AtLeast(2.0))));
    report.figures.push(figure("slow", 3.0, Some(Goal::AtMost(1.5))));
    report.figures.push(figure("open", 0.25, None));
    report.figures.push(Figure {
        head: "Alone".to_owned(),
        beside: None,
        ratio: None,
        ..figure("alone", 8.0, Some(Goal::AtMost(100.0)))
    });
    let parts = |one| vec![("one", one), ("other", 2.25)];
    for (row, head, one) in
        [("fast", "Parts", 1.0), ("slow", "Others", 3.0), ("open", "Parts", 12.5)]
    {
        report.breakdowns.push(Breakdown { row, head: head.to_owned(), parts: parts(one) });
    }
    report.missing.push(Missing { row: "absent", why: "no program".to_owned(), failed: false });
    report.remarks.push("a remark".to_owned());
    report
}

#[test]
fn the_table_says_what_was_measured_what_was_met_and_what_is_missing() {
    insta::assert_snapshot!(table::markdown(&report()), @r"
    - 2 x A & B <C>, Linux 6.1, load 1.50 at the start
    - NOISY: something else runs on this machine; ratios suffer less than figures
    - 2 rounds

    ## Here, beside <that>

    | row | median (lowest-highest) | beside it | Manx | Manx / beside | goal | |
    |---|---|---|---|---|---|---|
    | `fast` | TCP, Gbit/s | 10.0 (9.0-12.0) | 40.0 (36.0-48.0) | 4.00 (3.60-4.80) | >= 2 | met |
    | `slow` | TCP, Gbit/s | 10.0 (9.0-12.0) | 30.0 (27.0-36.0) | 3.00 (2.70-3.60) | <= 1.5 | missed |
    | `open` | TCP, Gbit/s | 10.0 (9.0-12.0) | 2.50 (2.25-3.00) | 0.25 (0.23-0.30) |  |  |

    ## Alone

    | row | median (lowest-highest) | Manx | goal | |
    |---|---|---|---|---|
    | `alone` | TCP, Gbit/s | 80.0 (72.0-96.0) | <= 100 | met |

    ## Others

    | row | one | other |
    |---|---|---|
    | `slow` | 3.0 | 2.2 |

    ## Parts

    | row | one | other |
    |---|---|---|
    | `fast` | 1.0 | 2.2 |
    | `open` | 12.5 | 2.2 |

    ## NOT MEASURED

    - `absent`: no program

    ## Besides

    - a remark
    ");
}

#[test]
fn what_can_be_read_by_programs_is_what_was_found() {
    let json = serde_json::to_value(report()).unwrap();
    assert_eq!(json["figures"][1]["goal"]["at-most"], 1.5);
    assert_eq!(json["figures"][0]["ratio"]["median"], 4.0);
    assert_eq!(json["figures"][3]["ratio"], serde_json::Value::Null);
    assert_eq!(json["missing"][0]["row"], "absent");
    assert_eq!(json["machine"]["noisy"], true);
}

/// Checks that the tags form an element tree, each closed in its order. Returns the numbers of the
/// given attribute.
fn walk(svg: &str, attribute: &str) -> Vec<f64> {
    let (mut open, mut found) = (Vec::new(), Vec::new());
    for part in svg.split('<').skip(1) {
        let (tag, text) = part.split_once('>').expect("a tag is closed");
        assert!(!text.contains('>'), "a bare > in {text:?}");
        for piece in text.split('&').skip(1) {
            assert!(["amp;", "lt;", "gt;"].iter().any(|it| piece.starts_with(it)), "{text:?}");
        }
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        let name = tag.split(' ').next().unwrap();
        match name.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop().as_deref(), Some(name)),
            None if tag.ends_with('/') => {}
            None => open.push(name.to_owned()),
        }
        let value = tag.split_once(&format!(" {attribute}=\"")).map(|(_, rest)| rest);
        let value = value.and_then(|rest| rest.split('"').next());
        found.extend(value.and_then(|value| value.parse::<f64>().ok()));
    }
    assert!(open.is_empty(), "{open:?} stay open");
    found
}

#[test]
fn the_chart_is_well_formed_and_holds_a_bar_for_each_figure_within_its_width() {
    let svg = chart::svg(&report());
    for attribute in ["x", "x1", "x2"] {
        let found = walk(&svg, attribute);
        assert!(found.len() > 4 && found.iter().all(|x| (0.0..1120.0).contains(x)), "{found:?}");
    }
    for (class, count) in [("met", 2), ("missed", 1), ("open", 1), ("goal", 3), ("spread", 4)] {
        assert_eq!(svg.matches(&format!("class=\"{class}\"")).count(), count, "{class} in {svg}");
    }
    assert!(svg.contains("A &amp; B &lt;C&gt;") && svg.contains("beside &lt;that&gt;"));
}

#[test]
fn a_report_of_nothing_is_still_a_table_and_a_chart() {
    let report = Report::new(machine(), Vec::new());
    walk(&chart::svg(&report), "x");
    assert!(table::markdown(&report).contains("A & B <C>"));
}

#[test]
fn three_files_are_written_in_place_of_those_before() {
    let folder = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        write(&report(), folder.path()).unwrap();
    }
    let mut names: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["results.json", "results.md", "results.svg"]);
    let gone = folder.path().join("gone");
    let error = write(&report(), &gone).unwrap_err().to_string();
    assert!(error.contains("results.json cannot be written"), "{error}");
}
