mod changes;

use std::fmt::Write as _;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use std::time::Duration;

use super::file::Moment;
use super::{Contents, STANDS, Store};
use crate::Source;
use crate::watch::{WakeUp, Watcher};
use manx_objects::State;
use manx_objects::object::{Kind, Object, ObjectKey, Subject};
use manx_objects::problem::{MOST_OF_OBJECT, Problem, Severity};

const POLICY: &str = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: web}\n\
                      spec: {podSelector: {matchLabels: {app: web}}}\n";

fn namespace(name: &str, team: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}, labels: {{team: {team}}}}}\n"
    )
}

fn names(contents: &Contents) -> Vec<&str> {
    contents.objects.keys().map(|key| key.name.as_str()).collect()
}

fn key(kind: Kind, namespace: &str, name: &str) -> ObjectKey {
    ObjectKey { kind, namespace: namespace.to_owned(), name: name.to_owned() }
}

/// Returns the label `team` of a namespace, if the namespace is valid.
fn team(contents: &Contents, name: &str) -> Option<String> {
    match &contents.objects[&key(Kind::Namespace, "", name)].state {
        State::Valid(object) => match &**object {
            Object::Namespace(namespace) => namespace.labels.get("team").cloned(),
            _ => None,
        },
        State::Invalid(_) => None,
    }
}

/// Writes a file in the recommended way: a temporary file, then a rename.
fn put(directory: &Path, name: &str, text: &str) {
    let temporary = directory.join(format!(".{name}.tmp"));
    fs::write(&temporary, text).unwrap();
    fs::rename(temporary, directory.join(name)).unwrap();
}

#[test]
fn what_cannot_be_a_manifest_and_is_called_one_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    put(path, "a.yaml", &namespace("a", "x"));
    std::os::unix::fs::symlink("a.yaml", path.join("b.yaml")).unwrap();
    assert!(Store::load(path).in_sync);
    let latin = std::ffi::OsStr::from_bytes(b"p\xe9.yaml");
    fs::write(path.join(latin), POLICY).unwrap();
    nix::unistd::mkfifo(&path.join("fifo.yaml"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let contents = Store::load(path);
    assert!(!contents.in_sync);
    let of_files = contents.problems.iter().filter(|it| it.severity == Severity::Error);
    let told: Vec<String> = of_files.map(Problem::summary).collect();
    assert_eq!(
        told,
        [
            "fifo.yaml: cannot be read: is no regular file, nor a link to one: replace it by one",
            "p\u{fffd}.yaml: cannot be read: its name is not UTF-8: rename it"
        ]
    );
}

#[test]
fn manifests_are_read_by_extension_and_nothing_else_is() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    put(path, "a.yaml", &namespace("a", "x"));
    put(path, "b.yml", &namespace("b", "x"));
    put(path, "c.json", r#"{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "c"}}"#);
    put(path, "d.txt", &namespace("d", "x"));
    put(path, ".e.yaml", &namespace("e", "x"));
    fs::create_dir(path.join("f.yaml")).unwrap();
    put(&path.join("f.yaml"), "f.yaml", &namespace("f", "x"));
    let contents = Store::load(path);
    assert_eq!(names(&contents), ["a", "b", "c"]);
    assert!(contents.in_sync && contents.problems.is_empty(), "{:?}", contents.problems);
}

#[test]
fn a_half_written_file_keeps_its_last_good_state_and_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = Store::new(directory.path());
    put(directory.path(), "a.yaml", &namespace("a", "x"));
    assert!(store.refresh().is_some());
    assert!(store.contents().problems.is_empty());

    put(directory.path(), "a.yaml", "apiVersion: v1\nkind: Namespace\nmetadata: {name: a, lab");
    assert!(store.refresh().is_some());
    let contents = store.contents();
    assert_eq!(team(contents, "a").as_deref(), Some("x"));
    assert_eq!(contents.problems.len(), 1);
    assert!(contents.in_sync);

    put(directory.path(), "a.yaml", &namespace("a", "w"));
    assert!(store.refresh().is_some());
    let contents = store.contents();
    assert_eq!(team(contents, "a").as_deref(), Some("w"));
    assert!(contents.problems.is_empty());
}

