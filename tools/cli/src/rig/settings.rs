//! The settings of the rig's commands.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use crate::node::{UplinkMode, parse_workers, pod_device_parser};
use crate::output::Output;
use crate::policy::assume::Assume;
use manx_agent::pod_device::Preference;
use manx_rig::plan::policy_reference::PolicyReference;

/// `manx rig ...`.
#[derive(Debug, Args)]
pub struct Rig {
    /// The command, with its settings.
    #[command(subcommand)]
    pub command: Command,
}

/// The rig's commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Build a cluster from manifests, probe it, and compare the results with its policies
    Run(Run),
    /// Run a command in a pod, on a node (node/NAME) or on the outside host (outside) of a running
    /// rig
    Exec(Exec),
    /// Apply manifests to a running rig, and probe it again
    Apply(Apply),
    /// Delete objects from a running rig, and probe it again
    ///
    /// All or none: if one of them does not exist, nothing is deleted.
    Delete(Delete),
    /// List the running rigs, and which of their agents have ended
    List {
        /// Form of the list
        #[arg(long, short, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
    /// Show the nodes, pods and addresses of a running rig, and which agents have ended
    Status(Shown),
    /// Print the agents' logs
    Logs(Logs),
    /// Show allowed and denied flows as they happen, with the rules that decided
    Watch(Watch),
    /// End a rig
    ///
    /// Only a rig's user sees it and can end it. Root's rigs belong to everybody who is root here,
    /// so root has to name the rig.
    Down(Named),
    /// Write a small commented rig into a directory
    Init {
        /// The directory
        directory: PathBuf,
    },
}

/// The settings of `manx rig run`.
#[derive(Debug, Args)]
pub struct Run {
    /// Directory of manifests, and perhaps rig.yaml; or a file of manifests; - is standard input
    #[arg(value_name = "DIR|FILE")]
    pub input: PathBuf,
    /// Enter subdirectories, too
    #[arg(long, short = 'R')]
    pub recursive: bool,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take it for the command's own description")]
    pub assume: Assume,
    /// The rig's name [default: the name of the directory or file]
    #[arg(long)]
    pub name: Option<String>,
    /// Leave the rig running
    #[arg(long)]
    pub keep: bool,
    /// The longest time that a rig left running may live, e.g. 30m
    #[arg(long, default_value = "1h", value_parser = parse_duration)]
    pub ttl: Duration,
    /// The longest time that building and probing may take
    #[arg(long, default_value = "15m", value_parser = parse_duration)]
    pub timeout: Duration,
    /// Hide a policy (NAME, NAMESPACE/NAME, or with its KIND/ before it) from the agents, but not
    /// from the oracle: the rig must then fail
    #[arg(long, value_name = "POLICY")]
    pub sabotage: Vec<PolicyReference>,
    /// How pods are attached
    #[arg(long, value_parser = pod_device_parser(), default_value = Preference::Auto.name())]
    pub pod_device: Preference,
    /// How tunnel packets reach the uplink
    #[arg(long, value_enum, default_value_t = UplinkMode::Packet)]
    pub uplink_mode: UplinkMode,
    /// Workers of each node
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = parse_workers)]
    pub workers: usize,
    /// Also connect the nodes to this network, by pasta (the package passt). Pods reach it by their
    /// nodes, as policy allows. It carries only IPv4, and needs `services: manx` in rig.yaml
    #[arg(long, value_enum, value_name = "PROGRAM")]
    pub world: Option<World>,
    /// Do not measure throughput and latency
    #[arg(long)]
    pub no_samples: bool,
    /// Form of the report
    #[arg(long, short, value_enum, default_value_t = Output::Text)]
    pub output: Output,
}

/// The program that connects a rig's nodes to the network of its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum World {
    /// A separate pasta process for each node
    Pasta,
}

/// The settings of `manx rig exec`.
#[derive(Debug, Args)]
pub struct Exec {
    /// NAMESPACE/POD, POD, node/NAME or outside
    pub party: String,
    /// The rig; optional if only one runs (but required for root)
    #[arg(long)]
    pub rig: Option<String>,
    /// The command
    #[arg(last = true, required = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// The settings of `manx rig apply`.
#[derive(Debug, Args)]
pub struct Apply {
    /// Manifests; directories of them; - is standard input
    #[arg(required = true, value_name = "DIR|FILE")]
    pub files: Vec<PathBuf>,
    /// The rig; optional if only one runs (but required for root)
    #[arg(long)]
    pub rig: Option<String>,
    /// Print the whole truth table, too, after its changes
    #[arg(long)]
    pub table: bool,
    /// Form of the report
    #[arg(long, short, value_enum, default_value_t = Output::Text)]
    pub output: Output,
}

/// The settings of `manx rig delete`.
#[derive(Debug, Args)]
pub struct Delete {
    /// Manifests whose objects are deleted (- is standard input), or KIND/NAME, KIND/NAMESPACE/NAME
    #[arg(required = true, value_name = "FILE|KIND/NAME")]
    pub what: Vec<String>,
    /// The rig; optional if only one runs (but required for root)
    #[arg(long)]
    pub rig: Option<String>,
    /// Print the whole truth table, too, after its changes
    #[arg(long)]
    pub table: bool,
    /// Form of the report
    #[arg(long, short, value_enum, default_value_t = Output::Text)]
    pub output: Output,
}

/// A rig by name.
#[derive(Debug, Args)]
pub struct Named {
    /// The rig; optional if only one runs (but required for root)
    pub rig: Option<String>,
}

/// The settings of `manx rig logs`.
#[derive(Debug, Args)]
pub struct Logs {
    /// The node; without it, the logs of all nodes, each line with its node
    pub node: Option<String>,
    /// The rig; optional if only one runs
    #[arg(long)]
    pub rig: Option<String>,
    /// Continue with each new line, until the rig ends
    #[arg(long, short)]
    pub follow: bool,
    /// Print only this many of the last lines of each node
    #[arg(long, value_name = "N")]
    pub tail: Option<usize>,
}

/// The settings of `manx rig watch`.
#[derive(Debug, Args)]
pub struct Watch {
    /// The rig; optional if only one runs
    #[arg(long)]
    pub rig: Option<String>,
    /// Form of the lines; json prints JSON Lines
    #[arg(long, short, value_enum, default_value_t = Output::Text)]
    pub output: Output,
}

/// The settings of `manx rig status`.
#[derive(Debug, Args)]
pub struct Shown {
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take it for the command's own description")]
    pub named: Named,
    /// Form of the report
    #[arg(long, short, value_enum, default_value_t = Output::Text)]
    pub output: Output,
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let seconds = match unit {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err("expected a whole number of s, m or h, e.g. 30m".to_owned()),
    };
    match number.parse::<u64>().ok().and_then(|number| number.checked_mul(seconds)) {
        Some(total @ 1..) => Ok(Duration::from_secs(total)),
        Some(0) | None => Err("expected a whole number of s, m or h, e.g. 30m".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units_and_are_not_zero() {
        assert_eq!(parse_duration("90"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("15m"), Ok(Duration::from_mins(15)));
        assert_eq!(parse_duration("1h"), Ok(Duration::from_hours(1)));
        for wrong in ["", "0", "1d", "m", "-1s", "99999999999999999999h"] {
            assert!(parse_duration(wrong).is_err(), "{wrong:?}");
        }
    }
}
