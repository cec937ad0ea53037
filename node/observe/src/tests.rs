//! The pages as clients see them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use manx_api::health::Page;
use manx_api::{PolicyStatus, RuleCount, WorkerStatus};
use manx_fixtures::skip::{Need, skip};

use crate::agent_metrics::{AgentMetrics, BgpMetrics, BlockUse, PeerMetrics, Traffic};
use crate::health::{Health, Running};
use crate::latency::Latencies;
use crate::metrics::Renderer;
use crate::served::Served;
use crate::server::{CONNECTIONS, HEADER, RETRY, ROOM};
use crate::{Addresses, Observer, start};

mod checks;

fn traffic(packets: u64) -> Traffic {
    let drops = BTreeMap::from([("policy-egress", packets), ("no-route", 0)]);
    Traffic {
        received_packets: packets,
        received_bytes: 100 * packets,
        sent_packets: 1,
        sent_bytes: 60,
        drops,
    }
}

fn worker() -> WorkerStatus {
    WorkerStatus {
        core: None,
        busy_turns: 5,
        parks: 6,
        packets: 7,
        busy_cycles: 8,
        handed_off: 9,
        portless: 10,
        flows: 11,
        evictions: 12,
    }
}

fn bgp() -> BgpMetrics {
    let peers = PeerMetrics {
        sessions: BTreeMap::from([("idle", 0), ("established", 2)]),
        received: 30,
        announced: 4,
        established: 5,
        ended: 3,
        refused: 6,
        unannounced: 1,
        malformed: 7,
    };
    BgpMetrics {
        peers: BTreeMap::from([("global", peers), ("mesh", PeerMetrics::default())]),
        refused_connections: 9,
        problems: 1,
    }
}

/// The metrics of an agent with `rules` rules.
fn agent_metrics(rules: usize) -> AgentMetrics {
    let rule = |number: usize| RuleCount {
        rule: format!("NetworkPolicy shop/\"web\\{number}\"\ningress[0]"),
        verdict: ["allow", "deny"][number % 2].to_owned(),
        packets: 3,
    };
    AgentMetrics {
        started: SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000),
        in_sync: true,
        stale_since: Some(SystemTime::UNIX_EPOCH + Duration::from_mins(28_333_335)),
        objects: BTreeMap::from([
            (("", "Pod", true), 7),
            (("networking.k8s.io", "NetworkPolicy", false), 1),
            (("projectcalico.org", "NetworkPolicy", false), 2),
        ]),
        errors: 1,
        warnings: 2,
        known_endpoints: 100,
        known_policies: 10,
        enforced: 5,
        unenforced: 0,
        not_judged: 1,
        leases: 5,
        blocks: vec![BlockUse { net: "10.244.1.0/24".to_owned(), used: 5, left: 248 }],
        tables: 12,
        pods_in_place: 34,
        routes_in_place: 2,
        refuted: false,
        policy: PolicyStatus { chains: 4, linear: 0, classes: 9, rows: 17, bytes: 81_234 },
        ports: BTreeMap::from([("pod", traffic(10)), ("host", traffic(20))]),
        workers: vec![worker(), worker()],
        flow_capacity: 262_144,
        rules: (0..rules).map(rule).collect(),
        former: [1, 2],
        denied_flows: 8,
        unreported_flows: 1,
        bgp: Some(bgp()),
    }
}

fn render(metrics: &AgentMetrics) -> String {
    let latencies = Latencies::default();
    latencies.published(Duration::from_millis(3));
    latencies.changed(Duration::from_millis(15));
    let served = Served::default();
    served.succeed("health");
    served.fail("metrics", "not served");
    Renderer::new(latencies, served).render(metrics).unwrap()
}

/// The parts of a page about one metric.
#[derive(Debug, Default)]
struct Family {
    help: String,
    kind: String,
    labels: BTreeSet<String>,
    samples: Vec<(String, f64)>,
}

/// Splits `{a="b",c="d"}` at the ends of values, which may have escaped quotes.
fn labels(text: &str) -> Vec<(String, String)> {
    let (mut found, mut rest) = (Vec::new(), text);
    while let Some((name, behind)) = rest.split_once("=\"") {
        let mut escaped = false;
        let end = behind.find(|c| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        });
        let end = end.unwrap();
        found.push((name.trim_start_matches(',').to_owned(), behind[..end].to_owned()));
        rest = &behind[end + 1..];
    }
    found
}

