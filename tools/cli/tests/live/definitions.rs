//! The definitions of Calico's kinds that are installed with Manx.

use std::fs;
use std::time::{Duration, Instant};

use manx_objects::object::Kind;
use serde_json::{Value, json};

use super::{ROOT, Server, list};

const VERSION: &str = "projectcalico.org/v3";

/// Rules of both directions that together have every field.
fn rules() -> [Value; 2] {
    let entity = json!({
        "nets": ["10.0.0.0/8"], "notNets": ["10.1.0.0/16"], "selector": "a == 'b'", "notSelector": "has(c)",
        "namespaceSelector": "global()", "ports": [80, "8000:9000", "http"], "notPorts": [81],
        "serviceAccounts": {"names": ["x"], "selector": "all()"}
    });
    let service = json!({"services": {"name": "s", "namespace": "t"}});
    let ingress = json!([
        {
            "action": "allow", "ipVersion": 4, "protocol": "TCP", "notProtocol": 17, "source": entity, "destination": entity,
            "http": {"methods": ["GET"], "paths": [{"exact": "/"}, {"prefix": "/a"}]}, "metadata": {"annotations": {"a": "b"}}
        },
        {"action": "Deny", "protocol": 1, "icmp": {"type": 8, "code": 0}, "notICMP": {"type": 3}, "source": service},
    ]);
    let egress = json!([
        {"action": "next-tier", "ipVersion": 6, "protocol": "58", "destination": {"nets": ["fd00::/8"]}},
        {"action": "Log", "destination": service},
    ]);
    [ingress, egress]
}

/// The places of [`rules`] where a further field could exist and restrict a rule.
const MORE: [&str; 9] = [
    "/spec/ingress/0",
    "/spec/ingress/0/source",
    "/spec/ingress/0/destination",
    "/spec/ingress/0/source/serviceAccounts",
    "/spec/ingress/0/http",
    "/spec/ingress/1/icmp",
    "/spec/ingress/1/notICMP",
    "/spec/ingress/1/source/services",
    "/spec/egress/1/destination/services",
];

/// The objects of `fixtures/refused` that the server accepts. It cannot parse a selector, and it
/// drops the namespace of an object whose kind has no namespaces.
const TAKEN: [&str; 6] = [
    "rules: selector_illegal",
    "rules: selector_of_two_lines",
    "rules: selector_global",
    "rules: selector_global_beside",
    "pools: selector_illegal",
    "resources: global_set_in_a_namespace",
];

fn object(kind: Kind, spec: &Value) -> Value {
    let mut object = json!({
        "apiVersion": VERSION, "kind": kind.name(), "metadata": {"name": "whole"}, "spec": spec
    });
    // Kubernetes' own policy has no unused fields.
    if kind != Kind::StagedKubernetesNetworkPolicy {
        object["spec"]["later"] = json!({"deep": [1]});
    }
    if kind.namespaced() {
        object["metadata"]["namespace"] = "default".into();
    }
    object
}

