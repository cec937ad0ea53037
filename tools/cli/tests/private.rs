//! A local attacker puts folders, links and sockets where another user's program looks for its own.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use manx_fixtures::skip::{Need, skip};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The number of a user without an account.
const STRANGER: u32 = 61_337;
/// The variable with the path on which a process that acts as the other user listens.
const LISTEN_AT: &str = "MANX_TEST_LISTEN_AT";

/// Whether this process can act as two users, as root can if both are mapped.
fn is_two() -> bool {
    let file = tempfile::NamedTempFile::new().unwrap();
    nix::unistd::geteuid().is_root() && chown(file.path(), Some(STRANGER), None).is_ok()
}

/// Reports that a test is left out because this process can act as one user only.
fn leave_out(what: &str) {
    skip(Need::Root, what, "only root can act for two users");
}

/// A folder in which all users may put files, like /tmp, with a copy of a program that all users may run.
fn everybodys(program: &Path) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o1777)).unwrap();
    let copy = folder.path().join("program");
    // Another process copies it: a program that this process has open for writing, when one of its threads forks,
    // cannot be run (ETXTBSY).
    let installed = Command::new("install").args(["-m", "755"]).args([program, &copy]).status();
    assert!(installed.unwrap().success());
    (folder, copy)
}

/// Exit code and standard error of manx for a user without a runtime folder; root becomes the other user.
fn victim(program: &Path, temporary: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(program);
    command.args(arguments).env_clear().env("TMPDIR", temporary).current_dir("/");
    if is_two() {
        command.uid(STRANGER).gid(STRANGER);
    }
    let output = command.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{arguments:?}");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn user() -> u32 {
    if is_two() { STRANGER } else { nix::unistd::geteuid().as_raw() }
}

const COMMANDS: [&[&str]; 6] = [
    &["status"],
    &["status", "--node", "n"],
    &["rig", "list"],
    &["rig", "down"],
    &["rig", "down", "shop"],
    &["node", "--name", "n", "--datastore", "/", "--uplink", "lo"],
];

#[test]
fn a_planted_folder_or_link_is_not_believed_where_there_is_no_runtime_folder() {
    let (temporary, manx) = everybodys(Path::new(env!("CARGO_BIN_EXE_manx")));
    let folder = temporary.path().join(format!("manx-{}", user()));
    // Any user may have planted a link, to any folder of the victim.
    symlink("/", &folder).unwrap();
    for command in COMMANDS {
        let (code, said) = victim(&manx, temporary.path(), command);
        assert_eq!(code, Some(3), "{command:?}: {said}");
        assert!(said.contains("is no folder, or a link to one"), "{said}");
        assert!(said.contains("set XDG_RUNTIME_DIR to a folder of your own"), "{said}");
    }
    fs::remove_file(&folder).unwrap();
    if !is_two() {
        leave_out("the half with a folder of somebody else's");
        return;
    }
    fs::create_dir_all(folder.join("rigs/shop")).unwrap();
    let _socket = UnixListener::bind(folder.join("n.sock")).unwrap();
    fs::set_permissions(folder.join("n.sock"), Permissions::from_mode(0o777)).unwrap();
    for command in COMMANDS {
        let (code, said) = victim(&manx, temporary.path(), command);
        assert_eq!(code, Some(3), "{command:?}: {said}");
        assert!(said.contains("belongs to user 0, and this is run by user 61337"), "{said}");
    }
    assert!(!folder.join("rigs/shop/lock").exists() && !folder.join("n.sock.lock").exists());
}

#[test]
fn a_folder_for_temporary_files_where_others_can_move_what_is_not_theirs_is_not_believed() {
    let (temporary, manx) = everybodys(Path::new(env!("CARGO_BIN_EXE_manx")));
    let (code, said) = victim(&manx, temporary.path(), &["rig", "down"]);
    assert_eq!(code, Some(2), "with the sticky bit it is: {said}");
    fs::set_permissions(temporary.path(), Permissions::from_mode(0o777)).unwrap();
    let (code, said) = victim(&manx, temporary.path(), &["rig", "down"]);
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("others may write to") && said.contains("(mode 0777)"), "{said}");
}

