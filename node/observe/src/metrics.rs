//! An agent's metrics in Prometheus' text format (exposition format 0.0.4).
//!
//! Names and units follow Prometheus' conventions: base units, and `_total` for counters. Every label's values are bounded:
//! by Manx itself (kinds, reasons, verdicts, kinds of ports), by the node (workers, blocks), or by `rules`.

use std::time::SystemTime;

use manx_api::WorkerStatus;
use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};
use prometheus::{Error, TextEncoder};

use crate::agent_metrics::{AgentMetrics, BgpMetrics, PeerMetrics, Traffic};
use crate::latency::Latencies;
use crate::rules::Rules;
use crate::served::Served;

/// The values of a metric's labels, and its value.
type Sample = (Vec<String>, f64);

/// The page, metric by metric.
#[derive(Default)]
struct Page(Vec<MetricFamily>);

impl Page {
    fn add(
        &mut self,
        (kind, name, help): (MetricType, &str, &str),
        labels: &[&str],
        samples: impl IntoIterator<Item = Sample>,
    ) {
        let metric = |(values, value): Sample| {
            let pair = |(name, value): (&&str, String)| {
                let mut pair = LabelPair::default();
                pair.set_name((*name).to_owned());
                pair.set_value(value);
                pair
            };
            let mut metric = Metric::from_label(labels.iter().zip(values).map(pair).collect());
            if kind == MetricType::COUNTER {
                let mut counter = Counter::default();
                counter.set_value(value);
                metric.set_counter(counter);
            } else {
                let mut gauge = Gauge::default();
                gauge.set_value(value);
                metric.set_gauge(gauge);
            }
            metric
        };
        let metrics: Vec<Metric> = samples.into_iter().map(metric).collect();
        if metrics.is_empty() {
            return;
        }
        let mut family = MetricFamily::default();
        family.set_name(name.to_owned());
        family.set_help(help.to_owned());
        family.set_field_type(kind);
        family.set_metric(metrics);
        self.0.push(family);
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.add((MetricType::GAUGE, name, help), &[], [(Vec::new(), value)]);
    }

    fn gauges(&mut self, name: &str, help: &str, labels: &[&str], samples: Vec<Sample>) {
        self.add((MetricType::GAUGE, name, help), labels, samples);
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.add((MetricType::COUNTER, name, help), &[], [(Vec::new(), value as f64)]);
    }

    fn counters(&mut self, name: &str, help: &str, labels: &[&str], samples: Vec<Sample>) {
        self.add((MetricType::COUNTER, name, help), labels, samples);
    }
}

fn seconds(time: SystemTime) -> f64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

fn sample<const N: usize>(labels: [&str; N], value: impl Into<f64>) -> Sample {
    (labels.map(str::to_owned).to_vec(), value.into())
}

/// Makes the page of metrics.
#[derive(Debug, Default)]
pub struct Renderer {
    rules: Rules,
    latencies: Latencies,
    served: Served,
}

impl Renderer {
    /// A renderer whose pages contain these latencies and the state of each page.
    pub fn new(latencies: Latencies, served: Served) -> Self {
        Self { rules: Rules::default(), latencies, served }
    }

    /// Makes the page of an agent's metrics.
    ///
    /// # Errors
    /// The encoder refuses a metric.
    pub fn render(&mut self, metrics: &AgentMetrics) -> Result<String, Error> {
        self.rules.count(&metrics.rules, metrics.former);
        let mut page = Page::default();
        agent(&mut page, metrics);
        page.gauges(
            "manx_pages_served",
            "1: these pages are served; 0: they are not, and manx status says why.",
            &["pages"],
            self.served.states().into_iter().map(|(it, served)| sample([it], served)).collect(),
        );
        datastore(&mut page, metrics);
        tables(&mut page, metrics);
        pods(&mut page, metrics);
        traffic(&mut page, metrics);
        workers(&mut page, metrics);
        if let Some(of_bgp) = &metrics.bgp {
            bgp(&mut page, of_bgp);
        }
        let rules = self.rules.series();
        page.counters(
            "manx_rule_packets_total",
            "Packets by the rule, or the lack of one, that decided.",
            &["rule", "verdict"],
            rules.map(|(labels, packets)| sample(labels, packets as f64)).collect(),
        );
        page.0.extend(self.latencies.families());
        TextEncoder::new().encode_to_string(&page.0)
    }
}

fn agent(page: &mut Page, metrics: &AgentMetrics) {
    let version = sample([env!("CARGO_PKG_VERSION")], 1);
    page.gauges("manx_build_info", "The agent's version.", &["version"], vec![version]);
    page.gauge(
        "manx_start_time_seconds",
        "When the agent started, in seconds since 1970.",
        seconds(metrics.started),
    );
}

