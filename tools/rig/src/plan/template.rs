//! The files that `manx rig init` writes: a small commented rig, whose check passes without
//! changes.

use std::fs;
use std::io;
use std::path::Path;

use manx_linux::private;

/// The files: name and content.
pub const FILES: [(&str, &str); 4] = [
    ("nodes.yaml", include_str!("template/nodes.yaml")),
    ("pods.yaml", include_str!("template/pods.yaml")),
    ("policies.yaml", include_str!("template/policies.yaml")),
    ("rig.yaml", include_str!("template/rig.yaml")),
];

/// Writes the files into `directory`, which is made if it does not exist. If one of the files
/// already exists, that is an error, and nothing is written.
pub fn write(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    for (name, _) in FILES {
        let path = directory.join(name);
        // A symbolic link counts as an existing file, even if its target does not exist.
        if path.symlink_metadata().is_ok() {
            let message = format!("{} is there already: nothing was written", path.display());
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
        }
    }
    let write =
        |(name, text): (_, &str)| private::write_new(&directory.join(name), text.as_bytes());
    FILES.into_iter().try_for_each(write)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;
    use crate::plan::input;
    use manx_datastore::Store;

    #[test]
    fn the_template_is_a_rig() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path()).unwrap();
        let input = input::read(folder.path(), false, manx_assume::Options::default()).unwrap();
        assert_eq!(input.warnings, Vec::<String>::new());
        let live = tempfile::tempdir().unwrap();
        input.objects.write(live.path()).unwrap();
        let contents = Store::load(live.path());
        let plan = Plan::make(&contents, &input.settings).unwrap();
        assert_eq!((plan.nodes.len(), plan.pods.len()), (2, 3));
    }

    #[test]
    fn what_is_there_is_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("pods.yaml"), "mine").unwrap();
        assert!(write(folder.path()).is_err());
        assert_eq!(fs::read_to_string(folder.path().join("pods.yaml")).unwrap(), "mine");
        assert!(!folder.path().join("nodes.yaml").exists());
    }

    #[test]
    fn a_link_to_nowhere_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let elsewhere = folder.path().join("elsewhere");
        std::os::unix::fs::symlink(&elsewhere, folder.path().join("pods.yaml")).unwrap();
        assert!(write(folder.path()).is_err());
        assert!(!elsewhere.exists() && !folder.path().join("nodes.yaml").exists());
    }
}
