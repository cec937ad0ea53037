//! A live cluster as the input of a command of `manx policy`. Nothing is written to it.

use std::path::PathBuf;

use clap::Args;

use crate::Error;
use manx_datastore::api_server::{self, Access};
use manx_objects::contents::Contents;

/// The cluster that is read instead of manifests.
#[derive(Debug, Clone, Default, Args)]
pub struct Live {
    /// Read the objects of a live cluster, the one of kubectl's current context
    #[arg(long)]
    pub live: bool,
    /// Read the objects of the live cluster that this kubeconfig file names
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Read the objects of the live cluster that this context of the kubeconfig names
    #[arg(long, value_name = "CONTEXT")]
    pub context: Option<String>,
}

impl Live {
    /// Whether the user requests a live cluster.
    pub(super) fn is_asked_for(&self) -> bool {
        self.live || self.kubeconfig.is_some() || self.context.is_some()
    }

    /// Reads the cluster's objects once.
    pub(super) fn read(&self) -> Result<Contents, Error> {
        let kubeconfig = self.kubeconfig.clone().or_else(Access::of_kubectl);
        let access = Access { kubeconfig, context: self.context.clone(), ..Access::default() };
        api_server::read(&access).map_err(|error| Error::Environment(error.to_string()))
    }
}
