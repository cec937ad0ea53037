use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use manx_datastore::{Store, read_with_texts};
use serde_json::Value;

use super::*;

const TEXT: &str = "
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: deny-egress}
spec:
  tier: security
  selectr: app == 'web'
  egress:
  - action: Deny
    destination: {nets: [10.0.0.1], ports: [80]}
---
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {name: allow}
spec: {tier: security, ingress: [{action: Allow}]}
";

/// The problems of texts, which are read as if they were the files of a directory.
fn of_texts(files: &[(&str, &str)]) -> (Vec<Problem>, Report) {
    let texts = files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
    let read = Read { contents: Contents::from_texts(files.iter().copied()), texts };
    let problems = problems(&read);
    let report = Report::new(&read.contents, &problems);
    (problems, report)
}

#[test]
fn a_report_shows_each_problem_in_its_line_with_what_follows() {
    let (_, report) = of_texts(&[("policies/all.yaml", TEXT), ("b.yaml", "{")]);
    insta::assert_snapshot!(report.text());
    assert_eq!((report.errors, report.invalid), (3, 1));
}

#[test]
fn a_report_is_json_for_programs() {
    let (_, report) = of_texts(&[("all.yaml", TEXT)]);
    insta::assert_snapshot!(serde_json::to_string_pretty(&report).unwrap());
}

#[test]
fn what_is_not_enforced_of_a_host_endpoints_policy_is_a_warning() {
    let text = "{apiVersion: projectcalico.org/v3, kind: HostEndpoint, metadata: {name: h}, spec: {node: n1, interfaceName: eth0}}";
    let (_, report) = of_texts(&[("a.yaml", text)]);
    assert_eq!((report.errors, report.warnings), (0, 1));
    assert!(report.text().contains("NOT ENFORCED"), "{}", report.text());
}

#[test]
fn nothing_to_say_is_one_line() {
    let text = "apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n";
    let (_, report) = of_texts(&[("a.yaml", text)]);
    assert_eq!(report.text(), "1 file, 1 object (1 Namespace): 0 invalid, 0 errors, 0 warnings\n");
}

#[test]
fn a_problem_of_several_objects_shows_its_field_and_its_line() {
    let text = "{apiVersion: v1, kind: Pod, metadata: {name: web, labels: {app: web}}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web}
spec:
  podSelector: {}
  ingress:
  - from:
    - podSelector:
        matchLabels: {app: wbe}
";
    insta::assert_snapshot!(of_texts(&[("web.yaml", text)]).1.text());
}

/// Every code of the catalogue, with its section without the title.
fn catalogue() -> Vec<(Code, &'static str)> {
    let page = include_str!("../../../../../docs/check.md");
    let sections = page.split("\n## `").skip(1).map(|section| {
        let (name, rest) = section.split_once("`\n").unwrap();
        let code = Code::from_name(name).unwrap_or_else(|| panic!("{name} is no code"));
        (code, rest.split("\n# ").next().unwrap())
    });
    sections.collect()
}

/// A section's example: a suitable file name, and its text.
fn example(section: &str) -> Option<(&'static str, &str)> {
    let (language, rest) = section.split_once("```")?.1.split_once('\n')?;
    let text = rest.split_once("```")?.0;
    Some((if language == "json" { "example.json" } else { "example.yaml" }, text))
}

/// The codes of the problems in these paths.
fn codes(paths: &[&Path]) -> BTreeSet<Code> {
    let problems = problems(&read_with_texts(paths.iter().copied(), false));
    for problem in &problems {
        assert_eq!(problem.severity, problem.code().severity(), "{problem}");
    }
    problems.iter().map(Problem::code).collect()
}

#[test]
fn the_catalogue_has_every_code_with_its_meaning_in_the_order_of_the_table() {
    let catalogue = catalogue();
    let codes: Vec<Code> = catalogue.iter().map(|(code, _)| *code).collect();
    assert_eq!(codes, Code::ALL);
    for (code, section) in catalogue {
        let severity = match code.severity() {
            Severity::Error => "**Error.**",
            Severity::Warning => "**Warning.**",
            Severity::Note => "**Note.**",
        };
        let words: Vec<&str> = section.split_whitespace().collect();
        let begins = format!("{severity} {}", code.meaning());
        assert!(words.join(" ").starts_with(&begins), "{code}: {section}");
    }
}

