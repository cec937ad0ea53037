//! The definitions of Calico's kinds that Manx is installed with.

use manx_objects::object::Kind;
use serde_json::{Value, json};

use super::{Server, list};

const VERSION: &str = "projectcalico.org/v3";

/// A rule with every field, and one of no version at each level.
fn rule() -> Value {
    let entity = json!({
        "nets": ["10.0.0.0/8"], "notNets": ["10.1.0.0/16"], "selector": "a == 'b'", "notSelector": "has(c)",
        "namespaceSelector": "global()", "ports": [80, "8000:9000", "http"], "notPorts": [81],
        "serviceAccounts": {"names": ["x"], "selector": "all()", "later": 1},
        "services": {"name": "s", "namespace": "t", "later": 1}, "later": {"deep": [1]}
    });
    json!({
        "action": "allow", "ipVersion": 4, "protocol": "TCP", "notProtocol": 17,
        "icmp": {"type": 8, "code": 0, "later": 1}, "notICMP": {"type": 3}, "source": entity, "destination": entity,
        "http": {"methods": ["GET"], "paths": [{"exact": "/"}]}, "metadata": {"annotations": {"a": "b"}}, "later": true
    })
}

fn object(kind: Kind, spec: &Value) -> Value {
    let mut object = json!({
        "apiVersion": VERSION, "kind": kind.name(), "metadata": {"name": "whole"}, "spec": spec
    });
    object["spec"]["later"] = json!({"deep": [1]});
    if kind.namespaced() {
        object["metadata"]["namespace"] = "default".into();
    }
    object
}

/// One object of each of Calico's kinds, with every field that Manx reads.
fn objects() -> Vec<Value> {
    let rules = [rule()];
    let policy = json!({
        "tier": "t", "order": 10.5, "selector": "all()", "serviceAccountSelector": "all()",
        "types": ["Ingress", "Egress"], "performanceHints": ["AssumeNeededOnEveryNode"],
        "ingress": rules, "egress": rules
    });
    let with = |mut spec: Value, more: Value| {
        let (spec_fields, more) = (spec.as_object_mut().unwrap(), more.as_object().unwrap());
        spec_fields.extend(more.clone());
        spec
    };
    let global = with(
        policy.clone(),
        json!({"namespaceSelector": "all()", "applyOnForward": true, "preDNAT": false, "doNotTrack": false}),
    );
    let staged = json!({"stagedAction": "Set"});
    let of = |kind: Kind| match kind {
        Kind::IpPool => json!({
            "cidr": "10.9.0.0/16", "ipipMode": "CrossSubnet", "vxlanMode": "Never", "blockSize": 26, "natOutgoing": false,
            "disabled": false, "disableBGPExport": false, "nodeSelector": "all()", "namespaceSelector": "all()",
            "allowedUses": ["Workload"], "assignmentMode": "Automatic"
        }),
        Kind::CalicoNetworkPolicy => policy.clone(),
        Kind::GlobalNetworkPolicy => global.clone(),
        Kind::StagedNetworkPolicy => with(policy.clone(), staged.clone()),
        Kind::StagedGlobalNetworkPolicy => with(global.clone(), staged.clone()),
        Kind::StagedKubernetesNetworkPolicy => json!({
            "stagedAction": "Learn", "podSelector": {"matchLabels": {"a": "b"}}, "policyTypes": ["Egress"],
            "ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}], "egress": [{"ports": [{"port": 1}]}]
        }),
        Kind::Tier => json!({"order": 3, "defaultAction": "Pass"}),
        Kind::NetworkSet | Kind::GlobalNetworkSet => json!({"nets": ["10.0.0.1"]}),
        Kind::HostEndpoint => json!({
            "node": "n", "interfaceName": "*", "expectedIPs": ["10.0.0.1"], "profiles": ["p"],
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "later": 1}]
        }),
        Kind::Profile => json!({"labelsToApply": {"a": "b"}, "ingress": rules, "egress": rules}),
        Kind::FelixConfiguration => json!({
            "defaultEndpointToHostAction": "Drop", "bpfEnabled": true,
            "failsafeInboundHostPorts": [{"protocol": "tcp", "port": 22, "net": "10.0.0.0/8"}],
            "failsafeOutboundHostPorts": []
        }),
        other => unreachable!("{other:?} is none of Calico's kinds"),
    };
    let calico = Kind::ALL.into_iter().filter(|kind| kind.api_versions().contains(&VERSION));
    calico.map(|kind| object(kind, &of(kind))).collect()
}

/// A field that the server dropped would make a rule say less than its author wrote.
pub(super) fn check(server: &Server) {
    for wanted in objects() {
        let strict = ["apply", "--validate=strict", "-o", "json", "-f", "-"];
        let kept: Value =
            serde_json::from_str(&server.kubectl(&strict, &wanted.to_string())).unwrap();
        assert_eq!(kept["spec"], wanted["spec"], "{}", wanted["kind"]);
        server.kubectl(&["delete", "-f", "-"], &list(&[wanted]));
    }
    let mut refused = object(Kind::CalicoNetworkPolicy, &json!({"ingress": [rule()]}));
    refused["spec"]["ingress"][0]["action"] = "Reject".into();
    let error = server.try_kubectl(&["apply", "-f", "-"], &refused.to_string()).unwrap_err();
    assert!(error.contains("spec.ingress[0].action"), "{error}");
}