/// One object of each of Calico's kinds, with every field that Manx reads.
fn objects() -> Vec<Value> {
    let [ingress, egress] = rules();
    let policy = json!({
        "tier": "t", "order": 10.5, "selector": "all()", "serviceAccountSelector": "all()",
        "types": ["Ingress", "Egress"], "performanceHints": ["AssumeNeededOnEveryNode"],
        "ingress": ingress, "egress": egress
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
        Kind::Profile => json!({"labelsToApply": {"a": "b"}, "ingress": ingress, "egress": egress}),
        Kind::FelixConfiguration => json!({
            "defaultEndpointToHostAction": "Drop", "bpfEnabled": true,
            "failsafeInboundHostPorts": [{"protocol": "tcp", "port": 22, "net": "10.0.0.0/8"}],
            "failsafeOutboundHostPorts": [], "natOutgoingAddress": "192.0.2.1",
            "natOutgoingExclusions": "IPPoolsAndHostIPs"
        }),
        Kind::BgpConfiguration => json!({
            "asNumber": 64512, "nodeToNodeMeshEnabled": false, "listenPort": 1790, "bindMode": "NodeIP",
            "nodeMeshMaxRestartTime": "60s", "serviceClusterIPs": [{"cidr": "10.96.0.0/12"}],
            "serviceLoadBalancerAggregation": "Disabled", "communities": [{"name": "a", "value": "64512:1"}],
            "prefixAdvertisements": [{"cidr": "10.9.0.0/16", "communities": ["a", "64512:1:2"]}]
        }),
        Kind::BgpPeer => json!({
            "nodeSelector": "has(rack)", "peerIP": "192.0.2.1:1790", "asNumber": "1.10", "localASNumber": 65001,
            "nextHopMode": "Keep", "password": {"secretKeyRef": {"name": "s", "key": "k"}}, "sourceAddress": "None",
            "maxRestartTime": "10s", "numAllowedLocalASNumbers": 1, "ttlSecurity": 2, "reachableBy": "192.0.2.2",
            "filters": ["a"], "reversePeering": "Manual"
        }),
        Kind::BgpFilter => json!({
            "exportV4": [{
                "action": "Accept", "cidr": "10.0.0.0/8", "matchOperator": "In", "prefixLength": {"min": 24, "max": 32},
                "source": "RemotePeers", "interface": "eth*", "peerType": "eBGP", "communities": {"values": ["1:2"]},
                "asPathPrefix": [65001], "priority": 512,
                "operations": [{"addCommunity": {"value": "1:3"}}, {"prependASPath": {"prefix": [1]}}, {"setPriority": {"value": 9}}]
            }],
            "exportV6": [], "importV4": [{"action": "Reject"}], "importV6": []
        }),
        other => unreachable!("{other:?} is none of Calico's kinds"),
    };
    let calico = Kind::ALL.into_iter().filter(|kind| kind.api_versions().contains(&VERSION));
    // BlockAffinity is one of the records of IPAM.
    let calico = calico.filter(|kind| kind.name() != "BlockAffinity");
    calico.map(|kind| object(kind, &of(kind))).chain(records()).collect()
}

/// One object of each kind of IPAM, with every field that Calico has.
fn records() -> impl Iterator<Item = Value> {
    let owner = json!({"namespace": "shop", "pod": "web", "node": "n1", "timestamp": "2026-01-02 03:04:05 +0000 UTC"});
    let specs = [
        (
            "IPAMBlock",
            json!({
                "cidr": "10.9.0.64/30", "affinity": "host:n1.example.com", "affinityClaimTime": "2026-01-02T03:04:05Z",
                "allocations": [0, null, 0, null], "unallocated": [3, 1],
                "attributes": [{"handle_id": "k8s-pod-network.A", "secondary": owner, "alternate": owner, "later": 1}],
                "sequenceNumber": 7, "sequenceNumberForAllocation": {"0": 5, "2": 6}, "deleted": false,
                "strictAffinity": false
            }),
        ),
        (
            "BlockAffinity",
            json!({
                "cidr": "10.9.0.64/30", "node": "n1", "type": "host", "state": "confirmed", "deleted": false
            }),
        ),
        (
            "IPAMHandle",
            json!({
                "handleID": "k8s-pod-network.A", "block": {"10.9.0.64/30": 2}, "deleted": false
            }),
        ),
        (
            "IPAMConfiguration",
            json!({
                "strictAffinity": true, "maxBlocksPerHost": 4, "autoAllocateBlocks": false,
                "kubeVirtVMAddressPersistence": "Disabled", "ipCooldownSeconds": 60
            }),
        ),
        ("IPReservation", json!({"reservedCIDRs": ["10.9.0.0/30", "fd00::1/128"]})),
    ];
    specs.into_iter().map(|(kind, mut spec)| {
        spec["later"] = json!({"deep": [1]});
        json!({"apiVersion": VERSION, "kind": kind, "metadata": {"name": "whole"}, "spec": spec})
    })
}

pub(super) fn check(server: &Server) {
    wait_for_policies(server);
    check_kept(server);
    check_refused(server);
    check_explained(server);
}

/// Waits until the server's policies are in force: each refuses an object that a schema allows.
fn wait_for_policies(server: &Server) {
    for (kind, spec) in [
        (Kind::GlobalNetworkPolicy, json!({ "ingress": [{ "action": "Allow", "later": true }] })),
        (Kind::IpPool, json!({ "cidr": "10.0.0.1/8" })),
    ] {
        let (wrong, start) = (object(kind, &spec).to_string(), Instant::now());
        while create(server, &wrong).is_ok() {
            assert!(start.elapsed() < Duration::from_secs(30), "{wrong} is taken");
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

/// The server must not drop a field, because that would change the meaning of the object. A field
/// that the kind does not have is kept, but in a rule it is refused.
fn check_kept(server: &Server) {
    for wanted in objects() {
        let strict = ["apply", "--validate=strict", "-o", "json", "-f", "-"];
        let kept: Value =
            serde_json::from_str(&server.kubectl(&strict, &wanted.to_string())).unwrap();
        assert_eq!(kept["spec"], wanted["spec"], "{}", wanted["kind"]);
        server.kubectl(&["delete", "-f", "-"], &list(std::slice::from_ref(&wanted)));
        for place in MORE {
            let mut more = wanted.clone();
            // The rules of Kubernetes' own policy have another form.
            if wanted["kind"] == Kind::StagedKubernetesNetworkPolicy.name() {
                continue;
            }
            let Some(mapping) = more.pointer_mut(place) else { continue };
            mapping["later"] = json!(true);
            let error = create(server, &more.to_string()).unwrap_err();
            assert!(error.contains("has the field later"), "{place}: {error}");
        }
    }
}

/// Tries to create an object at the server, without the client's checks.
fn create(server: &Server, object: &str) -> Result<String, String> {
    server.try_kubectl(&["create", "--dry-run=server", "--validate=ignore", "-f", "-"], object)
}

/// The server refuses the objects that the reader refuses, except those that only an agent can recognise.
fn check_refused(server: &Server) {
    let mut wrong = Vec::new();
    for file in ["rules", "policies", "resources", "pools"] {
        let path = format!("{ROOT}/fixtures/refused/{file}.yaml");
        let text = fs::read_to_string(path).unwrap();
        for object in text.split("\n---\n") {
            let name = object.lines().next().unwrap().trim_start_matches("# ");
            let is_told = TAKEN.contains(&format!("{file}: {name}").as_str());
            match create(server, object) {
                Ok(_) if !is_told => wrong.push(format!("{file}: {name} is taken")),
                Err(error) if is_told => wrong.push(format!("{file}: {name} is refused: {error}")),
                _ => {}
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// `kubectl explain` describes every field of a kind.
fn check_explained(server: &Server) {
    for object in objects() {
        let kind = object["kind"].as_str().unwrap().to_lowercase();
        let version = ["--api-version", VERSION];
        let told =
            server.kubectl(&[&["explain", &format!("{kind}.spec")], &version[..]].concat(), "");
        assert!(told.contains("FIELDS:") && !told.contains("<no description>"), "{kind}: {told}");
    }
}