#[test]
fn each_example_of_the_catalogue_produces_its_code_and_no_other_warning() {
    let mut without = Vec::new();
    for (code, section) in catalogue() {
        let Some((name, text)) = example(section) else {
            without.push(code);
            continue;
        };
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join(name);
        fs::write(&file, text).unwrap();
        // Only a file that is named directly must hold nothing but objects.
        let path = if code == Code::NotAnObject { file.as_path() } else { directory.path() };
        let found = codes(&[path]);
        assert!(found.contains(&code), "{code}: {found:?}");
        let others = found.iter().filter(|it| **it != code && it.severity() == Severity::Warning);
        // Every valid host endpoint has this code.
        let others = others.filter(|it| **it != Code::HostPolicyNotEnforced);
        // A skipped part is reported with its own code, too.
        let skipped = code == Code::SelectorMayMatchSkipped;
        let others: Vec<_> = others.filter(|it| !(skipped && **it == Code::UnknownKind)).collect();
        assert!(others.is_empty(), "{code}: {others:?}");
    }
    let elsewhere = [
        Code::Unreadable,
        Code::NoManifest,
        Code::SkippedFolder,
        Code::EmptiedFile,
        Code::ShrunkFile,
        Code::FurtherErrors,
        Code::FurtherWarnings,
        Code::NotAllChecked,
    ];
    assert_eq!(without, elsewhere, "the next test produces these");
}

#[test]
fn the_codes_of_files_and_of_very_many_problems_are_produced() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a.yaml");
    assert_eq!(codes(&[&file]), [Code::Unreadable].into());
    assert_eq!(codes(&[directory.path()]), [Code::NoManifest].into());

    let below = directory.path().join("below");
    fs::create_dir(&below).unwrap();
    let namespace = "{apiVersion: v1, kind: Namespace, metadata: {name: shop}}";
    fs::write(&file, namespace).unwrap();
    assert_eq!(codes(&[directory.path()]), [].into());
    fs::write(below.join("b.yaml"), namespace).unwrap();
    assert_eq!(codes(&[directory.path()]), [Code::SkippedFolder].into());
    // A directory whose manifests are all in subdirectories counts as a directory without
    // manifests.
    fs::remove_file(&file).unwrap();
    assert_eq!(codes(&[directory.path()]), [Code::NoManifest].into());
    fs::remove_dir_all(&below).unwrap();

    let pod =
        |name: &str| format!("{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}}}\n---\n");
    let mut store = Store::new(directory.path());
    let mut after = |text: String| {
        fs::write(&file, text).unwrap();
        store.refresh();
        store.contents().problems.iter().map(Problem::code).collect::<Vec<_>>()
    };
    assert_eq!(after(pod("a") + &pod("b")), []);
    assert_eq!(after(pod("a")), [Code::ShrunkFile]);
    assert_eq!(after(String::new()), [Code::EmptiedFile]);

    let fields = |value: &str| {
        let fields: Vec<String> = (0..101).map(|n| format!("k{n}: {value}, ")).collect();
        fields.concat()
    };
    let pod = |rest: &str| format!("{{apiVersion: v1, kind: Pod, metadata: {{name: a}}, {rest}}}");
    fs::write(&file, pod(&fields("1"))).unwrap();
    assert_eq!(codes(&[&file]), [Code::IgnoredField, Code::FurtherWarnings].into());
    fs::write(
        &file,
        pod(&fields("1")).replace("name: a", &format!("name: a, labels: {{{}}}", fields("1"))),
    )
    .unwrap();
    assert!(codes(&[&file]).contains(&Code::FurtherErrors));

    let many = |at: u32| {
        let [high, low] = [at / 256, at % 256];
        let rule = format!("{{action: Deny, source: {{nets: [10.0.{high}.{low}/32]}}}}");
        format!(
            "{{apiVersion: projectcalico.org/v3, kind: GlobalNetworkPolicy, metadata: {{name: p{at}}}, spec: {{order: {at}, selector: all(), ingress: [{rule}, {{action: Pass}}]}}}}\n---\n"
        )
    };
    fs::write(&file, (0..2500).map(many).collect::<String>()).unwrap();
    assert!(codes(&[&file]).contains(&Code::NotAllChecked));
}

