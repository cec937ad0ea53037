//! Sets `MANX_COMMIT` to the commit of the source for the program's build, if this is a git checkout.
//!
//! It does not run git. It runs again only if `HEAD`, or the branch that `HEAD` names, changes.

use std::fs;
use std::path::{Path, PathBuf};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let root =
        std::env::var_os("CARGO_MANIFEST_DIR").map(|package| Path::new(&package).join("../.."));
    let git = root.and_then(|root| git_folder(&root));
    if let Some(commit) = git.and_then(|git| commit(&git)) {
        println!("cargo::rustc-env=MANX_COMMIT={commit}");
    }
}

/// `.git`, or what it points to in a worktree (gitrepository-layout(5)).
fn git_folder(root: &Path) -> Option<PathBuf> {
    let git = root.join(".git");
    if git.is_dir() {
        return Some(git);
    }
    let text = fs::read_to_string(&git).ok()?;
    Some(root.join(text.strip_prefix("gitdir:")?.trim()))
}

fn commit(git: &Path) -> Option<String> {
    let head = watched(&git.join("HEAD"))?;
    let head = head.trim();
    let Some(name) = head.strip_prefix("ref:").map(str::trim) else { return checked(head) };
    // All worktrees share the branches in one folder.
    let common = fs::read_to_string(git.join("commondir"));
    let common = common.map_or_else(|_| git.to_owned(), |path| git.join(path.trim()));
    if let Some(commit) = watched(&common.join(name)) {
        return checked(commit.trim());
    }
    // A packed branch gets its own file with the next commit, so its folder is watched.
    if let Some(folder) = common.join(name).parent().filter(|folder| folder.is_dir()) {
        println!("cargo::rerun-if-changed={}", folder.display());
    }
    let packed = watched(&common.join("packed-refs"))?;
    let of_name =
        |line: &str| Some(line.split_once(' ').filter(|(_, of)| *of == name)?.0.to_owned());
    checked(&packed.lines().find_map(of_name)?)
}

/// Reads a file, and watches it if it exists. Cargo counts a missing file as changed in every build.
fn watched(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    println!("cargo::rerun-if-changed={}", path.display());
    Some(text)
}

/// The first 12 digits of a commit's name. `None`: it is not a commit's name.
fn checked(name: &str) -> Option<String> {
    let is_name = name.len() >= 40 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    Some(name.get(..12)?.to_owned()).filter(|_| is_name)
}
