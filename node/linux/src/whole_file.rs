//! Files that are replaced as a whole: the content is written under another name in the same folder, and renamed. A reader
//! finds either the old content or the new one.

use std::ffi::OsString;
use std::fs::{File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use tempfile::NamedTempFile;

/// Replaces a file or makes it, with the mode that [`std::fs::write`] gives to a new one.
///
/// It does not wait for the disk: after a crash of the machine the file may be the old one, or damaged.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut beside = beside(path, 0o666)?;
    beside.write_all(bytes)?;
    beside.persist(path)?;
    Ok(())
}

/// Replaces a file or makes it, with this mode whatever the umask is. When it returns, the content is on disk.
///
/// # Errors
/// The file is the old one, except if the folder cannot be synced: then it is the new one, and a crash of the machine may
/// bring the old one back.
pub fn replace_durably(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut beside = beside(path, mode)?;
    beside.write_all(bytes)?;
    // The umask may have removed permissions.
    beside.as_file().set_permissions(Permissions::from_mode(mode))?;
    beside.as_file().sync_all()?;
    beside.persist(path)?;
    // The rename is on disk only after the folder is synced.
    File::open(folder_of(path))?.sync_all()
}

/// A new file in the same folder. Its name begins with a dot, and has none of the extensions that programs look for. It is
/// removed when it is dropped.
fn beside(path: &Path, mode: u32) -> io::Result<NamedTempFile> {
    let mut prefix = OsString::from(".");
    prefix.push(path.file_name().unwrap_or_default());
    prefix.push(".");
    tempfile::Builder::new()
        .prefix(&prefix)
        .permissions(Permissions::from_mode(mode))
        .tempfile_in(folder_of(path))
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_is_made_or_replaced_whole_and_nothing_is_left_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record");
        replace(&path, b"one").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let plain = folder.path().join("plain");
        fs::write(&plain, "").unwrap();
        assert_eq!(mode(&path), mode(&plain), "as of any new file");
        fs::remove_file(plain).unwrap();
        // A reader that has the old file open continues with the old content.
        let mut old = File::open(&path).unwrap();
        replace_durably(&path, b"two", 0o622).unwrap();
        assert_eq!(io::read_to_string(&mut old).unwrap(), "one");
        assert_eq!((fs::read(&path).unwrap(), mode(&path)), (b"two".to_vec(), 0o622));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_cannot_be_renamed_leaves_nothing_beside() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record");
        fs::create_dir(&path).unwrap();
        replace(&path, b"one").unwrap_err();
        replace_durably(&path, b"one", 0o600).unwrap_err();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_path_without_a_folder_is_in_the_current_one() {
        assert_eq!(folder_of(Path::new("record")), Path::new("."));
        assert_eq!(folder_of(Path::new("/run/manx/record")), Path::new("/run/manx"));
    }
}
