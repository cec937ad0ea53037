//! `manx node status`: a node's BGP sessions, in the form of `calicoctl node status`.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use clap::Args;
use comfy_table::{Cell, Color};
use manx_api::bgp::{BgpSession, BgpStatus};
use manx_api::node_address::NodeAddress;
use serde::Serialize;

use super::Error;
use super::node_address;
use super::output::{self, Output, table};
use super::socket::Socket;

/// The age from which a session's time is shown as a date (BIRD's `iso short`, which Calico's users
/// see).
const LONG_AGO: Duration = Duration::from_hours(20);

/// The settings of `manx node status`.
#[derive(Debug, Clone, Args)]
pub struct NodeStatus {
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take it for the command's own description")]
    pub socket: Socket,
    /// Form of the report
    #[arg(long, short, value_enum, default_value_t)]
    pub output: Output,
}

/// The printed report.
#[derive(Serialize)]
struct Report {
    node: String,
    node_addresses: Vec<NodeAddress>,
    /// The BGP status. `None`: the agent does not speak BGP.
    bgp: Option<BgpStatus>,
}

/// Prints the sessions of an agent. Exit code 1 if one of them is not established.
pub fn run(NodeStatus { socket, output }: &NodeStatus) -> Result<(), Error> {
    let manx_api::Status { node, node_addresses, bgp, .. } = socket.connect(|_| None)?.status()?;
    let report = Report { node, node_addresses, bgp };
    match output {
        Output::Text => output::print(&render(&report, SystemTime::now()))?,
        Output::Json => output::print_json(&report)?,
    }
    let mut sessions = report.bgp.iter().flat_map(|it| &it.sessions);
    if sessions.all(is_established) { Ok(()) } else { Err(Error::Deviation) }
}

fn is_established(session: &BgpSession) -> bool {
    session.state == "Established"
}

fn render(Report { node, node_addresses, bgp }: &Report, now: SystemTime) -> String {
    let mut text = format!("Manx is running on node {node}.\n");
    text.extend(node_addresses.iter().map(node_address::lines));
    let Some(bgp) = bgp else {
        text.push_str("It does not speak BGP: that is what --bgp (MANX_BGP) is for.\n");
        return text;
    };
    let BgpStatus {
        system,
        identifier,
        addresses,
        listening,
        refused_connections,
        problems,
        sessions,
    } = bgp;
    let identifier = identifier.map_or_else(|| "-".to_owned(), |it| it.to_string());
    let addresses: Vec<String> =
        addresses.iter().map(|it| format!("{} ({})", it.address, it.source)).collect();
    let addresses = if addresses.is_empty() { "none".to_owned() } else { addresses.join(", ") };
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "AS {system}, identifier {identifier}, listening at TCP port {listening}; addresses: {addresses}; {refused_connections} connections of strangers closed"
    );
    for problem in problems {
        let _ = writeln!(text, "WARNING {problem}");
    }
    for (family, is_v4) in [("IPv4", true), ("IPv6", false)] {
        let _ = writeln!(text, "\n{family} BGP status");
        let of_family: Vec<&BgpSession> =
            sessions.iter().filter(|it| it.peer.is_ipv4() == is_v4).collect();
        if of_family.is_empty() {
            let _ = writeln!(text, "No {family} peers found.");
        } else {
            text.push_str(&session_table(&of_family, now));
        }
    }
    text
}

fn session_table(sessions: &[&BgpSession], now: SystemTime) -> String {
    let rows = sessions.iter().map(|session| {
        let BgpSession { peer, name, kind, system, prefixes, .. } = session;
        let state = match session.state.as_str() {
            "Established" => Cell::new("up"),
            "Idle" => Cell::new("down").fg(Color::Red),
            _ => Cell::new("start").fg(Color::Red),
        };
        [
            Cell::new(peer),
            Cell::new(kind),
            state,
            Cell::new(since(session.since_s, now)),
            Cell::new(name),
            Cell::new(system),
            Cell::new(prefixes.received),
            Cell::new(prefixes.announced),
            Cell::new(info(session)),
        ]
    });
    let header = [
        "peer address",
        "peer type",
        "state",
        "since",
        "name",
        "AS",
        "received",
        "announced",
        "info",
    ];
    table(header, &[5, 6, 7], rows.collect())
}

/// The state of RFC 4271, and why the session is not established, or why the previous session
/// ended.
fn info(session: &BgpSession) -> String {
    let state = &session.state;
    match &session.last_error {
        Some(error) if is_established(session) => format!("{state}; before: {error}"),
        Some(error) => format!("{state}: {error}"),
        None => state.clone(),
    }
}

