use manx_policy_compiler::compile::Compiler;

use super::*;
use manx_calculation::import::import;
use manx_objects::contents::Contents;

const OBJECTS: &str = "
{apiVersion: v1, kind: Pod, metadata: {name: a, labels: {app: a}}, spec: {containers: [{name: c, ports: [{name: web, containerPort: 8080}]}]}, status: {podIPs: [{ip: 10.1.1.2}, {ip: 'fd00::2'}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: b, labels: {app: b}}, spec: {containers: [{name: c}]}, status: {podIPs: [{ip: 10.1.1.3}]}}
---
{apiVersion: projectcalico.org/v3, kind: HostEndpoint, metadata: {name: h, labels: {app: h}}, spec: {node: n1, interfaceName: '*', expectedIPs: [172.16.0.1], profiles: [p, kns.default]}}
---
{apiVersion: projectcalico.org/v3, kind: Profile, metadata: {name: p}, spec: {ingress: [{action: Log}, {action: Deny, protocol: UDP}]}}
---
{apiVersion: projectcalico.org/v3, kind: Tier, metadata: {name: early}, spec: {order: 10}}
---
{apiVersion: projectcalico.org/v3, kind: GlobalNetworkPolicy, metadata: {name: early}, spec: {tier: early, selector: app != 'b', applyOnForward: true, ingress: [
  {action: Log, source: {selector: app == 'b'}},
  {action: Pass, source: {nets: [10.1.0.0/16], notNets: [10.1.1.8/29]}},
  {action: Allow, protocol: TCP, source: {ports: [1000]}, destination: {ports: ['80:90']}}]}}
---
{apiVersion: projectcalico.org/v3, kind: GlobalNetworkPolicy, metadata: {name: raw}, spec: {selector: app == 'h', applyOnForward: true, doNotTrack: true, ingress: [{action: Allow, protocol: ICMP, icmp: {type: 8}}]}}
---
{apiVersion: projectcalico.org/v3, kind: StagedGlobalNetworkPolicy, metadata: {name: draft}, spec: {order: 1, selector: app == 'a', ingress: [{action: Log}, {action: Deny, protocol: SCTP}]}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: only-web}, spec: {podSelector: {matchLabels: {app: a}}, ingress: [{from: [{podSelector: {matchLabels: {app: b}}}], ports: [{port: web}]}]}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: out}, spec: {podSelector: {matchLabels: {app: b}}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 0.0.0.0/0, except: [192.0.2.0/24]}}], ports: [{port: 1000, endPort: 2000}]}, {ports: [{port: web}]}]}}
";

fn all_endpoints(cluster: &manx_calculation::import::Cluster) -> BTreeSet<LocalName> {
    let hosts = cluster.model.host_endpoints.keys().map(|name| LocalName::new("", name));
    cluster.model.endpoints.keys().cloned().chain(hosts).collect()
}

/// Compares the tables of the objects in `written` with the objects in `meant`.
fn held(written: &str, meant: &str) -> Result<Proof, Box<Refutation>> {
    let cluster = import(&Contents::from_texts([("objects.yaml", written)]));
    let local = all_endpoints(&cluster);
    let image = Compiler::new().compile(&cluster.model, &local);
    let oracle = Oracle::new(&Contents::from_texts([("objects.yaml", meant)]).objects);
    prove(&oracle, &local, &image, Depth::Distinct, |_, _| {})
}

#[test]
fn tables_are_proved_and_most_of_the_cells_are_equal_questions() {
    let proof = held(OBJECTS, OBJECTS).unwrap_or_else(|refutation| panic!("{refutation}"));
    assert_eq!(proof.endpoints, 3);
    assert!(proof.questions > 1000 && proof.cells > 2 * proof.questions, "{proof:?}");
}

#[test]
fn whatever_the_tables_lost_is_found_at_boundaries_that_only_the_objects_draw() {
    let lost = [
        ("notNets: [10.1.1.8/29]", ""),
        ("{action: Log, source: {selector: app == 'b'}},", ""),
        ("source: {ports: [1000]}, ", ""),
        ("'80:90'", "'80:89'"),
        ("app != 'b'", "app == 'h'"),
        ("icmp: {type: 8}", "icmp: {type: 8, code: 0}"),
        ("except: [192.0.2.0/24]", ""),
        ("endPort: 2000", "endPort: 1999"),
        ("{ports: [{port: web}]}]}}", "]}}"),
        ("containerPort: 8080", "containerPort: 8081"),
        ("order: 10}", "order: 10, defaultAction: Pass}"),
        ("{action: Deny, protocol: SCTP}", ""),
        ("{action: Deny, protocol: UDP}", ""),
        ("policyTypes: [Egress], ", ""),
        ("doNotTrack: true", "preDNAT: true"),
        ("profiles: [p, kns.default]", "profiles: [p]"),
    ];
    for (there, instead) in lost {
        assert!(OBJECTS.contains(there), "{there}");
        let damaged = OBJECTS.replace(there, instead);
        assert!(held(&damaged, OBJECTS).is_err(), "{there} lost");
        assert!(held(OBJECTS, &damaged).is_err(), "{there} in excess");
    }
}

#[test]
fn a_refutation_names_the_packet_and_what_either_side_says() {
    let refutation = held(&OBJECTS.replace("port: web}", "port: 1}"), OBJECTS).unwrap_err();
    insta::assert_snapshot!(refutation, @r"
    10.1.1.3 -> 10.1.1.2, IPv4, TCP from port 0 to port 1
      the peer is default/b (10.1.1.3)
      ingress of default/a
      tables: ALLOWED: default/only-web ingress[0], after GlobalNetworkPolicy early ingress[0], after GlobalNetworkPolicy early ingress[1], after StagedGlobalNetworkPolicy draft ingress[0]
      objects: DENIED: isolated by default/only-web for ingress, no rule allows, after GlobalNetworkPolicy early ingress[0], after GlobalNetworkPolicy early ingress[1], after StagedGlobalNetworkPolicy draft ingress[0]
      tier early, order 10, then Deny
        GlobalNetworkPolicy early, order last
          ingress[0] Log: matches
          ingress[1] Pass: matches
      tier default, order 1000000, then Deny
        StagedGlobalNetworkPolicy draft, order 1, staged
          ingress[0] Log: matches
          ingress[1] Deny: no match: protocol: 132
        default/only-web, order 1000
          ingress[0] Allow: no match: ports: TCP web
    ");
    let json = serde_json::to_value(&*refutation).unwrap();
    assert_eq!(json["from"], "10.1.1.3");
    let back: Refutation = serde_json::from_value(json).unwrap();
    assert_eq!(back, *refutation);
}
