use std::os::unix::fs::symlink;

use proptest::prelude::*;

use super::*;

fn entry(kind: &str, name: &str, text: &str) -> (String, String) {
    (format!("{kind}/shop/{name}"), text.to_owned())
}

/// Computes the expected content of the file independently of the product.
fn apply(state: &mut State, changes: &[Change], complete: Option<u64>) {
    for change in changes {
        match change {
            Change::Put(name, text) => _ = state.objects.insert(name.clone(), text.clone()),
            Change::Remove(name) => _ = state.objects.remove(name),
            Change::Replace(kind, all) => {
                state.objects.retain(|name, _| !name.starts_with(&format!("{kind}/")));
                state.objects.extend(all.iter().cloned());
                state.listed.insert(kind.clone());
            }
        }
    }
    state.complete = complete.unwrap_or(state.complete);
}

fn any_change() -> impl Strategy<Value = Change> {
    let kinds = || prop::sample::select(vec!["Pod", "PodX", "NetworkPolicy"]);
    let names = || prop::sample::select(vec!["a", "b", "c\"\t\n", "d"]);
    let texts = || prop::sample::select(vec!["{}", "{\"a\":\"\u{e4}\"}", "{\"b\":[1,2,3]}"]);
    let entries =
        (kinds(), names(), texts()).prop_map(|(kind, name, text)| entry(kind, name, text));
    let of_kind = (kinds(), prop::collection::vec((names(), texts()), 0..4));
    prop_oneof![
        4 => entries.prop_map(|(name, text)| Change::Put(name, text)),
        2 => (kinds(), names()).prop_map(|(kind, name)| Change::Remove(entry(kind, name, "").0)),
        2 => of_kind.prop_map(|(kind, all)| {
            let all = all.into_iter().map(|(name, text)| entry(kind, name, text));
            Change::Replace(kind.to_owned(), all.collect())
        }),
    ]
}

fn any_commits() -> impl Strategy<Value = Vec<(Vec<Change>, Option<u64>)>> {
    let complete = prop::option::of(1..u64::from(u32::MAX));
    prop::collection::vec((prop::collection::vec(any_change(), 0..5), complete), 1..8)
}

/// Returns a list of each kind. A server also sends a list first, and objects of a kind that was not listed are
/// ignored.
fn listed() -> Vec<Change> {
    ["Pod", "PodX", "NetworkPolicy"].map(|kind| Change::Replace(kind.to_owned(), Vec::new())).into()
}

/// Writes commits, and returns the expected content after each.
fn write(path: &Path, commits: &[(Vec<Change>, Option<u64>)]) -> Vec<State> {
    let mut state = State::default();
    let mut file = StateFile::create(path, &state).unwrap();
    let mut states = vec![state.clone()];
    for (changes, complete) in [(listed(), None)].iter().chain(commits) {
        apply(&mut state, changes, *complete);
        file.commit(changes, *complete).unwrap();
        states.push(state.clone());
    }
    states
}

/// A way in which a file is damaged.
#[derive(Debug, Clone)]
enum Damage {
    Bit(prop::sample::Index, u8),
    Cut(prop::sample::Index),
    /// A range of zeros, as in a block that was never written.
    Zeros(prop::sample::Index, prop::sample::Index),
    Garbage(prop::sample::Index, Vec<u8>),
    Longer(Vec<u8>),
    /// A part of the file is copied to another place.
    Copy(prop::sample::Index, prop::sample::Index, prop::sample::Index),
}

fn any_damage() -> impl Strategy<Value = Damage> {
    let at = any::<prop::sample::Index>;
    let bytes = || prop::collection::vec(any::<u8>(), 1..600);
    prop_oneof![
        (at(), 0..8_u8).prop_map(|(at, bit)| Damage::Bit(at, bit)),
        at().prop_map(Damage::Cut),
        (at(), at()).prop_map(|(from, to)| Damage::Zeros(from, to)),
        (at(), bytes()).prop_map(|(at, bytes)| Damage::Garbage(at, bytes)),
        bytes().prop_map(Damage::Longer),
        (at(), at(), at()).prop_map(|(from, to, at)| Damage::Copy(from, to, at)),
    ]
}

