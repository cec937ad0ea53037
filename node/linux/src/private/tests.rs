use crate::testing::{Need, skip};
use std::os::unix::fs::{chown, symlink};

use super::*;

/// The number of a user without an account.
const STRANGER: u32 = 61_337;

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    set_mode(folder.path(), 0o700);
    folder
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Gives a path to another user, or to another group. Returns whether that is allowed, which is so only for root. If not,
/// the rest of the calling test [cannot run](skip).
fn give_away(path: &Path, user: Option<u32>, group: Option<u32>) -> bool {
    if geteuid().is_root() && chown(path, user, group).is_ok() {
        return true;
    }
    skip(Need::Root, "the part with another user's file", "only root can give files away");
    false
}

#[test]
fn a_folder_is_believed_if_it_is_the_callers_own_and_no_link() {
    let folder = folder();
    let path = folder.path().join("own");
    assert!(
        matches!(examine(&path), Err(Error::File { source, .. }) if source.kind() == ErrorKind::NotFound)
    );
    make(&path).unwrap();
    assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o700);
    examine(&path).unwrap();
    make(&path).unwrap();
    let metadata = path.metadata().unwrap();
    let in_a_group = metadata.gid() != metadata.uid();
    for (mode, shared) in [(0o755, false), (0o775, in_a_group), (0o707, true), (0o1777, true)] {
        set_mode(&path, mode);
        assert_eq!(matches!(make(&path), Err(Error::Shared { .. })), shared, "{mode:o}");
    }
    set_mode(&path, 0o770);
    assert!(is_shared(0o770, 1000, 100) && !is_shared(0o770, 1000, 1000), "also the primary group");
    if give_away(&path, None, Some(STRANGER)) {
        assert!(matches!(examine(&path), Err(Error::Shared { .. })), "another group");
    }
    let link = folder.path().join("link");
    symlink(&path, &link).unwrap();
    assert!(matches!(make(&link), Err(Error::NotAFolder(_))));
    fs::remove_file(&link).unwrap();
    symlink("/nowhere/at/all", &link).unwrap();
    assert!(matches!(make(&link), Err(Error::NotAFolder(_))));
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(matches!(make(&file), Err(Error::NotAFolder(_))));
    set_mode(&path, 0o700);
    // An ordinary user's test uses a folder of root.
    let given = give_away(&path, Some(STRANGER), None);
    let foreign = if given { path } else { PathBuf::from("/usr") };
    let error = make(&foreign).unwrap_err();
    assert!(matches!(error, Error::Foreign { owner, .. } if owner != geteuid().as_raw()));
    assert!(error.to_string().contains(" belongs to user "), "{error}");
}

#[test]
fn nobody_foresees_the_name_of_a_folder_for_results() {
    let within = folder();
    let made = [(); 2].map(|()| make_unpredictable(within.path(), "manx-rig-shop-").unwrap());
    assert_ne!(made[0], made[1]);
    for path in made {
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(
            name.starts_with("manx-rig-shop-") && name.len() > "manx-rig-shop-".len(),
            "{name}"
        );
        assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o700);
    }
}

#[test]
fn a_file_is_made_and_never_through_a_link() {
    let folder = folder();
    let [target, path] = ["target", "path"].map(|name| folder.path().join(name));
    fs::write(&target, "precious").unwrap();
    symlink(&target, &path).unwrap();
    assert!(write_new(&path, b"mine").is_err() && replace(&path).is_err());
    fs::remove_file(&path).unwrap();
    symlink(folder.path().join("elsewhere"), &path).unwrap();
    assert!(write_new(&path, b"mine").is_err() && replace(&path).is_err());
    assert!(!folder.path().join("elsewhere").exists());
    fs::remove_file(&path).unwrap();
    fs::hard_link(&target, &path).unwrap();
    assert!(write_new(&path, b"mine").is_err() && replace(&path).is_err());
    assert_eq!(fs::read_to_string(&target).unwrap(), "precious");
    fs::remove_file(&path).unwrap();
    symlink("/dev/null", &path).unwrap();
    assert!(write_new(&path, b"mine").is_err());
    replace(&path).unwrap().write_all(b"dropped").unwrap();
    fs::remove_file(&path).unwrap();
    let (mut reader, writer) = io::pipe().unwrap();
    symlink(format!("/proc/self/fd/{}", writer.as_raw_fd()), &path).unwrap();
    replace(&path).unwrap().write_all(b"read").unwrap();
    drop(writer);
    let mut read = String::new();
    io::Read::read_to_string(&mut reader, &mut read).unwrap();
    assert_eq!(read, "read");
    fs::remove_file(&path).unwrap();
    write_new(&path, b"mine").unwrap();
    assert!(write_new(&path, b"other").is_err());
    assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
}

#[test]
fn a_file_of_the_callers_own_is_replaced_and_nobody_elses() {
    let folder = folder();
    let path = folder.path().join("file");
    replace(&path).unwrap().write_all(b"a long first text").unwrap();
    replace(&path).unwrap().write_all(b"short").unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "short");
    replace(Path::new("/dev/null")).unwrap().write_all(b"root's").unwrap();
    // Only root can make another user's file. An ordinary user's test uses a file of root, which that user could not write
    // anyway.
    if give_away(&path, Some(STRANGER), None) {
        assert_eq!(replace(&path).unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).unwrap(), "short");
    }
}
