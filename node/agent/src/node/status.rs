//! The status for `manx status`, read from the agent and the workers' counters.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant, SystemTime};

use ipnet::IpNet;
use manx_dataplane::counters::{Counter, WorkerCounters};
use manx_dataplane::flow::{self, FlowDirection, FlowEntry};
use manx_dataplane::sys::clock::since_boot;
use manx_dataplane::tables::{NextHop, Tables};
use manx_dataplane::worker::Handle;
use manx_policy_compiler::image::{Counts, Image};
use manx_policy_compiler::model::{self, Direction, Noted, ObjectName, Verdict};

use super::Agent;
use super::inputs::Inputs;
use super::node_devices::Looked;
use super::node_services::ManxServices;
use super::peering::shown::addresses;
use super::pod_request::{object_name, pod_name};
use super::pod_state::AttachedPod;
use super::ports::Port;
use super::view::View;
use crate::verify::Verifier;
use manx_api::{
    Attachment, AttachmentId, EndpointStatus, ErrorKind, Failure, FlowStatus, Flows, MAX_FLOWS,
    MAX_OTHER_PODS, NotedCount, OtherPods, PodName, PodState, PolicyStatus, PortStatus,
    RouteStatus, RuleCount, Status, WorkerStatus,
};
use manx_calculation::calc::{Calculation, LocalPod};
use manx_datastore::Stale;
use manx_objects::contents::Contents;
use manx_objects::object::{Kind, Object};
use manx_objects::problem::{Cause, Problem, Severity};
use manx_objects::{State, few};

/// The time that a status waits for the workers' flows.
const FLOWS_TIMEOUT: Duration = Duration::from_millis(500);
/// The most warnings about omitted parts of services.
const MOST_OMISSIONS: usize = 20;

