//! The `manx` program as its users start it: exit codes, what goes where, nothing left behind.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::process::{Command, Output};

fn manx(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_manx"))
        .args(arguments)
        .env_remove("MANX_SOCKET")
        .env("XDG_RUNTIME_DIR", "/nonexistent")
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn doctor_ends_with_what_it_says_and_leaves_nothing_behind() {
    let output = manx(&["doctor", "--output", "json"]);
    for file in ["/proc/self/mounts", "/proc/net/dev"] {
        let text = fs::read_to_string(file).unwrap();
        assert!(
            !text
                .lines()
                .any(|line| line.trim_start().starts_with("manx ") || line.contains("manx-doctor")),
            "{text}"
        );
    }
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rig = report["rig"].as_bool().unwrap();
    assert_eq!(output.status.code(), Some(if rig { 0 } else { 3 }), "{report}");
    let checks = report["checks"].as_array().unwrap();
    for check in checks {
        let allowed = check["allowed"].as_bool().unwrap();
        assert_eq!(check["remedy"].is_string(), !allowed, "{check}");
    }
    let names: Vec<_> = checks.iter().map(|check| check["capability"].as_str().unwrap()).collect();
    for name in ["kernel", "user-namespaces", "tun", "no-ipip-module", "io-uring", "cores"] {
        assert!(names.contains(&name), "{name} is not among {names:?}");
    }
    let table = text(&manx(&["doctor"]).stdout);
    assert!(!table.contains('\u{1b}'), "no colours into a pipe: {table:?}");
    assert!(names.iter().all(|name| table.contains(name)));
}

#[test]
fn a_wrong_usage_is_2_and_help_is_0() {
    for wrong in [&["fly"][..], &[], &["status", "--output", "xml"], &["capture", "web"], &["node"]]
    {
        let output = manx(wrong);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
        assert_eq!(text(&output.stdout), "", "{wrong:?}");
        assert!(!output.stderr.is_empty(), "{wrong:?}");
    }
    for right in
        [&["--help"][..], &["help", "rig"], &["version"], &["--version"], &["completions", "bash"]]
    {
        let output = manx(right);
        assert_eq!(output.status.code(), Some(0), "{right:?}");
        assert!(!output.stdout.is_empty(), "{right:?}");
    }
}

#[test]
fn without_an_agent_the_answer_is_3_and_a_capture_writes_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("agent.sock");
    let file = folder.path().join("out.pcapng");
    let (socket, file) = (socket.to_str().unwrap(), file.to_str().unwrap());
    for command in
        [&["status", "--socket", socket][..], &["capture", "host", "-w", file, "--socket", socket]]
    {
        let output = manx(command);
        assert_eq!(output.status.code(), Some(3), "{command:?}");
        assert_eq!(
            text(&output.stderr),
            format!(
                "manx: no agent listens at {socket} (No such file or directory (os error 2)): start one with `manx node`, or name \
                 its socket by --socket\n"
            )
        );
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}
