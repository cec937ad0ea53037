//! `manx pool`, which an installation runs once, because agents have no right to make pools.

use clap::{Args, ValueEnum};
use ipnet::Ipv4Net;

use super::Error;
use super::datastore::ServerOptions;
use super::log;
use super::log::LogFormat;
use super::output;
use super::values::ipv4_net;
use manx_datastore::DefaultPool;
use manx_datastore::api_server::make_first_pool;

/// The settings of `manx pool`. Their variables have the names of Calico's install pages.
#[derive(Debug, Clone, Args)]
pub struct Pool {
    /// Pod addresses of the pool
    #[arg(long, env = "CALICO_IPV4POOL_CIDR", value_name = "CIDR", value_parser = ipv4_net)]
    pub cidr: Ipv4Net,
    /// Between which nodes it uses IPIP
    #[arg(long, env = "CALICO_IPV4POOL_IPIP", value_enum, default_value_t = Ipip::Always)]
    pub ipip: Ipip,
    /// Whether its pods are seen as their node outside of all pools
    #[arg(long, env = "CALICO_IPV4POOL_NAT_OUTGOING", value_name = "true|false", action = clap::ArgAction::Set, default_value_t = true)]
    pub nat_outgoing: bool,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take it for the command's own description")]
    pub server: ServerOptions,
}

/// The nodes between which a pool uses IPIP, in Calico's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
pub enum Ipip {
    /// Between all
    Always,
    /// Between nodes that share no subnet
    CrossSubnet,
    /// Between none
    Never,
}

/// Makes the pool, if the cluster has none.
pub fn run(pool: &Pool) -> Result<(), Error> {
    log::start(LogFormat::Text);
    let wanted = DefaultPool {
        cidr: pool.cidr.to_string(),
        ipip: match pool.ipip {
            Ipip::Always => "Always",
            Ipip::CrossSubnet => "CrossSubnet",
            Ipip::Never => "Never",
        },
        nat_outgoing: pool.nat_outgoing,
    };
    let made = make_first_pool(&pool.server.access(), &wanted)
        .map_err(|error| Error::Failed(error.to_string()))?;
    output::print(&if made {
        format!(
            "made the first IPPool: {}, ipipMode: {}, natOutgoing: {}\n",
            wanted.cidr, wanted.ipip, wanted.nat_outgoing
        )
    } else {
        "the cluster has an IPPool: none was made\n".to_owned()
    })
}
