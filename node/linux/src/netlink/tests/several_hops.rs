//! Routes with several next hops, in a real kernel.

use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::thread;

use super::*;

/// A prefix, the form of an address in it, and neighbours on both links of [`two_links`].
struct Case {
    to: IpNet,
    inside: fn(u8) -> String,
    neighbours: [&'static str; 3],
}

fn cases() -> [Case; 2] {
    [
        Case {
            to: net("198.51.100.0/24"),
            inside: |at| format!("198.51.100.{at}"),
            neighbours: ["10.9.0.2", "10.9.0.3", "10.10.0.2"],
        },
        Case {
            to: net("2001:db8::/32"),
            inside: |at| format!("2001:db8::{at}"),
            neighbours: ["fd00::2", "fd00::3", "fd10::2"],
        },
    ]
}

/// The left one of two [joined] namespaces, with one more link, and the right one, which keeps the pair alive.
fn two_links() -> (OwnedFd, OwnedFd) {
    let (left, right) = joined();
    in_netns(&left, async |netlink| {
        let peer = Peer { name: "far1", netns: None, mac: None, index: None };
        let veth = Veth { name: "eth1", mac: None, index: None, mtu: 1400, peer };
        netlink.add_veth(&veth).await?;
        sysctl::make_ipv6_static("eth1")?;
        let link = netlink.existing("eth1").await?.index;
        for address in ["10.10.0.1/24", "fd10::1/64"] {
            netlink.add_address(link, net(address)).await?;
        }
        netlink.set_up(netlink.existing("far1").await?.index).await?;
        netlink.set_up(link).await
    })
    .unwrap();
    (left, right)
}

impl Case {
    /// A route by some of the neighbours, in this order, with its own metric.
    async fn by(&self, netlink: &Netlink, hops: &[usize]) -> Result<Route, Error> {
        let links = [netlink.existing("eth0").await?.index, netlink.existing("eth1").await?.index];
        let hop = |at: &usize| Hop::via(ip(self.neighbours[*at]), links[at / 2]);
        Ok(Route { metric: Some(20_179), ..Route::by(self.to, hops.iter().map(hop)) })
    }

    /// Changes the next hops often.
    async fn change(&self, netlink: &Netlink) -> Result<(), Error> {
        for hops in [&[0, 1, 2][..], &[1, 2], &[2], &[0, 1], &[0, 2], &[1]].repeat(50) {
            let route = self.by(netlink, hops).await?;
            netlink.replace_route(&route).await?;
            assert_eq!(netlink.manx_routes(MAIN).await?, [route]);
        }
        Ok(())
    }

    /// The neighbours that get packets to addresses in the prefix. `None` means that there is no route.
    async fn used(&self, netlink: &Netlink) -> Result<BTreeSet<Option<IpAddr>>, Error> {
        let mut used = BTreeSet::new();
        for at in 1..=64 {
            let hop = netlink.next_hop(ip(&(self.inside)(at))).await?;
            used.insert(hop.map(|it| it.neighbour));
        }
        Ok(used)
    }
}

#[test]
fn routes_with_several_next_hops_are_found_again_in_their_order_and_removed() {
    if !namespaces_allowed() {
        return;
    }
    let (left, _right) = two_links();
    in_netns(&left, async |netlink| {
        for case in cases() {
            for hops in [&[0][..], &[0, 1], &[0, 1, 2], &[2, 0], &[2, 1, 0], &[1]] {
                let route = case.by(&netlink, hops).await?;
                netlink.replace_route(&route).await?;
                netlink.replace_route(&route).await?;
                assert_eq!(netlink.manx_routes(MAIN).await?, std::slice::from_ref(&route));
                let expected = hops.iter().map(|at| Some(ip(case.neighbours[*at]))).collect();
                assert_eq!(case.used(&netlink).await?, expected, "all next hops are used");
                netlink.delete_route(MAIN, &route).await?;
                netlink.delete_route(MAIN, &route).await?;
                assert_eq!(netlink.manx_routes(MAIN).await?, []);
            }
        }
        Ok(())
    })
    .unwrap();
}

/// Another thread connects a socket all the time, and has a route except in very few cases: a lookup that meets a route in
/// the moment of its replacement ignores it (`fib_dead` in the kernel). Routes that are deleted first fail here a thousand
/// times. The thread does not query by netlink, because the kernel reports no route for an IPv6 route that is being replaced.
#[test]
fn next_hops_change_in_place() {
    if !namespaces_allowed() {
        return;
    }
    let (left, _right) = two_links();
    for case in cases() {
        in_netns(&left, async |netlink| {
            netlink.replace_route(&case.by(&netlink, &[0]).await?).await
        })
        .unwrap();
        let [connected, refused] = thread::scope(|scope| {
            let changes = scope.spawn(|| in_netns(&left, async |it| case.change(&it).await));
            let found = netns::run_in(&left, || {
                let (any, to) = (Route::default_of(case.to.addr()).addr(), ip(&(case.inside)(7)));
                let mut found = [0; 2];
                while !changes.is_finished() {
                    let socket = UdpSocket::bind((any, 0)).unwrap();
                    found[usize::from(socket.connect((to, 9)).is_err())] += 1;
                }
                found
            });
            changes.join().unwrap().unwrap();
            found.unwrap()
        });
        assert!(connected > 100, "{connected}");
        assert!(refused <= 2 + connected / 100, "{} had no route {refused} times", case.to);
        in_netns(&left, async |it| it.delete_route(MAIN, &case.by(&it, &[1]).await?).await)
            .unwrap();
    }
}

/// All gateways of another program's default route count as addresses that the node needs.
#[test]
fn all_gateways_of_a_default_route_are_found() {
    if !namespaces_allowed() {
        return;
    }
    let (left, _right) = two_links();
    in_netns(&left, async |netlink| {
        let mut expected = BTreeSet::new();
        for case in cases() {
            let route = case.by(&netlink, &[1, 2]).await?;
            let destination = Route::default_of(case.to.addr());
            netlink.replace_static_route(&Route { destination, ..route }).await?;
            expected.extend(case.neighbours[1..].iter().map(|it| ip(it)));
        }
        assert_eq!(netlink.manx_routes(MAIN).await?, [], "they are not Manx's");
        assert_eq!(netlink.default_gateways().await?, expected);
        Ok(())
    })
    .unwrap();
}
