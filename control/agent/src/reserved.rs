//! Addresses that the node needs and that are no pod's, whatever objects and requests say: the API server in use, the
//! gateways of the node's default routes, and its DNS servers.

use std::net::{IpAddr, ToSocketAddrs};
use std::time::Duration;

use manx_calculation::topology::Reserved;
use manx_linux::netlink::Netlink;
use tokio::sync::watch;

/// How often they are looked for.
const REFRESH: Duration = Duration::from_secs(5);

/// What the node's resolver reads (resolv.conf(5)).
const RESOLVER: &str = "/etc/resolv.conf";

/// Finds them. `server`: the host of the API server. What cannot be found out now is missing.
pub(crate) async fn find(netlink: &Netlink, server: Option<&str>) -> Reserved {
    let mut reserved = Reserved::new();
    let name_servers = std::fs::read_to_string(RESOLVER).unwrap_or_default();
    reserved.extend(name_servers_of(&name_servers).map(|it| (it, "the node's DNS servers")));
    match netlink.default_gateways().await {
        Ok(gateways) => reserved.extend(gateways.into_iter().map(|it| (it, "the node's gateways"))),
        Err(error) => tracing::warn!(%error, "the node's gateways are not known"),
    }
    reserved.extend(resolve(server).await.into_iter().map(|it| (it, "the API server's")));
    reserved
}

/// Keeps `found` up to date; never ends. An address that is not found any more stays while the agent runs if it is the
/// API server's: its name may not be resolved while the network is down.
pub(crate) async fn watch(
    netlink: Netlink,
    server: Option<String>,
    found: watch::Sender<Reserved>,
) {
    loop {
        tokio::time::sleep(REFRESH).await;
        let mut now = find(&netlink, server.as_deref()).await;
        found.send_if_modified(|known| {
            let of_server = known.iter().filter(|(_, what)| **what == "the API server's");
            for (address, what) in of_server {
                now.entry(*address).or_insert(what);
            }
            let changed = *known != now;
            *known = now;
            changed
        });
    }
}

/// The addresses of lines `nameserver ADDRESS`; an IPv6 zone is left out.
fn name_servers_of(text: &str) -> impl Iterator<Item = IpAddr> {
    text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let address = words.next().filter(|word| *word == "nameserver").and(words.next())?;
        address.split('%').next()?.parse().ok()
    })
}

async fn resolve(host: Option<&str>) -> Vec<IpAddr> {
    let Some(host) = host.map(|host| host.trim_matches(['[', ']']).to_owned()) else {
        return Vec::new();
    };
    if let Ok(address) = host.parse() {
        return vec![address];
    }
    let found = tokio::task::spawn_blocking(move || {
        (host.as_str(), 0).to_socket_addrs().map(|all| all.map(|it| it.ip()).collect())
    });
    match tokio::time::timeout(REFRESH, found).await {
        Ok(Ok(Ok(addresses))) => addresses,
        // Tried again.
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_servers_are_the_second_words_of_their_lines() {
        let text = "# nameserver 192.0.2.1\nsearch a b\nnameserver 10.0.0.2\n  nameserver fe80::1%eth0 \n\
             nameserver x\nnameservers 10.0.0.3\nnameserver\n";
        let found: Vec<String> = name_servers_of(text).map(|it| it.to_string()).collect();
        assert_eq!(found, ["10.0.0.2", "fe80::1"]);
    }

    #[tokio::test]
    async fn an_api_server_is_found_by_address_and_by_name() {
        let address = |text: &str| vec![text.parse::<IpAddr>().unwrap()];
        assert_eq!(resolve(Some("192.0.2.1")).await, address("192.0.2.1"));
        assert_eq!(resolve(Some("[2001:db8::1]")).await, address("2001:db8::1"));
        assert!(resolve(Some("localhost")).await.iter().all(IpAddr::is_loopback));
        assert!(!resolve(Some("localhost")).await.is_empty());
        assert!(resolve(None).await.is_empty());
    }
}
