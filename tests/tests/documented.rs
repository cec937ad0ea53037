//! The documentation names only what exists.

use std::fs;
use std::path::{Path, PathBuf};

use manx_calculation::topology::RouteSource;

/// The targets of a text's links, as they are written.
fn links(text: &str) -> Vec<&str> {
    text.split("](").skip(1).filter_map(|after| after.split(')').next()).collect()
}

#[test]
fn every_section_of_policy_semantics_names_files_with_tests() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let text = fs::read_to_string(docs.join("policy-semantics.md")).unwrap();
    let sections: Vec<&str> = text.split("\n## ").skip(1).collect();
    assert!(sections.len() >= 9, "{}", sections.len());
    for section in sections {
        let title = section.lines().next().unwrap();
        let line = section.lines().find(|line| line.starts_with("Tests: ")).unwrap_or(title);
        let named = links(line);
        assert!(!named.is_empty(), "no tests below {title}");
        for file in named {
            let source = fs::read_to_string(docs.join(file));
            let source = source.unwrap_or_else(|error| panic!("{file} below {title}: {error}"));
            assert!(source.contains("#[test]"), "{file} below {title} has no tests");
        }
    }
}

/// Whether a source has a test of this name that is not ignored.
fn has_test(source: &str, name: &str) -> bool {
    let start = format!("fn {name}(");
    let lines: Vec<&str> = source.lines().map(str::trim_start).collect();
    let mut found = lines.iter().enumerate().filter(|(_, line)| line.starts_with(&start));
    found.any(|(at, _)| {
        let above = lines[..at].iter().rev();
        let attributes: Vec<_> = above.take_while(|line| line.starts_with(['#', '/'])).collect();
        attributes.contains(&&"#[test]") && !attributes.iter().any(|line| line.contains("ignore"))
    })
}

#[test]
fn every_promise_of_security_is_held_by_tests_that_are_there() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let text = fs::read_to_string(docs.join("security.md")).unwrap();
    let (mut promises, mut tests) = (0, 0);
    for section in text.split("\n## ").skip(1) {
        // The rows after a table's head and the line below it.
        for row in section.lines().filter(|line| line.starts_with('|')).skip(2) {
            let held_by = row.trim_end_matches([' ', '|']).rsplit('|').next().unwrap();
            let named: Vec<&str> = held_by.split('[').skip(1).collect();
            assert!(!named.is_empty(), "nothing holds {row}");
            for test in named {
                let (name, rest) =
                    test.split_once("](").unwrap_or_else(|| panic!("no link: {test}"));
                let file = rest.split(')').next().unwrap();
                let source = fs::read_to_string(docs.join(file));
                let source = source.unwrap_or_else(|error| panic!("{file}: {error}"));
                assert!(
                    has_test(&source, name),
                    "{file} has no test {name}, which is to hold {row}"
                );
                tests += 1;
            }
            promises += 1;
        }
    }
    assert!(promises > 35 && tests > promises, "{promises} promises, {tests} tests");
}

/// The pages of the documentation, with their texts.
fn pages() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let docs = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let all = docs.chain([root.join("README.md"), root.join("CHANGELOG.md")]);
    let pages = all.filter(|page| page.extension().is_some_and(|extension| extension == "md"));
    pages.map(|page| fs::read_to_string(&page).map(|text| (page, text)).unwrap()).collect()
}

/// The anchors of a page's headings, as GitHub makes them of their words.
fn anchors(text: &str) -> Vec<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let kept = |it: &char| it.is_alphanumeric() || matches!(it, ' ' | '-' | '_');
    let anchor = |heading: &str| heading.to_lowercase().chars().filter(kept).collect::<String>();
    headings.map(|it| anchor(it.trim_start_matches('#').trim()).replace(' ', "-")).collect()
}

#[test]
fn every_page_and_section_that_the_documentation_links_to_is_there() {
    let (mut seen, mut sections) = (0, 0);
    for (page, text) in pages() {
        for link in links(&text).into_iter().filter(|link| !link.contains("://")) {
            let (file, section) = link.split_once('#').unwrap_or((link, ""));
            let to = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            assert!(to.exists(), "{} links to {link}", page.display());
            seen += 1;
            if !section.is_empty() {
                let there = anchors(&fs::read_to_string(&to).unwrap());
                assert!(there.iter().any(|it| it == section), "{} links to {link}", page.display());
                sections += 1;
            }
        }
    }
    assert!(seen > 20 && sections > 20, "{seen} links, {sections} to sections");
}

#[test]
fn no_page_has_the_marks_of_an_unfinished_merge() {
    for (page, text) in pages() {
        let mark =
            text.lines().find(|line| line.starts_with("<<<<<<< ") || line.starts_with(">>>>>>> "));
        assert_eq!(mark, None, "{}", page.display());
    }
}

#[test]
fn the_sources_of_routes_are_documented_in_their_order() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = fs::read_to_string(root.join("docs/agent.md")).unwrap();
    let (_, table) = page.split_once("| source | its routes |\n|---|---|\n").unwrap();
    let rows = table.lines().map_while(|line| line.strip_prefix("| ")?.split(" | ").next());
    let documented: Vec<&str> = rows.collect();
    assert_eq!(documented, RouteSource::ALL.map(RouteSource::name));
    assert!(RouteSource::ALL.is_sorted());
    assert!(RouteSource::LAST_OF_CLUSTER < RouteSource::KernelAddress);
}

/// The documents of a manifest, without the text before them.
fn documents(name: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(name);
    let text = fs::read_to_string(path).unwrap();
    let (_, documents) = text.split_once("\n\n").unwrap();
    documents.split("\n---\n").map(str::to_owned).collect()
}

/// Each of the two manifests is complete by itself, and both have the same kinds, accounts and
/// rights. The manifest for Manx as the network also makes a pool, writes a condition of nodes, has
/// the kinds and rights of IPAM, and may read BGP passwords.
#[test]
fn the_manifest_for_policy_only_differs_in_what_runs_and_has_no_pool_condition_or_ipam() {
    let [all, policy_only] = ["manx.yaml", "policy-only.yaml"].map(documents);
    let is_daemon_set = |text: &String| text.contains("\nkind: DaemonSet\n");
    assert!(all.last().is_some_and(is_daemon_set) && policy_only.last().is_some_and(is_daemon_set));
    let names = |text: &str, name: &str| {
        text.contains(&format!("\n  name: {name}\n")) || text.contains(&format!("{{name: {name}"))
    };
    let of_network_alone =
        ["manx-pool", "manx-condition", "manx-status", "manx-ipam", "manx-secrets", "ipamblocks."];
    let is_of_network = |text: &&String| of_network_alone.iter().any(|name| names(text, name));
    let of_network = all.iter().filter(is_of_network).count();
    assert_eq!((of_network, policy_only.iter().filter(is_of_network).count()), (19, 0));
    for right in ["nodes/status", "caliconodestatuses", "ipamblocks", "ipamhandles", "[secrets]"] {
        assert!(!policy_only.concat().contains(right), "{right}");
    }
    let without = |all: &[String]| -> Vec<String> {
        let others = all.iter().filter(|text| !is_of_network(text) && !is_daemon_set(text));
        others.cloned().collect()
    };
    assert!(without(&all).len() >= 6);
    assert_eq!(without(&all), without(&policy_only));
}
