//! The host port, with sockets at both its ends.

mod routers;

use std::net::{IpAddr, UdpSocket};

use manx_dataplane::worker::Polling;
use manx_devices::testing::{LONG, Pod, Wire, bound, devices, reaches};
use manx_linux::netlink::{Peer, TRANSLATED_TABLE, Veth};
use manx_linux::testing::namespaces_allowed;

use super::*;
use crate::reconcile::Findings;

#[test]
fn the_node_reaches_pods_by_the_host_port_and_its_routes_are_reconciled() {
    if !namespaces_allowed() {
        return;
    }
    for device in devices() {
        let agent = AgentNamespace::create().unwrap();
        let node = Pod::new(&[]);
        let pod = Pod::new(&["10.7.0.2", "fd07::2"]);
        let wanted = DeviceSpec {
            interface: HOST,
            addresses: &[],
            mtu: 1400,
            segments: None,
            device,
            queues: 1,
            polling: Polling::Adaptive,
        };
        let (host, host_held) =
            node.run(|| HostDevice::attach(&agent, &wanted, "eth0", true).unwrap());
        let (_pod_device, pod_queues) = pod.attach(&agent, device).unwrap();
        let wire = Wire::between(host_held.own.queues, pod_queues);

        let uplink = make_uplink(&node);
        let [v4, v6] = ["10.7.0.1", "fd07::1"].map(|text| text.parse::<IpAddr>().unwrap());
        let net = |text: &str| text.parse::<IpNet>().unwrap();
        let second = "172.18.0.3".parse().unwrap();
        let mut desired = HostNetwork {
            addresses: vec![v4, v6],
            masquerade_addresses: vec!["10.7.0.0".parse().unwrap()],
            blocks: vec![
                (net("10.7.0.0/24"), HostRoute::Manx { source: Some(v4) }),
                (net("fd07::/64"), HostRoute::Manx { source: Some(v6) }),
                (net("10.7.1.0/24"), HostRoute::Node { address: second }),
                (net("10.7.2.0/24"), HostRoute::Node { address: "192.0.2.1".parse().unwrap() }),
            ],
            own: [v4, v6].into(),
            keeps_routers: false,
        };
        let mut first = Pass::default();
        let unreachable = host.walk(&desired, &mut first).unwrap();
        assert_eq!(of_main(&first.findings.set), 3, "{:?}", first.findings);
        let leads = routes(&node, MAIN);
        assert!(leads.iter().any(|it| it.hops == [Hop::via(second, uplink)]), "{leads:?}");
        assert_eq!(unreachable, [net("10.7.2.0/24")]);
        assert_eq!(reconcile(&host, &desired), Findings::default(), "again changes nothing");

        for address in &pod.addresses {
            let there = pod.run(|| bound(*address));
            let here = node.run(|| {
                let any = if address.is_ipv4() { v4 } else { v6 };
                bound(any)
            });
            assert!(
                reaches(&here, &there, LONG) && reaches(&there, &here, LONG),
                "{device:?} {address}"
            );
            let source = node.run(|| {
                let socket =
                    UdpSocket::bind(if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })
                        .unwrap();
                socket.connect(there.local_addr().unwrap()).unwrap();
                socket.local_addr().unwrap().ip()
            });
            assert_eq!(
                source,
                if address.is_ipv4() { v4 } else { v6 },
                "the tunnel address is the source"
            );
        }

        set_back(&host, &node, &desired);
        leave_others_rules(&host, &node, &desired);
        change_single_routes(&host, &node, &desired, [v4, v6]);
        lead_by_routers(&host, &node, &desired, second);
        routers::lead_alike(&host, &node, &desired, uplink);

        desired.blocks = vec![
            (net("fd07::/64"), HostRoute::Manx { source: None }),
            (net("10.7.1.0/24"), HostRoute::Manx { source: None }),
        ];
        let Findings { set, removed, .. } = reconcile(&host, &desired);
        assert_eq!((of_main(&set), of_main(&removed)), (2, 1), "{set:?} {removed:?}");
        desired.addresses = vec![v6];
        let removed = vec![format!("{v4}/32 on manx0")];
        assert_eq!(reconcile(&host, &desired), Findings { removed, ..Findings::default() });
        let addresses = netlink::in_netns(netns::open(&node.path).unwrap(), async |netlink| {
            netlink.addresses().await
        });
        let holds = |address| {
            addresses.as_ref().unwrap().iter().any(|held| held.net == IpNet::from(address))
        };
        assert!(holds(v6) && !holds(v4));
        drop(wire);
        host.detach(&agent, false).unwrap();
        assert_eq!([MAIN, OWN_TABLE].map(|table| routes(&node, table)), [vec![], vec![]]);
        assert_eq!(rules(&node), [] as [Rule; 0]);
    }
}

