//! Checks the folders that a rig needs, without making them.

use std::path::PathBuf;

use nix::errno::Errno;
use nix::unistd::{AccessFlags, access};

use super::lack::{Capability, Check, Lack};
use crate::private;

/// Checks that there can be a folder for rigs, and a folder for what a rig leaves when a result deviates.
pub(super) fn folders() -> Check {
    let rigs = usable(private::of_rigs(), "XDG_RUNTIME_DIR")?;
    let left = usable(private::temporary(), "TMPDIR")?;
    Ok(format!("rigs are kept in {}, what they leave in {}", rigs.display(), left.display()))
}

/// Returns the folder if it can be made, or if files can be made in it.
fn usable(folder: Result<PathBuf, private::Error>, variable: &str) -> Result<PathBuf, Lack> {
    let folder = folder.map_err(|error| lack(&error, variable))?;
    for place in folder.ancestors() {
        match access(place, AccessFlags::W_OK | AccessFlags::X_OK) {
            Ok(()) => break,
            Err(Errno::ENOENT) => {}
            Err(errno) => {
                let path = place.to_owned();
                return Err(lack(&private::Error::File { path, source: errno.into() }, variable));
            }
        }
    }
    Ok(folder)
}

fn lack(error: &private::Error, variable: &str) -> Lack {
    Lack {
        capability: Capability::Folders,
        found: error.to_string(),
        cost: "a rig has no place for its sockets, or for what a deviation leaves".to_owned(),
        remedy: format!(
            "set {variable} to a folder of your own; in a container: --tmpfs /run --tmpfs /tmp"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_can_be_made_is_usable_and_is_not_made() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("a/b");
        assert_eq!(usable(Ok(deep.clone()), "TMPDIR").unwrap(), deep);
        assert!(!folder.path().join("a").exists());
    }

    #[test]
    fn a_folder_that_cannot_be_made_has_its_sentence() {
        // A device contains no folders.
        let told = usable(Ok("/dev/null/rigs".into()), "XDG_RUNTIME_DIR").unwrap_err();
        insta::assert_snapshot!(told, @r"
        /dev/null/rigs: Not a directory (os error 20): a rig has no place for its sockets, or for what a deviation leaves; set XDG_RUNTIME_DIR to a folder of your own; in a container: --tmpfs /run --tmpfs /tmp
        ");
    }
}
