//! `manx pool`, which an installation runs once, because agents have no right to make pools.

use clap::builder::PossibleValue;
use clap::{ArgAction, Args, ValueEnum};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::Error;
use super::datastore::ServerOptions;
use super::log;
use super::log::LogFormat;
use super::output;
use super::values::{ipv4_net, ipv6_net};
use manx_datastore::DefaultPool;
use manx_datastore::api_server::make_first_pools;

/// The pods' network if no setting names one: Calico's default.
const FALLBACK: &str = "192.168.0.0/16";

/// The settings of `manx pool`. Their variables have the names of Calico's install pages.
#[derive(Debug, Clone, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub struct Pool {
    /// Make no pool
    #[arg(long, env = "NO_DEFAULT_POOLS", value_name = "true|false", action = ArgAction::Set, default_value_t = false)]
    pub no_default_pools: bool,
    /// Pod addresses of the IPv4 pool. Without it: the podSubnet of kubeadm's configuration, or else 192.168.0.0/16
    #[arg(long, env = "CALICO_IPV4POOL_CIDR", value_name = "CIDR", value_parser = ipv4_net)]
    pub cidr: Option<Ipv4Net>,
    /// Prefix length of the pool's blocks [default: 26]
    #[arg(long, env = "CALICO_IPV4POOL_BLOCK_SIZE", value_name = "LENGTH", value_parser = clap::value_parser!(u8).range(20..=32))]
    pub block_size: Option<u8>,
    /// Which nodes use IPIP between them [default: Always, or Never with --vxlan]
    #[arg(long, env = "CALICO_IPV4POOL_IPIP", value_enum)]
    pub ipip: Option<Overlay>,
    /// Which nodes use VXLAN between them
    #[arg(long, env = "CALICO_IPV4POOL_VXLAN", value_enum, default_value_t = Overlay::Never)]
    pub vxlan: Overlay,
    /// Whether hosts outside all pools see the node's address instead of the pod's
    #[arg(long, env = "CALICO_IPV4POOL_NAT_OUTGOING", value_name = "true|false", action = ArgAction::Set, default_value_t = true)]
    pub nat_outgoing: bool,
    /// The nodes that get blocks of the pool [default: all]
    #[arg(long, env = "CALICO_IPV4POOL_NODE_SELECTOR", value_name = "SELECTOR")]
    pub node_selector: Option<String>,
    /// Whether the pool is not announced to BGP peers
    #[arg(long, env = "CALICO_IPV4POOL_DISABLE_BGP_EXPORT", value_name = "true|false", action = ArgAction::Set, default_value_t = false)]
    pub disable_bgp_export: bool,
    /// Pod addresses of the IPv6 pool. Without it, and without an IPv6 podSubnet of kubeadm, there
    /// is no such pool
    #[arg(long, env = "CALICO_IPV6POOL_CIDR", value_name = "CIDR", value_parser = ipv6_net)]
    pub ipv6_cidr: Option<Ipv6Net>,
    /// Prefix length of the pool's blocks [default: 122]
    #[arg(long, env = "CALICO_IPV6POOL_BLOCK_SIZE", value_name = "LENGTH", value_parser = clap::value_parser!(u8).range(116..=128))]
    pub ipv6_block_size: Option<u8>,
    /// Whether hosts outside all pools see the node's address instead of the pod's
    #[arg(long, env = "CALICO_IPV6POOL_NAT_OUTGOING", value_name = "true|false", action = ArgAction::Set, default_value_t = false)]
    pub ipv6_nat_outgoing: bool,
    /// The nodes that get blocks of the pool [default: all]
    #[arg(long, env = "CALICO_IPV6POOL_NODE_SELECTOR", value_name = "SELECTOR")]
    pub ipv6_node_selector: Option<String>,
    /// Whether the pool is not announced to BGP peers
    #[arg(long, env = "CALICO_IPV6POOL_DISABLE_BGP_EXPORT", value_name = "true|false", action = ArgAction::Set, default_value_t = false)]
    pub ipv6_disable_bgp_export: bool,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take it for the command's own description")]
    pub server: ServerOptions,
}

/// The nodes between which a pool uses an overlay, in Calico's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overlay {
    /// Between all nodes.
    Always,
    /// Between nodes that share no subnet.
    CrossSubnet,
    /// Between no nodes. Calico's variables also say `Off`.
    Never,
}

impl Overlay {
    const fn name(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::CrossSubnet => "CrossSubnet",
            Self::Never => "Never",
        }
    }
}

impl ValueEnum for Overlay {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Always, Self::CrossSubnet, Self::Never]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let value = PossibleValue::new(self.name());
        Some(match self {
            Self::Always => value.help("Between all"),
            Self::CrossSubnet => value.help("Between nodes that share no subnet"),
            Self::Never => value.help("Between none").alias("Off"),
        })
    }
}

