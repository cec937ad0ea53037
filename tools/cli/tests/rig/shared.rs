//! Root's rigs belong to everybody who is root on the machine.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use crate::bench::{Bench, json};

/// The script runs with its own /run, because this test must not end the rigs of the machine's
/// root.
const SCRIPT: &str = r#"
mount -t tmpfs tmpfs /run || exit 9
if [ -n "$2" ]; then mkdir -m 755 /run/user && mkdir -m 700 "$2" && export XDG_RUNTIME_DIR="$2" || exit 9; fi
"$0" rig run "$1" --keep --ttl 5m --no-samples >/dev/null || exit 8
for command in "down" "apply $1/nodes.yaml" "delete $1/policies.yaml" "exec demo/web -- true" "status" "down demo" "down demo"; do
    "$0" rig $command >/dev/null 2>/run/said
    echo "$command: $? $(cat /run/said)"
done
"#;

#[test]
fn nobody_ends_or_changes_a_rig_of_roots_without_its_name() {
    // Every login of root also has the same runtime folder.
    for session in ["", "/run/user/0"] {
        let Some(bench) = Bench::new() else { return };
        nobody_ends_or_changes_a_rig_with(&bench, session);
    }
}

fn nobody_ends_or_changes_a_rig_with(bench: &Bench, session: &str) {
    let rig = bench.rig().display().to_string();
    let flags = if nix::unistd::geteuid().is_root() { "-m" } else { "-Urm" };
    let output = Command::new("unshare")
        .args([flags, "sh", "-c", SCRIPT, env!("CARGO_BIN_EXE_manx"), &rig, session])
        .env_remove("XDG_RUNTIME_DIR")
        .env("TMPDIR", bench.folder.path())
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{error}");
    let said = String::from_utf8_lossy(&output.stdout).replace(&rig, "DIR");
    let named = "2 manx: root's rigs are those of everybody who is root here (demo): name the one that is meant";
    assert_eq!(
        said,
        format!(
            "down: {named}\napply DIR/nodes.yaml: {named}\ndelete DIR/policies.yaml: {named}\nexec demo/web -- true: {named}\nstatus: 0 \ndown demo: 0 \n\
             down demo: 2 manx: no rig named demo is running: `manx rig list` shows those that are\n"
        )
    );
}

#[test]
fn what_is_left_of_a_deviation_is_its_users_alone() {
    let Some(bench) = Bench::new() else { return };
    let output = bench.run(&["--output", "json", "--sabotage", "web"]);
    assert_eq!(output.status.code(), Some(1));
    let export = json(&output)["export"].as_str().unwrap().to_owned();
    assert_eq!(fs::metadata(&export).unwrap().permissions().mode() & 0o777, 0o700);
    assert!(fs::read_dir(&export).unwrap().count() > 3);
}
