mod several_hops;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::fd::AsFd;

use ipnet::IpNet;

use super::*;
use crate::netns::{self, sysctl};
use crate::testing::namespaces_allowed;

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Two namespaces joined by a veth. The left one is host 1 and the right one host 2 of 10.9.0.0/24
/// and `fd00::/64`.
fn joined() -> (std::os::fd::OwnedFd, std::os::fd::OwnedFd) {
    let (left, right) = (netns::create().unwrap(), netns::create().unwrap());
    let peer = Peer {
        name: "eth0",
        netns: Some(right.as_fd()),
        mac: Some([2, 0, 0, 0, 0, 2]),
        index: None,
    };
    let veth = Veth { name: "eth0", mac: Some([2, 0, 0, 0, 0, 1]), index: None, mtu: 1400, peer };
    in_netns(&left, async |netlink| netlink.add_veth(&veth).await).unwrap();
    for (side, host) in [(&left, 1), (&right, 2)] {
        in_netns(side, async |netlink| {
            let link = netlink.existing("eth0").await?;
            netlink.add_address(link.index, net(&format!("10.9.0.{host}/24"))).await?;
            netlink.add_address(link.index, net(&format!("fd00::{host}/64"))).await?;
            sysctl::make_ipv6_static("eth0")?;
            netlink.set_up(link.index).await
        })
        .unwrap();
    }
    (left, right)
}

