//! The commands of docs/walk-through.md, one after the other, and the lines that the page shows of their outputs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use crate::bench::Bench;

/// A command of the page, the exit code that it has there, and the lines that are shown.
struct Step {
    command: String,
    code: i32,
    lines: Vec<String>,
}

/// The steps in the page's `console` blocks.
fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut is_console = false;
    for line in page.lines() {
        if let Some(language) = line.strip_prefix("```") {
            is_console = language == "console";
        } else if !is_console {
        } else if let Some(command) = line.strip_prefix("$ ") {
            steps.push(Step { command: command.to_owned(), code: 0, lines: Vec::new() });
        } else if let Some(step) = steps.last_mut() {
            match line.strip_prefix("(exit code ").and_then(|rest| rest.strip_suffix(')')) {
                Some(code) => step.code = code.parse().unwrap(),
                None => step.lines.push(line.to_owned()),
            }
        }
    }
    steps
}

/// Whether a line is as the page shows it, where `...` stands for any text.
fn fits(shown: &str, line: &str) -> bool {
    let mut rest = line;
    for (index, part) in shown.split("...").enumerate() {
        match rest.find(part) {
            Some(at) if index > 0 || at == 0 => rest = &rest[at + part.len()..],
            _ => return false,
        }
    }
    rest.is_empty() || shown.ends_with("...")
}

/// The shown lines are in the output, in this order.
fn assert_shown(step: &Step, output: &Output) {
    let text = [&output.stderr[..], &output.stdout].concat();
    let text = String::from_utf8(text).unwrap();
    assert_eq!(output.status.code(), Some(step.code), "{}:\n{text}", step.command);
    let mut lines = text.lines().map(str::trim_end);
    for shown in step.lines.iter().filter(|line| !line.is_empty() && *line != "...") {
        let is_there = lines.any(|line| fits(shown.trim_end(), line));
        assert!(
            is_there,
            "{}: no line, or none in this place, is\n{shown}\nin\n{text}",
            step.command
        );
    }
}

#[test]
fn every_command_of_the_walk_through_prints_what_the_page_shows() {
    let Some(bench) = Bench::new() else { return };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join("docs/walk-through.md")).unwrap();
    let (here, programs) = (bench.folder.path().join("here"), bench.folder.path().join("bin"));
    for folder in [&here, &programs] {
        fs::create_dir(folder).unwrap();
    }
    symlink(root.join("fixtures"), here.join("fixtures")).unwrap();
    symlink(env!("CARGO_BIN_EXE_manx"), programs.join("manx")).unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let start = |command: &str| -> Child {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("exec {command}")]).current_dir(&here).stdin(Stdio::null());
        shell.env("PATH", &path).env("XDG_RUNTIME_DIR", bench.folder.path());
        shell.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let steps = steps(&page);
    assert!(steps.len() > 8, "{}", steps.len());
    let mut beside = Vec::new();
    for step in &steps {
        match step.command.strip_suffix(" &") {
            Some(command) => beside.push((step, start(command))),
            None => assert_shown(step, &start(&step.command).wait_with_output().unwrap()),
        }
    }
    for (step, child) in beside {
        assert_shown(step, &child.wait_with_output().unwrap());
    }
    let [page, capture] =
        ["shop.html", "shop.pcapng"].map(|file| fs::read(here.join(file)).unwrap());
    assert!(String::from_utf8(page).unwrap().contains("Who reaches whom"));
    assert!(capture.len() > 1_000, "{} bytes", capture.len());
    let empty = steps.last().unwrap();
    assert_eq!((empty.command.as_str(), empty.lines.len()), ("manx rig list", 0));
}