impl Agent {
    pub(super) fn status(&mut self) -> Status {
        let (ports, host) = (&self.led_ports, self.view.host_network());
        let looked = self.attachments.devices.look(ports, &host, Instant::now());
        let Looked { settings: node_settings, count: node_setting_count, wrong } = looked;
        let Self { inputs, view, dataplane, calculated, peering, node_addresses, .. } = &*self;
        let verification = calculated.verifier.as_ref().map(Verifier::verification);
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            node: view.node.clone(),
            uptime_s: self.started.elapsed().as_secs(),
            in_sync: view.cluster.in_sync,
            stale: stale(inputs),
            datastore: format!("{:016x}", inputs.contents().fingerprint),
            tables: calculated.tables.version,
            changed_in_place: calculated.changed_in_place,
            routes_changed_in_place: calculated.routes_changed_in_place,
            invalid: invalid(self),
            warnings: warnings(self).chain(wrong).collect(),
            known_endpoints: view.cluster.model.endpoints.len(),
            known_policies: view.cluster.model.policies.len(),
            frontends: calculated.tables.services.as_ref().map(|it| it.frontends().count()),
            endpoints: endpoints(self),
            other_pods: other_pods(self),
            node_settings,
            node_setting_count,
            routes: routes(self),
            ports: dataplane.ports.attached.values().map(port_status).collect(),
            workers: dataplane.ports.workers.iter().map(worker).collect(),
            flows: flows(self, since_boot().as_secs()),
            rules: rules(self),
            noted: noted(self),
            policy: policy(&calculated.tables.image),
            verification: verification.cloned().unwrap_or_default(),
            node_addresses: node_addresses.status(inputs.contents()),
            bgp: peering.as_ref().map(|it| it.status(addresses(inputs.contents(), &view.node))),
        }
    }

    /// The pods that have addresses of this node, and all other attachments that can be detached.
    pub(super) fn list_attachments(&self) -> Vec<Attachment> {
        let one = |(pod, addresses, id): (&PodName, &[IpAddr], Option<&AttachmentId>)| {
            let attached = self.attachments.pods.find(&object_name(pod));
            Attachment {
                pod: pod.clone(),
                id: id.cloned(),
                addresses: addresses.to_vec(),
                device: attached.map(|it| it.device.device()),
                mac: attached.and_then(|it| it.device.mac()),
                enforced: attached
                    .is_some_and(|it| is_enforced(&self.calculated.tables, &it.local)),
            }
        };
        let leases = self.attachments.leases();
        let is_leased = |(pod, id): &(PodName, Option<AttachmentId>)| {
            leases.addresses(pod).is_some() && leases.id(pod) == id.as_ref()
        };
        let pods = &self.attachments.pods;
        let asked = pods.asked().map(|attach| (attach.pod.clone(), attach.id()));
        let unleased = pods.states().filter_map(|(name, state, _)| {
            let id = state.unleased()?;
            Some((pod_name(name), Some(id.clone())))
        });
        let others: BTreeSet<_> = asked.chain(unleased).filter(|it| !is_leased(it)).collect();
        let others = others.into_iter().map(|(pod, id)| {
            let addresses = Vec::new();
            Attachment { pod, id, addresses, device: None, mac: None, enforced: false }
        });
        leases.iter().map(one).chain(others).collect()
    }

    /// Whether a pod could be attached now: the objects are known, and an address is free.
    pub(super) fn check_ready(&self) -> Result<(), Failure> {
        if !self.view.cluster.in_sync {
            let message = "the datastore has not been read completely: nothing passes a pod until it is; `manx status` shows what is wrong";
            return Err(Failure { kind: ErrorKind::Internal, message: message.to_owned() });
        }
        let room = self.attachments.leases().check_room();
        room.map_err(|error| Failure { kind: error.kind(), message: error.to_string() })
    }

    /// The flows, and the denials after the point of an earlier reply.
    pub(super) fn flows(&self, point: Option<u64>) -> Flows {
        let denied = self.dataplane.denials.noted();
        let (denials, forgotten) = self.dataplane.denials.since(point.unwrap_or(denied));
        let flows = flows(self, since_boot().as_secs());
        let sum = |read: fn(&WorkerCounters) -> &Counter| {
            self.dataplane.ports.workers.iter().map(|worker| read(worker.counters()).read()).sum()
        };
        let in_tables: u64 = sum(|it| &it.flows);
        Flows {
            more: in_tables.saturating_sub(flows.len() as u64),
            flows,
            denials,
            denied,
            forgotten,
            unreported: sum(|it| &it.reports_lost),
            evicted: sum(|it| &it.evictions),
        }
    }
}

pub(super) fn policy(image: &Image) -> PolicyStatus {
    let Counts { chains, linear, classes, rows, .. } = image.counts();
    PolicyStatus { chains, linear, classes, rows, bytes: image.bytes() }
}

/// The packets that matched a rule which did not decide them (`Log`, `Pass` or staged), by rule.
fn noted(Agent { calculated, dataplane, .. }: &Agent) -> Vec<NotedCount> {
    let ports = &dataplane.ports;
    let noted = calculated.calculation.noted(|slot| ports.workers.rule_count(slot)).into_iter();
    let one = |(met, packets): (&Noted, u64)| NotedCount {
        rule: met.to_string(),
        action: format!("{:?}", met.action()).to_lowercase(),
        staged: met.policy().kind.staged(),
        packets,
    };
    noted.filter(|(_, packets)| *packets > 0).map(one).collect()
}

fn stale(inputs: &Inputs) -> Option<manx_api::Stale> {
    let Stale { since, reason } = inputs.source.stale()?;
    let of_epoch = since.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let ago = since.elapsed().unwrap_or_default();
    Some(manx_api::Stale { since: of_epoch.as_secs(), for_s: ago.as_secs(), reason })
}

fn summaries(view: &View, severity: Severity) -> impl Iterator<Item = String> {
    let problems = view.cluster.problems.iter();
    problems.filter(move |problem| problem.severity == severity).map(Problem::summary)
}

