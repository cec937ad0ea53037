//! The completion of manifests: it adds the objects and fields that a cluster would add.

use std::io::{self, Write as _};

use clap::Args;

use crate::Error;
use crate::output;
use manx_assume::{Assumed, Options, Refusal};
use manx_objects::contents::Contents;

/// The settings of the completion.
#[derive(Debug, Clone, Default, Args)]
pub struct Assume {
    /// Pods of each workload that has none in the manifests [default: as many as the workload
    /// wants, at most 2]
    #[arg(long, value_name = "N")]
    pub replicas: Option<u32>,
    /// Print, as YAML, only what is added because the manifests leave it out (pods of workloads,
    /// nodes, pools, addresses, endpoints)
    #[arg(long)]
    pub show_assumed: bool,
}

#[derive(Debug)]
pub(crate) struct Completed {
    pub(crate) contents: Contents,
    pub(crate) assumed: Assumed,
}

impl Completed {
    pub(crate) fn new(mut contents: Contents, replicas: Option<u32>) -> Result<Self, Refusal> {
        let assumed = manx_assume::complete(&mut contents, Options { replicas })?;
        Ok(Self { contents, assumed })
    }
}

impl Assume {
    /// The options of the completion.
    pub(crate) fn options(&self) -> Options {
        Options { replicas: self.replicas }
    }

    /// Completes contents, and prints the assumptions on standard error. Assumed addresses of pods
    /// are not printed, because each result of the command names those that it depends on. `None`:
    /// the user only wants to see the assumptions.
    pub(crate) fn complete(&self, contents: Contents) -> Result<Option<Completed>, Error> {
        self.complete_with(contents, |_| {})
    }

    /// The same as [`Self::complete`], with the assumptions that `more` adds.
    pub(crate) fn complete_with(
        &self,
        contents: Contents,
        more: impl FnOnce(&mut Completed),
    ) -> Result<Option<Completed>, Error> {
        let mut completed = Completed::new(contents, self.replicas)
            .map_err(|refusal| Error::Invalid(refusal.to_string()))?;
        more(&mut completed);
        if self.show_assumed {
            output::print(&completed.assumed.yaml())?;
            return Ok(None);
        }
        for note in &completed.assumed.notes {
            // This fails if standard error is closed, and then there is no reader.
            let _ = writeln!(io::stderr(), "assumed: {note}");
        }
        Ok(Some(completed))
    }
}