#[test]
fn sarif_has_a_rule_for_each_result_and_a_region_for_each_place() {
    let (problems, _) = of_texts(&[("policies/a b.yaml", TEXT), ("b.yaml", "{")]);
    let log = sarif::log(&problems);
    assert_eq!(log["version"], "2.1.0");
    assert!(log["$schema"].as_str().unwrap().ends_with("sarif-2.1.0.json"));
    let [run] = &log["runs"].as_array().unwrap()[..] else { panic!("one run") };
    let driver = &run["tool"]["driver"];
    assert!(driver["name"].is_string() && driver["version"].is_string());
    let rules = driver["rules"].as_array().unwrap();
    let ids: BTreeSet<&str> = rules.iter().map(|rule| rule["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), Code::ALL.len());
    for rule in rules {
        assert!(rule["shortDescription"]["text"].is_string(), "{rule}");
        let level = rule["defaultConfiguration"]["level"].as_str().unwrap();
        assert!(["error", "warning", "note"].contains(&level), "{rule}");
    }
    let results = run["results"].as_array().unwrap();
    assert_eq!(results.len(), problems.len());
    for (result, problem) in results.iter().zip(&problems) {
        let index = usize::try_from(result["ruleIndex"].as_u64().unwrap()).unwrap();
        assert_eq!(rules[index]["id"], result["ruleId"]);
        assert_eq!(result["ruleId"], problem.code().name());
        assert_eq!(result["level"], rules[index]["defaultConfiguration"]["level"]);
        assert!(result["message"]["text"].as_str().is_some_and(|text| !text.is_empty()));
        let [location] = &result["locations"].as_array().unwrap()[..] else { panic!("one place") };
        let physical = &location["physicalLocation"];
        let uri = physical["artifactLocation"]["uri"].as_str().unwrap();
        assert!(["policies/a%20b.yaml", "b.yaml"].contains(&uri), "{uri}");
        let line =
            |key: &str| physical["region"][key].as_u64().map(|it| usize::try_from(it).unwrap());
        assert_eq!(line("startLine"), problem.place.at.map(|at| at.line));
        assert_eq!(line("startColumn"), problem.place.at.map(|at| at.column));
        assert!(line("startLine").is_none_or(|line| line > 0));
        assert!(!matches!(location["logicalLocations"], Value::Object(_)));
    }
}

#[test]
fn ordinary_rigs_have_no_warning_but_of_what_they_are_about() {
    let meant = [
        ("host-endpoints", Code::HostPolicyNotEnforced),
        // The name belongs only to a port of another protocol.
        ("namespaces", Code::NoSuchPort),
        // Either peer alone allows the traffic.
        ("ten-nodes", Code::SeparatePeers),
        ("tiers", Code::SeparatePeers),
    ];
    let rigs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/rigs");
    let (mut seen, mut told) = (0, Vec::new());
    for rig in fs::read_dir(rigs).unwrap() {
        let rig = rig.unwrap();
        let (path, name) = (rig.path(), rig.file_name().into_string().unwrap());
        let read = read_with_texts([path.as_path()], true);
        let mut problems = problems(&read);
        problems.retain(|problem| !meant.contains(&(name.as_str(), problem.code())));
        told.extend(problems.iter().map(|problem| format!("{name}: {problem}")));
        seen += 1;
    }
    assert_eq!(told, [""; 0]);
    assert!(seen > 5, "{seen}");
}

/// Manifests that are usual and right pass a strict check: a chart's output, an overlay's output, a
/// shop, and dumps of a cluster.
#[test]
fn what_is_usual_and_right_passes_a_strict_check() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
    let mut told = Vec::new();
    for name in [
        "usual/helm.yaml",
        "usual/kustomize.yaml",
        "shop/cluster.yaml",
        "dumps/yaml",
        "dumps/json",
        "dumps/per-kind",
        "dumps/raw",
        "dumps/cluster-info",
    ] {
        let read = read_with_texts([fixtures.join(name).as_path()], true);
        assert!(read.contents.objects.keys().any(|key| key.kind.enforced_policy()), "{name}");
        let mut problems = problems(&read);
        problems.retain(|problem| problem.severity != Severity::Note);
        // The walk through the shop is about this very problem.
        problems.retain(|it| name != "shop/cluster.yaml" || it.code() != Code::PassSkipsPolicies);
        told.extend(problems.iter().map(|problem| format!("{name}: {problem}")));
    }
    assert_eq!(told, [""; 0]);
}
