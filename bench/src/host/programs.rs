//! Programs of other projects. The bench measures the ones that are installed.

use std::env;
use std::os::unix::fs::PermissionsExt as _;

/// Why a row that needs these programs cannot be measured here. `None` if it can.
pub fn why_missing(programs: &[&str], package: &str) -> Option<String> {
    let missing: Vec<&str> = programs.iter().copied().filter(|program| !is_here(program)).collect();
    (!missing.is_empty()).then(|| {
        format!("{} not found: on Debian and Ubuntu, apt-get install {package}", missing.join(", "))
    })
}

/// Whether a program is found by its name.
fn is_here(program: &str) -> bool {
    let folders = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&folders).any(|folder| {
        let metadata = folder.join(program).metadata();
        metadata.is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_with_what_to_do() {
        assert_eq!(why_missing(&["sh"], "dash"), None);
        let why = why_missing(&["sh", "no-such-program"], "nothing").unwrap();
        assert_eq!(why, "no-such-program not found: on Debian and Ubuntu, apt-get install nothing");
    }
}