fn datastore(page: &mut Page, metrics: &AgentMetrics) {
    page.gauge(
        "manx_datastore_in_sync",
        "1: all objects have been read.",
        u8::from(metrics.in_sync).into(),
    );
    page.gauge(
        "manx_datastore_stale",
        "1: objects may be out of date; what was known stays in force.",
        u8::from(metrics.stale_since.is_some()).into(),
    );
    page.gauges(
        "manx_datastore_stale_since_timestamp_seconds",
        "When objects were last known to be up to date, in seconds since 1970; only while they may be out of date.",
        &[],
        metrics.stale_since.map(|since| sample([], seconds(since))).into_iter().collect(),
    );
    let state = |valid| if valid { "valid" } else { "invalid" };
    let objects = metrics.objects.iter();
    page.gauges(
        "manx_datastore_objects",
        "Objects by kind. One that is not valid fails closed.",
        &["group", "kind", "state"],
        objects
            .map(|((group, kind, valid), count)| {
                sample([group, kind, state(*valid)], *count as f64)
            })
            .collect(),
    );
    page.gauges(
        "manx_datastore_problems",
        "What is wrong with objects. error: something does not take effect; warning: something was ignored.",
        &["severity"],
        vec![
            sample(["error"], metrics.errors as f64),
            sample(["warning"], metrics.warnings as f64),
        ],
    );
}

fn tables(page: &mut Page, metrics: &AgentMetrics) {
    page.counter("manx_tables_published_total", "Published tables.", metrics.tables);
    page.counters(
        "manx_tables_changed_in_place_total",
        "Changes that were stored in tables in use.",
        &["of"],
        vec![
            sample(["pods"], metrics.pods_in_place as f64),
            sample(["routes"], metrics.routes_in_place as f64),
        ],
    );
    page.gauge(
        "manx_tables_refuted",
        "1: the last tables were wrong about a packet and were not published.",
        u8::from(metrics.refuted).into(),
    );
    page.gauge(
        "manx_cluster_endpoints",
        "Endpoints of the whole cluster in the tables.",
        metrics.known_endpoints as f64,
    );
    page.gauge("manx_cluster_policies", "Policies in the tables.", metrics.known_policies as f64);
    let policy = &metrics.policy;
    page.gauge("manx_policy_chains", "Chains of policies.", policy.chains as f64);
    page.gauge(
        "manx_policy_linear_chains",
        "Chains that are judged rule by rule, which is slower.",
        policy.linear as f64,
    );
    page.gauge("manx_policy_classes", "Classes of peers.", policy.classes as f64);
    page.gauge("manx_policy_rows", "Distinct rows of the policy tables.", policy.rows as f64);
    page.gauge("manx_policy_table_bytes", "Memory of the policy tables.", policy.bytes as f64);
}

fn pods(page: &mut Page, metrics: &AgentMetrics) {
    page.gauges(
        "manx_attached_pods",
        "Pods of this node that are attached. closed: no tables name the pod, so nothing passes.",
        &["state"],
        vec![
            sample(["enforced"], metrics.enforced as f64),
            sample(["closed"], metrics.unenforced as f64),
        ],
    );
    page.gauge(
        "manx_unjudged_pods",
        "Pods of this node that another plugin connected and whose links this agent does not have.",
        metrics.not_judged as f64,
    );
    page.gauge("manx_leases", "Pods that have addresses of this node.", metrics.leases as f64);
    let blocks = metrics.blocks.iter();
    let blocks = blocks.flat_map(|block| {
        let used = sample([&block.net, "used"], block.used as f64);
        [used, sample([&block.net, "free"], block.left as f64)]
    });
    page.gauges(
        "manx_pod_addresses",
        "Addresses of the node's blocks that pods have, and that are left.",
        &["block", "state"],
        blocks.collect(),
    );
}

fn traffic(page: &mut Page, metrics: &AgentMetrics) {
    let by_port = |read: fn(&Traffic) -> u64| {
        let ports = metrics.ports.iter();
        ports.map(|(port, traffic)| sample([port], read(traffic) as f64)).collect()
    };
    page.counters(
        "manx_received_packets_total",
        "Packets received, by what is behind the port; super-packets count in segments.",
        &["port"],
        by_port(|it| it.received_packets),
    );
    page.counters(
        "manx_received_bytes_total",
        "Bytes received, by what is behind the port.",
        &["port"],
        by_port(|it| it.received_bytes),
    );
    page.counters(
        "manx_sent_packets_total",
        "Packets sent, by what is behind the port; super-packets count in segments.",
        &["port"],
        by_port(|it| it.sent_packets),
    );
    page.counters(
        "manx_sent_bytes_total",
        "Bytes sent, by what is behind the port.",
        &["port"],
        by_port(|it| it.sent_bytes),
    );
    let drops = metrics.ports.iter().flat_map(|(port, traffic)| {
        traffic.drops.iter().map(|(reason, packets)| sample([port, reason], *packets as f64))
    });
    page.counters(
        "manx_dropped_packets_total",
        "Packets dropped, by the port where they came in and the reason.",
        &["port", "reason"],
        drops.collect(),
    );
    page.counter(
        "manx_denied_flows_total",
        "Flows that policy denied and that were reported.",
        metrics.denied_flows,
    );
    page.counter(
        "manx_unreported_flows_total",
        "Flows that policy denied and that were not reported, because there were too many.",
        metrics.unreported_flows,
    );
}

