//! A pod of another node, or a route, changes in the tables in use, while flows live and between new flows.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use crate::fragments::{cut, datagram};
use ipnet::IpNet;
use manx_calculation::topology::{NoRoute, Peer, Route};
use manx_dataplane::flow::{Epoch, FlowEntry, Orientation};
use manx_dataplane::tables::Tables;
use manx_policy_compiler::compile::Compiler;
use manx_policy_compiler::compile::PodChange;
use manx_policy_compiler::model::{Direction, Endpoint, ObjectName};
use manx_tests::fabric::{Fabric, RAW, UNDERLAY, pod, policy};
use manx_tests::packet::{Tuple, UDP};
use manx_tests::shop::{B, FAR};

#[test]
fn flows_follow_a_pod_that_changes_without_new_tables() {
    let yaml = pod("shop/b", 0, "{app: b}", &[B])
        + &pod("shop/far", 1, "{app: a}", &[FAR])
        + &pod("shop/other", 1, "{app: c}", &["10.2.0.9"])
        + &policy(
            "shop/b",
            "{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {app: a}}}]}]}",
        );
    let mut fabric = Fabric::new(&yaml);
    let node = &mut fabric.nodes[0];
    let mut compiler = Compiler::new();
    let mut model = fabric.cluster.model.clone();
    let image = Arc::new(compiler.compile(&model, &node.locals.keys().cloned().collect()));
    let mut tables = Tables::clone(&node.tables);
    for (name, local) in &node.locals {
        let endpoint = tables.endpoints[local.index as usize].as_mut().unwrap();
        endpoint.ingress = image.chain(name, Direction::Ingress).unwrap();
        endpoint.egress = image.chain(name, Direction::Egress).unwrap();
    }
    tables.image = Arc::clone(&image);
    node.publish(tables);

    let tuple = Tuple::new(FAR, B, UDP, 53);
    assert_eq!(fabric.send("shop/far", &tuple.opening()).len(), 1);
    assert_eq!(fabric.send("shop/b", &tuple.answer()).len(), 1);
    let far = ObjectName::new("shop", "far");
    for (round, (app, passes)) in (1..).zip([("c", 0), ("a", 1), ("c", 0), ("a", 1)]) {
        let before = Arc::clone(&model.endpoints[&far]);
        let mut after = Endpoint::clone(&before);
        Arc::make_mut(&mut after.labels).insert("app".to_owned(), app.to_owned());
        model.endpoints.insert(far.clone(), Arc::new(after.clone()));
        let change = PodChange { name: &far, before: Some(&before), after: Some(&after) };
        assert!(compiler.update(&image, &model, change), "both labels have a class in the image");
        for packet in [tuple.data(b"more"), tuple.data(b"and more")] {
            assert_eq!(fabric.send("shop/far", &packet).len(), passes, "app: {app}");
        }
        assert_eq!(fabric.send("shop/b", &tuple.answer()).len(), passes, "app: {app}");
        for new in [round * 1000, round * 1000 + 1] {
            let opening = Tuple::new(FAR, B, UDP, new).opening();
            assert_eq!(fabric.send("shop/far", &opening).len(), passes, "app: {app}");
        }
    }
}

/// The outer destinations of the packets that a node puts on the underlay for this packet.
fn sent_to(fabric: &mut Fabric, (pod, packet): (&str, &[u8])) -> Vec<Ipv4Addr> {
    let (node, port) = fabric.port(pod);
    fabric.nodes[node].inject(port, packet);
    fabric.nodes[node].run();
    let frames = fabric.nodes[node].collect(RAW);
    let outer = |bytes: &[u8]| <[u8; 4]>::try_from(&bytes[16..20]).unwrap().into();
    frames.iter().map(|frame| outer(&frame.bytes)).collect()
}

#[test]
fn a_route_that_changes_in_place_takes_its_own_flows_along_and_no_other() {
    let yaml = pod("shop/b", 0, "{app: b}", &[B])
        + &pod("shop/far", 1, "{app: a}", &[FAR])
        + &pod("shop/other", 1, "{app: c}", &["10.2.0.9"]);
    let mut fabric = Fabric::new(&yaml);
    let [to_far, to_other] = [FAR, "10.2.0.9"].map(|to| Tuple::new(B, to, UDP, 53));
    for tuple in [&to_far, &to_other] {
        assert_eq!(sent_to(&mut fabric, ("shop/b", &tuple.opening())), [UNDERLAY[1]]);
    }
    let epochs = |fabric: &mut Fabric| {
        let flows = fabric.nodes[0].flows().into_iter();
        let by_far = |mut flow: FlowEntry| {
            let ends =
                [Orientation::LowToHigh, Orientation::HighToLow].map(|it| flow.key().source(it).0);
            (ends.contains(&FAR.parse::<IpAddr>().unwrap().into()), flow.as_mut().epoch)
        };
        flows.map(by_far).collect::<BTreeMap<bool, Epoch>>()
    };
    let before = epochs(&mut fabric);
    assert_eq!(before.len(), 2);
    let far = IpNet::from(FAR.parse::<IpAddr>().unwrap());
    let by_tunnel = Route::Tunnel(Peer { address: UNDERLAY[1], overlay: fabric.overlay });
    for (route, leads_to) in
        [(Route::NoRoute(NoRoute::Unclaimed), vec![]), (by_tunnel, vec![UNDERLAY[1]])]
    {
        assert!(fabric.change_route(0, far, route), "{route:?} needs no new tables");
        for packet in [to_far.data(b"more"), to_far.data(b"and more")] {
            assert_eq!(sent_to(&mut fabric, ("shop/b", &packet)), leads_to, "{route:?}");
        }
        assert_eq!(sent_to(&mut fabric, ("shop/b", &to_other.data(b"more"))), [UNDERLAY[1]]);
        let new = Tuple::new(B, FAR, UDP, if leads_to.is_empty() { 1000 } else { 1001 });
        assert_eq!(sent_to(&mut fabric, ("shop/b", &new.opening())), leads_to, "{route:?}");
    }
    let pieces = cut(&datagram(to_far, 2500), 1400);
    assert_eq!(sent_to(&mut fabric, ("shop/b", &pieces[0])), [UNDERLAY[1]]);
    assert!(fabric.change_route(0, far, Route::NoRoute(NoRoute::Unclaimed)));
    assert!(sent_to(&mut fabric, ("shop/b", &pieces[1])).is_empty(), "later fragments, too");
    assert!(fabric.change_route(0, far, by_tunnel));
    for piece in &pieces {
        assert_eq!(sent_to(&mut fabric, ("shop/b", piece)), [UNDERLAY[1]]);
    }

    let after = epochs(&mut fabric);
    assert_eq!(after[&false], before[&false], "the other flow has looked nothing up");
    assert_ne!(after[&true], before[&true], "its own flow has");

    fabric.publish();
    assert_eq!(sent_to(&mut fabric, ("shop/b", &to_other.data(b"more"))), [UNDERLAY[1]]);
    assert_ne!(epochs(&mut fabric)[&false], before[&false], "new tables have all flows look up");
}