/// Parses a page in the order of the format: HELP, TYPE, samples, metric by metric.
fn parse(page: &str) -> BTreeMap<String, Family> {
    let mut families = BTreeMap::<String, Family>::new();
    let mut current = String::new();
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            let family = Family { help: help.to_owned(), ..Family::default() };
            assert!(families.insert(name.to_owned(), family).is_none(), "{name} is there twice");
            name.clone_into(&mut current);
            continue;
        }
        let family = families.get_mut(&current).unwrap_or_else(|| panic!("no HELP before {line}"));
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert_eq!((name, family.kind.as_str()), (current.as_str(), ""));
            kind.clone_into(&mut family.kind);
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap();
        let (name, of) = series.split_once('{').unwrap_or((series, "}"));
        let parts: &[&str] =
            if family.kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
        let known = parts.iter().any(|part| name == format!("{current}{part}"));
        assert!(known, "{name} stands below {current}");
        let of = labels(of.strip_suffix('}').unwrap());
        family.labels.extend(of.into_iter().map(|(name, _)| name));
        let value = value.parse().unwrap_or_else(|_| panic!("no number: {line}"));
        family.samples.push((series.to_owned(), value));
    }
    families
}

#[test]
fn a_page_has_the_form_names_and_units_that_prometheus_expects() {
    let families = parse(&render(&agent_metrics(3)));
    assert!(families.len() > 35, "{}", families.len());
    for (name, Family { help, kind, samples, .. }) in &families {
        assert!(name.starts_with("manx_"), "{name}");
        assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{name}");
        assert!(help.ends_with('.') && help.len() > 10, "{name}: {help}");
        assert!(["counter", "gauge", "histogram"].contains(&kind.as_str()), "{name}: {kind}");
        assert_eq!(name.ends_with("_total"), kind == "counter", "{name}: {kind}");
        for unit in ["_ms", "_milliseconds", "_us", "_kb", "_kilobytes", "_minutes", "_percent"] {
            assert!(!name.trim_end_matches("_total").ends_with(unit), "{name}: no base unit");
        }
        if kind == "histogram" {
            assert!(name.ends_with("_seconds"), "{name}");
        }
        let series: BTreeSet<&str> = samples.iter().map(|(series, _)| series.as_str()).collect();
        assert_eq!(series.len(), samples.len(), "{name} has a series twice");
    }
}

#[test]
fn metrics_have_the_values_that_their_names_say() {
    let page = render(&agent_metrics(1));
    for line in [
        "manx_datastore_objects{group=\"networking.k8s.io\",kind=\"NetworkPolicy\",state=\"invalid\"} 1",
        "manx_datastore_stale 1",
        "manx_pages_served{pages=\"health\"} 1",
        "manx_pages_served{pages=\"metrics\"} 0",
        "manx_datastore_stale_since_timestamp_seconds 1700000100",
        "manx_pod_addresses{block=\"10.244.1.0/24\",state=\"free\"} 248",
        "manx_dropped_packets_total{port=\"host\",reason=\"policy-egress\"} 20",
        "manx_flow_capacity{worker=\"1\"} 262144",
        "manx_rule_packets_total{rule=\"NetworkPolicy shop/\\\"web\\\\0\\\"\\ningress[0]\",verdict=\"allow\"} 3",
        "manx_rule_packets_total{rule=\"(others)\",verdict=\"deny\"} 2",
        "manx_publish_duration_seconds_bucket{le=\"0.002\"} 0",
        "manx_publish_duration_seconds_bucket{le=\"0.005\"} 1",
        "manx_change_to_workers_seconds_count 1",
        "manx_bgp_sessions{state=\"established\",type=\"global\"} 2",
        "manx_bgp_received_prefixes{type=\"global\"} 30",
        "manx_bgp_ended_sessions_total{type=\"global\"} 3",
        "manx_bgp_ended_sessions_total{type=\"mesh\"} 0",
        "manx_bgp_refused_connections_total 9",
    ] {
        assert!(page.lines().any(|it| it == line), "{line} is not in\n{page}");
    }
    let fresh = AgentMetrics { stale_since: None, ..agent_metrics(1) };
    assert!(!render(&fresh).contains("stale_since"));
    assert!(!render(&AgentMetrics { bgp: None, ..agent_metrics(1) }).contains("manx_bgp"));
}

