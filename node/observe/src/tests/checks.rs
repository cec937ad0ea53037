//! The pages for load balancers, about services and about the node.

use super::*;
use crate::check_server::CONNECTIONS;
use crate::checks::{Check, Checks};

fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// An agent whose control loop runs. Its tables may be in force, and its node may be about to be removed.
fn running(published: bool, is_leaving: bool) -> Health {
    let mut running = Running::new(Instant::now());
    (running.published, running.is_leaving) = (published, is_leaving);
    Health::Running(running)
}

fn check(at: SocketAddr, endpoints: usize) -> Checks {
    let (namespace, name) = ("shop".to_owned(), "web".to_owned());
    Checks::from([(at, Check { namespace, name, endpoints })])
}

fn status(response: &str) -> &str {
    response.split(' ').nth(1).unwrap_or("none")
}

fn body(response: &str) -> &str {
    response.split_once("\r\n\r\n").unwrap().1
}

#[test]
fn a_balancer_is_told_how_many_endpoints_a_service_has_while_the_agent_is_ready() {
    let observer = start(Addresses::default(), None, || Ok(()));
    let at = free();
    observer.checks.serve(check(at, 2));
    until(|| observer.checks.served().contains(&at));
    let starting = page(at, "/");
    assert_eq!(status(&starting), "503");
    assert!(body(&starting).contains("\"localEndpoints\":2,\"serviceProxyHealthy\":false"));
    observer.health.send_replace(running(true, false));
    let served = page(at, "/healthz");
    assert_eq!(status(&served), "200", "{served}");
    assert!(served.contains("x-load-balancing-endpoint-weight: 2\r\n"), "{served}");
    assert!(served.contains("content-type: application/json\r\n"), "{served}");
    assert!(served.contains("x-content-type-options: nosniff\r\n"), "{served}");
    let expected = "{\"service\":{\"namespace\":\"shop\",\"name\":\"web\"},\"localEndpoints\":2,\"serviceProxyHealthy\":true}";
    assert_eq!(body(&served), expected);
    assert_eq!(status(&get(at, "OPTIONS / HTTP/1.0\r\n\r\n")), "200", "as HAProxy asks");
    observer.checks.serve(check(at, 0));
    let none = page(at, "/");
    assert_eq!(status(&none), "503");
    assert!(none.contains("x-load-balancing-endpoint-weight: 0\r\n"), "{none}");
    // A node that is about to be removed still translates.
    observer.checks.serve(check(at, 1));
    observer.health.send_replace(running(true, true));
    assert_eq!(status(&page(at, "/")), "200");
}

#[test]
fn a_port_is_served_while_it_is_wanted_and_nobody_else_has_it() {
    let observer = start(Addresses::default(), None, || Ok(()));
    let (first, second) = (free(), TcpListener::bind("127.0.0.1:0").unwrap());
    let at = second.local_addr().unwrap();
    assert_eq!(observer.served.problems(), [""; 0]);
    observer.checks.serve(check(first, 1).into_iter().chain(check(at, 1)).collect());
    until(|| !observer.served.problems().is_empty());
    let told = observer.served.problems().join("\n");
    let begin =
        format!("service-checks: not served at {at} for Service shop/web: Address already in use");
    assert!(told.starts_with(&begin) && told.contains("another healthCheckNodePort"), "{told}");
    assert_eq!(observer.checks.served(), [first].into(), "the other one is served");
    drop(second);
    until(|| observer.checks.served().contains(&at));
    until(|| observer.served.problems().is_empty());
    // A check that is removed is closed with its connections.
    let mut open = TcpStream::connect(first).unwrap();
    observer.checks.serve(check(at, 1));
    until(|| observer.checks.served() == [at].into());
    assert!(TcpStream::connect(first).is_err());
    open.set_read_timeout(Some(HEADER / 2)).unwrap();
    let ended = open.read(&mut [0]);
    assert!(!ended.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock));
    let again = TcpListener::bind(first).unwrap();
    observer.checks.serve(Checks::new());
    until(|| observer.checks.served().is_empty());
    drop((again, observer));
    until(|| TcpStream::connect(at).is_err());
}

#[test]
fn a_crowd_at_one_port_holds_no_other_up() {
    let observer = start(Addresses::default(), None, || Ok(()));
    observer.health.send_replace(running(true, false));
    let (crowded, other) = (free(), free());
    observer.checks.serve(check(crowded, 1).into_iter().chain(check(other, 1)).collect());
    until(|| observer.checks.served().len() == 2);
    let slow: Vec<TcpStream> =
        (0..2 * CONNECTIONS).map(|_| TcpStream::connect(crowded).unwrap()).collect();
    let start = Instant::now();
    assert_eq!(status(&page(other, "/")), "200");
    assert_eq!(status(&page(crowded, "/")), "200");
    assert!(start.elapsed() < HEADER, "{:?}", start.elapsed());
    // The number of open connections is limited: the oldest are closed long before their timeout.
    let is_closed = |mut stream: &TcpStream| {
        stream.set_nonblocking(true).unwrap();
        !stream.read(&mut [0]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    };
    until(|| slow.iter().filter(|it| is_closed(it)).count() > CONNECTIONS);
    assert!(start.elapsed() < HEADER, "{:?}", start.elapsed());
}

#[test]
fn a_node_that_is_about_to_go_is_alive_and_not_for_balancers() {
    let at = free();
    let addresses = Addresses { proxy: Some(at), ..Addresses::default() };
    let observer = start(addresses, None, || Ok(()));
    until(|| TcpStream::connect(at).is_ok());
    let ask = || ["/healthz", "/livez"].map(|path| page(at, path));
    let statuses = || ask().map(|it| status(&it).to_owned());
    let words = |page: &str| {
        let json: serde_json::Value = serde_json::from_str(body(page)).unwrap();
        let time = |name: &str| humantime::parse_rfc3339(json[name].as_str().unwrap());
        let rest = format!("{} {}", json["nodeEligible"], json["healthy"]);
        (time("lastUpdated").ok(), time("currentTime").unwrap(), rest)
    };
    assert_eq!(statuses(), ["503", "503"], "it starts");
    let [health, _] = ask();
    assert!(body(&health).starts_with("{\"lastUpdated\":\"0001-01-01T00:00:00Z\","), "{health}");
    observer.health.send_replace(running(true, false));
    assert_eq!(statuses(), ["200", "200"]);
    let [health, live] = ask();
    let (updated, current, rest) = words(&health);
    assert_eq!((updated, rest.as_str()), (Some(current), "true true"));
    assert_eq!(words(&live).2, "null true");
    observer.health.send_replace(running(true, true));
    assert_eq!(statuses(), ["503", "200"]);
    assert_eq!(words(&ask()[0]).2, "false true");
    let turned = SystemTime::now();
    observer.health.send_replace(running(false, false));
    assert_eq!(statuses(), ["503", "503"]);
    let (updated, current, rest) = words(&ask()[0]);
    assert_eq!(rest, "true false");
    let updated = updated.unwrap();
    assert!(updated >= turned - Duration::from_millis(1) && updated < current, "the last turn");
    assert_eq!(status(&page(at, "/")), "404");
}

#[test]
fn at_all_addresses_of_ipv6_are_those_of_ipv4_too() {
    let port = free().port();
    let addresses = Addresses {
        proxy: Some(SocketAddr::new("::".parse().unwrap(), port)),
        ..Addresses::default()
    };
    let _observer = start(addresses, None, || Ok(()));
    until(|| TcpStream::connect(("127.0.0.1", port)).is_ok());
}