#[test]
fn a_file_that_becomes_an_alias_bomb_keeps_its_last_good_state_and_its_neighbour_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = Store::new(directory.path());
    put(directory.path(), "a.yaml", &namespace("a", "x"));
    assert!(store.refresh().is_some());

    let mut bomb = format!("{}x0: &x0 {}\n", namespace("a", "w"), "z".repeat(1000));
    for level in 1..9 {
        let aliases = format!("*x{}, ", level - 1).repeat(10);
        writeln!(bomb, "x{level}: &x{level} [{aliases}]").unwrap();
    }
    put(directory.path(), "a.yaml", &bomb);
    put(directory.path(), "b.yaml", &namespace("b", "v"));
    assert!(store.refresh().is_some());
    let contents = store.contents();
    assert_eq!(team(contents, "a").as_deref(), Some("x"));
    assert_eq!(team(contents, "b").as_deref(), Some("v"));
    assert_eq!(contents.problems.len(), 1);
    let told = contents.problems[0].summary();
    assert!(told.starts_with("a.yaml:7:50: anchors and aliases repeat more than"), "{told}");
}

#[test]
fn a_file_that_was_never_readable_keeps_the_store_out_of_sync_at_start_only() {
    let directory = tempfile::tempdir().unwrap();
    put(directory.path(), "a.yaml", "[");
    let mut store = Store::new(directory.path());
    store.refresh();
    assert!(!store.contents().in_sync);
    put(directory.path(), "a.yaml", &namespace("a", "x"));
    store.refresh();
    assert!(store.contents().in_sync);
    put(directory.path(), "b.yaml", "[");
    store.refresh();
    let contents = store.contents();
    assert!(contents.in_sync);
    assert_eq!(contents.problems.len(), 1);
}

#[test]
fn text_that_is_not_utf_8_is_reported_like_bad_syntax() {
    let directory = tempfile::tempdir().unwrap();
    put(directory.path(), "a.yaml", &namespace("a", "x"));
    let mut store = Store::new(directory.path());
    store.refresh();
    fs::write(directory.path().join("a.yaml"), b"a: \xff\n").unwrap();
    assert!(store.refresh().is_some());
    let contents = store.contents();
    assert_eq!(names(contents), ["a"]);
    assert_eq!(
        contents.problems[0].to_string(),
        "error[unreadable-file]: cannot be read: byte 3 is not UTF-8: save it as UTF-8, e.g. `iconv -f LATIN1 -t UTF-8`\n --> a.yaml"
    );
    put(directory.path(), "a.yaml", &namespace("a", "x"));
    assert!(store.refresh().is_some());
    assert!(store.contents().problems.is_empty());
}

#[test]
fn an_object_that_turns_invalid_is_invalid_and_not_its_former_self() {
    let directory = tempfile::tempdir().unwrap();
    put(directory.path(), "a.yaml", POLICY);
    let mut store = Store::new(directory.path());
    store.refresh();
    put(directory.path(), "a.yaml", &POLICY.replace("spec: {", "spec: {ingress: 5, "));
    store.refresh();
    let contents = store.contents();
    let State::Invalid(invalid) =
        &contents.objects[&key(Kind::NetworkPolicy, "default", "web")].state
    else {
        panic!()
    };
    let Some(Subject::Kubernetes(selector)) = &invalid.subject else { panic!() };
    assert_eq!(selector.match_labels.get("app").unwrap(), "web");
}

#[test]
fn a_file_that_goes_takes_its_objects_and_a_directory_that_goes_does_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("manifests");
    fs::create_dir(&path).unwrap();
    put(&path, "a.yaml", &namespace("a", "x"));
    put(&path, "b.yaml", &namespace("b", "x"));
    let mut store = Store::new(&path);
    store.refresh();
    fs::remove_file(path.join("b.yaml")).unwrap();
    assert!(store.refresh().is_some());
    assert_eq!(names(store.contents()), ["a"]);

    fs::remove_dir_all(&path).unwrap();
    assert!(store.refresh().is_some());
    let contents = store.contents();
    assert_eq!(names(contents), ["a"]);
    assert_eq!(contents.problems.len(), 1);
    assert!(store.refresh().is_none(), "nothing new");
}

/// A store that has read one file, and that can read it again at a given time.
struct Watched {
    directory: tempfile::TempDir,
    store: Store,
    start: Moment,
}

impl Watched {
    fn new(text: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        put(directory.path(), "a.yaml", text);
        let mut watched =
            Self { store: Store::new(directory.path()), directory, start: Moment::now() };
        assert!(watched.look(Duration::ZERO));
        assert!(watched.problems().is_empty());
        watched
    }

    /// Reads again, at this time after the start. Returns whether anything changed.
    fn look(&mut self, later: Duration) -> bool {
        let Moment { wall, monotonic } = self.start;
        let now = Moment { wall: wall + later, monotonic: monotonic + later };
        self.store.refresh_at(now).is_some()
    }

    /// Writes the file in place, like `cat >`.
    fn write(&self, text: &str) {
        fs::write(self.directory.path().join("a.yaml"), text).unwrap();
    }

