//! Addresses that the node needs, and that no pod may have, whatever objects and requests say. They are those of the API
//! server in use, the gateways of the node's default routes, and its DNS servers.

use std::net::{IpAddr, ToSocketAddrs};
use std::time::Duration;

use manx_calculation::topology::{Reserved, ReservedFor};
use manx_linux::netlink::Netlink;
use tokio::sync::watch;

/// The interval at which the addresses are read, and the longest time to resolve a name.
const REFRESH: Duration = Duration::from_secs(5);
/// The longest time that a start waits for the API server's name.
pub(crate) const START_PATIENCE: Duration = Duration::from_millis(200);
/// The most addresses of the API server that are remembered. Its name may resolve to other addresses each time.
const SERVERS: usize = 32;

/// The configuration of the node's resolver (resolv.conf(5)).
const RESOLVER: &str = "/etc/resolv.conf";

/// The addresses that were found. `None`: they cannot be determined now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NeededAddresses {
    name_servers: Option<Vec<IpAddr>>,
    gateways: Option<Vec<IpAddr>>,
    /// The addresses of the API server, the one that was found last first.
    servers: Vec<IpAddr>,
}

impl NeededAddresses {
    /// Finds the addresses. `server` is the host of the API server, and `patience` limits the time to resolve its name.
    pub(crate) async fn find(netlink: &Netlink, server: Option<&str>, patience: Duration) -> Self {
        let name_servers = match std::fs::read_to_string(RESOLVER) {
            Ok(text) => Some(name_servers_of(&text).collect()),
            Err(error) => {
                // This is not a warning, because a node may have no such file, and it is read every five seconds.
                tracing::debug!(%error, "{RESOLVER} cannot be read: the node's DNS servers stay as they were");
                None
            }
        };
        let gateways = match netlink.default_gateways().await {
            Ok(gateways) => Some(gateways.into_iter().collect()),
            Err(error) => {
                tracing::warn!(%error, "the node's gateways stay as they were");
                None
            }
        };
        Self { name_servers, gateways, servers: resolve(server, patience).await }
    }

    /// Updates the addresses with those that were found later. Addresses that could not be determined stay. So do the API
    /// server's last addresses, because its name may not be resolved while the network is down.
    fn update(&mut self, mut now: Self) {
        let is_new = |it: &IpAddr| !now.servers.contains(it);
        let before: Vec<IpAddr> = self.servers.iter().copied().filter(is_new).collect();
        now.servers.extend(before);
        now.servers.truncate(SERVERS);
        self.servers = now.servers;
        self.name_servers = now.name_servers.or(self.name_servers.take());
        self.gateways = now.gateways.or(self.gateways.take());
    }

    /// The addresses, each with its purpose.
    pub(crate) fn reserved(&self) -> Reserved {
        let name_servers =
            self.name_servers.iter().flatten().map(|it| (*it, ReservedFor::DnsServer));
        let gateways = self.gateways.iter().flatten().map(|it| (*it, ReservedFor::Gateway));
        let servers = self.servers.iter().map(|it| (*it, ReservedFor::ApiServer));
        name_servers.chain(gateways).chain(servers).collect()
    }
}

/// Keeps `reserved` up to date; never ends. `found` has the addresses that were found at the start.
pub(crate) async fn watch(
    netlink: Netlink,
    server: Option<String>,
    mut found: NeededAddresses,
    reserved: watch::Sender<Reserved>,
) {
    loop {
        found.update(NeededAddresses::find(&netlink, server.as_deref(), REFRESH).await);
        let now = found.reserved();
        reserved.send_if_modified(|known| {
            let changed = *known != now;
            *known = now;
            changed
        });
        tokio::time::sleep(REFRESH).await;
    }
}

/// The addresses of the lines `nameserver ADDRESS`, without an IPv6 zone.
fn name_servers_of(text: &str) -> impl Iterator<Item = IpAddr> {
    text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let address = words.next().filter(|word| *word == "nameserver").and(words.next())?;
        address.split('%').next()?.parse().ok()
    })
}

async fn resolve(host: Option<&str>, patience: Duration) -> Vec<IpAddr> {
    let Some(host) = host.map(|host| host.trim_matches(['[', ']']).to_owned()) else {
        return Vec::new();
    };
    if let Ok(address) = host.parse() {
        return vec![address];
    }
    let found = tokio::task::spawn_blocking(move || {
        (host.as_str(), 0).to_socket_addrs().map(|all| all.map(|it| it.ip()).collect())
    });
    match tokio::time::timeout(patience, found).await {
        Ok(Ok(Ok(addresses))) => addresses,
        // The next attempt tries again.
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
        let resolve = |host| resolve(host, REFRESH);
        let address = |text: &str| vec![text.parse::<IpAddr>().unwrap()];
        assert_eq!(resolve(Some("192.0.2.1")).await, address("192.0.2.1"));
        assert_eq!(resolve(Some("[2001:db8::1]")).await, address("2001:db8::1"));
        assert!(resolve(Some("localhost")).await.iter().all(IpAddr::is_loopback));
        assert!(!resolve(Some("localhost")).await.is_empty());
        assert!(resolve(None).await.is_empty());
    }

    #[test]
    fn what_cannot_be_found_out_now_stays_and_an_api_servers_last_addresses_do() {
        let ips =
            |texts: &[&str]| texts.iter().map(|it| it.parse().unwrap()).collect::<Vec<IpAddr>>();
        let mut found = NeededAddresses {
            name_servers: Some(ips(&["10.0.0.1"])),
            gateways: Some(ips(&["10.0.0.2"])),
            servers: ips(&["10.0.0.3"]),
        };
        let first = found.clone();
        found.update(NeededAddresses::default());
        assert_eq!(found, first);
        found.update(NeededAddresses {
            name_servers: Some(Vec::new()),
            gateways: Some(ips(&["10.0.0.4"])),
            servers: ips(&["10.0.0.5"]),
        });
        let reserved: Vec<IpAddr> = found.reserved().into_keys().collect();
        assert_eq!(reserved, ips(&["10.0.0.3", "10.0.0.4", "10.0.0.5"]));
        for nth in 0..100 {
            let servers = vec![IpAddr::from([10, 1, 0, nth])];
            found.update(NeededAddresses { servers, ..NeededAddresses::default() });
        }
        assert_eq!(found.servers.len(), SERVERS);
        assert_eq!(found.servers[0], IpAddr::from([10, 1, 0, 99]));
    }
}
