//! A live cluster as what a command of `manx policy` reads. Nothing is written to it.

use std::path::PathBuf;

use clap::Args;

use crate::Error;
use manx_datastore::api_server::{self, Access};
use manx_objects::contents::Contents;

/// The cluster that is read instead of manifests.
#[derive(Debug, Clone, Default, Args)]
pub struct Live {
    /// Read the objects of a live cluster: of kubectl's current context
    #[arg(long)]
    pub live: bool,
    /// Read the objects of the live cluster of this kubeconfig file
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Read the objects of the live cluster of this context of the kubeconfig
    #[arg(long, value_name = "CONTEXT")]
    pub context: Option<String>,
}

impl Live {
    /// Whether a live cluster is asked for.
    pub(super) fn is_asked_for(&self) -> bool {
        self.live || self.kubeconfig.is_some() || self.context.is_some()
    }

    /// Reads its objects once.
    pub(super) fn read(&self) -> Result<Contents, Error> {
        let kubeconfig = self.kubeconfig.clone().or_else(Access::of_kubectl);
        let access = Access { kubeconfig, context: self.context.clone(), ..Access::default() };
        api_server::read(&access).map_err(|error| Error::Environment(error.to_string()))
    }
}