    fn names(&self) -> Vec<String> {
        names(self.store.contents()).into_iter().map(str::to_owned).collect()
    }

    fn problems(&self) -> Vec<String> {
        self.store.contents().problems.iter().map(ToString::to_string).collect()
    }
}

fn two() -> String {
    format!("{}---\n{}", namespace("a", "x"), namespace("b", "x"))
}

#[test]
fn an_emptied_file_keeps_its_objects_until_it_is_removed() {
    // An object of another project's kind counts as a workload. It is not a reason to remove the
    // objects that were read before.
    let rollout = "{apiVersion: argoproj.io/v1alpha1, kind: Rollout, metadata: {name: web}, spec: {template: {metadata: {labels: {app: web}}}}}";
    for empty in ["", "# nothing\n", "---\n---\n", rollout] {
        let mut watched = Watched::new(&two());
        watched.write(empty);
        assert!(watched.look(STANDS / 2), "{empty:?}");
        for later in [STANDS * 2, STANDS * 1000] {
            assert!(!watched.look(later));
            assert_eq!(watched.names(), ["a", "b"], "{empty:?}");
        }
        insta::allow_duplicates! {
            insta::assert_snapshot!(watched.problems().join("\n"), @r"
            error[emptied-file]: held 2 objects and holds none any more: they stay in force, because a save may have failed; remove the file to remove its objects
             --> a.yaml
            ");
        }
        fs::remove_file(watched.directory.path().join("a.yaml")).unwrap();
        assert!(watched.look(STANDS * 1001));
        assert!(watched.names().is_empty() && watched.problems().is_empty());
    }
}

#[test]
fn a_file_cut_between_two_documents_is_believed_once_it_has_stood() {
    let mut watched = Watched::new(&two());
    let fingerprint = watched.store.contents().fingerprint;
    watched.write(&namespace("a", "x"));
    let cut = STANDS / 2;
    assert!(watched.look(cut));
    assert!(watched.store.has_unsettled_file());
    assert!(!watched.look(cut + STANDS * 999 / 1000));
    assert_eq!(watched.names(), ["a", "b"]);
    assert_eq!(watched.store.contents().fingerprint, fingerprint);
    insta::assert_snapshot!(watched.problems().join("\n"), @r"
    error[shrunk-file]: has less content than before (1 objects fewer) and may be half written: its previous content stays in force until the file has not changed for 2 s
     --> a.yaml
    ");
    assert!(watched.look(cut + STANDS));
    assert_eq!(watched.names(), ["a"]);
    assert!(watched.problems().is_empty() && !watched.store.has_unsettled_file());
    assert_ne!(watched.store.contents().fingerprint, fingerprint);
}

#[test]
fn a_save_in_pieces_takes_nothing_away_however_slow_it_is() {
    let mut watched = Watched::new(&two());
    let whole = format!("{}---\n{}", two(), namespace("c", "x"));
    let mut later = Duration::ZERO;
    for end in 0..whole.len() {
        watched.write(&whole[..end]);
        later += STANDS * 999 / 1000;
        watched.look(later);
        let names = watched.names();
        assert!(names.starts_with(&["a".to_owned(), "b".to_owned()]), "{end}: {names:?}");
    }
    watched.write(&whole);
    watched.look(later);
    assert_eq!(watched.names(), ["a", "b", "c"]);
    assert!(watched.problems().is_empty());
}

#[test]
fn a_source_believes_what_stands_without_being_told_and_never_what_passes() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.yaml");
    put(directory.path(), "a.yaml", &two());
    let mut source = Source::open_directory(directory.path()).unwrap();
    let mut look = async || {
        source.next().await;
        let contents = source.contents();
        (names(contents).len(), contents.problems.len())
    };
    runtime.block_on(async {
        fs::write(&path, "").unwrap();
        assert_eq!(look().await, (2, 1));
        fs::write(&path, namespace("a", "x")).unwrap();
        assert_eq!(look().await, (2, 1));
        let cut = std::time::Instant::now();
        assert_eq!(look().await, (1, 0));
        assert!(cut.elapsed() >= STANDS * 9 / 10, "{:?}", cut.elapsed());
    });
}

#[test]
fn a_document_cut_within_is_doubted_in_place_and_believed_when_renamed() {
    // If the text ends at the end of a line, the policy isolates only one direction instead of two.
    let policy = POLICY.replace("}}\n", "}, policyTypes: [Ingress, Egress]}\n");
    let mut watched = Watched::new(&format!("{policy}# end\n"));
    let team = |watched: &Watched| {
        let State::Valid(object) =
            &watched.store.contents().objects[&key(Kind::NetworkPolicy, "default", "web")].state
        else {
            panic!()
        };
        let Object::NetworkPolicy(policy) = &**object else { panic!() };
        policy.policy_types.as_ref().map(Vec::len)
    };
    watched.write(POLICY);
    watched.look(Duration::from_millis(1));
    assert_eq!(team(&watched), Some(2));
    put(watched.directory.path(), "a.yaml", &format!("{POLICY}#\n"));
    watched.look(Duration::from_millis(2));
    assert_eq!(team(&watched), None);
    assert!(watched.problems().is_empty());
}

#[test]
fn an_object_defined_differently_twice_is_invalid() {
    let contents = Contents::from_texts([
        ("a.yaml", &*namespace("a", "x")),
        ("b.yaml", &*namespace("a", "w")),
    ]);
    assert_eq!(team(&contents, "a"), None);
    insta::assert_snapshot!(contents.problems[0]);

    let other = POLICY.replace("app: web", "app: other");
    for (second, kept) in [(other, false), (POLICY.replace("spec:", "spec: &x"), true)] {
        let contents = Contents::from_texts([("a.yaml", POLICY), ("b.yaml", &*second)]);
        let state = &contents.objects[&key(Kind::NetworkPolicy, "default", "web")].state;
        assert_eq!(matches!(state, State::Valid(_)), kept);
        if let State::Invalid(invalid) = state {
            assert_eq!(invalid.subject, None, "both sets of pods may be meant");
        }
    }
}

#[test]
fn the_same_object_twice_is_only_warned_of() {
    let text = namespace("a", "x");
    let contents = Contents::from_texts([("a.yaml", &*text), ("b.yaml", &*text)]);
    assert_eq!(team(&contents, "a").as_deref(), Some("x"));
    assert_eq!(contents.problems[0].severity, Severity::Warning);
    insta::assert_snapshot!(contents.problems[0]);
}

#[test]
fn of_very_many_definitions_of_one_object_the_first_are_told_and_the_others_counted() {
    let text = format!("{}---\n", namespace("a", "x")).repeat(400);
    let contents = Contents::from_texts([("a.yaml", &*text)]);
    assert_eq!(contents.problems.len(), MOST_OF_OBJECT + 1);
    let last = contents.problems.last().unwrap().summary();
    assert!(last.contains("299 further problems of this object are not shown"), "{last}");
}

#[test]
fn nothing_changed_means_nothing_to_do_and_a_change_within_a_clock_tick_is_seen() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.yaml");
    fs::write(&path, namespace("a", "x")).unwrap();
    let mut store = Store::new(directory.path());
    assert!(store.refresh().is_some());
    assert!(store.refresh().is_none());
    for round in 0..50 {
        let team_name = if round % 2 == 0 { "w" } else { "z" };
        fs::write(&path, namespace("a", team_name)).unwrap();
        assert!(store.refresh().is_some());
        assert_eq!(team(store.contents(), "a").as_deref(), Some(team_name));
    }
}

