//! The input of the commands of `manx policy`: manifests, or a live cluster.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::PathBuf;

use clap::Args;

use super::live::Live;
use crate::Error;
use manx_datastore::{Read, read_with_texts};
use manx_objects::code::Code;
use manx_objects::contents::Contents;
use manx_objects::problem::{Problem, Severity};

/// The manifests that a command reads.
#[derive(Debug, Clone, Args)]
pub struct Manifests {
    /// Enter subdirectories of directories, too
    #[arg(long, short = 'R')]
    pub recursive: bool,
    /// Manifests, and directories, of which *.yaml, *.yml and *.json are read and subdirectories
    /// are not entered; - is standard input
    #[arg(value_name = "DIR|FILE", required_unless_present_any = ["live", "kubeconfig", "context"],
        conflicts_with_all = ["live", "kubeconfig", "context"])]
    pub paths: Vec<PathBuf>,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take it for the command's own description")]
    pub live: Live,
}

impl Manifests {
    /// Reads the manifests once.
    pub(crate) fn read(&self) -> Result<Contents, Error> {
        Ok(self.read_with_texts()?.contents)
    }

    /// Reads the manifests once, and keeps their texts. A live cluster has no texts.
    pub(super) fn read_with_texts(&self) -> Result<Read, Error> {
        if self.live.is_asked_for() {
            return Ok(Read { contents: self.live.read()?, texts: BTreeMap::new() });
        }
        Ok(read_with_texts(self.paths.iter().map(PathBuf::as_path), self.recursive))
    }
}

/// Prints the invalid objects, which fail closed, and the folders that were skipped. Returns an
/// error if some objects could not be read.
pub(crate) fn report_invalid(contents: &Contents) -> Result<(), Error> {
    let is_reported = |problem: &&Problem| {
        problem.severity == Severity::Error || problem.code() == Code::SkippedFolder
    };
    for problem in contents.problems.iter().filter(is_reported) {
        // This fails if standard error is closed, and then there is no reader.
        let _ = writeln!(io::stderr(), "{problem}");
    }
    if contents.in_sync {
        return Ok(());
    }
    let problems: Vec<String> = contents.problems.iter().map(Problem::summary).collect();
    Err(Error::Invalid(format!(
        "not everything can be read, so it is not known what is in force: {}",
        problems.join("; ")
    )))
}
