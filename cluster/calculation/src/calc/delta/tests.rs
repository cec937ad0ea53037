//! Law: applying any stream of objects one change at a time gives the same result as importing the final objects at
//! once.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use manx_policy_compiler::compile::Compiler;
use manx_policy_compiler::model::ObjectName;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;
use crate::import::{Ipam, Node, import_as, import_for};
use crate::overlay::Overlay;
use crate::topology::{Peer, Reserved, Route, topology};
use manx_datastore::Store;

const NODE: &str = "n1";

/// Objects, each in several versions. Some versions are invalid. The first [`BY_THEMSELVES`] are of kinds whose changes
/// do not require a complete import. Some refer to other objects. `own` and `twice` define pods that [`PODS`] also
/// define.
const OBJECTS: &[(&str, &[&str])] = &[
    (
        "policy",
        &[
            "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: p, namespace: a}, spec: {podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {app: web}}}]}]}}",
            "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: p, namespace: a}, spec: {podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {team: x}}}]}], egress: [{ports: [{port: http}]}]}}",
            "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: p, namespace: a}, spec: {podSelector: {}, ingress: [{ports: [{port: 99999}]}]}}",
        ],
    ),
    (
        "calico",
        &[
            "{apiVersion: projectcalico.org/v3, kind: NetworkPolicy, metadata: {name: c, namespace: a}, spec: {tier: t, ingress: [{action: Allow, source: {serviceAccounts: {selector: role == 'x'}}}, {action: Pass}]}}",
            "{apiVersion: projectcalico.org/v3, kind: NetworkPolicy, metadata: {name: c, namespace: a}, spec: {egress: [{action: Allow, destination: {services: {name: svc, namespace: b}}}]}}",
        ],
    ),
    (
        "global",
        &[
            "{apiVersion: projectcalico.org/v3, kind: GlobalNetworkPolicy, metadata: {name: g}, spec: {order: 1, ingress: [{action: Deny, source: {selector: kind == 'set'}}, {action: Allow}]}}",
            "{apiVersion: projectcalico.org/v3, kind: GlobalNetworkPolicy, metadata: {name: g}, spec: {order: 1, selector: app == 'web', ingress: [{action: Allow, source: {namespaceSelector: team == 'x', nets: [10.0.0.0/8]}}]}}",
            "{apiVersion: projectcalico.org/v3, kind: GlobalNetworkPolicy, metadata: {name: g}, spec: {selector: '(', ingress: [{action: Allow}]}}",
        ],
    ),
    (
        "staged",
        &[
            "{apiVersion: projectcalico.org/v3, kind: StagedGlobalNetworkPolicy, metadata: {name: s}, spec: {tier: t, ingress: [{action: Allow, source: {selector: kind == 'set'}}]}}",
            "{apiVersion: projectcalico.org/v3, kind: StagedGlobalNetworkPolicy, metadata: {name: s}, spec: {stagedAction: Delete, ingress: [{action: Allow}]}}",
        ],
    ),
    (
        "cluster",
        &[
            "{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {name: k}, spec: {tier: Admin, priority: 1, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: db}}}}]}]}}",
            "{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {name: k}, spec: {tier: Admin, priority: 1, subject: {namespaces: {}}, egress: [{action: Accept, to: [{nodes: {matchLabels: {role: edge}}}]}, {action: Deny, to: [{nodes: {}}]}]}}",
        ],
    ),
    (
        "slice",
        &[
            "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: svc-1, namespace: b, labels: {kubernetes.io/service-name: svc}}, addressType: IPv4, endpoints: [{addresses: [10.1.0.2]}], ports: [{port: 80, protocol: TCP}]}",
            "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: svc-1, namespace: b, labels: {kubernetes.io/service-name: svc}}, addressType: IPv4, endpoints: [{addresses: [10.1.0.3]}], ports: [{port: 80, protocol: TCP}]}",
            "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: svc-1, namespace: b, labels: {kubernetes.io/service-name: svc}}, addressType: IPv4, endpoints: [{addresses: [x]}]}",
        ],
    ),
    (
        "slice-2",
        &[
            "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: svc-2, namespace: b, labels: {kubernetes.io/service-name: svc}}, addressType: IPv4, endpoints: [{addresses: [10.1.0.3]}], ports: [{port: 80, protocol: TCP}]}",
            "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: svc-2, namespace: b, labels: {kubernetes.io/service-name: none}}, addressType: IPv4, endpoints: [{addresses: [10.1.0.4]}], ports: [{port: 80, protocol: TCP}]}",
        ],
    ),
    (
        "service",
        &[
            "{apiVersion: v1, kind: Service, metadata: {name: svc, namespace: b}, spec: {selector: {app: web}, ports: [{port: 80}]}}",
        ],
    ),
    (
        "set",
        &[
            "{apiVersion: projectcalico.org/v3, kind: NetworkSet, metadata: {name: s, namespace: a, labels: {kind: set}}, spec: {nets: [10.1.0.0/30, 192.0.2.0/24]}}",
            "{apiVersion: projectcalico.org/v3, kind: NetworkSet, metadata: {name: s, namespace: a, labels: {kind: other}}, spec: {nets: [192.0.2.0/24]}}",
            "{apiVersion: projectcalico.org/v3, kind: NetworkSet, metadata: {name: s, namespace: a, labels: {kind: set}}, spec: {nets: [10.0.0.0/8, 192.0.2.0/28]}}",
            "{apiVersion: projectcalico.org/v3, kind: NetworkSet, metadata: {name: s, namespace: a, labels: {kind: set}}, spec: {nets: [x]}}",
        ],
    ),
    (
        "global-set",
        &[
            "{apiVersion: projectcalico.org/v3, kind: GlobalNetworkSet, metadata: {name: s, labels: {kind: set}}, spec: {nets: [10.2.0.1/32]}}",
            "{apiVersion: projectcalico.org/v3, kind: GlobalNetworkSet, metadata: {name: s, labels: {kind: set}}, spec: {nets: [10.2.0.0/24, 'fd00::/64']}}",
        ],
    ),
    (
        "node-2",
        &[
            "{apiVersion: v1, kind: Node, metadata: {name: n2}, spec: {podCIDR: 10.2.0.0/24}, status: {addresses: [{type: InternalIP, address: 172.18.0.3}]}}",
            "{apiVersion: v1, kind: Node, metadata: {name: n2}, spec: {podCIDR: 10.1.0.0/24}, status: {addresses: [{type: InternalIP, address: 172.18.0.3}]}}",
            "{apiVersion: v1, kind: Node, metadata: {name: n2}, spec: {podCIDRs: [10.2.0.0/24, 'fd00:2::/64']}, status: {addresses: [{type: InternalIP, address: 172.18.0.4}]}}",
            "{apiVersion: v1, kind: Node, metadata: {name: n2, labels: {role: edge}}, spec: {podCIDR: 10.2.0.0/24}, status: {addresses: [{type: InternalIP, address: 172.18.0.3}]}}",
            "{apiVersion: v1, kind: Node, metadata: {name: n2, annotations: {projectcalico.org/IPv4VXLANTunnelAddr: 10.9.0.1}}, spec: {podCIDR: 10.2.0.0/24}, status: {addresses: [{type: InternalIP, address: 172.18.0.3}]}}",
            "{apiVersion: v1, kind: Node, metadata: {name: n2, labels: {role: edge}}, spec: {podCIDR: 10.2.0.0/24}, status: {addresses: [{type: InternalIP, address: 172.18.0.3}, {type: ExternalIP, address: 192.0.2.7}]}}",
        ],
    ),
    (
        "node-3",
        &[
            "{apiVersion: v1, kind: Node, metadata: {name: n3, annotations: {projectcalico.org/IPv4IPIPTunnelAddr: 10.2.0.9}}, spec: {podCIDR: 10.3.0.0/24}, status: {addresses: [{type: InternalIP, address: 172.18.0.5}]}}",
            "{apiVersion: v1, kind: Node, metadata: {name: n3}, spec: {podCIDR: 10.3.0.0/24}, status: {addresses: [{type: InternalIP, address: 172.18.0.5}]}}",
            "{apiVersion: v1, kind: Node, metadata: {name: n3}, spec: {podCIDR: 10.3.1.0/24}, status: {addresses: [{type: InternalIP, address: 172.18.0.5}]}}",
            "{apiVersion: v1, kind: Node, metadata: {name: n3}, spec: {podCIDR: 10.3.0.0/24}, status: {addresses: [{type: InternalIP, address: x}]}}",
        ],
    ),
    (
        "affinity",
        &[
            "{apiVersion: crd.projectcalico.org/v1, kind: BlockAffinity, metadata: {name: n2-a}, spec: {node: n2, cidr: 10.2.0.0/26, state: confirmed}}",
            "{apiVersion: crd.projectcalico.org/v1, kind: BlockAffinity, metadata: {name: n2-a}, spec: {node: n2, cidr: 10.2.0.0/26, state: pending}}",
            "{apiVersion: crd.projectcalico.org/v1, kind: BlockAffinity, metadata: {name: n2-a}, spec: {node: n3, cidr: 10.2.0.0/26, state: confirmed}}",
            "{apiVersion: crd.projectcalico.org/v1, kind: BlockAffinity, metadata: {name: n2-a}, spec: {node: n2, cidr: 10.2.0.0/24, state: confirmed, deleted: 'false'}}",
            "{apiVersion: crd.projectcalico.org/v1, kind: BlockAffinity, metadata: {name: n2-a}, spec: {node: n4, cidr: 10.2.0.0/26, state: confirmed}}",
            "{apiVersion: crd.projectcalico.org/v1, kind: BlockAffinity, metadata: {name: n2-a}, spec: {node: n2, cidr: 10.2.0.0/26, state: x}}",
        ],
    ),
    (
        "affinity-2",
        &[
            "{apiVersion: crd.projectcalico.org/v1, kind: BlockAffinity, metadata: {name: n3-a}, spec: {node: n3, cidr: 10.9.0.0/30, state: confirmed}}",
            "{apiVersion: crd.projectcalico.org/v1, kind: BlockAffinity, metadata: {name: n3-a}, spec: {node: n2, cidr: 10.9.0.0/30, state: confirmed}}",
            "{apiVersion: crd.projectcalico.org/v1, kind: BlockAffinity, metadata: {name: n3-a}, spec: {node: n3, cidr: 10.2.0.0/28, state: confirmed}}",
            "{apiVersion: crd.projectcalico.org/v1, kind: BlockAffinity, metadata: {name: n3-a}, spec: {node: n3, cidr: 10.9.0.0/30, state: confirmed, deleted: 'true'}}",
        ],
    ),
    (
        "affinity-own",
        &[
            "{apiVersion: crd.projectcalico.org/v1, kind: BlockAffinity, metadata: {name: n1-a}, spec: {node: n1, cidr: 10.1.0.0/26, state: confirmed}}",
            "{apiVersion: crd.projectcalico.org/v1, kind: BlockAffinity, metadata: {name: n1-a}, spec: {node: n1, cidr: 10.1.0.0/24, state: confirmed}}",
            "{apiVersion: crd.projectcalico.org/v1, kind: BlockAffinity, metadata: {name: n1-a}, spec: {node: n1, cidr: 10.1.0.0/26, state: pendingDeletion}}",
        ],
    ),
    (
        "pool",
        &[
            "{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: p}, spec: {cidr: 10.0.0.0/8}}",
            "{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: p}, spec: {cidr: 10.0.0.0/8, ipipMode: Always}}",
            "{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: p}, spec: {cidr: 10.0.0.0/12}}",
            "{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: p, creationTimestamp: '2026-11-26T10:00:01Z'}, spec: {cidr: 10.0.0.0/8, ipipMode: Always}}",
            "{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: p}, spec: {cidr: 172.18.0.0/24}}",
        ],
    ),
    (
        "pool-2",
        &[
            "{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: n2}, spec: {cidr: 10.64.0.0/12}}",
            "{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: n2}, spec: {cidr: 'fd00::/48'}}",
            "{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: n2}, spec: {cidr: 10.0.0.0/16}}",
            "{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: n2, creationTimestamp: '2026-11-26T10:00:02Z'}, spec: {cidr: 10.64.0.0/12}}",
        ],
    ),
    (
        "namespace-a",
        &[
            "{apiVersion: v1, kind: Namespace, metadata: {name: a, labels: {team: x}}}",
            "{apiVersion: v1, kind: Namespace, metadata: {name: a, labels: {team: y}}}",
            "{apiVersion: v1, kind: Namespace, metadata: {name: a, labels: {team: '!'}}}",
        ],
    ),
    ("namespace-b", &["{apiVersion: v1, kind: Namespace, metadata: {name: b, labels: {team: x}}}"]),
    (
        "account",
        &[
            "{apiVersion: v1, kind: ServiceAccount, metadata: {name: s, namespace: a, labels: {role: x}}}",
            "{apiVersion: v1, kind: ServiceAccount, metadata: {name: s, namespace: a, labels: {role: y}}}",
            "{apiVersion: v1, kind: ServiceAccount, metadata: {name: s, namespace: a, labels: {role: '!'}}}",
        ],
    ),
    (
        "tier",
        &[
            "{apiVersion: projectcalico.org/v3, kind: Tier, metadata: {name: t}, spec: {order: 1}}",
            "{apiVersion: projectcalico.org/v3, kind: Tier, metadata: {name: t}, spec: {order: 2, defaultAction: Pass}}",
            "{apiVersion: projectcalico.org/v3, kind: Tier, metadata: {name: t}, spec: {order: x}}",
        ],
    ),
    (
        "profile",
        &[
            "{apiVersion: projectcalico.org/v3, kind: Profile, metadata: {name: f}, spec: {ingress: [{action: Allow}], labelsToApply: {zone: dmz}}}",
        ],
    ),
    (
        "host",
        &[
            "{apiVersion: projectcalico.org/v3, kind: HostEndpoint, metadata: {name: h, labels: {app: web}}, spec: {node: n1, interfaceName: eth0, profiles: [f]}}",
        ],
    ),
    (
        "node-1",
        &[
            "{apiVersion: v1, kind: Node, metadata: {name: n1}, spec: {podCIDR: 10.1.0.0/24}, status: {addresses: [{type: InternalIP, address: 172.18.0.2}]}}",
        ],
    ),
    (
        "felix",
        &[
            "{apiVersion: projectcalico.org/v3, kind: FelixConfiguration, metadata: {name: default}, spec: {defaultEndpointToHostAction: Drop}}",
        ],
    ),
    (
        "own",
        &[
            "{apiVersion: v1, kind: Pod, metadata: {name: p0, namespace: a, labels: {app: web}}, spec: {nodeName: n1, containers: [{name: c}]}, status: {podIP: 10.1.0.9}}",
        ],
    ),
    (
        "twice",
        &[
            "{apiVersion: v1, kind: Pod, metadata: {name: p1, namespace: a, labels: {app: web}}, spec: {nodeName: n2, containers: [{name: c}]}, status: {podIP: 10.2.0.9}}",
        ],
    ),
];