#[test]
fn a_pair_joins_two_namespaces_and_neighbours_are_resolved_through_it() {
    if !namespaces_allowed() {
        return;
    }
    let (left, right) = joined();
    let there = in_netns(&right, async |netlink| netlink.existing("eth0").await).unwrap();
    assert_eq!(there.mac, Some([2, 0, 0, 0, 0, 2]));
    assert_eq!(there.mtu, 1400);
    in_netns(&left, async |netlink| {
        let here = netlink.existing("eth0").await?;
        assert!(here.up);
        for address in ["10.9.0.2", "fd00::2"] {
            let hop = netlink.next_hop(ip(address)).await?.unwrap();
            assert_eq!((hop.device, hop.neighbour, hop.is_beyond), (here.index, ip(address), true));
            let mac = netlink.resolve(hop).await?;
            assert_eq!(
                mac,
                Some([2, 0, 0, 0, 0, 2]),
                "{address}: {:?}",
                netlink.neighbours().await?
            );
        }
        let silent = netlink.next_hop(ip("10.9.0.77")).await?.unwrap();
        assert_eq!(netlink.resolve(silent).await?, None);
        netlink.set_neighbour(here.index, ip("10.9.0.77"), [2, 0, 0, 0, 0, 77]).await?;
        assert_eq!(netlink.resolve(silent).await?, Some([2, 0, 0, 0, 0, 77]));
        assert_eq!(netlink.next_hop(ip("192.0.2.1")).await?, None, "no route, no next hop");
        for address in ["10.9.0.1", "10.9.0.255", "fd00::1"] {
            assert!(!netlink.next_hop(ip(address)).await?.unwrap().is_beyond, "{address}");
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn routes_are_replaced_found_again_and_removed() {
    if !namespaces_allowed() {
        return;
    }
    let (left, _right) = joined();
    in_netns(&left, async |netlink| {
        let device = netlink.existing("eth0").await?.index;
        let routes = [
            Route::direct(net("10.1.0.0/16"), device),
            Route { source: Some(ip("10.9.0.1")), ..Route::direct(net("10.2.0.0/16"), device) },
            Route::via(net("0.0.0.0/0"), ip("10.9.0.2"), device),
            Route::by(
                net("10.3.0.0/16"),
                [Hop { onlink: true, ..Hop::via(ip("169.254.1.1"), device) }],
            ),
            Route::direct(net("fd01::/64"), device),
            Route::via(net("::/0"), ip("fd00::2"), device),
        ];
        for route in &routes {
            netlink.replace_route(route).await?;
            netlink.replace_route(route).await?;
        }
        let mut found = netlink.manx_routes(MAIN).await?;
        found.sort();
        let mut wanted = routes.to_vec();
        wanted.sort();
        assert_eq!(found, wanted);
        let hop = netlink.next_hop(ip("192.0.2.1")).await?.unwrap();
        assert_eq!(hop.neighbour, ip("10.9.0.2"));
        for route in &routes {
            netlink.delete_route(MAIN, route).await?;
            netlink.delete_route(MAIN, route).await?;
        }
        assert_eq!(netlink.manx_routes(MAIN).await?, []);
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_route_of_a_table_in_the_words_of_ip() {
    let direct = Route::direct(net("10.9.1.0/24"), 7);
    let by_node =
        Route { source: Some(ip("10.9.0.1")), ..Route::via(direct.destination, ip("10.9.0.2"), 7) };
    let text = |route, device| RouteOf { table: 78, route, device }.to_string();
    assert_eq!(text(&direct, None), "ip route table 78 10.9.1.0/24");
    assert_eq!(
        text(&by_node, Some("eth0")),
        "ip route table 78 10.9.1.0/24 via 10.9.0.2 dev eth0 src 10.9.0.1"
    );
    let hops = ["10.9.0.2", "10.9.0.3"].map(|it| Hop::via(ip(it), 7));
    let several = Route { metric: Some(9), ..Route::by(direct.destination, hops) };
    assert_eq!(
        text(&several, None),
        "ip route table 78 10.9.1.0/24 metric 9 nexthop via 10.9.0.2 nexthop via 10.9.0.3"
    );
}

#[test]
fn links_are_renamed_bridged_moved_and_removed() {
    if !namespaces_allowed() {
        return;
    }
    let (left, right) = joined();
    in_netns(&left, async |netlink| {
        netlink.add_bridge("br0").await?;
        let bridge = netlink.existing("br0").await?;
        let link = netlink.existing("eth0").await?;
        netlink.set_down(link.index).await?;
        netlink.rename(link.index, "port0").await?;
        netlink.set_mtu(link.index, 1280).await?;
        netlink.set_mac(link.index, [2, 0, 0, 0, 0, 9]).await?;
        netlink.set_master(link.index, bridge.index).await?;
        assert_eq!(netlink.link("eth0").await?, None);
        let port = netlink.existing("port0").await?;
        assert_eq!(
            (port.mtu, port.mac, port.master),
            (1280, Some([2, 0, 0, 0, 0, 9]), Some(bridge.index))
        );
        netlink.delete_link(bridge.index).await?;
        netlink.delete_link(bridge.index).await?;
        netlink.move_to(port.index, &right).await
    })
    .unwrap();
    let names = in_netns(&right, async |netlink| netlink.links().await).unwrap();
    assert!(names.iter().any(|link| link.name == "port0"));
}

#[test]
fn addresses_come_and_go_and_an_ipv6_one_is_usable_at_once() {
    if !namespaces_allowed() {
        return;
    }
    let netns = netns::create().unwrap();
    in_netns(&netns, async |netlink| {
        let lo = netlink.existing("lo").await?;
        netlink.set_up(lo.index).await?;
        for address in ["10.1.2.3/32", "fd00::5/128"] {
            let address = Address { index: lo.index, net: net(address) };
            netlink.add_address(address.index, address.net).await?;
            netlink.add_address(address.index, address.net).await?;
            assert!(netlink.addresses().await?.contains(&address));
            std::net::UdpSocket::bind((address.net.addr(), 0)).unwrap();
            netlink.delete_address(address).await?;
            netlink.delete_address(address).await?;
            assert!(!netlink.addresses().await?.contains(&address));
        }
        sysctl::set("ipv4/ip_forward", "1")?;
        Ok(())
    })
    .unwrap();
}

#[test]
fn refusals_are_told_in_words() {
    if !namespaces_allowed() {
        return;
    }
    let netns = netns::create().unwrap();
    let told = in_netns(&netns, async |netlink| {
        let errors = [
            netlink.existing("eth7").await.unwrap_err(),
            netlink.add_bridge("lo").await.unwrap_err(),
            netlink.replace_route(&Route::direct(net("10.0.0.0/8"), 1)).await.unwrap_err(),
        ];
        Ok(errors.map(|error| error.to_string()).join("\n"))
    })
    .unwrap();
    insta::assert_snapshot!(told, @r"
    there is no interface eth7 in this network namespace: there is lo
    bridge lo cannot be made: File exists (os error 17)
    the route to 10.0.0.0/8 by interface 1 cannot be set: Network is down (os error 100)
    ");
}

#[test]
fn rules_are_added_read_back_and_deleted() {
    if !namespaces_allowed() {
        return;
    }
    let netns = netns::create().unwrap();
    in_netns(&netns, async |netlink| {
        for (family, address) in Family::ALL.into_iter().zip([ip("192.0.2.1"), ip("2001:db8::1")]) {
            let before = netlink.rules(family).await?;
            let ports =
                |first, last| PortRange::new(first, last).map(|range| (Transport::Sctp, range));
            let plain = Rule::new(7, family, Action::Lookup(PORTS_TABLE));
            let rules = [
                plain.clone(),
                Rule { ports: ports(61000, 65534), ..plain.clone() },
                Rule { ports: ports(8080, 8080), to: Some(address), ..plain.clone() },
                Rule { from: Some(address), interface: Some("eth7".to_owned()), ..plain },
                Rule { from: Some(address), ..Rule::new(8, family, Action::Drop) },
                Rule::of_local(9, family),
            ];
            for rule in &rules {
                netlink.add_rule(rule).await?;
                netlink.add_rule(rule).await?;
            }
            let found: BTreeSet<Rule> =
                netlink.rules(family).await?.into_iter().filter_map(|it| it.rule).collect();
            for rule in &rules {
                assert!(found.contains(rule), "{rule} is not in {found:#?}");
                netlink.delete_rule(rule).await?;
                netlink.delete_rule(rule).await?;
            }
            let after = netlink.rules(family).await?;
            let text = |rules: &[ListedRule]| rules.iter().map(ToString::to_string).collect();
            let [before, after]: [Vec<String>; 2] = [text(&before), text(&after)];
            assert_eq!(before, after);
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_range_of_ports_is_one_that_a_rule_can_name() {
    for text in ["1-1", "30000-32767", "1-65534"] {
        assert_eq!(text.parse::<PortRange>().unwrap().to_string(), text);
    }
    for text in ["0-1", "1-65535", "2-1", "7", "a-b", ""] {
        assert!(text.parse::<PortRange>().is_err(), "{text}");
    }
    insta::assert_snapshot!("61000-65535".parse::<PortRange>().unwrap_err(), @r#""61000-65535" is no range of ports: expected one like 61000-65534, from 1 to 65534 (no routing rule can name 65535)"#);
}
