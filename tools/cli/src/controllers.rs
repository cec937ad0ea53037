//! `manx controllers` does the work that is done once in a cluster, and not by each agent. It
//! releases unused addresses, blocks and handles of Calico's IPAM, and assigns addresses to
//! Services of type `LoadBalancer`.
//!
//! Several processes may run; the one that has the Lease acts (`leading`). It collects garbage in rounds (`rounds`) by
//! the rules of `manx_block_ipam::garbage`. It also reconciles Services (`services`, in the order of `pending`) by the
//! rules of `manx_block_ipam::services`. It keeps the grace times only in memory, so a process that restarts begins
//! them again.

mod leading;
mod pending;
mod rounds;
mod services;

use std::time::Duration;

use clap::Args;
use manx_block_ipam::garbage::Settings;
use manx_block_ipam::services::wish::AssignIps;

use super::Error;
use super::datastore::ServerOptions;
use super::log::{self, LogFormat};

/// The settings of `manx controllers`.
#[derive(Debug, Clone, Args)]
pub struct Controllers {
    /// Time for which an address must be unused before it is released, and a block empty before its
    /// node loses it
    #[arg(long, env = "MANX_LEAK_GRACE", value_name = "TIME", value_parser = grace, default_value = "15m")]
    pub leak_grace: Duration,
    /// The most steps of a round; a step releases the addresses of a handle, or a block. The rest
    /// follows in the next round
    #[arg(long, env = "MANX_ROUND_LIMIT", value_name = "N", value_parser = limit, default_value = "1000")]
    pub round_limit: usize,
    /// Which Services of type `LoadBalancer` get addresses: `AllServices` (of no class, or of the class calico) or
    /// `RequestedServicesOnly`. Default: what `KubeControllersConfiguration` says, else `AllServices`
    #[arg(long, env = "MANX_ASSIGN_IPS", value_name = "WHICH", value_parser = assign_ips)]
    pub assign_ips: Option<AssignIps>,
    /// The most addresses of a family that the Services of a namespace get; 0: any number
    #[arg(long, env = "MANX_BALANCER_LIMIT", value_name = "N", default_value = "64")]
    pub balancer_limit: usize,
    /// Namespace of the Lease `manx-controllers`, which elects the leader
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAMESPACE", default_value = "kube-system")]
    pub namespace: String,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take it for the command's own description")]
    pub server: ServerOptions,
    /// Form of the log
    #[arg(long, env = "MANX_LOG", value_enum, default_value_t = LogFormat::Text)]
    pub log: LogFormat,
}

/// The shortest grace time. A pod's status is reported some seconds after its address was assigned.
const SHORTEST: Duration = Duration::from_secs(10);

fn grace(text: &str) -> Result<Duration, String> {
    let parsed = humantime::parse_duration(text.trim()).ok();
    parsed
        .filter(|grace| *grace >= SHORTEST)
        .ok_or_else(|| "expected a time of at least 10s, such as 15m or 1h 30m".to_owned())
}

fn limit(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|limit| *limit > 0).ok_or_else(|| "expected at least 1".to_owned())
}

fn assign_ips(text: &str) -> Result<AssignIps, String> {
    let expected = || "expected AllServices or RequestedServicesOnly".to_owned();
    AssignIps::parse(text).ok_or_else(expected)
}

/// Runs until it gets SIGTERM or SIGINT. Then it gives the Lease back.
pub fn run(controllers: &Controllers) -> Result<(), Error> {
    log::start(controllers.log);
    let access = controllers.server.access();
    let work = leading::Work {
        garbage: Settings { grace: controllers.leak_grace, limit: controllers.round_limit },
        balancing: services::Balancing {
            assigns: controllers.assign_ips,
            most: Some(controllers.balancer_limit).filter(|most| *most > 0),
        },
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Error::Failed(format!("no runtime: {error}")))?;
    runtime.block_on(leading::serve(&access, &controllers.namespace, work))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grace_time_has_a_unit_and_is_not_too_short() {
        assert_eq!(grace("15m"), Ok(Duration::from_mins(15)));
        for wrong in ["15", "0s", "9s", "", "soon"] {
            assert!(grace(wrong).unwrap_err().starts_with("expected a time"), "{wrong}");
        }
        assert_eq!(assign_ips("AllServices"), Ok(AssignIps::AllServices));
        assert!(assign_ips("all").is_err());
        assert_eq!(limit("1"), Ok(1));
        assert!(limit("0").is_err());
    }
}