const BY_THEMSELVES: usize = 17;

/// The pods. The first one is on this node.
const PODS: [(&str, &str); 6] =
    [("a", "p0"), ("a", "p1"), ("a", "p2"), ("b", "p1"), ("b", "p2"), ("c", "p1")];

/// A file's name and its new content.
type Event = (String, Option<String>);

fn pod() -> impl Strategy<Value = Event> {
    let spec = prop::sample::select(vec![
        "nodeName: n2",
        "nodeName: n2",
        "nodeName: n2",
        "nodeName: n1",
        "nodeName: n3",
        "nodeName: n2, serviceAccountName: s",
        "nodeName: n2, hostNetwork: true",
    ]);
    let status = prop::sample::select(vec![
        "podIP: 10.2.0.1",
        "podIP: 10.2.0.2",
        "podIP: 10.2.0.9",
        "podIP: 10.1.0.2",
        // The next addresses: 10.9.0.1 and 10.9.0.2 are usually in no block, and 10.9.0.1 may be a tunnel's; 192.0.2.1
        // is in no pool; 172.18.0.5 is a node's.
        "podIP: 10.9.0.1",
        "podIP: 10.9.0.1",
        "podIPs: [{ip: 10.9.0.2}, {ip: 'fd00:9::3'}]",
        "podIP: 192.0.2.1",
        "podIP: 172.18.0.5",
        "podIP: 10.2.0.1",
        "phase: Succeeded, podIP: 10.2.0.1",
        "phase: Failed, podIP: 10.9.0.1",
        "podIPs: [{ip: 10.2.0.3}, {ip: 'fd00::3'}]",
        "phase: Pending",
        "phase: Pending",
        "phase: Pending",
        "podIP: x",
    ]);
    let metadata = prop::sample::select(vec![
        "",
        "",
        "",
        ", creationTimestamp: '2026-01-01T00:00:01Z'",
        ", creationTimestamp: '2026-01-01T00:00:02Z'",
        ", deletionTimestamp: '2026-01-01T00:00:02Z'",
        ", deletionTimestamp: x, annotations: {cni.projectcalico.org/podIP: ''}",
        // In these annotations, 10.2.0.x is usually in the block of n2, 10.9.0.1 is in a pool only, 172.18.0.3 is a
        // node's, and 198.51.100.1 is in no pool. The text `x` is not an address.
        ", annotations: {cni.projectcalico.org/podIPs: '10.2.0.9,fd00:2::9'}",
        ", annotations: {cni.projectcalico.org/podIPs: '10.2.0.2,10.2.0.1'}, creationTimestamp: '2026-01-01T00:00:01Z'",
        ", annotations: {cni.projectcalico.org/podIPs: '10.2.0.1,172.18.0.3'}",
        ", annotations: {cni.projectcalico.org/podIP: 10.9.0.1}",
        ", annotations: {cni.projectcalico.org/podIP: 198.51.100.1}",
        ", annotations: {cni.projectcalico.org/podIPs: '10.2.0.2,10.9.0.1,198.51.100.1,x'}",
    ]);
    let port = prop::sample::select(vec!["", "", ", ports: [{name: http, containerPort: 80}]"]);
    let app = prop::sample::select(vec!["web", "web", "db"]);
    let one = (prop::sample::select(&PODS[..]), app, spec, (metadata, port), status);
    (one, prop::bool::weighted(0.75)).prop_map(|(((namespace, name), app, spec, (metadata, port), status), there)| {
        let text = format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: {namespace}, labels: {{app: {app}}}{metadata}}}, spec: {{{spec}, containers: [{{name: c{port}}}]}}, status: {{{status}}}}}"
        );
        (format!("pod-{namespace}-{name}"), there.then_some(text))
    })
}