#[test]
fn the_runtime_folder_of_another_user_is_not_believed() {
    let session = tempfile::tempdir().unwrap();
    let mut path = session.path().to_owned();
    // Root keeps the variable of the former user, as after `su`. An ordinary user gets a message
    // about root's folder.
    if is_two() {
        chown(&path, Some(STRANGER), None).unwrap();
    } else {
        leave_out("the half with a folder of somebody else's");
        path = PathBuf::from("/usr");
    }
    let output = Command::new(env!("CARGO_BIN_EXE_manx"))
        .args(["rig", "down"])
        .env("XDG_RUNTIME_DIR", &path)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    let owner = path.metadata().unwrap().uid();
    let expected = format!("{} belongs to user {owner}, and this is run by user ", path.display());
    assert!(said.contains(&expected), "{said}");
}

#[test]
fn a_runtime_folder_that_a_group_may_write_to_is_not_believed() {
    const GROUP: u32 = 61_338;
    if !is_two() {
        leave_out("the test");
        return;
    }
    let (folder, manx) = everybodys(Path::new(env!("CARGO_BIN_EXE_manx")));
    let session = folder.path().join("session");
    fs::create_dir(&session).unwrap();
    // The user's primary group, which may have other members, and the group that has the user's own
    // number.
    for (group, code) in [(GROUP, 3), (STRANGER, 2)] {
        chown(&session, Some(STRANGER), Some(group)).unwrap();
        fs::set_permissions(&session, Permissions::from_mode(0o770)).unwrap();
        let mut command = Command::new(&manx);
        command.args(["rig", "down"]).env("XDG_RUNTIME_DIR", &session).current_dir("/");
        let output = command.uid(STRANGER).gid(group).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert_eq!(said.contains("others may write to"), code == 3, "{said}");
    }
}

#[test]
fn a_rig_runs_only_where_nobody_else_can_take_away_what_it_leaves() {
    let (temporary, manx) = everybodys(Path::new(env!("CARGO_BIN_EXE_manx")));
    let session = tempfile::tempdir().unwrap();
    fs::set_permissions(temporary.path(), Permissions::from_mode(0o777)).unwrap();
    let rig = session.path().join("shop");
    let run = |arguments: &[&str]| {
        let mut command = Command::new(&manx);
        command.args(arguments).env("XDG_RUNTIME_DIR", session.path());
        command.env("TMPDIR", temporary.path()).output().unwrap()
    };
    assert!(run(&["rig", "init", rig.to_str().unwrap()]).status.success());
    let output = run(&["rig", "run", rig.to_str().unwrap(), "--no-samples"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("others may write to") && said.contains("set TMPDIR"), "{said}");
}

/// The other user's part of the next test, in a process of its own.
#[test]
fn listens_when_told_to() {
    let Some(path) = std::env::var_os(LISTEN_AT) else { return };
    let socket = UnixListener::bind(&path).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
    println!("listening");
    drop(socket.accept().unwrap());
}

#[test]
fn a_planted_socket_is_not_believed() {
    check_planted("agent.sock", &["status"]);
}

#[test]
fn another_users_health_is_not_believed() {
    check_planted("agent.health", &["health", "liveness"]);
}

/// A command does not trust the answer of another user at a socket beside `agent.sock`.
fn check_planted(file: &str, command: &[&str]) {
    if !is_two() {
        leave_out("the test");
        return;
    }
    let (folder, this) = everybodys(&std::env::current_exe().unwrap());
    let path = folder.path().join(file);
    let mut stranger = Command::new(this)
        .args(["--exact", "listens_when_told_to", "--nocapture"])
        .env(LISTEN_AT, &path)
        .current_dir("/")
        .uid(STRANGER)
        .gid(STRANGER)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(stranger.stdout.take().unwrap()));
    assert!(lines.map(Result::unwrap).any(|line| line.contains("listening")));
    let output = Command::new(env!("CARGO_BIN_EXE_manx"))
        .args(command)
        .arg("--socket")
        .arg(folder.path().join("agent.sock"))
        .output()
        .unwrap();
    stranger.wait().unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        format!(
            "manx: user 61337 listens at {}, and this is run by user 0: its answers are not trusted; run this as the \
             user who runs the agent\n",
            path.display()
        )
    );
}