/// Gives a node a link with neighbours, by which other nodes are reached without a tunnel.
fn make_uplink(node: &Pod) -> u32 {
    let peer = Peer { name: "far", netns: None, mac: None, index: None };
    let veth = Veth { name: "uplink", mac: None, index: None, mtu: 1500, peer };
    netlink::in_netns(netns::open(&node.path).unwrap(), async |netlink| {
        netlink.add_veth(&veth).await?;
        let link = netlink.existing("uplink").await?;
        sysctl::make_ipv6_static("uplink")?;
        for address in ["172.18.0.2/24", "fd18::2/64"] {
            netlink.add_address(link.index, address.parse().unwrap()).await?;
        }
        netlink.set_up(netlink.existing("far").await?.index).await?;
        netlink.set_up(link.index).await?;
        Ok(link.index)
    })
    .unwrap()
}

/// Runs a walk, and returns what it changed.
fn reconcile(host: &HostDevice, desired: &HostNetwork) -> Findings {
    let mut pass = Pass::default();
    host.walk(desired, &mut pass).unwrap();
    pass.findings
}

/// The number of routes of the main table among findings.
fn of_main(findings: &[String]) -> usize {
    findings.iter().filter(|it| it.starts_with("ip route table 254 ")).count()
}

/// A route by a router is only in the main table, and has a higher metric than other programs' routes. It stays while the
/// routers' routes are unknown.
fn lead_by_routers(host: &HostDevice, node: &Pod, desired: &HostNetwork, address: IpAddr) {
    let net = |text: &str| text.parse::<IpNet>().unwrap();
    let [there, on_link] = [net("198.51.100.0/24"), net("172.18.0.0/24")];
    let mut with = desired.clone();
    with.blocks.extend([there, on_link].map(|to| (to, HostRoute::Router { address })));
    let by_router = |table| {
        let all = routes(node, table).into_iter().filter(|it| it.metric == Some(LEARNED_METRIC));
        all.map(|it| (it.destination, it.hops[0].via)).collect::<Vec<_>>()
    };
    assert_eq!(of_main(&reconcile(host, &with).set), 2);
    assert_eq!(reconcile(host, &with), Findings::default(), "again changes nothing");
    assert_eq!(by_router(MAIN), [(on_link, Some(address)), (there, Some(address))]);
    assert_eq!(by_router(OWN_TABLE), []);
    let link = netlink::in_netns(netns::open(&node.path).unwrap(), async |netlink| {
        netlink.next_hop("172.18.0.9".parse().unwrap()).await
    });
    let direct = link.unwrap().unwrap().neighbour.to_string();
    assert_eq!(direct, "172.18.0.9", "the kernel's own route to the link is better");
    let unknown = HostNetwork { keeps_routers: true, ..desired.clone() };
    assert_eq!(reconcile(host, &unknown), Findings::default(), "those of the last agent stay");
    assert_eq!(of_main(&reconcile(host, desired).removed), 2);
    assert_eq!(by_router(MAIN), []);
}

/// Manx's routes of a table.
fn routes(node: &Pod, table: u8) -> Vec<Route> {
    let netns = netns::open(&node.path).unwrap();
    netlink::in_netns(netns, async |netlink| netlink.manx_routes(table).await).unwrap()
}

/// All of Manx's rules.
fn rules(node: &Pod) -> Vec<Rule> {
    let listed = netlink::in_netns(netns::open(&node.path).unwrap(), async |netlink| {
        let [v4, v6] = Family::ALL;
        Ok([netlink.rules(v4).await?, netlink.rules(v6).await?].concat())
    });
    let rules = listed.unwrap().into_iter().filter_map(|it| it.rule);
    rules.filter(|it| it.made_by == MANX_PROTOCOL).collect()
}