#[test]
fn a_link_to_nowhere_is_reported_and_keeps_the_store_out_of_sync() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.yaml");
    std::os::unix::fs::symlink("elsewhere", &path).unwrap();
    let mut store = Store::new(directory.path());
    assert!(store.refresh().is_some());
    let contents = store.contents();
    assert!(!contents.in_sync);
    assert_eq!(contents.problems.len(), 1);
    fs::remove_file(path).unwrap();
    assert!(store.refresh().is_some());
    assert!(store.contents().in_sync);
}

#[test]
fn a_watcher_tells_of_a_change_soon_and_looks_again_when_nothing_is_told() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let mut watcher = Watcher::new(directory.path());
    put(directory.path(), "a.yaml", &namespace("a", "x"));
    assert_eq!(runtime.block_on(watcher.changed()), WakeUp::Event);
    let missing = directory.path().join("missing");
    let mut watcher = Watcher::new(&missing);
    assert_eq!(runtime.block_on(watcher.changed()), WakeUp::Rescan);
}

#[test]
fn a_watcher_whose_future_is_dropped_again_and_again_still_tells() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let mut watcher = Watcher::new(directory.path());
    put(directory.path(), "a.yaml", &namespace("a", "x"));
    let tick = Duration::from_millis(7);
    let told = runtime.block_on(async {
        for _ in 0..200 {
            if let Ok(change) = tokio::time::timeout(tick, watcher.changed()).await {
                return Some(change);
            }
        }
        None
    });
    assert_eq!(told, Some(WakeUp::Event));
}
