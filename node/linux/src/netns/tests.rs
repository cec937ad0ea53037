use super::*;
use crate::testing::namespaces_allowed;

#[test]
fn a_named_namespace_is_entered_by_one_thread_and_goes_with_its_name() {
    if !namespaces_allowed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pod");
    let made = create_named(&path).unwrap();
    assert!(same(&made, open(&path).unwrap()).unwrap());
    assert!(!same(&made, current().unwrap()).unwrap());
    let inside = run_in(&made, || same(current().unwrap(), open(&path).unwrap()).unwrap()).unwrap();
    assert!(inside, "the work runs in the namespace");
    assert!(!same(&made, current().unwrap()).unwrap(), "the caller stays outside");
    assert!(matches!(create_named(&path), Err(Error::Name { .. })), "a name is given once");
    delete(&path).unwrap();
    assert!(!path.exists());
    delete(&path).unwrap();
}

#[test]
fn settings_are_those_of_the_namespace() {
    if !namespaces_allowed() {
        return;
    }
    let here = sysctl::read("ipv4/ip_forward").unwrap();
    let netns = create().unwrap();
    run_in(&netns, || {
        sysctl::set("ipv4/ip_forward", "1").unwrap();
        assert_eq!(sysctl::read("ipv4/ip_forward").unwrap(), "1");
        sysctl::set("ipv4/ip_forward", "0").unwrap();
        assert_eq!(sysctl::read("ipv4/ip_forward").unwrap(), "0");
    })
    .unwrap();
    assert_eq!(sysctl::read("ipv4/ip_forward").unwrap(), here);
}

#[test]
fn a_file_that_is_no_namespace_is_told_apart() {
    let file = tempfile::NamedTempFile::new().unwrap();
    assert!(matches!(open(file.path()), Err(Error::NotANamespace(_))));
    assert!(matches!(open(Path::new("/nonexistent/netns")), Err(Error::Open { .. })));
}

#[test]
fn a_process_with_threads_does_not_enter() {
    // The test harness runs this test in a second thread.
    let here = current().unwrap();
    assert!(matches!(enter(&here), Err(Error::Threads(n)) if n > 1));
}