fn other(objects: &'static [(&str, &[&str])]) -> impl Strategy<Value = Event> {
    let one = prop::sample::select(objects).prop_flat_map(|(name, texts)| {
        (Just(name), prop::sample::select(texts), prop::bool::weighted(0.75))
    });
    one.prop_map(|(name, text, there)| (name.to_owned(), there.then(|| text.to_owned())))
}

fn happen(directory: &Path, (name, text): &Event) {
    let path = directory.join(format!("{name}.yaml"));
    let Some(text) = text else {
        // The file may not exist.
        let _ = fs::remove_file(path);
        return;
    };
    let temporary = directory.join(".temporary");
    // All texts have the same length, because a shorter one might count as a partial save.
    fs::write(&temporary, format!("{text:800}")).unwrap();
    fs::rename(temporary, path).unwrap();
}

#[test]
fn after_any_stream_of_objects_all_is_as_from_nothing() {
    let [in_place, tables, routes, import, borrowed] = [const { Cell::new(0) }; 5];
    let [blocks, tunnels] = [const { Cell::new(0) }; 2];
    let event = prop_oneof![3 => pod(), 2 => other(&OBJECTS[..BY_THEMSELVES]), 1 => other(OBJECTS)];
    let events = vec(vec(event, 1..3), 1..24);
    let begin = OBJECTS.iter().map(|(name, texts)| {
        let text = prop_oneof![3 => Just(texts[0]), 1 => prop::sample::select(*texts)];
        let event = text.prop_map(|text| ((*name).to_owned(), Some(text.to_owned())));
        prop::option::weighted(0.6, event)
    });
    let begin = begin.collect::<Vec<_>>();
    let config = Config { cases: 24, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&(begin, events, any::<bool>()), |(begin, events, is_calico)| {
            let ipam = if is_calico { Ipam::Calico } else { Ipam::HostLocal };
            let import_for = |contents: &Contents, node| import_as(contents, ipam, Some(node));
            let directory = tempfile::tempdir().unwrap();
            begin.iter().flatten().for_each(|event| happen(directory.path(), event));
            let local = local();
            let mut store = Store::new(directory.path());
            store.refresh();
            let mut calculation = Calculation::default();
            let mut cluster = import_for(store.contents(), NODE);
            let mut image = calculation.compiler.compile(&cluster.model, &local);
            let mut placed = topology(&cluster, NODE, &Reserved::new());
            for events in events {
                for event in &events {
                    happen(directory.path(), event);
                }
                let Some(changes) = store.refresh() else { continue };
                let contents = store.contents();
                let left = calculation.apply_delta(&image, &mut cluster, contents, &changes);
                let count = match left {
                    NextStep::Nothing(_) => &in_place,
                    NextStep::Tables => &tables,
                    NextStep::Routes { .. } => &routes,
                    NextStep::Import => {
                        cluster = import_for(contents, NODE);
                        &import
                    }
                };
                count.set(count.get() + 1);
                if matches!(left, NextStep::Routes { .. } | NextStep::Import) {
                    placed = topology(&cluster, NODE, &Reserved::new());
                }
                if !matches!(left, NextStep::Nothing(_) | NextStep::Routes { tables: false, .. }) {
                    image = calculation.compiler.compile(&cluster.model, &local);
                }
                let mut store = Store::new(directory.path());
                store.refresh();
                prop_assert_eq!(contents, store.contents(), "{:?}", changes);
                let anew = import_for(contents, NODE);
                prop_assert_eq!(&cluster, &anew, "{:?}", changes);
                prop_assert_eq!(&placed, &topology(&anew, NODE, &Reserved::new()), "{:?}", changes);
                borrowed.set(borrowed.get() + u32::from(!cluster.borrowed.is_empty()));
                if is_calico {
                    let has_blocks = |node: &Node| !node.plan.blocks().is_empty();
                    let has_any = cluster.nodes.values().any(has_blocks);
                    blocks.set(blocks.get() + u32::from(has_any));
                    tunnels.set(tunnels.get() + u32::from(!cluster.borrowed_tunnels.is_empty()));
                }
                let fresh = Compiler::new().compile(&cluster.model, &local);
                prop_assert_eq!(image.canonical_hash(), fresh.canonical_hash(), "{:?}", changes);
                for name in &local {
                    prop_assert_eq!(image.revision(name), fresh.revision(name));
                }
            }
            Ok(())
        })
        .unwrap();
    let counts = [&in_place, &tables, &routes, &import].map(Cell::get);
    let least = counts.iter().sum::<u32>() / 40;
    assert!(counts.iter().all(|count| *count > least), "not every way is taken: {counts:?}");
    assert!(borrowed.get() > least, "few pods borrow addresses: {borrowed:?}");
    assert!(blocks.get() > least, "few nodes have blocks of Calico's: {blocks:?}");
    assert!(tunnels.get() > least, "few tunnels borrow addresses: {tunnels:?}");
}