fn workers(page: &mut Page, metrics: &AgentMetrics) {
    let of_each = |read: &dyn Fn(&WorkerStatus) -> u64| {
        let workers = metrics.workers.iter().enumerate();
        workers.map(|(number, it)| sample([&number.to_string()], read(it) as f64)).collect()
    };
    let labels = &["worker"];
    page.counters(
        "manx_worker_packets_total",
        "Packets that a worker handled; a super-packet counts as one.",
        labels,
        of_each(&|it| it.packets),
    );
    page.counters(
        "manx_worker_busy_turns_total",
        "Turns that found packets.",
        labels,
        of_each(&|it| it.busy_turns),
    );
    page.counters(
        "manx_worker_sleeps_total",
        "Times that a worker went to sleep.",
        labels,
        of_each(&|it| it.parks),
    );
    page.counters(
        "manx_worker_handoffs_total",
        "Packets handed off to the worker that has their flow.",
        labels,
        of_each(&|it| it.handed_off),
    );
    page.counters(
        "manx_worker_portless_packets_total",
        "Packets handed off to a worker for a port that it no longer has; they were dropped.",
        labels,
        of_each(&|it| it.portless),
    );
    page.gauges("manx_flows", "Flows in a worker's table.", labels, of_each(&|it| it.flows));
    page.gauges(
        "manx_flow_capacity",
        "Flows that a worker's table can hold.",
        labels,
        of_each(&|_| metrics.flow_capacity),
    );
    page.counters(
        "manx_flow_evictions_total",
        "Live flows that were evicted to make room.",
        labels,
        of_each(&|it| it.evictions),
    );
}

/// Reads one number from the metrics of the peers of one type.
type Read = fn(&PeerMetrics) -> u64;

fn bgp(page: &mut Page, metrics: &BgpMetrics) {
    let sessions = metrics.peers.iter().flat_map(|(peers, it)| {
        it.sessions.iter().map(|(state, count)| sample([state, peers], *count as f64))
    });
    page.gauges(
        "manx_bgp_sessions",
        "BGP sessions by their state, and by what makes the peers ones.",
        &["state", "type"],
        sessions.collect(),
    );
    let of_each = |read: Read| {
        metrics.peers.iter().map(|(peers, it)| sample([peers], read(it) as f64)).collect()
    };
    let labels = &["type"];
    page.gauges(
        "manx_bgp_received_prefixes",
        "Prefixes that BGP peers have announced and that are taken.",
        labels,
        of_each(|it| it.received),
    );
    page.gauges(
        "manx_bgp_announced_prefixes",
        "Prefixes that are announced to BGP peers.",
        labels,
        of_each(|it| it.announced),
    );
    let totals: [(_, _, Read); 5] = [
        (
            "manx_bgp_refused_prefixes_total",
            "Prefixes that BGP peers announced and that were refused, because they lead back or nowhere, or by a filter.",
            |it| it.refused,
        ),
        (
            "manx_bgp_unannounced_prefixes_total",
            "Prefixes that could not be announced to BGP peers, because their attributes fit into no message.",
            |it| it.unannounced,
        ),
        ("manx_bgp_established_sessions_total", "BGP sessions that were established.", |it| {
            it.established
        }),
        (
            "manx_bgp_ended_sessions_total",
            "BGP sessions that were established and have ended, for whatever reason.",
            |it| it.ended,
        ),
        (
            "manx_bgp_malformed_messages_total",
            "Messages of BGP peers that were wrong and cost no session.",
            |it| it.malformed,
        ),
    ];
    for (name, help, read) in totals {
        page.counters(name, help, labels, of_each(read));
    }
    page.counter(
        "manx_bgp_refused_connections_total",
        "Connections to BGP's port that were closed at once, because they came from no peer.",
        metrics.refused_connections,
    );
    page.gauge(
        "manx_bgp_problems",
        "Settings of BGP that cannot be heeded. manx status says which.",
        metrics.problems as f64,
    );
}