fn harm(bytes: &mut Vec<u8>, damage: &Damage) {
    if bytes.is_empty() {
        return;
    }
    let len = bytes.len();
    let range = |from: &prop::sample::Index, to: &prop::sample::Index| {
        let (from, to) = (from.index(len), to.index(len));
        from.min(to)..from.max(to)
    };
    let overwrite = |bytes: &mut Vec<u8>, at: usize, by: &[u8]| {
        let by = &by[..by.len().min(len - at)];
        bytes[at..at + by.len()].copy_from_slice(by);
    };
    match damage {
        Damage::Bit(at, bit) => bytes[at.index(len)] ^= 1 << bit,
        Damage::Cut(at) => bytes.truncate(at.index(len)),
        Damage::Zeros(from, to) => bytes[range(from, to)].fill(0),
        Damage::Garbage(at, by) => overwrite(bytes, at.index(len), by),
        Damage::Longer(by) => bytes.extend(by),
        Damage::Copy(from, to, at) => {
            let part = bytes[range(from, to)].to_vec();
            overwrite(bytes, at.index(len), &part);
        }
    }
}

proptest! {
    /// Law: committed changes are read again, even if the file was opened again in between.
    #[test]
    fn what_was_committed_is_read_again(commits in any_commits(), more in any_commits()) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let mut state = write(&path, &commits).pop().unwrap();
        let (mut file, read) = StateFile::open(&path).unwrap().unwrap();
        prop_assert_eq!(&read, &state);
        for (changes, complete) in &more {
            apply(&mut state, changes, *complete);
            file.commit(changes, *complete).unwrap();
        }
        drop(file);
        let (file, read) = StateFile::open(&path).unwrap().unwrap();
        prop_assert_eq!(&read, &state);
        // A rewritten file has the same content.
        drop(file);
        drop(StateFile::create(&path, &state).unwrap());
        prop_assert_eq!(StateFile::open(&path).unwrap().unwrap().1, state);
    }

    /// Law: after any damage to its bytes, a file either gives a complete state that was committed, or is refused.
    #[test]
    fn a_damaged_file_is_a_whole_state_that_was_written_or_none(
        commits in any_commits(),
        damages in prop::collection::vec(any_damage(), 1..4),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let states = write(&path, &commits);
        let mut bytes = fs::read(&path).unwrap();
        for damage in &damages {
            harm(&mut bytes, damage);
        }
        fs::write(&path, bytes).unwrap();
        match StateFile::open(&path) {
            Ok(Some((_, read))) => prop_assert!(states.contains(&read), "{read:?}"),
            Ok(None) => prop_assert!(false, "the file is there"),
            Err(UnusableFile::File(_)) => {}
            Err(other) => prop_assert!(false, "{other}"),
        }
    }

    /// Law: a crash at any byte of the last commit leaves the state before or after this commit.
    #[test]
    fn a_crash_leaves_the_state_before_or_after_a_commit(
        commits in any_commits(),
        cut in any::<prop::sample::Index>(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let (last, earlier) = commits.split_last().unwrap();
        let before = write(&path, earlier).pop().unwrap();
        let old = fs::read(&path).unwrap();
        let (mut file, _) = StateFile::open(&path).unwrap().unwrap();
        file.commit(&last.0, last.1).unwrap();
        drop(file);
        let (new, mut after) = (fs::read(&path).unwrap(), before.clone());
        apply(&mut after, &last.0, last.1);
        // The bytes in the order in which they are written: first the lines, then one of the heads.
        let head = (0..2).map(|it| it * HEAD as usize).find(|at| new[*at..*at + 512] != old[*at..*at + 512]);
        let head = head.unwrap();
        let order: Vec<usize> = (old.len()..new.len()).chain(head..head + HEAD as usize).collect();
        let written = &order[..cut.index(order.len() + 1)];
        let mut torn = old.clone();
        for at in written {
            if *at == torn.len() { torn.push(new[*at]) } else { torn[*at] = new[*at] }
        }
        fs::write(&path, torn).unwrap();
        let read = StateFile::open(&path).unwrap().unwrap().1;
        prop_assert!(read == before || read == after);
        prop_assert!(written.len() < order.len() || read == after);
    }
}

