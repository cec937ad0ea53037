//! `manx status`.

use std::fmt::{Display, Write as _};
use std::io::{self, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use clap::Args;
use comfy_table::{Cell, Color};
use serde::Serialize;

use super::Error;
use super::node_address;
use super::output::{self, Output, table};
use super::socket::Socket;
use manx_api::client::Client;
use manx_rig::world::setup::State;

/// The settings of `manx status`.
#[derive(Debug, Clone, Args)]
pub struct Status {
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take it for the command's own description")]
    pub socket: Socket,
    /// Form of the report
    #[arg(long, short, value_enum, default_value_t)]
    pub output: Output,
}

/// The status of all agents of a rig, as JSON.
#[derive(Serialize)]
struct Agents {
    /// The agents that answer, in the order of the nodes.
    agents: Vec<manx_api::Status>,
}

/// Prints the status of an agent, or of each agent of a rig.
pub fn run(status: &Status) -> Result<(), Error> {
    if status.socket.node.is_none()
        && let Some(rig) = status.socket.named_rig()?
    {
        return of_rig(&rig, status.output);
    }
    let answer = status.socket.connect(|_| None)?.status()?;
    match status.output {
        Output::Text => output::print(&render(&answer)),
        Output::Json => output::print_json(&answer),
    }
}

/// Prints the status of each agent of a rig. If an agent does not answer, the command fails after
/// it has printed the others.
fn of_rig(rig: &State, form: Output) -> Result<(), Error> {
    let (mut agents, mut silent) = (Vec::new(), false);
    for node in &rig.nodes {
        match Client::connect(&node.socket).and_then(|mut agent| agent.status()) {
            Ok(status) => agents.push(status),
            Err(error) => {
                silent = true;
                // This fails if standard error is closed, and then there is no reader.
                let _ = writeln!(
                    io::stderr(),
                    "manx: node {}: {error}; `manx rig status {}` tells whether it has ended",
                    node.name,
                    rig.name
                );
            }
        }
    }
    match form {
        Output::Text => {
            let texts: Vec<String> = agents.iter().map(render).collect();
            output::print(&texts.join("\n\n"))?;
        }
        Output::Json => output::print_json(&Agents { agents })?,
    }
    if silent { Err(Error::Deviation) } else { Ok(()) }
}

fn render(status: &manx_api::Status) -> String {
    let manx_api::Status {
        version,
        node,
        uptime_s,
        in_sync,
        stale,
        datastore,
        tables,
        changed_in_place,
        routes_changed_in_place,
        invalid,
        warnings,
        known_endpoints,
        known_policies,
        frontends,
        endpoints,
        other_pods,
        node_settings,
        node_setting_count,
        routes,
        ports,
        workers,
        flows,
        rules,
        noted,
        policy,
        verification,
        node_addresses,
        bgp,
    } = status;
    let mut text = String::new();
    let sync = if *in_sync { "in sync" } else { "NOT IN SYNC" };
    let up = duration(Duration::from_secs(*uptime_s));
    // Writing to a String cannot fail.
    let _ = writeln!(text, "node {node}, manx {version}, up {up}");
    let _ = writeln!(
        text,
        "datastore {sync} at {datastore}: {known_endpoints} endpoints, {known_policies} policies; tables published {tables} times, changed in place {changed_in_place} times for pods and {routes_changed_in_place} times for routes"
    );
    if let Some(frontends) = frontends {
        let _ = writeln!(text, "services translated by Manx: {frontends} addresses with a port");
    }
    if let Some(manx_api::Stale { for_s, reason, .. }) = stale {
        let age = duration(Duration::from_secs(*for_s));
        let _ = writeln!(text, "STALE for {age}: what was known stays in force: {reason}");
    }
    for address in node_addresses {
        let _ = write!(text, "address {}", node_address::lines(address));
    }
    let _ = writeln!(text, "{}", tables_line(policy, verification));
    if let manx_api::Verification::Refuted(refutation) = verification {
        let _ = write!(text, "TABLES NOT PUBLISHED, they are wrong about a packet: {refutation}");
    }
    for object in invalid {
        let _ = writeln!(text, "INVALID {object}");
    }
    for warning in warnings {
        let _ = writeln!(text, "WARNING {warning}");
    }
    section(&mut text, "endpoints", &endpoint_table(endpoints));
    section(&mut text, "pods not simply attached", &other_table(other_pods));
    section(&mut text, "node", &node_table(node_settings, *node_setting_count));
    section(&mut text, "routes", &route_table(routes));
    if let Some(bgp) = bgp {
        write_bgp(&mut text, bgp);
    }
    section(&mut text, "ports", &port_table(ports));
    section(&mut text, "drops", &drop_table(ports));
    section(&mut text, "workers", &worker_table(workers));
    section(&mut text, "flows", &flow_table(flows));
    section(&mut text, "rules", &rule_table(rules));
    section(&mut text, "met on the way", &noted_table(noted));
    text
}

fn tables_line(policy: &manx_api::PolicyStatus, verification: &manx_api::Verification) -> String {
    let manx_api::PolicyStatus { chains, linear, classes, rows, bytes } = policy;
    let proved = match verification {
        manx_api::Verification::Off | manx_api::Verification::Refuted(_) => String::new(),
        manx_api::Verification::Proved(manx_api::Verified { cells, questions, milliseconds }) => {
            format!("; proved: {cells} cells by {questions} questions in {milliseconds} ms")
        }
    };
    let kilobytes = bytes.div_ceil(1000);
    format!(
        "policy tables: {chains} chains ({linear} judged rule by rule), {classes} classes, {rows} rows, {kilobytes} kB{proved}"
    )
}

/// Writes a section, unless it is empty (an empty table has only its header).
fn section(text: &mut String, title: &str, table: &str) {
    if table.lines().count() > 1 {
        let _ = write!(text, "\n{}\n{table}", title.to_uppercase());
    }
}

fn endpoint_table(endpoints: &[manx_api::EndpointStatus]) -> String {
    let rows = endpoints.iter().map(|endpoint| {
        let enforced = if endpoint.enforced {
            Cell::new("yes")
        } else {
            Cell::new("no, nothing passes").fg(Color::Red)
        };
        [
            Cell::new(&endpoint.pod),
            Cell::new(list(&endpoint.addresses)),
            Cell::new(endpoint.device.name()),
            Cell::new(&endpoint.port),
            enforced,
            Cell::new(list(&endpoint.ingress)),
            Cell::new(list(&endpoint.egress)),
        ]
    });
    let header =
        ["pod", "addresses", "device", "port", "enforced", "ingress policies", "egress policies"];
    table(header, &[], rows.collect())
}

fn other_table(manx_api::OtherPods { count, longest }: &manx_api::OtherPods) -> String {
    let named = longest.iter().map(|manx_api::PodState { pod, state, for_s, .. }| {
        let age = duration(Duration::from_secs(*for_s));
        [Cell::new(pod), Cell::new(state), Cell::new(age)]
    });
    let more = count.saturating_sub(longest.len());
    let more =
        (more > 0).then(|| [Cell::new(format!("and {more} more")), Cell::new(""), Cell::new("")]);
    table(["pod", "state", "for"], &[2], named.chain(more).collect())
}

fn node_table(settings: &[manx_api::NodeSetting], count: usize) -> String {
    let stands = |stands| if stands { Cell::new("yes") } else { Cell::new("NO").fg(Color::Red) };
    let rows = settings.iter().map(|it| [Cell::new(&it.what), stands(it.stands)]);
    let more = count.saturating_sub(settings.len());
    let more = (more > 0).then(|| [Cell::new(format!("and {more} more")), Cell::new("")]);
    table(["setting of the node's kernel", "stands"], &[], rows.chain(more).collect())
}

fn route_table(routes: &[manx_api::RouteStatus]) -> String {
    let rows = routes.iter().map(|route| [Cell::new(&route.prefix), Cell::new(&route.via)]);
    table(["destination", "via"], &[], rows.collect())
}

fn write_bgp(text: &mut String, bgp: &manx_api::bgp::BgpStatus) {
    let manx_api::bgp::BgpStatus { system, identifier, listening, refused_connections, .. } = bgp;
    let identifier = identifier.map_or_else(|| "-".to_owned(), |it| it.to_string());
    let _ = writeln!(
        text,
        "\nBGP: AS {system}, identifier {identifier}, TCP port {listening}; {refused_connections} connections of strangers closed"
    );
    for problem in &bgp.problems {
        let _ = writeln!(text, "WARNING {problem}");
    }
    let rows = bgp.sessions.iter().map(|session| {
        let state = Cell::new(&session.state);
        let is_up = session.hold_time_s.is_some();
        let prefixes = &session.prefixes;
        [
            Cell::new(session.peer),
            Cell::new(&session.name),
            Cell::new(&session.kind),
            Cell::new(session.system),
            if is_up { state } else { state.fg(Color::Red) },
            Cell::new(duration(Duration::from_secs(session.since_s))),
            Cell::new(prefixes.received),
            Cell::new(prefixes.announced),
            Cell::new(session.last_error.as_deref().unwrap_or("-")),
        ]
    });
    let header =
        ["peer", "name", "kind", "AS", "state", "since", "received", "announced", "last error"];
    section(text, "bgp sessions", &table(header, &[3, 6, 7], rows.collect()));
}

fn port_table(ports: &[manx_api::PortStatus]) -> String {
    let rows = ports.iter().map(|port| {
        [
            Cell::new(&port.name),
            Cell::new(port.received_packets),
            Cell::new(port.received_bytes),
            Cell::new(port.sent_packets),
            Cell::new(port.sent_bytes),
            Cell::new(port.drops.values().sum::<u64>()),
        ]
    });
    let header = ["port", "received", "bytes", "sent", "bytes", "dropped"];
    table(header, &[1, 2, 3, 4, 5], rows.collect())
}

fn drop_table(ports: &[manx_api::PortStatus]) -> String {
    let rows = ports.iter().flat_map(|port| {
        let row =
            |(reason, packets)| [Cell::new(&port.name), Cell::new(reason), Cell::new(packets)];
        port.drops.iter().map(row)
    });
    table(["port", "reason", "packets"], &[2], rows.collect())
}

fn worker_table(workers: &[manx_api::WorkerStatus]) -> String {
    let rows = workers.iter().enumerate().map(|(number, worker)| {
        [
            Cell::new(number),
            Cell::new(worker.core.map_or_else(|| "any".to_owned(), |core| core.to_string())),
            Cell::new(worker.packets),
            Cell::new(ratio(worker.packets, worker.busy_turns)),
            Cell::new(ratio(worker.busy_cycles, worker.packets)),
            Cell::new(worker.parks),
            Cell::new(worker.handed_off),
            Cell::new(worker.flows),
            Cell::new(worker.evictions),
        ]
    });
    let header = [
        "worker",
        "core",
        "packets",
        "packets/turn",
        "cycles/packet",
        "parks",
        "handed off",
        "flows",
        "evictions",
    ];
    table(header, &[0, 1, 2, 3, 4, 5, 6, 7, 8], rows.collect())
}

fn flow_table(flows: &[manx_api::FlowStatus]) -> String {
    let end = |address: IpAddr, port: u16| match port {
        0 => address.to_string(),
        port => SocketAddr::new(address, port).to_string(),
    };
    let rows = flows.iter().map(|flow| {
        [
            Cell::new(flow.protocol),
            Cell::new(end(flow.source, flow.source_port)),
            Cell::new(end(flow.destination, flow.destination_port)),
            Cell::new(&flow.state),
            Cell::new(&flow.verdict),
            Cell::new(flow.packets[0]),
            Cell::new(flow.packets[1]),
            Cell::new(duration(Duration::from_secs(flow.idle_s))),
        ]
    });
    let header =
        ["proto", "source", "destination", "state", "verdict", "packets", "replies", "idle"];
    table(header, &[0, 5, 6], rows.collect())
}

fn rule_table(rules: &[manx_api::RuleCount]) -> String {
    let rows = rules.iter().map(|rule| {
        let verdict = Cell::new(&rule.verdict);
        let verdict = if rule.verdict == "deny" { verdict.fg(Color::Red) } else { verdict };
        [verdict, Cell::new(rule.packets), Cell::new(&rule.rule)]
    });
    table(["verdict", "packets", "rule"], &[1], rows.collect())
}

fn noted_table(noted: &[manx_api::NotedCount]) -> String {
    let rows = noted.iter().map(|met| {
        let staged = if met.staged { "staged: would " } else { "" };
        let action = format!("{staged}{}", met.action);
        [Cell::new(action), Cell::new(met.packets), Cell::new(&met.rule)]
    });
    table(["action", "packets", "rule"], &[1], rows.collect())
}

fn list(items: &[impl Display]) -> String {
    if items.is_empty() {
        return "-".to_owned();
    }
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn ratio(of: u64, to: u64) -> String {
    if to == 0 { "-".to_owned() } else { format!("{:.1}", of as f64 / to as f64) }
}

/// A time in its two largest units, e.g. `2d 3h`.
fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m {}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h {}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d {}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn other_pods() -> manx_api::OtherPods {
        let pod = manx_api::PodName { namespace: "default".to_owned(), name: "late".to_owned() };
        let state = "waits for its object".to_owned();
        let late = manx_api::PodState { pod, state, since: 1_700_000_000, for_s: 9 };
        manx_api::OtherPods { count: 23, longest: vec![late] }
    }

    fn node_address() -> manx_api::node_address::NodeAddress {
        manx_api::node_address::NodeAddress {
            family: "IPv4".to_owned(),
            address: Some("172.18.0.2/24".to_owned()),
            source: Some("annotation projectcalico.org/IPv4Address".to_owned()),
            interface: Some("eth0".to_owned()),
            method: Some("first-found".to_owned()),
            others: vec![manx_api::node_address::OtherAddress {
                address: "10.0.0.5/24".to_owned(),
                interface: "eth1".to_owned(),
            }],
            problem: Some("found eth0".to_owned()),
        }
    }

    fn status() -> manx_api::Status {
        manx_api::Status {
            version: "0.1.0".to_owned(),
            node: "node-1".to_owned(),
            uptime_s: 3725,
            in_sync: true,
            stale: None,
            datastore: "0f1e2d3c4b5a6978".to_owned(),
            tables: 12,
            changed_in_place: 34,
            routes_changed_in_place: 2,
            invalid: vec!["policies.yaml, document 2, NetworkPolicy default/web: spec.ingress[0].ports[0].port: 0".to_owned()],
            warnings: vec!["hosts.yaml, HostEndpoint h: in part NOT ENFORCED".to_owned()],
            known_endpoints: 6,
            known_policies: 3,
            frontends: Some(5),
            endpoints: vec![
                manx_api::EndpointStatus {
                    pod: manx_api::PodName { namespace: "default".to_owned(), name: "web".to_owned() },
                    addresses: vec!["10.244.1.2".parse().unwrap(), "fd00:1::2".parse().unwrap()],
                    port: "pod:default/web".to_owned(),
                    device: manx_api::Device::Tun,
                    enforced: true,
                    ingress: vec!["default/web-from-front".to_owned(), "default/deny".to_owned()],
                    egress: vec![],
                },
                manx_api::EndpointStatus {
                    pod: manx_api::PodName { namespace: "default".to_owned(), name: "db".to_owned() },
                    addresses: vec!["10.244.1.3".parse().unwrap()],
                    port: "pod:default/db".to_owned(),
                    device: manx_api::Device::Veth,
                    enforced: false,
                    ingress: vec![],
                    egress: vec![],
                },
            ],
            other_pods: other_pods(),
            node_settings: vec![
                manx_api::NodeSetting { what: "ip rule pref 4 lookup local proto 2".to_owned(), stands: false },
                manx_api::NodeSetting { what: "net.ipv4.conf.manx1.rp_filter = 0".to_owned(), stands: true },
            ],
            node_setting_count: 300,
            routes: vec![
                manx_api::RouteStatus { prefix: "10.244.1.2/32".to_owned(), via: "pod default/web".to_owned() },
                manx_api::RouteStatus { prefix: "10.244.2.0/24".to_owned(), via: "tunnel 172.18.0.3 (node-2)".to_owned() },
            ],
            ports: vec![
                manx_api::PortStatus {
                    name: "pod:default/web".to_owned(),
                    received_packets: 1200,
                    received_bytes: 1_800_000,
                    sent_packets: 900,
                    sent_bytes: 60_000,
                    drops: [("policy-egress".to_owned(), 7), ("source-spoofed".to_owned(), 1)].into(),
                },
                manx_api::PortStatus {
                    name: "host".to_owned(),
                    received_packets: 0,
                    received_bytes: 0,
                    sent_packets: 0,
                    sent_bytes: 0,
                    drops: [].into(),
                },
            ],
            workers: vec![manx_api::WorkerStatus {
                core: Some(1),
                busy_turns: 100,
                parks: 40,
                packets: 2100,
                busy_cycles: 1_050_000,
                handed_off: 30,
                portless: 0,
                flows: 17,
                evictions: 0,
            }],
            flows: vec![manx_api::FlowStatus {
                protocol: 6,
                source: "10.244.1.5".parse().unwrap(),
                source_port: 40_000,
                destination: "10.244.2.7".parse().unwrap(),
                destination_port: 443,
                state: "established".to_owned(),
                verdict: "allow".to_owned(),
                packets: [12, 9],
                idle_s: 3,
                egress: None,
                ingress: None,
            }],
            rules: vec![
                manx_api::RuleCount { rule: "default/web-from-front ingress[0]".to_owned(), verdict: "allow".to_owned(), packets: 2092 },
                manx_api::RuleCount { rule: "default/deny (no rule matched)".to_owned(), verdict: "deny".to_owned(), packets: 7 },
            ],
            noted: vec![
                manx_api::NotedCount { rule: "GlobalNetworkPolicy first ingress[0]".to_owned(), action: "pass".to_owned(), staged: false, packets: 12 },
                manx_api::NotedCount { rule: "StagedNetworkPolicy default/strict ingress[0]".to_owned(), action: "deny".to_owned(), staged: true, packets: 3 },
            ],
            policy: manx_api::PolicyStatus { chains: 4, linear: 0, classes: 9, rows: 17, bytes: 81_234 },
            verification: manx_api::Verification::Proved(manx_api::Verified { cells: 5200, questions: 340, milliseconds: 7 }),
            node_addresses: vec![node_address()],
            bgp: None,
        }
    }

    #[test]
    fn a_status_reads_like_this() {
        insta::assert_snapshot!(render(&status()), @r"
        node node-1, manx 0.1.0, up 1h 2m
        datastore in sync at 0f1e2d3c4b5a6978: 6 endpoints, 3 policies; tables published 12 times, changed in place 34 times for pods and 2 times for routes
        services translated by Manx: 5 addresses with a port
        address IPv4 172.18.0.2/24 on eth0, by first-found (annotation projectcalico.org/IPv4Address); there are also 10.0.0.5/24 on eth1
        WARNING IPv4: found eth0
        policy tables: 4 chains (0 judged rule by rule), 9 classes, 17 rows, 82 kB; proved: 5200 cells by 340 questions in 7 ms
        INVALID policies.yaml, document 2, NetworkPolicy default/web: spec.ingress[0].ports[0].port: 0
        WARNING hosts.yaml, HostEndpoint h: in part NOT ENFORCED

        ENDPOINTS
        POD          ADDRESSES             DEVICE  PORT             ENFORCED            INGRESS POLICIES                     EGRESS POLICIES
        default/web  10.244.1.2,fd00:1::2  tun     pod:default/web  yes                 default/web-from-front,default/deny  -
        default/db   10.244.1.3            veth    pod:default/db   no, nothing passes  -                                    -

        PODS NOT SIMPLY ATTACHED
        POD           STATE                 FOR
        default/late  waits for its object   9s
        and 22 more

        NODE
        SETTING OF THE NODE'S KERNEL         STANDS
        ip rule pref 4 lookup local proto 2  NO
        net.ipv4.conf.manx1.rp_filter = 0    yes
        and 298 more

        ROUTES
        DESTINATION    VIA
        10.244.1.2/32  pod default/web
        10.244.2.0/24  tunnel 172.18.0.3 (node-2)

        PORTS
        PORT             RECEIVED    BYTES  SENT  BYTES  DROPPED
        pod:default/web      1200  1800000   900  60000        8
        host                    0        0     0      0        0

        DROPS
        PORT             REASON          PACKETS
        pod:default/web  policy-egress         7
        pod:default/web  source-spoofed        1

        WORKERS
        WORKER  CORE  PACKETS  PACKETS/TURN  CYCLES/PACKET  PARKS  HANDED OFF  FLOWS  EVICTIONS
             0     1     2100          21.0          500.0     40          30     17          0

        FLOWS
        PROTO  SOURCE            DESTINATION     STATE        VERDICT  PACKETS  REPLIES  IDLE
            6  10.244.1.5:40000  10.244.2.7:443  established  allow         12        9  3s

        RULES
        VERDICT  PACKETS  RULE
        allow       2092  default/web-from-front ingress[0]
        deny           7  default/deny (no rule matched)

        MET ON THE WAY
        ACTION              PACKETS  RULE
        pass                     12  GlobalNetworkPolicy first ingress[0]
        staged: would deny        3  StagedNetworkPolicy default/strict ingress[0]
        ");
    }

    #[test]
    fn an_agent_that_has_nothing_says_so_briefly() {
        let nothing = manx_api::Status {
            in_sync: false,
            stale: Some(manx_api::Stale {
                since: 1_700_000_000,
                for_s: 75,
                reason: "no answer for 4 s".to_owned(),
            }),
            invalid: vec![],
            warnings: vec![],
            frontends: None,
            endpoints: vec![],
            other_pods: manx_api::OtherPods::default(),
            node_settings: vec![],
            node_setting_count: 0,
            routes: vec![],
            ports: vec![],
            workers: vec![],
            flows: vec![],
            rules: vec![],
            noted: vec![],
            policy: manx_api::PolicyStatus::default(),
            verification: manx_api::Verification::Off,
            node_addresses: vec![],
            bgp: None,
            ..status()
        };
        insta::assert_snapshot!(render(&nothing), @r"
        node node-1, manx 0.1.0, up 1h 2m
        datastore NOT IN SYNC at 0f1e2d3c4b5a6978: 6 endpoints, 3 policies; tables published 12 times, changed in place 34 times for pods and 2 times for routes
        STALE for 1m 15s: what was known stays in force: no answer for 4 s
        policy tables: 0 chains (0 judged rule by rule), 0 classes, 0 rows, 0 kB
        ");
    }
}
