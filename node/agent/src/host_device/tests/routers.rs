//! Several routers announce one prefix, and their routes are equally good.

use super::*;

/// A prefix, an address in it, routers on the uplink, and other addresses that cannot be used as routers.
struct Case {
    to: IpNet,
    inside: IpAddr,
    routers: [IpAddr; 3],
    others: Vec<IpAddr>,
}

/// Among `others`, one is not reached, one is reached through Manx, and the rest are no hosts beyond the node.
fn cases() -> [Case; 2] {
    let of = |to: &str, inside: &str, routers: [&str; 3], others: &[&str]| Case {
        to: to.parse().unwrap(),
        inside: inside.parse().unwrap(),
        routers: routers.map(|it| it.parse().unwrap()),
        others: others.iter().map(|it| it.parse().unwrap()).collect(),
    };
    [
        of(
            "198.51.100.0/24",
            "198.51.100.7",
            ["172.18.0.3", "172.18.0.4", "172.18.0.5"],
            &["192.0.2.1", "10.7.0.9", "172.18.0.2", "172.18.0.255"],
        ),
        of(
            "2001:db8::/32",
            "2001:db8::7",
            ["fd18::3", "fd18::4", "fd18::5"],
            &["fd99::1", "fd07::9", "fd18::2"],
        ),
    ]
}

impl Case {
    /// The node's network with a route by each of these routers.
    fn with(&self, desired: &HostNetwork, routers: &[IpAddr]) -> HostNetwork {
        let mut with = desired.clone();
        let ways = routers.iter().map(|it| (self.to, HostRoute::Router { address: *it }));
        with.blocks.extend(ways);
        with
    }

    /// The neighbours to which the node's kernel sends packets.
    fn leads(&self, node: &Pod) -> Vec<IpAddr> {
        let all = routes(node, MAIN).into_iter().filter(|it| it.destination == self.to);
        let all: Vec<Route> = all.collect();
        assert!(all.len() <= 1 && all.iter().all(|it| it.metric == Some(LEARNED_METRIC)));
        all.into_iter().flat_map(|it| it.hops).filter_map(|it| it.via).collect()
    }
}

/// A prefix has one route with a next hop for each router. Unusable routers are left out. The route changes in place, and
/// stays while the routers' routes are unknown.
pub(super) fn lead_alike(host: &HostDevice, node: &Pod, desired: &HostNetwork, uplink: u32) {
    for case in cases() {
        let [first, second, third] = case.routers;
        for routers in [&[first][..], &[first, second], &[first, second, third], &[third, second]] {
            let with = case.with(desired, routers);
            let Findings { set, removed, .. } = reconcile(host, &with);
            assert_eq!((of_main(&set), removed), (1, vec![]), "{set:?}");
            assert_eq!(reconcile(host, &with), Findings::default(), "again changes nothing");
            let mut expected = routers.to_vec();
            expected.sort_unstable();
            assert_eq!(case.leads(node), expected);
        }
        let with = case.with(desired, &[case.others.clone(), vec![second, third]].concat());
        assert_eq!(reconcile(host, &with), Findings::default(), "the others stay");
        let none = case.with(desired, &case.others);
        let unknown = HostNetwork { keeps_routers: true, ..none.clone() };
        assert_eq!(reconcile(host, &unknown), Findings::default(), "those of the last agent stay");
        stay_while_they_change(host, node, desired, &case);
        assert_eq!(of_main(&reconcile(host, &none).removed), 1);
        assert_eq!(case.leads(node), [] as [IpAddr; 0]);
        assert_eq!(reconcile(host, desired), Findings::default());
        let hops = |it: &Route| it.hops.iter().any(|it| it.device == uplink);
        assert_eq!(routes(node, MAIN).iter().filter(|it| hops(it)).count(), 1, "to a node");
    }
}

/// Another thread connects a socket all the time, and has a route except in very few cases: a lookup that meets a route in
/// the moment of its replacement ignores it (`fib_dead` in the kernel). Routes that are deleted first fail here a thousand
/// times. The thread does not query by netlink, because the kernel reports no route for an IPv6 route that is being replaced.
fn stay_while_they_change(host: &HostDevice, node: &Pod, desired: &HostNetwork, case: &Case) {
    let [first, second, third] = case.routers;
    let changing = || {
        for routers in [&[first, second][..], &[second], &[second, third]].repeat(20) {
            reconcile(host, &case.with(desired, routers));
        }
    };
    let [connected, refused] = std::thread::scope(|scope| {
        let changes = scope.spawn(changing);
        let found = node.run(|| {
            let mut found = [0; 2];
            while !changes.is_finished() {
                let any = if case.inside.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
                let socket = UdpSocket::bind(any).unwrap();
                found[usize::from(socket.connect((case.inside, 9)).is_err())] += 1;
            }
            found
        });
        changes.join().unwrap();
        found
    });
    assert!(connected > 20, "{connected}");
    assert!(refused <= 2 + connected / 100, "{} had no route {refused} times", case.to);
}