fn invalid(Agent { view, dataplane, .. }: &Agent) -> Vec<String> {
    let problems = summaries(view, Severity::Error).chain(view.topology.problems());
    problems.chain(dataplane.socket_faults().map(str::to_owned)).collect()
}

fn warnings(
    Agent { inputs, view, calculated, dataplane, attachments, served, status_reports, .. }: &Agent,
) -> impl Iterator<Item = String> {
    let refused = attachments.refused().map(|(pod, reason)| {
        format!("pod {pod}: its interface was not taken over from the last agent: {reason}; nothing passes until the pod is made anew")
    });
    summaries(view, Severity::Warning)
        .chain(annotations_not_done(inputs.contents(), &view.node))
        .chain(inputs.source.warnings())
        .chain(status_reports.warning())
        .chain(attachments.restart_state.problem())
        .chain(served.problems())
        .chain(left_out(&calculated.calculation))
        .chain(view.services.manx().into_iter().flat_map(services))
        .chain(view.problems_of_way_out())
        .chain(view.problem_of_node_ports())
        .chain(dataplane.refused_ports.warning(Instant::now()))
        .chain(refused)
        .chain(attachments.not_judged(view).map(|pod| {
            format!(
                "pod {pod}: another plugin connected it, and this agent does not have its link. A pod from before Manx is not judged; \
                 one that Manx had, before agent and holder ended, is closed. Make the pod anew"
            )
        }))
}

/// Warnings about services that clients cannot reach, or that behave differently than their authors may believe.
fn services(services: &ManxServices) -> impl Iterator<Item = String> {
    let mut omissions = services.frontends.omissions();
    let told: Vec<String> = omissions
        .by_ref()
        .take(MOST_OMISSIONS)
        .map(|(of, omission)| format!("{of}: {omission}"))
        .collect();
    let untold = match omissions.count() {
        0 => None,
        more => Some(format!("{more} more of services are left out")),
    };
    services.problems().chain(told).chain(untold)
}

/// A warning about pods that are not in the tables, because their policies are too large.
fn left_out(calculation: &Calculation) -> Option<String> {
    const NAMED: usize = 3;
    let pods: Vec<String> = calculation.left_out().iter().map(ToString::to_string).collect();
    (!pods.is_empty()).then(|| {
        format!(
            "pod {}: the policies of these namespaces have more rules, or selectors and network sets that hold for more pods \
             and addresses, than this node compiles; nothing passes for these pods: use fewer or narrower ones \
             (docs/security.md)",
            few(pods, NAMED)
        )
    })
}

/// One warning for each annotation of the node's pods that requests something that Manx does not support. There are
/// none if such annotations are reported as problems of each pod, as for a directory of manifests.
fn annotations_not_done(contents: &Contents, node: &str) -> Vec<String> {
    const NAMED: usize = 3;
    let told = |problem: &Problem| {
        let of_pod = problem.object.as_ref().is_some_and(|key| key.kind == Kind::Pod);
        of_pod && matches!(problem.cause, Cause::NotDone { .. })
    };
    if contents.problems.iter().any(told) {
        return Vec::new();
    }
    let mut pods = BTreeMap::<_, Vec<String>>::new();
    for (key, stored) in contents.of_kind(Kind::Pod) {
        if let State::Valid(object) = &stored.state
            && let Object::Pod(pod) = &**object
            && pod.node_name.as_deref() == Some(node)
        {
            for annotation in &pod.not_done {
                let name = format!("{}/{}", key.namespace, key.name);
                pods.entry(*annotation).or_default().push(name);
            }
        }
    }
    let line = |((name, message), pods): ((&str, &str), Vec<String>)| {
        let all = if name.ends_with('/') { "*" } else { "" };
        format!("annotation {name}{all} of pod {}: {message}", few(pods, NAMED))
    };
    pods.into_iter().map(line).collect()
}

