//! `manx rig list`, `status` and `down`.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use humantime::{format_duration, format_rfc3339_seconds};
use serde::Serialize;

use super::settings::{Named, Shown};
use crate::Error;
use crate::chosen_rig::{chosen, chosen_to_change, state};
use crate::output::{self, Output};
use manx_rig::caller;
use manx_rig::world::agent::{AgentEnd, AgentState};
use manx_rig::world::setup::{HostPodState, NodeState, PodState, State};
use manx_rig::world::workdir::{self, Workdir};

#[derive(Serialize)]
struct List {
    rigs: Vec<ListedRig>,
}

/// A rig that runs.
#[derive(Serialize)]
#[serde(tag = "phase", rename_all = "snake_case")]
enum ListedRig {
    /// The rig is still being built.
    Building { name: String },
    /// The rig is built.
    Running(RigDetails),
}

/// A rig that is built.
#[derive(Serialize)]
struct RigDetails {
    name: String,
    source: PathBuf,
    folder: PathBuf,
    /// The time when it was built (RFC 3339).
    since: String,
    outside: Vec<IpAddr>,
    nodes: Vec<Node>,
    pods: Vec<PodState>,
    host_pods: Vec<HostPodState>,
}

#[derive(Serialize)]
struct Node {
    #[serde(flatten)]
    node: NodeState,
    agent: Agent,
}

/// The state of an agent, as the rig reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "phase", rename_all = "snake_case")]
enum Agent {
    Running,
    Ended(AgentEnd),
    /// The rig does not answer.
    Unknown {
        reason: String,
    },
}

/// `manx rig list`.
pub(super) fn list(form: Output) -> Result<(), Error> {
    let mut rigs = Vec::new();
    for workdir in workdir::running()? {
        rigs.push(match State::read(&workdir) {
            Ok(state) => ListedRig::Running(details(&workdir, state)),
            Err(_) => ListedRig::Building { name: workdir.name().to_owned() },
        });
    }
    match form {
        Output::Text => output::print(&rigs.iter().map(listed).collect::<String>()),
        Output::Json => output::print_json(&List { rigs }),
    }
}

/// `manx rig status`.
pub(super) fn status(shown: &Shown) -> Result<(), Error> {
    let workdir = chosen(shown.named.rig.as_deref())?;
    let rig = details(&workdir, state(&workdir)?);
    match shown.output {
        Output::Text => output::print(&text(&rig)),
        Output::Json => output::print_json(&rig),
    }
}

/// `manx rig down`.
pub(super) fn down(named: &Named) -> Result<(), Error> {
    let workdir = chosen_to_change(named.rig.as_deref())?;
    let state = State::read(&workdir).ok();
    caller::down(&workdir)?;
    let name = workdir.name();
    output::print(&match state {
        Some(state) => format!(
            "rig {name} is ended: {}, up since {} ({})\n",
            counts(state.nodes.len(), state.pods.len()),
            since(&state),
            format_duration(age(&state))
        ),
        None => format!("rig {name} is ended: it was still being built\n"),
    })
}

fn details(workdir: &Workdir, state: State) -> RigDetails {
    let agents = caller::agents(workdir).map_err(|error| error.to_string());
    let agent = |node: &str| match &agents {
        Ok(agents) => find_agent(agents, node),
        Err(reason) => Agent::Unknown { reason: reason.clone() },
    };
    let since = since(&state);
    let State { name, source, built_s: _, nodes, pods, host_pods, outside } = state;
    let nodes = nodes.into_iter().map(|node| Node { agent: agent(&node.name), node }).collect();
    let folder = workdir.path().to_owned();
    RigDetails { name, source, folder, since, outside, nodes, pods, host_pods }
}

fn find_agent(agents: &[AgentState], node: &str) -> Agent {
    match agents.iter().find(|agent| agent.node == node).map(|agent| &agent.ended) {
        Some(None) => Agent::Running,
        Some(Some(end)) => Agent::Ended(end.clone()),
        None => Agent::Unknown { reason: "the rig has no agent of this node".to_owned() },
    }
}

fn built(state: &State) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(state.built_s)
}

fn since(state: &State) -> String {
    format_rfc3339_seconds(built(state)).to_string()
}

/// The time since the rig was built, in whole seconds.
fn age(state: &State) -> Duration {
    let age = SystemTime::now().duration_since(built(state)).unwrap_or_default();
    Duration::from_secs(age.as_secs())
}

fn counts(nodes: usize, pods: usize) -> String {
    let of = |count, what| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    format!("{}, {}", of(nodes, "node"), of(pods, "pod"))
}

fn listed(rig: &ListedRig) -> String {
    match rig {
        ListedRig::Building { name } => format!("{name}: being built\n"),
        ListedRig::Running(rig) => {
            let counts = counts(rig.nodes.len(), rig.pods.len());
            let mut text = format!(
                "{}: {counts}, from {}, since {}\n",
                rig.name,
                rig.source.display(),
                rig.since
            );
            for Node { node, agent } in &rig.nodes {
                text.push_str(&describe_fault(&node.name, agent));
            }
            text
        }
    }
}

/// Describes the fault of an agent; empty if it runs.
fn describe_fault(node: &str, agent: &Agent) -> String {
    match agent {
        Agent::Running => String::new(),
        Agent::Unknown { reason } => {
            format!("  whether the agent of {node} runs is not known: {reason}\n")
        }
        Agent::Ended(AgentEnd { status, log }) => {
            let mut text =
                format!("  THE AGENT OF {node} HAS ENDED ({status}); the last lines of its log:\n");
            for line in log {
                // Writing to a String cannot fail.
                let _ = writeln!(text, "    {line}");
            }
            text
        }
    }
}

fn ips(ips: &[IpAddr]) -> String {
    ips.iter().map(ToString::to_string).collect::<Vec<String>>().join(", ")
}

fn text(rig: &RigDetails) -> String {
    let path = |path: &Path| path.display().to_string();
    let mut text = format!(
        "rig {} from {}, since {}, files in {}\noutside: {}\n",
        rig.name,
        path(&rig.source),
        rig.since,
        path(&rig.folder),
        ips(&rig.outside)
    );
    for Node { node, agent } in &rig.nodes {
        let (addresses, socket) = (ips(&node.addresses), path(&node.socket));
        // Writing to a String cannot fail.
        let _ = writeln!(text, "node/{}: {addresses}; agent at {socket}", node.name);
        text.push_str(&describe_fault(&node.name, agent));
        for pod in rig.pods.iter().filter(|pod| pod.node == node.name) {
            let _ = writeln!(text, "  {}: {} ({})", pod.name, ips(&pod.addresses), pod.device);
        }
        for pod in rig.host_pods.iter().filter(|pod| pod.node == node.name) {
            let _ = writeln!(text, "  {}: {addresses} (the node's network)", pod.name);
        }
    }
    text
}