#[test]
fn no_label_is_unbounded() {
    let families = parse(&render(&agent_metrics(10_000)));
    let names: BTreeSet<&str> =
        families.values().flat_map(|it| &it.labels).map(String::as_str).collect();
    // Each label is bounded by Manx or by the node, except `rule`.
    let bounded = [
        "block", "group", "kind", "le", "of", "pages", "port", "reason", "severity", "state",
        "type", "verdict", "version", "worker",
    ];
    let unbounded: Vec<&str> = names.into_iter().filter(|name| !bounded.contains(name)).collect();
    assert_eq!(unbounded, ["rule"]);
    assert_eq!(families["manx_rule_packets_total"].samples.len(), crate::rules::MOST + 2);
}

/// `docs/metrics.md` contains each metric with its type and labels, and no other.
#[test]
fn every_metric_is_documented() {
    let docs = include_str!("../../../docs/metrics.md");
    let rows = docs.lines().filter(|line| line.starts_with("| `manx_"));
    let documented: BTreeSet<(String, String, String)> = rows
        .map(|row| {
            let cells: Vec<String> =
                row.split('|').map(|cell| cell.trim().replace('`', "")).collect();
            (cells[1].clone(), cells[2].clone(), cells[3].clone())
        })
        .collect();
    let families = parse(&render(&agent_metrics(1)));
    let rendered = families.into_iter().map(|(name, family)| {
        let labels = family.labels.into_iter().filter(|label| label != "le");
        (name, family.kind, labels.collect::<Vec<_>>().join(", "))
    });
    assert_eq!(documented, rendered.collect());
}

#[test]
fn promtool_finds_nothing_wrong() {
    let promtool =
        Command::new("promtool").args(["check", "metrics"]).stdin(Stdio::piped()).spawn();
    let mut promtool = match promtool {
        Ok(promtool) => promtool,
        Err(error) => {
            let reason = format!("promtool (apt-get install prometheus): {error}");
            return skip(Need::Promtool, "promtool_finds_nothing_wrong", &reason);
        }
    };
    promtool.stdin.take().unwrap().write_all(render(&agent_metrics(1000)).as_bytes()).unwrap();
    assert!(promtool.wait().unwrap().success());
}

/// An observer of both sites at free ports, and an agent that answers requests for metrics.
fn observed(answers: bool) -> (SocketAddr, SocketAddr, std::sync::mpsc::Receiver<()>, Keeper) {
    let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (health, metrics) = (free(), free());
    let addresses = Addresses { health: Some(health), metrics: Some(metrics), proxy: None };
    let Observer { health: tell, mut metrics_requests, .. } = start(addresses, None, || Ok(()));
    for address in [health, metrics] {
        until(|| TcpStream::connect(address).is_ok());
    }
    let (asked, questioned) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        while let Some(request) = metrics_requests.blocking_recv() {
            let _ = asked.send(());
            if answers {
                let _ = request.send(agent_metrics(1));
            } else {
                // The request stays open, as in a control loop that is busy.
                std::mem::forget(request);
            }
        }
    });
    (health, metrics, questioned, Keeper(tell))
}

struct Keeper(tokio::sync::watch::Sender<Health>);

fn get(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response
}

