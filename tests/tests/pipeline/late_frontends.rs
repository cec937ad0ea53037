//! UDP flows that were opened before a service had their destination.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use manx_dataplane::services::ServiceTable;
use manx_tests::fabric::{Fabric, HOST, MANX, workers};
use manx_tests::packet::{Tuple, UDP};

use super::egress::{CLIENT, OTHER, PORTS, WORLD, cluster, ends, fabric_of, node, only, services};

/// The time in which every flow is checked.
const ROUND: Duration = Duration::from_secs(3);

/// Lets the first node's workers continue for some time.
fn wait(fabric: &mut Fabric, time: Duration) {
    const STEP: Duration = Duration::from_millis(100);
    for _ in 0..time.as_millis() / STEP.as_millis() {
        fabric.nodes[0].now += STEP;
        for worker in 0..workers() {
            fabric.nodes[0].turn_one(worker);
        }
    }
}

/// This Service makes nodes lead an address of the world to services.
const BALANCER: &str = "
{apiVersion: v1, kind: Service, metadata: {name: late, namespace: shop}, spec: {clusterIP: 192.0.2.7, ports: [{port: 8125, protocol: UDP}]}}
---
";

/// Adds a service at an address and port, with a pod behind it.
fn add(fabric: &mut Fabric, address: &str, port: u16) {
    let mut table = ServiceTable::clone(fabric.services.as_ref().unwrap());
    let one = services(&[(address, port, OTHER, 9125)]);
    for (key, frontend) in one.frontends() {
        table.set_frontend(*key, Some(Arc::clone(frontend)));
    }
    table.set_address(OTHER.parse::<IpAddr>().unwrap().into(), true);
    fabric.set_services(table);
}

/// A pod's host port that appears later (a DaemonSet that is updated), and an address of the world
/// that becomes a load balancer's. The client sends all the time from one socket.
#[test]
fn a_client_of_udp_is_led_to_a_service_that_comes_later() {
    for (asked, before) in [
        (Tuple::new(CLIENT, &node(), UDP, 8125), HOST),
        (Tuple::new(CLIENT, WORLD, UDP, 8125), MANX),
    ] {
        let mut fabric = fabric_of("", ServiceTable::default(), PORTS);
        let send = |fabric: &mut Fabric| only(fabric.send("shop/client", &asked.opening()));
        let out = send(&mut fabric);
        assert_eq!((out.node, out.port), (0, before));
        // Services at another port, and at another address, do not concern the flow: it goes on.
        let address = asked.destination.to_string();
        for (address, port) in [(&*address, 8126), ("192.0.2.8", 8125)] {
            add(&mut fabric, address, port);
            wait(&mut fabric, ROUND);
            let flows = fabric.nodes[0].flows();
            assert_eq!(flows.len(), 1, "{flows:?}");
            assert_eq!(send(&mut fabric).port, before);
        }
        if asked.destination.to_string() == WORLD {
            fabric.apply(&cluster(BALANCER));
        }
        add(&mut fabric, &address, 8125);
        for _ in 0..ROUND.as_secs() {
            fabric.send("shop/client", &asked.opening());
            wait(&mut fabric, Duration::from_secs(1));
        }
        let out = send(&mut fabric);
        assert_eq!((out.node, out.port), fabric.port("shop/other"), "{asked:?}");
        assert_eq!(ends(&out.frame.bytes)[1], (OTHER.to_owned(), 9125));
        let behind = Tuple::new(CLIENT, OTHER, UDP, 9125).from_port(asked.source_port);
        let out = only(fabric.send("shop/other", &behind.answer()));
        assert_eq!((out.node, out.port), fabric.port("shop/client"));
        assert_eq!(ends(&out.frame.bytes)[0], (address, 8125));
        // The flow stays, whatever services are added.
        wait(&mut fabric, ROUND);
        assert_eq!(fabric.nodes[0].flows().len(), 1);
    }
}
