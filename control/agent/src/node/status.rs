//! What `manx status` shows, read from the agent and the workers' counters.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use manx_dataplane::counters::{Counter, PortCounters};
use manx_dataplane::drop_reason::DropReason;
use manx_dataplane::encapsulation::Encapsulation;
use manx_dataplane::flow::{self, FlowDirection, FlowEntry};
use manx_dataplane::tables::NextHop;
use manx_dataplane::worker::Handle;
use manx_policy_compiler::image::Counts;
use manx_policy_compiler::model::{self, Direction, Noted, ObjectName, Verdict};

use super::Agent;
use manx_api::{
    EndpointStatus, FlowStatus, MAX_FLOWS, NotedCount, PodName, PolicyStatus, PortStatus,
    RouteStatus, RuleCount, Status, WorkerStatus,
};
use manx_objects::problem::{Problem, Severity};

/// How long a status waits for the workers' flows.
const ANSWER: Duration = Duration::from_millis(500);

/// The whole status.
pub(super) fn status(agent: &Agent) -> Status {
    Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        node: agent.name.clone(),
        uptime_s: agent.started.elapsed().as_secs(),
        in_sync: agent.cluster.in_sync,
        datastore: format!("{:016x}", agent.store.contents().fingerprint),
        tables: agent.tables.version,
        changed_in_place: agent.changed_in_place,
        invalid: invalid(agent),
        warnings: summaries(agent, Severity::Warning).collect(),
        known_endpoints: agent.cluster.model.endpoints.len(),
        known_policies: agent.cluster.model.policies.len(),
        endpoints: endpoints(agent),
        routes: routes(agent),
        ports: agent.ports.values().map(|port| port_status(&port.name, &port.counters)).collect(),
        workers: agent.workers.iter().map(worker).collect(),
        flows: flows(agent),
        rules: rules(agent),
        noted: noted(agent),
        policy: policy(agent),
        verification: agent
            .verifier
            .as_ref()
            .map(|verifier| verifier.verification().clone())
            .unwrap_or_default(),
    }
}

fn policy(agent: &Agent) -> PolicyStatus {
    let Counts { chains, linear, classes, rows, .. } = agent.tables.image.counts();
    PolicyStatus { chains, linear, classes, rows, bytes: agent.tables.image.bytes() }
}

/// What was met on the way to what decided, and how often.
fn noted(agent: &Agent) -> Vec<NotedCount> {
    let noted = agent.calculation.noted(|slot| agent.workers.rule_count(slot)).into_iter();
    let one = |(met, packets): (&Noted, u64)| NotedCount {
        rule: met.to_string(),
        action: format!("{:?}", met.action()).to_lowercase(),
        staged: met.policy().kind.staged(),
        packets,
    };
    noted.filter(|(_, packets)| *packets > 0).map(one).collect()
}

fn summaries(agent: &Agent, severity: Severity) -> impl Iterator<Item = String> {
    let problems = agent.cluster.problems.iter();
    problems.filter(move |problem| problem.severity == severity).map(Problem::summary)
}

fn invalid(agent: &Agent) -> Vec<String> {
    let vxlan = agent.vxlan_fault.message().map(str::to_owned);
    summaries(agent, Severity::Error).chain(agent.topology.problems()).chain(vxlan).collect()
}

fn endpoints(agent: &Agent) -> Vec<EndpointStatus> {
    let one = |(name, local): (&ObjectName, &manx_calculation::calc::Local)| {
        let pod = agent.pods.get(name)?;
        let policies = |direction| {
            let image = &agent.tables.image;
            let chain = image.chain(name, direction).and_then(|chain| image.describe(chain));
            chain.map_or_else(Vec::new, |chain| {
                chain.list.policies.iter().map(ToString::to_string).collect()
            })
        };
        Some(EndpointStatus {
            pod: PodName { namespace: name.namespace.clone(), name: name.name.clone() },
            addresses: local.addresses.clone(),
            port: agent.ports.get(&pod.port)?.name.clone(),
            device: pod.device.device(),
            enforced: agent.tables.endpoint(local.index).is_some(),
            ingress: policies(Direction::Ingress),
            egress: policies(Direction::Egress),
        })
    };
    agent.locals.iter().filter_map(one).collect()
}