/// Pods of n2 and n3 have one of these addresses each. The cost of a change depends on the other users of the address.
#[test]
fn a_pod_costs_other_routes_only_if_it_or_another_borrows_its_address() {
    const WITH: &[(&str, usize)] = &[("node-1", 0), ("node-2", 0), ("node-3", 0), ("pool", 1)];
    let pod = |name: &str, node: &str, address: &str| {
        let text = format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: a}}, spec: {{nodeName: {node}, containers: [{{name: c}}]}}, status: {{podIP: {address}}}}}"
        );
        (format!("pod-{name}"), text)
    };
    let mut files: BTreeMap<String, String> =
        WITH.iter().map(|(name, at)| ((*name).to_owned(), texts(name)[*at].to_owned())).collect();
    files.extend([("namespace".to_owned(), texts("namespace-a")[0].to_owned())]);
    let contents = |files: &BTreeMap<String, String>| {
        Contents::from_texts(files.iter().map(|(name, text)| (name.as_str(), text.as_str())))
    };
    let mut followed = Followed::of(contents(&files));
    let mut step = |name: &str, text: Option<(String, String)>| {
        match text {
            Some((file, text)) => files.insert(file, text),
            None => files.remove(&format!("pod-{name}")),
        };
        let next = followed.become_contents(contents(&files));
        let route = topology(&followed.cluster, NODE, &Reserved::new()).unwrap();
        (next, route.prefixes.get(&"10.9.0.1/32".parse().unwrap()).copied())
    };
    let n2 = Route::Tunnel(Peer { address: [172, 18, 0, 3].into(), overlay: Overlay::Ipip });
    let n3 = Route::Tunnel(Peer { address: [172, 18, 0, 5].into(), overlay: Overlay::Ipip });
    let routes = |pods| NextStep::Routes { pods, tables: false };
    for (name, text, expected) in [
        ("in", Some(pod("in", "n2", "10.2.0.5")), (NextStep::Nothing(1), None)),
        ("in", None, (NextStep::Nothing(1), None)),
        ("out", Some(pod("out", "n2", "10.9.0.1")), (routes(1), Some(n2))),
        // The pod moves to another node. It does not change in the image.
        ("out", Some(pod("out", "n3", "10.9.0.1")), (routes(0), Some(n3))),
        // The first pod has the address. The other pod gets it when the first one is removed.
        ("too", Some(pod("too", "n2", "10.9.0.1")), (routes(0), Some(n3))),
        ("out", None, (routes(2), Some(n2))),
        ("in", Some(pod("in", "n2", "10.2.0.5")), (NextStep::Nothing(1), Some(n2))),
        ("too", Some(pod("too", "n2", "10.2.0.6")), (routes(1), None)),
        ("out", Some(pod("out", "n1", "10.9.0.1")), (routes(1), Some(Route::Local))),
    ] {
        assert_eq!(step(name, text), expected, "{name}");
    }
}