impl Pool {
    /// The pools to make. `networks` are the pod networks in kubeadm's configuration, if that was read. Returns an
    /// error if a pool would not be valid.
    fn wanted(&self, networks: &[IpNet]) -> Result<Vec<DefaultPool>, String> {
        let of_family = |is_v4: bool| {
            networks.iter().find(|net| net.addr().is_ipv4() == is_v4).map(IpNet::trunc)
        };
        let v4 = self.cidr.map(IpNet::V4).or_else(|| of_family(true));
        // A cluster with IPv6 alone has no IPv4 pool.
        let v6 = self.ipv6_cidr.map(IpNet::V6).or_else(|| of_family(false));
        let fallback = || FALLBACK.parse().ok().filter(|_| v6.is_none());
        let ipip = self.ipip.unwrap_or(match self.vxlan {
            Overlay::Never => Overlay::Always,
            _ => Overlay::Never,
        });
        let v4 = v4.or_else(fallback).map(|cidr| DefaultPool {
            cidr,
            ipip: ipip.name(),
            vxlan: self.vxlan.name(),
            nat_outgoing: self.nat_outgoing,
            block_size: self.block_size,
            node_selector: self.node_selector.clone(),
            hidden_from_peers: self.disable_bgp_export,
        });
        let v6 = v6.map(|cidr| DefaultPool {
            cidr,
            ipip: Overlay::Never.name(),
            vxlan: Overlay::Never.name(),
            nat_outgoing: self.ipv6_nat_outgoing,
            block_size: self.ipv6_block_size,
            node_selector: self.ipv6_node_selector.clone(),
            hidden_from_peers: self.ipv6_disable_bgp_export,
        });
        let pools: Vec<DefaultPool> = v4.into_iter().chain(v6).collect();
        match pools.iter().find_map(|pool| Some(format!("{}: {}", pool.cidr, pool.problem()?))) {
            Some(problem) => Err(problem),
            None => Ok(pools),
        }
    }
}

/// Makes each wanted pool, unless the cluster already has a pool of its address family.
pub fn run(pool: &Pool) -> Result<(), Error> {
    log::start(LogFormat::Text);
    if pool.no_default_pools {
        return output::print("no pool is wanted (NO_DEFAULT_POOLS): none was made\n");
    }
    let made = make_first_pools(&pool.server.access(), pool.cidr.is_none(), |networks| {
        pool.wanted(networks)
    });
    let made = made.map_err(|error| Error::Failed(error.to_string()))?;
    let lines = made.iter().map(|it| {
        let DefaultPool { cidr, ipip, vxlan, nat_outgoing, .. } = it;
        format!("made the first IPPool: {cidr}, ipipMode: {ipip}, vxlanMode: {vxlan}, natOutgoing: {nat_outgoing}\n")
    });
    let lines: String = lines.collect();
    output::print(if lines.is_empty() {
        "the cluster has an IPPool of each family that was asked for: none was made\n"
    } else {
        &lines
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Asked {
        #[command(flatten)]
        pool: Pool,
    }

    /// The pools for these arguments, as text, in a cluster with these networks of kubeadm's
    /// configuration.
    fn wanted(arguments: &[&str], networks: &[&str]) -> String {
        let asked = Asked::try_parse_from([&["pool"], arguments].concat()).unwrap();
        let networks: Vec<IpNet> = networks.iter().map(|it| it.parse().unwrap()).collect();
        match asked.pool.wanted(&networks) {
            Err(problem) => problem,
            Ok(pools) => {
                let all = pools
                    .iter()
                    .map(|it| format!("{} {} {} {}", it.cidr, it.ipip, it.vxlan, it.nat_outgoing));
                all.collect::<Vec<_>>().join(", ")
            }
        }
    }

    #[test]
    fn settings_name_the_pools_or_kubeadm_does_or_calicos_network_is_one() {
        for (arguments, networks, expected) in [
            (&[][..], &[][..], "192.168.0.0/16 Always Never true"),
            (&["--cidr", "10.1.0.0/16"], &["10.2.0.0/16"], "10.1.0.0/16 Always Never true"),
            (&[], &["10.2.0.0/16"], "10.2.0.0/16 Always Never true"),
            (&[], &["fd00::/48"], "fd00::/48 Never Never false"),
            (
                &["--vxlan", "CrossSubnet", "--ipv6-nat-outgoing", "true"],
                &["fd00::/48", "10.2.0.0/16"],
                "10.2.0.0/16 Never CrossSubnet true, fd00::/48 Never Never true",
            ),
            (&["--ipip", "Off"], &[], "192.168.0.0/16 Never Never true"),
            (
                &["--ipip", "Always", "--vxlan", "Always"],
                &[],
                "192.168.0.0/16: spec.vxlanMode: a pool has IPIP or VXLAN, not both",
            ),
        ] {
            assert_eq!(wanted(arguments, networks), expected, "{arguments:?} {networks:?}");
        }
    }
}