#[test]
fn empty_foreign_and_special_files_are_no_state() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let refused = |expected: &str| match StateFile::open(&path) {
        Err(UnusableFile::File(reason)) => assert!(reason.contains(expected), "{reason}"),
        other => panic!("{other:?}"),
    };
    assert!(StateFile::open(&path).unwrap().is_none());
    let own = |bytes: &[u8]| {
        _ = fs::remove_file(&path);
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(MODE)).unwrap();
    };
    for bytes in [&b""[..], b"redb\x1a\n\xa9\r\n", &[0; 4096], &[0xff; 512], b"manx-state 2 1 0"] {
        own(bytes);
        refused("found no whole head");
    }
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    refused("no regular file");
    fs::remove_dir(&path).unwrap();
    drop(StateFile::create(&folder.path().join("elsewhere"), &State::default()).unwrap());
    symlink("elsewhere", &path).unwrap();
    refused("no regular file");
    fs::remove_file(&path).unwrap();
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    refused("no regular file");
}

#[test]
fn only_its_user_reads_the_file_and_what_others_may_have_written_is_not_believed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
    let set = |mode| fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    drop(StateFile::create(&path, &State::default()).unwrap());
    assert_eq!(mode(), 0o600);
    set(0o644);
    assert!(StateFile::open(&path).unwrap().is_some());
    assert_eq!(mode(), 0o600, "what others could read is corrected");
    for wide in [0o620, 0o602, 0o666] {
        set(wide);
        let opened = StateFile::open(&path);
        assert!(matches!(opened, Err(UnusableFile::File(_))), "{wide:o}: {opened:?}");
    }
    set(0o600);
    if geteuid().is_root() {
        nix::unistd::chown(&path, Some(12_345.into()), None).unwrap();
        let Err(UnusableFile::File(reason)) = StateFile::open(&path) else { panic!() };
        assert_eq!(reason, "found a file of user 12345, expected one of user 0");
    }
}

#[test]
fn one_process_has_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let _file = StateFile::create(&path, &State::default()).unwrap();
    assert!(matches!(StateFile::open(&path), Err(UnusableFile::InUse)));
}

#[test]
fn the_file_of_a_process_that_ends_is_the_next_ones() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let file = StateFile::create(&path, &State::default()).unwrap();
    let ends = thread::spawn(move || {
        thread::sleep(Duration::from_millis(300));
        drop(file);
    });
    assert!(StateFile::open(&path).unwrap().is_some());
    ends.join().unwrap();
}

#[test]
fn the_log_does_not_grow_with_the_number_of_changes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let mut state = write(&path, &[]).pop().unwrap();
    let mut file = StateFile::open(&path).unwrap().unwrap().0;
    let text = |at: usize| format!("{{\"at\":{at},\"filler\":{:?}}}", "x".repeat(10_000));
    let mut longest = 0;
    for at in 0..500 {
        let change = Change::Put(format!("Pod/shop/{}", at % 3), text(at));
        apply(&mut state, std::slice::from_ref(&change), None);
        file.commit(&[change], None).unwrap();
        longest = longest.max(fs::metadata(&path).unwrap().len());
        if at % 50 == 0 {
            // The agent restarts. The old file must not count towards the size that the objects need.
            drop(file);
            file = StateFile::open(&path).unwrap().unwrap().0;
        }
    }
    assert!(longest < 2 * GROWTH, "{longest} bytes for three objects of 10 kB");
    drop(file);
    assert_eq!(StateFile::open(&path).unwrap().unwrap().1, state);
}
