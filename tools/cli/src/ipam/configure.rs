//! `manx ipam configure`.

use clap::{ArgAction, Args, ValueEnum};
use manx_block_ipam::config::ConfigChange;
use manx_datastore::Writes;

use super::cluster::{Cluster, store_error};
use super::show::settings;
use crate::Error;
use crate::datastore::ServerOptions;
use crate::output;

/// The settings of `manx ipam configure`.
#[derive(Debug, Clone, Args)]
#[group(id = "settings", required = true, multiple = true, args = ["what", "strictaffinity", "max_blocks_per_host"])]
pub struct Configure {
    /// Show the settings, and change nothing
    #[arg(value_enum, conflicts_with_all = ["strictaffinity", "max_blocks_per_host"])]
    pub what: Option<What>,
    /// Whether nodes may not borrow addresses of other nodes' blocks
    #[arg(long, value_name = "true|false", action = ArgAction::Set)]
    pub strictaffinity: Option<bool>,
    /// The most blocks of a node; this needs strict affinity. 0: not set
    #[arg(long, value_name = "NUMBER")]
    pub max_blocks_per_host: Option<u32>,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take it for the command's own description")]
    pub server: ServerOptions,
}

/// An action other than changing settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum What {
    /// Show the settings
    Show,
}

/// Changes the settings, and prints them.
pub(super) async fn run<W: Writes + Sync>(
    asked: &Configure,
    cluster: &Cluster<W>,
) -> Result<(), Error> {
    output::print(&text(asked, cluster).await?)
}

pub(super) async fn text<W: Writes + Sync>(
    asked: &Configure,
    cluster: &Cluster<W>,
) -> Result<String, Error> {
    let config = match asked.what {
        Some(What::Show) => cluster.store.config().await,
        None => {
            let change = ConfigChange {
                strict_affinity: asked.strictaffinity,
                max_blocks: asked.max_blocks_per_host,
            };
            cluster.store.configure(change).await
        }
    };
    Ok(settings(&config.map_err(store_error)?))
}
