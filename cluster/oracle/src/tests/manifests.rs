//! Manifests of every kind, from text to verdict.

use super::cluster::{Cluster, TCP, address, db, ip, lab, node, stranger, web};
use crate::{Crossing, Direction, Packet};
use manx_objects::State;

const POLICIES: &str = "
apiVersion: projectcalico.org/v3
kind: Tier
metadata: {name: security}
spec: {order: 100, defaultAction: Pass}
---
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: security.blocked}
spec:
  tier: security
  order: 10
  namespaceSelector: has(team)
  ingress:
  - {action: Log, source: {selector: threat == 'known'}}
  - {action: Deny, source: {selector: threat == 'known'}}
---
apiVersion: projectcalico.org/v3
kind: GlobalNetworkSet
metadata: {name: bad, labels: {threat: known}}
spec: {nets: [192.0.2.0/24]}
---
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {name: db, namespace: shop}
spec:
  selector: app == 'db'
  types: [Ingress]
  ingress:
  - action: Allow
    protocol: TCP
    source: {serviceAccounts: {names: [runner]}}
    destination: {ports: ['8000:8079', http]}
  - {action: Allow, protocol: ICMP, icmp: {type: 8}}
---
apiVersion: projectcalico.org/v3
kind: StagedNetworkPolicy
metadata: {name: close, namespace: shop}
spec: {selector: all(), order: 1, ingress: [{action: Deny}]}
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: no-lab}
spec:
  tier: Admin
  priority: 5
  subject: {namespaces: {matchLabels: {kubernetes.io/metadata.name: lab}}}
  egress:
  - name: shop
    action: Deny
    to: [{namespaces: {matchLabels: {team: a}}}]
    protocols: [{tcp: {destinationPort: {number: 80}}}]
---
apiVersion: projectcalico.org/v3
kind: HostEndpoint
metadata: {name: h, labels: {role: host}}
spec: {node: node-1, interfaceName: eth0, expectedIPs: [172.18.0.2]}
---
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: hosts}
spec:
  selector: role == 'host'
  applyOnForward: true
  ingress: [{action: Allow, protocol: TCP, destination: {ports: [443]}}]
---
apiVersion: projectcalico.org/v3
kind: FelixConfiguration
metadata: {name: default}
spec: {defaultEndpointToHostAction: Drop}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: runner, namespace: shop, labels: {role: front}}
";

#[test]
fn manifests_of_every_kind_are_judged_as_they_were_written() {
    let cluster = Cluster::new().text(POLICIES);
    for (key, stored) in &cluster.0 {
        assert!(matches!(stored.state, State::Valid(_)), "{key}");
    }
    // The namespaced policy decides by service account, by number and by name.
    assert!(cluster.allows(&web(), &db(), 8079) && cluster.allows(&web(), &db(), 8080));
    assert!(!cluster.allows(&web(), &db(), 8081) && !cluster.allows(&lab(), &db(), 8079));
    assert!(cluster.passes(&lab(), &db(), Packet::echo(true)));
    assert!(!cluster.passes(&lab(), &db(), Packet::icmp(1, 13, 0)));
    // The tier before the default tier decides.
    assert!(!cluster.allows(&stranger(), &web(), 80));
    assert!(cluster.allows(&address("198.51.100.1"), &web(), 80));
    let judgement = cluster.oracle().judge(&stranger(), &web(), Packet::to_port(TCP, Some(80)));
    assert_eq!(judgement.ingress.through.len(), 1, "{judgement}");
    // The cluster-wide policy decides.
    assert!(!cluster.allows(&lab(), &web(), 80) && cluster.allows(&lab(), &web(), 81));
    // A staged policy is only reported.
    let staged = cluster.oracle().staged(&lab(), &web(), Packet::to_port(TCP, Some(81)));
    assert_eq!(staged.len(), 1);
    // These connections and packets go to a node.
    assert!(!cluster.allows(&web(), &node("node-1"), 80));
    let crossing = |port, forwarded| Crossing {
        node: "node-1",
        interface: "eth0",
        addresses: &[],
        direction: Direction::Ingress,
        forwarded,
        source: ip("198.51.100.1"),
        destination: ip("172.18.0.2"),
        packet: Packet::to_port(TCP, Some(port)),
        original: None,
    };
    let oracle = cluster.oracle();
    for (port, forwarded, expected) in [
        (443, false, true),
        (443, true, true),
        (80, false, false),
        (80, true, false),
        (22, false, true),
        (22, true, false),
    ] {
        let verdict = oracle.judge_host(&crossing(port, forwarded));
        assert_eq!(verdict.allows(), expected, "{port} {forwarded}: {verdict}");
    }
}