fn page(address: SocketAddr, path: &str) -> String {
    get(address, &format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n"))
}

#[test]
fn pages_show_health_and_metrics_each_at_its_own_address() {
    let (health, metrics, _asked, keeper) = observed(true);
    assert!(page(health, "/liveness").starts_with("HTTP/1.1 200 OK\r\n"));
    let starting = page(health, "/readiness");
    assert!(starting.starts_with("HTTP/1.1 503"), "{starting}");
    let mut running = Running::new(Instant::now());
    running.published = true;
    keeper.0.send_replace(Health::Running(running));
    let ready = page(health, "/readiness");
    assert!(ready.starts_with("HTTP/1.1 200") && ready.ends_with("\r\n\r\nready\n"), "{ready}");
    let text = page(metrics, "/metrics");
    assert!(text.contains("content-type: text/plain; version=0.0.4\r\n"), "{text}");
    assert!(text.contains("\nmanx_flows{worker=\"0\"} 11\n"), "{text}");
    let unknown = page(health, "/metrics");
    assert!(unknown.starts_with("HTTP/1.1 404") && unknown.contains("/liveness or /readiness"));
    assert!(
        get(metrics, "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
            .starts_with("HTTP/1.1 405")
    );
}

#[test]
fn the_agent_is_asked_once_a_second_at_most() {
    let (_, metrics, asked, _keeper) = observed(true);
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(2500) {
        assert!(page(metrics, "/metrics").starts_with("HTTP/1.1 200"));
    }
    let times = asked.try_iter().count();
    assert!((2..=3).contains(&times), "{times}");
}

#[test]
fn slow_and_hostile_clients_hold_nothing_up() {
    let (health, metrics, _asked, _keeper) = observed(true);
    // More connections than are allowed, each of which sends half a header.
    let half = || {
        let mut stream = TcpStream::connect(health).unwrap();
        stream.write_all(b"GET /liveness HTTP/1.1\r\n").unwrap();
        stream
    };
    let mut slow: Vec<TcpStream> = (0..2 * CONNECTIONS).map(|_| half()).collect();
    let start = Instant::now();
    assert!(page(health, "/liveness").starts_with("HTTP/1.1 200"));
    assert!(page(metrics, "/metrics").starts_with("HTTP/1.1 200"));
    // A SYN may be lost if so many clients connect at once, and is sent again after 1 s (RFC 6298,
    // section 2).
    assert!(start.elapsed() < HEADER, "{:?}", start.elapsed());
    // The waiting connections are closed: the oldest because of newer ones, the others by the timeout.
    for stream in &mut slow {
        stream.set_read_timeout(Some(Duration::from_secs(8))).unwrap();
        let mut rest = Vec::new();
        if let Err(error) = stream.read_to_end(&mut rest) {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        }
    }
    // A header that is too large, and a request that is not HTTP.
    let large = format!("GET /liveness HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(2 * ROOM));
    for request in [large.as_str(), "\0\0\0\0\r\n\r\n"] {
        let mut stream = TcpStream::connect(health).unwrap();
        let _ = stream.write_all(request.as_bytes());
        let mut response = Vec::new();
        let _ = stream.read_to_end(&mut response);
        assert!(!response.starts_with(b"HTTP/1.1 200"), "{response:?}");
    }
    assert!(page(health, "/liveness").starts_with("HTTP/1.1 200"));
}

#[test]
fn an_agent_that_does_not_answer_is_told() {
    let (health, metrics, _asked, _keeper) = observed(false);
    let scrape = std::thread::spawn(move || page(metrics, "/metrics"));
    assert!(page(health, "/liveness").starts_with("HTTP/1.1 200"), "while the other waits");
    let answer = scrape.join().unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 503") && answer.contains("has not answered for 5 s"),
        "{answer}"
    );
}

#[test]
fn an_address_that_is_taken_ends_nothing_is_told_and_is_served_when_it_is_free() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.health");
    let socket = UnixListener::bind(&path).unwrap();
    socket.set_nonblocking(true).unwrap();
    let addresses = Addresses { health: Some(address), ..Addresses::default() };
    let observer = start(addresses, Some(socket), || Ok(()));
    until(|| !observer.served.problems().is_empty());
    let told = observer.served.problems().join("\n");
    let expected = format!("health: not served at {address}: Address already in use");
    assert!(told.starts_with(&expected) && told.contains("--health-address"), "{told}");
    // Whatever process answers at the address, the socket is the agent's own.
    assert!(manx_api::health::ask(&path, Page::Liveness).unwrap().well);
    let ready = manx_api::health::ask(&path, Page::Readiness).unwrap();
    assert!(!ready.well && ready.text.starts_with("not ready: "), "{ready:?}");
    observer.health.send_replace(Health::Starting(Some("waits for x".to_owned())));
    let ready = manx_api::health::ask(&path, Page::Readiness).unwrap();
    assert!(ready.text.ends_with("nothing passes: waits for x"), "{ready:?}");
    drop(taken);
    until(|| observer.served.problems().is_empty());
    assert!(page(address, "/liveness").starts_with("HTTP/1.1 200"));
}

/// Waits for a condition that becomes true soon, or at the next attempt.
fn until(what: impl Fn() -> bool) {
    let start = Instant::now();
    while !what() {
        assert!(start.elapsed() < 10 * RETRY, "it does not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}