/// A cluster with some of `OBJECTS`. Each object is given by the number of one of its texts.
struct Followed {
    contents: Contents,
    cluster: Cluster,
    calculation: Calculation,
    image: Image,
}

impl Followed {
    fn from(objects: &[(&'static str, usize)]) -> Self {
        Self::of(contents(objects))
    }

    fn of(contents: Contents) -> Self {
        let mut calculation = Calculation::default();
        let cluster = import_for(&contents, NODE);
        let image = calculation.compiler.compile(&cluster.model, &local());
        Self { contents, cluster, calculation, image }
    }

    #[track_caller]
    fn to(&mut self, objects: &[(&'static str, usize)]) -> NextStep {
        self.become_contents(contents(objects))
    }

    #[track_caller]
    fn become_contents(&mut self, contents: Contents) -> NextStep {
        let before = std::mem::replace(&mut self.contents, contents);
        let keys = before.objects.keys().chain(self.contents.objects.keys());
        let differ = keys.filter(|key| before.objects.get(key) != self.contents.objects.get(key));
        let changes = differ.map(|key| (key.clone(), before.objects.get(key).cloned())).collect();
        let changes = Changes::Objects(changes);
        let Self { contents, cluster, calculation, image } = self;
        let left = calculation.apply_delta(image, cluster, contents, &changes);
        assert!(left == NextStep::Import || *cluster == import_for(contents, NODE));
        if left == NextStep::Import {
            *cluster = import_for(contents, NODE);
        }
        if !matches!(left, NextStep::Nothing(_) | NextStep::Routes { tables: false, .. }) {
            *image = calculation.compiler.compile(&cluster.model, &local());
        }
        let fresh = Compiler::new().compile(&cluster.model, &local());
        assert_eq!(image.canonical_hash(), fresh.canonical_hash());
        left
    }
}

fn contents(objects: &[(&'static str, usize)]) -> Contents {
    let text = |(name, at): &(&'static str, usize)| (*name, texts(name)[*at]);
    Contents::from_texts(objects.iter().map(text))
}

fn texts(name: &str) -> &'static [&'static str] {
    OBJECTS.iter().find(|(known, _)| *known == name).unwrap().1
}

fn local() -> BTreeSet<ObjectName> {
    [ObjectName::new("a", "p0"), ObjectName::new("", "h")].into_iter().collect()
}

/// Returns the next step after one more object is added to these others.
#[track_caller]
fn left(others: &[(&'static str, usize)], object: (&'static str, usize)) -> NextStep {
    Followed::from(others).to(&[others, &[object]].concat())
}

#[test]
fn an_object_takes_as_much_as_rests_on_it() {
    assert_eq!(left(&[("namespace-a", 0)], ("twice", 0)), NextStep::Nothing(1));
    assert_eq!(left(&[("namespace-a", 2)], ("twice", 0)), NextStep::Import);
    assert_eq!(left(&[("namespace-a", 0), ("tier", 0)], ("calico", 0)), NextStep::Tables);
    assert_eq!(left(&[("namespace-a", 0), ("tier", 2)], ("calico", 0)), NextStep::Import);
    assert_eq!(left(&[("namespace-b", 0)], ("slice", 0)), NextStep::Nothing(0));
    assert_eq!(left(&[("node-1", 0)], ("node-2", 0)), NextStep::Routes { pods: 0, tables: false });
    assert_eq!(left(&[("node-1", 0)], ("node-2", 1)), NextStep::Import);
    assert_eq!(left(&[("pool-2", 0)], ("pool", 0)), NextStep::Import);
    assert_eq!(left(&[("pool-2", 0)], ("pool", 2)), NextStep::Routes { pods: 0, tables: false });
    assert_eq!(left(&[("namespace-b", 0), ("calico", 1)], ("slice", 0)), NextStep::Tables);
    assert_eq!(left(&[("namespace-b", 0), ("calico", 1)], ("slice-2", 1)), NextStep::Nothing(0));
    assert_eq!(left(&[("namespace-a", 0), ("global", 0)], ("set", 0)), NextStep::Tables);
    assert_eq!(left(&[("namespace-a", 2), ("global", 0)], ("set", 0)), NextStep::Import);
    assert_eq!(left(&[("namespace-a", 0), ("global", 0)], ("set", 3)), NextStep::Import);
    // With Calico's IPAM, a block costs as much as a Node's podCIDR.
    let calico = [("affinity-own", 0), ("node-1", 0), ("node-2", 0)];
    let routes = NextStep::Routes { pods: 0, tables: false };
    assert_eq!(left(&calico, ("affinity", 0)), routes);
    assert_eq!(left(&calico, ("affinity", 1)), NextStep::Nothing(0));
    // These affinities belong to no node and are invalid, respectively.
    assert_eq!(left(&calico, ("affinity", 4)), NextStep::Nothing(0));
    assert_eq!(left(&calico, ("affinity", 5)), NextStep::Import);
    assert_eq!(left(&calico, ("affinity-2", 1)), routes);
    // The object's namespace is new.
    assert_eq!(left(&[], ("twice", 0)), NextStep::Import);
}

#[test]
fn a_service_that_changes_while_no_rule_names_it_is_known_when_one_does() {
    let others = [("namespace-a", 0), ("namespace-b", 0), ("own", 0)];
    let with = |more: &[(&'static str, usize)]| [&others, more].concat();
    let mut followed = Followed::from(&with(&[("calico", 1), ("slice", 0)]));
    assert_eq!(followed.to(&with(&[("slice", 0)])), NextStep::Tables);
    assert_eq!(followed.to(&with(&[("slice", 1)])), NextStep::Nothing(0));
    assert_eq!(followed.to(&with(&[("slice", 1), ("twice", 0)])), NextStep::Nothing(1));
    assert_eq!(followed.to(&with(&[("slice", 1), ("twice", 0), ("calico", 1)])), NextStep::Tables);
}