/// The time of day in UTC, or the date if that is long ago.
fn since(seconds: u64, now: SystemTime) -> String {
    let ago = Duration::from_secs(seconds);
    let Some(then) = now.checked_sub(ago) else { return "-".to_owned() };
    let then = humantime::format_rfc3339_seconds(then).to_string();
    let part = if ago < LONG_AGO { then.get(11..19) } else { then.get(..10) };
    part.unwrap_or("-").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use manx_api::bgp::{BgpAddress, BgpPrefixes};

    fn session(peer: &str, kind: &str, state: &str) -> BgpSession {
        BgpSession {
            peer: peer.parse().unwrap(),
            name: "n2".to_owned(),
            kind: kind.to_owned(),
            system: 64512,
            state: state.to_owned(),
            since_s: 75,
            last_error: None,
            hold_time_s: Some(240),
            restart_time_s: Some(120),
            prefixes: BgpPrefixes {
                received: 3,
                refused: 1,
                announced: 2,
                malformed: 4,
                unannounced: 5,
            },
        }
    }

    fn bgp(sessions: Vec<BgpSession>) -> BgpStatus {
        let address = "172.18.0.2".parse().unwrap();
        BgpStatus {
            system: 64512,
            identifier: Some("172.18.0.2".parse().unwrap()),
            addresses: vec![BgpAddress { address, source: "InternalIP".to_owned() }],
            listening: 179,
            refused_connections: 7,
            problems: vec!["BGPConfiguration asks for port 1179: restart it".to_owned()],
            sessions,
        }
    }

    fn rendered(bgp: Option<BgpStatus>) -> String {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let node_addresses = vec![NodeAddress {
            family: "IPv4".to_owned(),
            address: Some("172.18.0.2".to_owned()),
            source: Some("InternalIP".to_owned()),
            interface: Some("eth0".to_owned()),
            method: None,
            others: Vec::new(),
            problem: None,
        }];
        render(&Report { node: "n1".to_owned(), node_addresses, bgp }, now)
    }

    #[test]
    fn sessions_read_like_calicos_with_the_reason_and_the_prefixes() {
        let up = session("172.18.0.3", "node-to-node mesh", "Established");
        let mut back = session("172.18.0.4", "node specific", "Established");
        back.last_error = Some("the peer says Cease (6/0)".to_owned());
        back.since_s = 300_000;
        let mut refused = session("172.18.0.9", "global", "Active");
        refused.name = "rack".to_owned();
        refused.system = 4_200_000_000;
        refused.last_error = Some("172.18.0.9:179 cannot be connected to".to_owned());
        let idle = session("172.18.0.10", "global", "Idle");
        insta::assert_snapshot!(rendered(Some(bgp(vec![up, back, refused, idle]))), @r"
        Manx is running on node n1.
        IPv4 172.18.0.2 on eth0 (InternalIP)
        AS 64512, identifier 172.18.0.2, listening at TCP port 179; addresses: 172.18.0.2 (InternalIP); 7 connections of strangers closed
        WARNING BGPConfiguration asks for port 1179: restart it

        IPv4 BGP status
        PEER ADDRESS  PEER TYPE          STATE  SINCE       NAME          AS  RECEIVED  ANNOUNCED  INFO
        172.18.0.3    node-to-node mesh  up     22:12:05    n2         64512         3          2  Established
        172.18.0.4    node specific      up     2023-11-11  n2         64512         3          2  Established; before: the peer says Cease (6/0)
        172.18.0.9    global             start  22:12:05    rack  4200000000         3          2  Active: 172.18.0.9:179 cannot be connected to
        172.18.0.10   global             down   22:12:05    n2         64512         3          2  Idle

        IPv6 BGP status
        No IPv6 peers found.
        ");
    }

    #[test]
    fn each_family_has_its_part_and_an_agent_without_bgp_says_so() {
        let v6 = session("fd00::3", "node-to-node mesh", "OpenSent");
        insta::assert_snapshot!(rendered(Some(BgpStatus { problems: vec![], ..bgp(vec![v6]) })), @r"
        Manx is running on node n1.
        IPv4 172.18.0.2 on eth0 (InternalIP)
        AS 64512, identifier 172.18.0.2, listening at TCP port 179; addresses: 172.18.0.2 (InternalIP); 7 connections of strangers closed

        IPv4 BGP status
        No IPv4 peers found.

        IPv6 BGP status
        PEER ADDRESS  PEER TYPE          STATE  SINCE     NAME     AS  RECEIVED  ANNOUNCED  INFO
        fd00::3       node-to-node mesh  start  22:12:05  n2    64512         3          2  OpenSent
        ");
        insta::assert_snapshot!(rendered(None), @r"
        Manx is running on node n1.
        IPv4 172.18.0.2 on eth0 (InternalIP)
        It does not speak BGP: that is what --bgp (MANX_BGP) is for.
        ");
    }

    #[test]
    fn every_field_of_a_session_is_documented() {
        let page = include_str!("../../../docs/json.md");
        let (_, page) = page.split_once("## `manx node status`").unwrap();
        let mut of = session("172.18.0.3", "global", "Active");
        of.last_error = Some(String::new());
        let value = serde_json::to_value(bgp(vec![of])).unwrap();
        let mut values = vec![value];
        let mut seen = 0;
        while let Some(value) = values.pop() {
            match value {
                serde_json::Value::Object(members) => {
                    for (name, value) in members {
                        let forms =
                            [format!("`{name}`"), format!("`{name}[]`"), format!(".{name}`")];
                        let is_there = forms.iter().any(|it| page.contains(it));
                        assert!(is_there, "{name} is not in docs/json.md");
                        values.push(value);
                        seen += 1;
                    }
                }
                serde_json::Value::Array(all) => values.extend(all),
                _ => {}
            }
        }
        assert!(seen > 20, "{seen}");
    }
}