/// Single routes are set and removed with the same result as a full walk to the desired state, and no other route is
/// touched.
fn change_single_routes(host: &HostDevice, node: &Pod, desired: &HostNetwork, source: [IpAddr; 2]) {
    let nets = ["192.0.2.9/32", "fd99::9/128"].map(|text| text.parse::<IpNet>().unwrap());
    let set = nets.into_iter().zip(source.map(Some)).collect();
    let changed = ChangedRoutes { set, removed: Vec::new() };
    host.change_routes(&changed).unwrap();
    let own = routes(node, OWN_TABLE);
    assert!(nets.iter().all(|net| own.iter().any(|it| it.destination == *net)));
    let mut with_both = desired.clone();
    let both = changed.set.into_iter().map(|(net, source)| (net, HostRoute::Manx { source }));
    with_both.blocks.extend(both);
    assert_eq!(reconcile(host, &with_both), Findings::default(), "as all at once would be");
    let changed = ChangedRoutes { set: Vec::new(), removed: nets.to_vec() };
    host.change_routes(&changed).unwrap();
    assert_eq!(reconcile(host, desired), Findings::default(), "no other is left or gone");
}

/// A walk finds the changes of other programs and undoes them.
fn set_back(host: &HostDevice, node: &Pod, desired: &HostNetwork) {
    let look = |only_looks| {
        let mut pass = Pass { only_looks, ..Pass::default() };
        host.walk(desired, &mut pass).unwrap();
        pass
    };
    let all = look(true);
    assert_eq!(all.findings, Findings::default(), "{:?}", all.wanted);
    for what in [
        "net.ipv4.conf.manx0.rp_filter = 0",
        "ip rule pref 77 iif lo lookup 78 proto 77",
        "ip -6 rule pref 77 from fd07::1/128 iif eth0 blackhole proto 77",
        "10.7.0.0/32 on manx2",
    ] {
        assert!(all.wanted.iter().any(|it| it == what), "{what}: {:?}", all.wanted);
    }
    let is_route = |it: &&String| {
        it.starts_with("ip route table 78 10.7.0.0/24 ") && it.ends_with(" dev manx0 src 10.7.0.1")
    };
    assert_eq!(all.wanted.iter().filter(is_route).count(), 1, "{:?}", all.wanted);
    netlink::in_netns(netns::open(&node.path).unwrap(), async |netlink| {
        for route in netlink.manx_routes(OWN_TABLE).await? {
            netlink.delete_route(OWN_TABLE, &route).await?;
        }
        netlink.set_table_rule(OWN_TABLE, None).await?;
        sysctl::set("ipv4/conf/manx0/rp_filter", "1")?;
        let more = Rule {
            interface: Some("eth0".to_owned()),
            from: "fd07::9".parse().ok(),
            ..Rule::new(RULE_PREFERENCE, Family::V6, Action::Drop)
        };
        netlink.add_rule(&more).await?;
        netlink.add_address(host.made.index, "10.7.0.9/32".parse().unwrap()).await
    })
    .unwrap();
    let found = look(true).findings;
    assert_eq!(found.set.len(), 1 + 2 + 3, "a setting, rules and routes: {found:?}");
    assert_eq!(
        found.removed,
        ["ip -6 rule pref 77 from fd07::9/128 iif eth0 blackhole proto 77", "10.7.0.9/32 on manx0"]
    );
    assert_eq!(look(false).findings, found, "a look has changed nothing");
    assert_eq!(look(true).findings, Findings::default());
}

/// These rules are Manx's, but belong to the port of translation. One of them refuses the same source at another
/// preference.
fn leave_others_rules(host: &HostDevice, node: &Pod, desired: &HostNetwork) {
    let refusal = Rule {
        interface: Some("eth0".to_owned()),
        from: "fd07::1".parse().ok(),
        ..Rule::new(1, Family::V6, Action::Drop)
    };
    let at_another = Rule { interface: Some("eth1".to_owned()), ..refusal.clone() };
    let back = Rule {
        interface: Some("manx1".to_owned()),
        ..Rule::new(RULE_PREFERENCE, Family::V4, Action::Lookup(TRANSLATED_TABLE))
    };
    let all = [back, refusal, at_another];
    let node_netns = netns::open(&node.path).unwrap();
    netlink::in_netns(&node_netns, async |netlink| {
        for rule in &all {
            netlink.add_rule(rule).await?;
        }
        Ok(())
    })
    .unwrap();
    let before = rules(node);
    assert_eq!(reconcile(host, desired), Findings::default());
    assert_eq!(rules(node), before);
    netlink::in_netns(&node_netns, async |netlink| {
        for rule in &all {
            netlink.delete_rule(rule).await?;
        }
        Ok(())
    })
    .unwrap();
}