fn routes(agent: &Agent) -> Vec<RouteStatus> {
    let endpoint = |index: u32| {
        let owner = agent.locals.iter().find(|(_, local)| local.index == index);
        owner.map_or_else(|| "no endpoint".to_owned(), |(name, _)| format!("pod {name}"))
    };
    let tunnel = |index: u32| {
        let tunnel = agent.tables.tunnel(index);
        let Some(tunnel) = tunnel else { return "no tunnel".to_owned() };
        let by = agent.ports.get(&tunnel.link.port).map_or("", |port| port.name.as_str());
        let kind = match tunnel.outer.encapsulation() {
            Encapsulation::Ipip => "IPIP",
            Encapsulation::Vxlan { .. } => "VXLAN",
        };
        format!("{kind} to {} by {by}", tunnel.remote)
    };
    let via = |via: NextHop| match via {
        NextHop::NoRoute => "nowhere".to_owned(),
        NextHop::Unreachable => "unreachable".to_owned(),
        NextHop::Node => "node".to_owned(),
        NextHop::Host => "host".to_owned(),
        NextHop::Endpoint(index) => endpoint(index),
        NextHop::Tunnel(index) => tunnel(index),
    };
    let one =
        |(prefix, to): &(_, NextHop)| RouteStatus { prefix: format!("{prefix}"), via: via(*to) };
    agent.routes.iter().map(one).collect()
}

fn port_status(name: &str, counters: &[Arc<PortCounters>]) -> PortStatus {
    let sum = |read: fn(&PortCounters) -> &Counter| counters.iter().map(|it| read(it).read()).sum();
    let drops = DropReason::ALL.into_iter().filter_map(|reason| {
        let count: u64 = counters.iter().map(|it| it.dropped(reason).read()).sum();
        (count > 0).then(|| (reason.name().to_owned(), count))
    });
    PortStatus {
        name: name.to_owned(),
        received_packets: sum(|it| &it.received_packets),
        received_bytes: sum(|it| &it.received_bytes),
        sent_packets: sum(|it| &it.sent_packets),
        sent_bytes: sum(|it| &it.sent_bytes),
        drops: drops.collect::<BTreeMap<_, _>>(),
    }
}

fn worker(worker: &Handle) -> WorkerStatus {
    let counters = worker.counters();
    WorkerStatus {
        core: worker.core(),
        busy_turns: counters.busy_turns.read(),
        parks: counters.parks.read(),
        packets: counters.packets.read(),
        busy_cycles: counters.busy_cycles.read(),
        handed_over: counters.handoffs.read(),
        portless: counters.portless.read(),
        flows: counters.flows.read(),
        evictions: counters.evictions.read(),
    }
}

/// Copies from the workers; none of one that does not answer in time (it looks for commands once a turn).
fn flows(agent: &Agent) -> Vec<FlowStatus> {
    let workers = agent.workers.len();
    let (reply, flows) = crossbeam::channel::bounded(workers);
    agent.workers.flows(MAX_FLOWS, &reply);
    let deadline = Instant::now() + ANSWER;
    let copies = (0..workers).map_while(|_| flows.recv_deadline(deadline).ok());
    let now = agent.started.elapsed().as_secs();
    let one = |flow: &FlowEntry| {
        let (source, source_port) = flow.key().source(flow.original());
        let (destination, destination_port) = flow.key().destination(flow.original());
        let ports = model::Protocol::from_number(flow.key().protocol()).is_some();
        let packets = |direction| flow.traffic(direction).packets;
        FlowStatus {
            protocol: flow.key().protocol(),
            source: source.to_ip(),
            source_port: if ports { source_port } else { 0 },
            destination: destination.to_ip(),
            destination_port: if ports { destination_port } else { 0 },
            state: flow.state().name().to_owned(),
            verdict: if flow.verdict == flow::Verdict::Allow { "allow" } else { "deny" }.to_owned(),
            packets: [packets(FlowDirection::Original), packets(FlowDirection::Reply)],
            idle_s: now.saturating_sub(u64::from(flow.last_seen())),
        }
    };
    copies.flatten().map(|flow| one(&flow)).collect()
}

/// Rules and what they have counted; what is no longer there is summed up.
fn rules(agent: &Agent) -> Vec<RuleCount> {
    let one = |rule: String, verdict, packets| {
        let verdict = match verdict {
            Verdict::Allow => "allow",
            Verdict::Deny => "deny",
        };
        RuleCount { rule, verdict: verdict.to_owned(), packets }
    };
    let counts = agent.calculation.counts(|slot| agent.workers.rule_count(slot));
    let rules = counts.map(|(reason, packets)| one(reason.to_string(), reason.verdict(), packets));
    let former = [Verdict::Allow, Verdict::Deny].map(|verdict| {
        one("rules that are gone".to_owned(), verdict, agent.calculation.former(verdict))
    });
    rules.chain(former).filter(|rule| rule.packets > 0).collect()
}
