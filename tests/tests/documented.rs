//! The documentation names what is there.

use std::fs;
use std::path::Path;

/// What a text links to, as it is written.
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

#[test]
fn every_file_that_the_documentation_links_to_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let docs = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let mut seen = 0;
    for page in docs.chain([root.join("README.md"), root.join("CHANGELOG.md")]) {
        if page.extension().is_none_or(|extension| extension != "md") {
            continue;
        }
        let text = fs::read_to_string(&page).unwrap();
        for link in links(&text).into_iter().filter(|link| !link.contains("://")) {
            let file = link.split('#').next().unwrap_or_default();
            let there = file.is_empty() || page.parent().unwrap().join(file).exists();
            assert!(there, "{} links to {link}", page.display());
            seen += 1;
        }
    }
    assert!(seen > 20, "{seen} links");
}
