//! The endpoints that a Calico policy selects.

use super::cluster::{Cluster, TCP, ingress, ip, lab, pairs, rule, stranger};
use crate::{Crossing, Direction, Packet};
use manx_objects::object::calico::Action::Deny;
use manx_objects::object::calico::{self, HostEndpoint, Subject};

#[test]
fn beside_a_selector_of_namespaces_or_accounts_a_global_policys_all_takes_no_host_endpoint() {
    let host = HostEndpoint {
        labels: pairs(&[]),
        node: "node-1".to_owned(),
        interface: Some("eth0".to_owned()),
        expected_ips: vec![ip("172.18.0.2")],
        profiles: vec!["projectcalico-default-allow".to_owned()],
        ports: vec![],
    };
    let selected = |selector: Option<&str>, namespaces: Option<&str>, accounts: Option<&str>| {
        let text = |text: Option<&str>| text.map(str::to_owned);
        let subject = Subject {
            selector: text(selector),
            namespace_selector: text(namespaces),
            service_account_selector: text(accounts),
        };
        let policy = calico::Policy { subject, ..ingress("", vec![rule(Deny)]) };
        let cluster = Cluster::new().host("h", host.clone()).policy("p", policy);
        let crossing = Crossing {
            node: "node-1",
            interface: "eth0",
            addresses: &[],
            direction: Direction::Ingress,
            forwarded: false,
            source: ip("192.0.2.1"),
            destination: ip("172.18.0.2"),
            packet: Packet::to_port(TCP, Some(80)),
            original: None,
        };
        (!cluster.oracle().judge_host(&crossing).allows(), !cluster.allows(&stranger(), &lab(), 80))
    };
    let team = Some("team not in {'a'}");
    let role = Some("role != 'x'");
    assert_eq!(selected(Some("all()"), None, None), (true, true));
    assert_eq!(selected(Some("all()"), team, None), (false, true));
    assert_eq!(selected(Some("all()"), None, role), (false, true));
    assert_eq!(selected(Some("all()"), team, role), (false, true));
    assert_eq!(selected(Some("all()"), None, Some("all()")), (false, true));
    assert_eq!(selected(None, None, Some("all()")), (false, true));
    assert_eq!(selected(None, Some("all()"), None), (false, true));
    assert_eq!(selected(Some("!all() || has(none)"), team, None), (true, false));
    // Only the exact text `all()` is replaced, and an absent selector does not contain it.
    assert_eq!(selected(Some("all( )"), team, None), (true, true));
    assert_eq!(selected(None, team, None), (true, true));
    assert_eq!(selected(None, None, role), (true, true));
}