fn endpoints(Agent { calculated, dataplane, attachments, .. }: &Agent) -> Vec<EndpointStatus> {
    let (tables, image) = (&calculated.tables, &calculated.tables.image);
    let one = |(name, AttachedPod { device, local }): (&ObjectName, &AttachedPod)| {
        let policies = |direction| {
            let chain = image.chain(name, direction).and_then(|chain| image.describe(chain));
            chain.map_or_else(Vec::new, |chain| {
                chain.list.policies.iter().map(ToString::to_string).collect()
            })
        };
        let pod = pod_name(name);
        Some(EndpointStatus {
            pod,
            addresses: local.addresses.clone(),
            port: dataplane.ports.name(local.port)?.to_owned(),
            device: device.device(),
            enforced: is_enforced(tables, local),
            ingress: policies(Direction::Ingress),
            egress: policies(Direction::Egress),
        })
    };
    attachments.attached().filter_map(one).collect()
}

/// The pods that are not simply attached. Those that have been longest in their state come first.
fn other_pods(Agent { attachments, .. }: &Agent) -> OtherPods {
    let mut all: Vec<_> = attachments
        .pods
        .states()
        .filter_map(|(name, state, since)| Some((since, name, state.describe()?)))
        .collect();
    all.sort_by_key(|(since, ..)| *since);
    let (count, now) = (all.len(), SystemTime::now());
    let one = |(since, name, state): (Instant, &ObjectName, String)| {
        let ago = since.elapsed();
        let since = (now - ago).duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        PodState { pod: pod_name(name), state, since: since.as_secs(), for_s: ago.as_secs() }
    };
    OtherPods { count, longest: all.into_iter().take(MAX_OTHER_PODS).map(one).collect() }
}

/// Whether the tables contain the pod.
pub(super) fn is_enforced(tables: &Tables, local: &LocalPod) -> bool {
    tables.endpoint(local.index).is_some_and(|endpoint| endpoint.attachment == local.attachment)
}

fn routes(agent: &Agent) -> Vec<RouteStatus> {
    let one = |(prefix, to): (IpNet, NextHop)| RouteStatus {
        prefix: prefix.to_string(),
        via: leads_to(agent, to),
    };
    agent.calculated.routes().into_iter().map(one).collect()
}

/// Describes a next hop of the tables in use.
pub(super) fn leads_to(agent: &Agent, next_hop: NextHop) -> String {
    let Agent { calculated, dataplane, attachments, .. } = agent;
    let endpoint = |index: u32| {
        let owner = attachments.attached().find(|(_, pod)| pod.local.index == index);
        owner.map_or_else(|| "no endpoint".to_owned(), |(name, _)| format!("pod {name}"))
    };
    let tunnel = |index: u32| {
        let tunnel = calculated.tables.tunnel(index);
        let Some(tunnel) = tunnel else { return "no tunnel".to_owned() };
        let by = dataplane.ports.name(tunnel.link.port).unwrap_or_default();
        format!("{} to {} by {by}", tunnel.outer.encapsulation().name(), tunnel.remote)
    };
    match next_hop {
        NextHop::NoRoute => "nowhere".to_owned(),
        NextHop::Unreachable => "unreachable".to_owned(),
        NextHop::Node => "node".to_owned(),
        NextHop::World | NextHop::Forwarded | NextHop::HostSide(_) | NextHop::ManxPorts => {
            "host".to_owned()
        }
        NextHop::Service | NextHop::Translated => "service".to_owned(),
        NextHop::Endpoint(index) => endpoint(index),
        NextHop::Tunnel(index) | NextHop::Visitor(index) => tunnel(index),
    }
}

fn port_status(port: &Port) -> PortStatus {
    let traffic = port.traffic();
    let drops = traffic.drops.into_iter().filter(|(_, packets)| *packets > 0);
    PortStatus {
        name: port.name.clone(),
        received_packets: traffic.received_packets,
        received_bytes: traffic.received_bytes,
        sent_packets: traffic.sent_packets,
        sent_bytes: traffic.sent_bytes,
        drops: drops.map(|(reason, packets)| (reason.to_owned(), packets)).collect(),
    }
}

pub(super) fn worker(worker: &Handle) -> WorkerStatus {
    let counters = worker.counters();
    WorkerStatus {
        core: worker.core(),
        busy_turns: counters.busy_turns.read(),
        parks: counters.parks.read(),
        packets: counters.packets.read(),
        busy_cycles: counters.busy_cycles.read(),
        handed_off: counters.handoffs.read(),
        portless: counters.portless.read(),
        flows: counters.flows.read(),
        evictions: counters.evictions.read(),
    }
}

/// Copies of the workers' flows. The flows of a worker that does not answer in time are missing (a worker reads commands
/// once a turn).
fn flows(Agent { calculated, dataplane, .. }: &Agent, now: u64) -> Vec<FlowStatus> {
    let workers = &dataplane.ports.workers;
    let rule = |slot: u32| calculated.calculation.reason(slot).map(ToString::to_string);
    let (reply, flows) = crossbeam::channel::bounded(workers.len());
    workers.flows(MAX_FLOWS, &reply);
    let deadline = Instant::now() + FLOWS_TIMEOUT;
    let copies = workers.iter().map_while(|_| flows.recv_deadline(deadline).ok());
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
            egress: rule(flow.counters.egress),
            ingress: rule(flow.counters.ingress),
        }
    };
    copies.flatten().map(|flow| one(&flow)).collect()
}

/// The counts of rules. The counts of rules that no longer exist are added up by verdict.
fn rules(agent: &Agent) -> Vec<RuleCount> {
    let calculation = &agent.calculated.calculation;
    let former = [Verdict::Allow, Verdict::Deny].map(|verdict| {
        rule_count("rules that are gone".to_owned(), verdict, calculation.reclaimed_count(verdict))
    });
    current_rules(agent).chain(former).filter(|rule| rule.packets > 0).collect()
}

/// The counts of the rules in force. A rule may occur more than once.
pub(super) fn current_rules(
    Agent { calculated, dataplane, .. }: &Agent,
) -> impl Iterator<Item = RuleCount> {
    let counts = calculated.calculation.counts(|slot| dataplane.ports.workers.rule_count(slot));
    counts.map(|(reason, packets)| rule_count(reason.to_string(), reason.verdict(), packets))
}

fn rule_count(rule: String, verdict: Verdict, packets: u64) -> RuleCount {
    let verdict = match verdict {
        Verdict::Allow => "allow",
        Verdict::Deny => "deny",
    };
    RuleCount { rule, verdict: verdict.to_owned(), packets }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_that_are_not_done_are_one_line_for_all_pods_of_the_node() {
        let pod = |name: usize, node: &str| {
            format!(
                "{{apiVersion: v1, kind: Pod, metadata: {{namespace: shop, name: web-{name}, annotations: \
                 {{qos.projectcalico.org/egressBandwidth: 1M, qos.projectcalico.org/dscp: '20'}}}}, spec: {{nodeName: {node}}}}}\n---\n"
            )
        };
        let pods: String = (0..5).map(|name| pod(name, "n1")).chain([pod(5, "n2")]).collect();
        let mut contents = Contents::from_texts([("pods.yaml", pods.as_str())]);
        // In a directory each pod has its own problems.
        assert_eq!(contents.problems.len(), 12);
        assert_eq!(annotations_not_done(&contents, "n1"), [""; 0]);
        contents.problems.clear();
        let lines = annotations_not_done(&contents, "n1");
        let [line] = &lines[..] else { panic!("{lines:?}") };
        let begin = "annotation qos.projectcalico.org/* of pod shop/web-0, shop/web-1, shop/web-2 and 2 more: is NOT DONE: ";
        assert!(line.starts_with(begin), "{line}");
        assert_eq!(annotations_not_done(&contents, "n3"), [""; 0]);
    }
}
