use std::collections::BTreeSet;

use manx_objects::object::{EndpointSlice, Kind, Owner, Protocol};
use proptest::prelude::*;

use super::*;

fn completed(text: &str) -> (Contents, Assumed) {
    completed_with(text, Options::default())
}

fn completed_with(text: &str, options: Options) -> (Contents, Assumed) {
    let mut contents = Contents::from_texts([("input.yaml", text)]);
    assert!(contents.problems.is_empty(), "{:?}", contents.problems);
    let assumed = complete(&mut contents, options).unwrap();
    (contents, assumed)
}

fn pods(contents: &Contents) -> BTreeMap<String, Pod> {
    let pods = contents.objects.iter().filter_map(|(key, stored)| match &stored.state {
        State::Valid(object) => match &**object {
            Object::Pod(pod) => Some((format!("{}/{}", key.namespace, key.name), (**pod).clone())),
            _ => None,
        },
        State::Invalid(_) => None,
    });
    pods.collect()
}

fn names(contents: &Contents) -> Vec<String> {
    pods(contents).into_keys().collect()
}

fn nodes(contents: &Contents) -> BTreeMap<String, Node> {
    let nodes = contents.objects.iter().filter_map(|(key, stored)| match &stored.state {
        State::Valid(object) => match &**object {
            Object::Node(node) => Some((key.name.clone(), Node::clone(node))),
            _ => None,
        },
        State::Invalid(_) => None,
    });
    nodes.collect()
}

/// Returns `apiVersion`, kind, name and template of a workload.
fn workload(kind: &str, name: &str, spec: &str) -> String {
    let version = match kind {
        "Job" | "CronJob" => "batch/v1",
        "ReplicationController" => "v1",
        _ => "apps/v1",
    };
    let template = "template: {metadata: {labels: {app: web}}, spec: {serviceAccountName: runner, containers: [{name: c, ports: [{name: http, containerPort: 8080}]}]}}";
    let spec = match kind {
        "CronJob" => format!("jobTemplate: {{spec: {{{template}}}}}{spec}"),
        _ => format!("{template}{spec}"),
    };
    format!(
        "---\n{{apiVersion: {version}, kind: {kind}, metadata: {{name: {name}, namespace: shop}}, spec: {{{spec}}}}}\n"
    )
}

fn pod(name: &str, more: &str, status: &str) -> String {
    format!(
        "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, labels: {{app: {name}}}}}, spec: {{containers: [{{name: c}}]{more}}}, status: {{{status}}}}}\n"
    )
}

fn owned(name: &str, kind: &str, owner: &str) -> String {
    format!(
        "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: shop, ownerReferences: [{{apiVersion: x, uid: x, kind: {kind}, name: {owner}, controller: true}}]}}, spec: {{containers: [{{name: c}}]}}}}\n"
    )
}

#[test]
fn a_workload_becomes_pods_like_its_template() {
    let (contents, assumed) = completed(&workload("Deployment", "web", ", replicas: 5"));
    assert_eq!(names(&contents), ["shop/web-1", "shop/web-2"]);
    let pod = &pods(&contents)["shop/web-1"];
    assert_eq!(pod.labels.get("app").unwrap(), "web");
    assert_eq!(pod.service_account.as_deref(), Some("runner"));
    assert_eq!(pod.containers[0][0].port, 8080);
    assert_eq!(pod.owner.as_ref().unwrap().name, "web");
    assert!(pod.node_name.is_some() && !pod.pod_ips.is_empty());
    assert_eq!(nodes(&contents).into_keys().collect::<Vec<_>>(), ["node-1", "node-2"]);
    assert_eq!(assumed.addresses.len(), 2);
    assert!(assumed.notes[0].starts_with("2 pods of 1 workloads without pods"), "{assumed:?}");
}

#[test]
fn each_kind_has_as_many_pods_as_it_asks_for_and_two_at_most() {
    let count = |kind: &str, spec: &str, replicas| {
        let text = workload(kind, "web", spec);
        names(&completed_with(&text, Options { replicas }).0).len()
    };
    for kind in ["Deployment", "StatefulSet", "ReplicaSet", "ReplicationController"] {
        assert_eq!(count(kind, ", replicas: 1", None), 1, "{kind}");
        assert_eq!(count(kind, "", None), 2, "{kind}");
        assert_eq!(count(kind, ", replicas: 9", None), 2, "{kind}");
        assert_eq!(count(kind, ", replicas: 1", Some(3)), 3, "{kind}");
        assert_eq!(count(kind, ", replicas: 0", Some(3)), 0, "{kind}");
    }
    assert_eq!(count("Job", "", None), 1);
    assert_eq!(count("Job", ", parallelism: 9", None), 2);
    assert_eq!(count("CronJob", "", None), 1);
    assert_eq!(count("CronJob", ", suspend: true", None), 0);
    assert_eq!(count("DaemonSet", "", Some(5)), 2, "one on each node");
}

#[test]
fn pods_of_a_stateful_set_and_of_a_job_have_their_labels() {
    let text = workload("StatefulSet", "db", "") + &workload("Job", "load", "");
    let pods = pods(&completed(&text).0);
    assert_eq!(pods["shop/db-0"].labels.get("statefulset.kubernetes.io/pod-name").unwrap(), "db-0");
    assert_eq!(pods["shop/db-1"].labels.get("apps.kubernetes.io/pod-index").unwrap(), "1");
    assert_eq!(pods["shop/load-1"].labels.get("batch.kubernetes.io/job-name").unwrap(), "load");
}

#[test]
fn numbers_begin_where_the_workload_says() {
    let set = workload("StatefulSet", "db", ", replicas: 2, ordinals: {start: 5}");
    let job = workload("Job", "load", ", completionMode: Indexed, completions: 2, parallelism: 2");
    let pods = pods(&completed(&(set + &job)).0);
    let names: Vec<&str> = pods.keys().map(String::as_str).collect();
    assert_eq!(names, ["shop/db-5", "shop/db-6", "shop/load-0", "shop/load-1"]);
    assert_eq!(pods["shop/db-5"].labels.get("apps.kubernetes.io/pod-index").unwrap(), "5");
    let index = "batch.kubernetes.io/job-completion-index";
    assert_eq!(pods["shop/load-1"].labels.get(index).unwrap(), "1");
}

#[test]
fn a_workload_of_a_kind_that_is_not_read_has_pods_unless_the_input_has_such_pods() {
    let rollout = workload("Deployment", "web", ", replicas: 2")
        .replace("apps/v1", "argoproj.io/v1alpha1")
        .replace("kind: Deployment", "kind: Rollout");
    let names_of = |more: &str| {
        let mut contents = Contents::from_texts([("a.yaml", format!("{rollout}{more}").as_str())]);
        complete(&mut contents, Options::default()).unwrap();
        let owners = pods(&contents).into_iter().map(|(name, pod)| (name, pod.owner));
        owners.collect::<BTreeMap<_, _>>()
    };
    let owner = Owner { kind: "Rollout".to_owned(), name: "web".to_owned() };
    let made = names_of("");
    assert_eq!(made.keys().collect::<Vec<_>>(), ["shop/web-1", "shop/web-2"]);
    assert!(made.values().all(|it| *it == Some(owner.clone())), "{made:?}");
    let pod = "---\n{apiVersion: v1, kind: Pod, metadata: {name: web-abc, namespace: shop, labels: {app: web, hash: abc}}}\n";
    assert_eq!(names_of(pod).len(), 1);
    assert_eq!(names_of(&pod.replace("app: web", "app: db")).len(), 3);
    // A template without containers may not be for pods.
    let machine = rollout.replace("containers:", "devices:");
    let mut contents = Contents::from_texts([("a.yaml", machine.as_str())]);
    complete(&mut contents, Options::default()).unwrap();
    assert_eq!(names(&contents), [""; 0]);
}

#[test]
fn endpoints_of_a_service_without_a_selector_are_copied_if_it_has_no_slice() {
    let service = "{apiVersion: v1, kind: Service, metadata: {name: db, namespace: s}, spec: {ports: [{port: 80}]}}\n";
    let endpoints = "---\n{apiVersion: v1, kind: Endpoints, metadata: {name: db, namespace: s}, subsets: [{addresses: [{ip: 192.0.2.7}, {ip: 'fd00::7'}], ports: [{port: 5432}]}]}\n";
    let slice = "---\n{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: db-x, namespace: s, labels: {kubernetes.io/service-name: db}}, addressType: IPv4, endpoints: [{addresses: [192.0.2.9]}]}\n";
    let of = |text: &str| {
        let mut contents = Contents::from_texts([("a.yaml", text)]);
        let assumed = complete(&mut contents, Options::default()).unwrap();
        let valid =
            contents.of_kind(Kind::EndpointSlice).filter_map(|(key, _)| contents.valid(key));
        let slices = valid.map(|object| match object {
            Object::EndpointSlice(slice) => {
                slice.addresses.iter().map(ToString::to_string).collect()
            }
            other => panic!("{other:?}"),
        });
        let slices: Vec<Vec<String>> = slices.collect();
        // A controller that follows the pods would make the same slices.
        let followed = endpoint_slices(&contents).into_keys();
        let made = assumed.manifests.into_keys().filter(|key| key.kind == Kind::EndpointSlice);
        assert_eq!(followed.collect::<Vec<_>>(), made.collect::<Vec<_>>(), "{text}");
        (slices, assumed.notes)
    };
    let (slices, notes) = of(&format!("{service}{endpoints}"));
    assert_eq!(slices, [["192.0.2.7"], ["fd00::7"]]);
    assert_eq!(notes, ["no EndpointSlice: s/db; their endpoints are their Endpoints"]);
    assert_eq!(of(&format!("{service}{endpoints}{slice}")).0, [["192.0.2.9"]]);
    let selecting = service.replace("ports:", "selector: {app: db}, ports:");
    let none: [Vec<String>; 0] = [];
    assert_eq!(of(&format!("{selecting}{endpoints}")).0, none);
    assert_eq!(of(endpoints.trim_start_matches("---\n")).0, none);
    // If Endpoints are invalid, the endpoints of the service are not known.
    let mut contents = Contents::from_texts([(
        "a.yaml",
        format!("{service}{}", endpoints.replace("192.0.2.7", "db")).as_str(),
    )]);
    complete(&mut contents, Options::default()).unwrap();
    let mut slices = contents.of_kind(Kind::EndpointSlice);
    assert!(matches!(slices.next().unwrap().1.state, State::Invalid(_)));
}

#[test]
fn a_daemon_set_has_a_pod_on_each_node_that_it_selects() {
    let nodes = "{apiVersion: v1, kind: Node, metadata: {name: a, labels: {disk: ssd}}}\n---\n{apiVersion: v1, kind: Node, metadata: {name: b}}\n";
    let set = workload("DaemonSet", "agent", "");
    let (contents, _) = completed(&format!("{nodes}{set}"));
    assert_eq!(names(&contents), ["shop/agent-a", "shop/agent-b"]);
    let selecting = set.replace("serviceAccountName: runner", "nodeSelector: {disk: ssd}");
    let (contents, _) = completed(&format!("{nodes}{selecting}"));
    assert_eq!(names(&contents), ["shop/agent-a"]);
}

#[test]
fn pods_that_the_input_has_are_not_made_again() {
    let deployment = workload("Deployment", "web", "");
    let set = workload("ReplicaSet", "web-5d9", "").replace(
        "name: web-5d9,",
        "name: web-5d9, ownerReferences: [{apiVersion: x, uid: x, kind: Deployment, name: web, controller: true}],",
    );
    let pod = owned("web-5d9-x1", "ReplicaSet", "web-5d9");
    for input in [format!("{deployment}{set}{pod}"), format!("{deployment}{pod}")] {
        assert_eq!(names(&completed(&input).0), ["shop/web-5d9-x1"]);
    }
    // The Deployment owns the ReplicaSet, so its pods are made once.
    assert_eq!(names(&completed(&format!("{deployment}{set}")).0), ["shop/web-1", "shop/web-2"]);
    // A pod of another owner does not count for these two.
    let other = owned("x-1", "ReplicaSet", "x-5d9");
    assert_eq!(names(&completed(&format!("{deployment}{other}")).0).len(), 3);
    let cron = workload("CronJob", "sweep", "");
    let job = owned("sweep-1-z", "Job", "sweep-1");
    assert_eq!(names(&completed(&format!("{cron}{job}")).0), ["shop/sweep-1-z"]);
}

#[test]
fn nodes_are_those_that_pods_name_with_the_address_that_pods_tell() {
    let text = pod("a", ", nodeName: worker", "podIP: 10.8.1.4, hostIP: 192.0.2.9")
        + &pod("b", ", nodeName: other", "podIP: 10.8.2.4");
    let (contents, assumed) = completed(&text);
    let nodes = nodes(&contents);
    assert_eq!(nodes.keys().collect::<Vec<_>>(), ["other", "worker"]);
    assert_eq!(nodes["worker"].internal_ips, ["192.0.2.9".parse::<IpAddr>().unwrap()]);
    assert_eq!(nodes["other"].internal_ips.len(), 1);
    assert_eq!(pods(&contents)["default/a"].pod_ip, Some("10.8.1.4".parse().unwrap()));
    assert!(assumed.addresses.is_empty(), "{assumed:?}");
}

#[test]
fn what_is_complete_is_left_as_it_is() {
    let text = "
{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: p}, spec: {cidr: 10.1.0.0/16}}
---
{apiVersion: v1, kind: Node, metadata: {name: m}, spec: {podCIDR: 10.1.1.0/24}, status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {nodeName: m, containers: [{name: c}]}, status: {podIP: 10.1.1.2}}
";
    let (contents, assumed) = completed(text);
    assert_eq!(contents.objects.len(), 3);
    assert!(assumed.notes.is_empty() && assumed.manifests.is_empty(), "{assumed:?}");
    let only_policies = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: p}, spec: {podSelector: {}}}";
    assert!(completed(only_policies).1.notes.is_empty());
}

#[test]
fn addresses_lie_outside_of_what_rules_name() {
    let policy = |blocks: &str| {
        format!(
            "---\n{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: p}}, spec: {{podSelector: {{}}, ingress: [{{from: [{blocks}]}}]}}}}\n"
        )
    };
    let block_of = |blocks: &str| {
        let (contents, _) = completed(&(pod("a", "", "") + &policy(blocks)));
        nodes(&contents)["node-1"].pod_cidrs[0].to_string()
    };
    assert_eq!(block_of("{ipBlock: {cidr: 192.0.2.0/24}}"), "10.244.0.0/24");
    assert_eq!(block_of("{ipBlock: {cidr: 10.244.7.0/24}}"), "10.42.0.0/24");
    assert_eq!(block_of("{ipBlock: {cidr: 10.0.0.0/8}}"), "172.16.0.0/24");
    // A rule that excludes private ranges applies to none of their addresses.
    let outside = "{ipBlock: {cidr: 0.0.0.0/0, except: [10.0.0.0/8, 172.16.0.0/12]}}";
    assert_eq!(block_of(outside), "10.244.0.0/24");
    assert_eq!(block_of("{ipBlock: {cidr: 0.0.0.0/0}}"), "10.244.0.0/24");
}

/// Returns a policy with these blocks.
fn naming(blocks: &[String]) -> String {
    let blocks: Vec<String> =
        blocks.iter().map(|cidr| format!("{{ipBlock: {{cidr: '{cidr}'}}}}")).collect();
    format!(
        "---\n{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: p}}, spec: {{podSelector: {{}}, ingress: [{{from: [{}]}}]}}}}\n",
        blocks.join(", ")
    )
}

/// Returns a part of each private range of IPv4.
fn parts_of_all_ranges() -> Vec<String> {
    let of = |first: u8, seconds: std::ops::Range<u16>| {
        seconds.map(move |second| format!("{first}.{second}.7.0/24"))
    };
    of(10, 0..256)
        .chain(of(172, 16..32))
        .chain(of(192, 168..169))
        .chain(of(100, 64..128))
        .chain(of(198, 18..20))
        .collect()
}

#[test]
fn if_rules_name_all_private_ranges_one_that_none_divides_is_taken_and_it_is_told() {
    let halves = ["0.0.0.0/1".to_owned(), "128.0.0.0/1".to_owned()];
    let (contents, assumed) = completed(&(pod("a", "", "") + &naming(&halves)));
    assert_eq!(nodes(&contents)["node-1"].pod_cidrs[0].to_string(), "10.244.0.0/24");
    let told = "every private range is in a net that a rule names: 10.244.0.0/16 is assumed for pods, and is in \
                0.0.0.0/1, which a rule names";
    assert!(assumed.notes.iter().any(|note| note == told), "{:?}", assumed.notes);
    let private =
        ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "198.18.0.0/15"];
    let divided = ["10.244.9.0/24", "10.42.9.1/32"];
    let all: Vec<String> = private.iter().chain(&divided).map(ToString::to_string).collect();
    let (contents, _) = completed(&(pod("a", "", "") + &naming(&all)));
    assert_eq!(nodes(&contents)["node-1"].pod_cidrs[0].to_string(), "10.255.0.0/24");
    let node = "{apiVersion: v1, kind: Node, metadata: {name: m}, status: {addresses: [{type: InternalIP, address: '2001:db8::1'}]}}\n";
    let (contents, _) = completed(&format!(
        "{node}{}{}",
        pod("a", ", nodeName: m", ""),
        naming(&["fc00::/7".to_owned()])
    ));
    assert_eq!(nodes(&contents)["m"].pod_cidrs[0].to_string(), "fd00:10:244::/64");
}

#[test]
fn only_what_lacks_an_address_needs_a_range() {
    let node = "{apiVersion: v1, kind: Node, metadata: {name: m}, status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}}\n";
    let rules = naming(&parts_of_all_ranges());
    let having = format!("{node}{}{rules}", pod("a", ", nodeName: m", "podIP: 10.8.1.4"));
    let (contents, assumed) = completed(&having);
    assert!(nodes(&contents)["m"].pod_cidrs.is_empty() && assumed.addresses.is_empty());
    let refused = |text: &str| {
        let mut contents = Contents::from_texts([("i", text)]);
        complete(&mut contents, Options::default()).unwrap_err().to_string()
    };
    assert_eq!(
        refused(&format!("{having}{}", pod("b", ", nodeName: m", ""))),
        "no private range is free for the pods without an address (Pod default/b): every one holds an address or block \
         of the manifests, or a part of it is in a net that a rule names; add their status.podIPs, or spec.podCIDRs to \
         their Nodes"
    );
    let told = refused(&format!("{}{rules}", pod("b", ", nodeName: other", "podIP: 10.8.1.4")));
    assert!(
        told.starts_with("no private range is free for the Nodes without an InternalIP (other): "),
        "{told}"
    );
}

#[test]
fn a_service_that_is_a_name_has_no_endpoints() {
    let service = "---\n{apiVersion: v1, kind: Service, metadata: {name: hub, namespace: shop}, spec: {type: ExternalName, externalName: hub.example.org, selector: {app: web}}}\n";
    let (contents, _) = completed(&(workload("Deployment", "web", "") + service));
    assert_eq!(contents.of_kind(Kind::EndpointSlice).count(), 0);
}

#[test]
fn blocks_come_from_the_pool_that_there_is() {
    let pool = "{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: p}, spec: {cidr: 192.168.0.0/16}}\n";
    let text = format!(
        "{pool}{}{}",
        pod("a", ", nodeName: m", "podIP: 192.168.0.7"),
        pod("b", ", nodeName: m", "")
    );
    let (contents, assumed) = completed(&text);
    assert_eq!(nodes(&contents)["m"].pod_cidrs, ["192.168.0.64/26".parse().unwrap()]);
    assert_eq!(pods(&contents)["default/b"].pod_ip, Some("192.168.0.66".parse().unwrap()));
    assert_eq!(contents.of_kind(Kind::IpPool).count(), 1, "{assumed:?}");
}

#[test]
fn one_pool_holds_all_blocks_unless_it_would_hold_something_else() {
    let node = |name: &str, block: &str, ip: &str| {
        format!(
            "---\n{{apiVersion: v1, kind: Node, metadata: {{name: {name}}}, spec: {{podCIDR: {block}}}, status: {{addresses: [{{type: InternalIP, address: {ip}}}]}}}}\n"
        )
    };
    let pools = |text: &str| {
        let (contents, _) = completed(text);
        let pools = contents.of_kind(Kind::IpPool).map(|(_, stored)| match &stored.state {
            State::Valid(object) => match &**object {
                Object::IpPool(pool) => pool.cidr.to_string(),
                _ => unreachable!(),
            },
            State::Invalid(_) => unreachable!(),
        });
        pools.collect::<Vec<_>>()
    };
    let nodes = node("a", "10.244.0.0/24", "192.0.2.1") + &node("b", "10.244.1.0/24", "192.0.2.2");
    assert_eq!(pools(&nodes), ["10.244.0.0/23"]);
    let between = nodes.replace("192.0.2.2", "10.244.7.1").replace("10.244.1.0", "10.244.15.0");
    assert_eq!(pools(&between), ["10.244.0.0/24", "10.244.15.0/24"]);
    let outside = nodes + &pod("x", ", nodeName: a", "podIP: 10.9.9.9");
    assert_eq!(pools(&outside), ["10.9.9.0/24", "10.244.0.0/24", "10.244.1.0/24"]);
    let far = node("a", "10.16.0.0/24", "192.0.2.1") + &node("b", "10.31.0.0/24", "192.0.2.2");
    assert_eq!(pools(&far), ["10.16.0.0/12"]);
}

#[test]
fn endpoints_follow_from_selectors() {
    let service = |ports: &str| {
        format!(
            "---\n{{apiVersion: v1, kind: Service, metadata: {{name: web, namespace: shop}}, spec: {{selector: {{app: web}}, ports: [{ports}]}}}}\n"
        )
    };
    let slices = |text: &str| {
        let (contents, _) = completed(text);
        let slices = contents.of_kind(Kind::EndpointSlice).filter_map(|(_, stored)| {
            let State::Valid(object) = &stored.state else { return None };
            match &**object {
                Object::EndpointSlice(slice) => Some(slice.clone()),
                _ => None,
            }
        });
        slices.collect::<Vec<_>>()
    };
    let deployment = workload("Deployment", "web", "");
    let one = slices(&format!("{deployment}{}", service("{port: 80, targetPort: http}")));
    assert_eq!((one.len(), one[0].addresses.len()), (1, 2));
    let numbers = |slice: &EndpointSlice| -> Vec<_> {
        slice.ports.iter().map(|it| (it.protocol, it.port)).collect()
    };
    assert_eq!(numbers(&one[0]), [(Protocol::Tcp, 8080)]);
    assert_eq!(one[0].service.as_deref(), Some("web"));
    let other = slices(&format!(
        "{deployment}{}",
        service("{port: 80}, {port: 53, protocol: UDP}, {port: 1, targetPort: nothing}")
    ));
    assert_eq!(numbers(&other[0]), [(Protocol::Tcp, 80), (Protocol::Udp, 53)]);
    let given = "---\n{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: s, namespace: shop, labels: {kubernetes.io/service-name: web}}, addressType: IPv4, endpoints: []}\n";
    let kept = slices(&format!("{deployment}{}{given}", service("{port: 80}")));
    assert_eq!((kept.len(), kept[0].addresses.len()), (1, 0), "what the input says stays");
}

#[test]
fn a_service_that_is_not_valid_has_endpoints_that_are_not_known() {
    let text = "{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {selector: 5}}";
    let mut contents = Contents::from_texts([("i", text)]);
    complete(&mut contents, Options::default()).unwrap();
    let (_, slice) = contents.of_kind(Kind::EndpointSlice).next().unwrap();
    assert!(matches!(slice.state, State::Invalid(_)));
}

/// Parts of a cluster. Any of them may be missing.
const PARTS: &[&str] = &[
    "{apiVersion: v1, kind: Node, metadata: {name: n4}, spec: {podCIDR: 10.1.3.0/24}, status: {addresses: [{type: ExternalIP, address: 198.51.100.3}]}}",
    "{apiVersion: v1, kind: Node, metadata: {name: n1, labels: {disk: ssd}}, spec: {podCIDR: 10.1.1.0/24}, status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}}",
    "{apiVersion: v1, kind: Node, metadata: {name: n2}, spec: {podCIDRs: ['fd00:1::/64']}}",
    "{apiVersion: v1, kind: Node, metadata: {name: n3}}",
    "{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: p}, spec: {cidr: 10.1.0.0/16}}",
    "{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: q}, spec: {cidr: 10.9.0.0/29, blockSize: 32}}",
    "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {nodeName: n1, containers: [{name: c}]}, status: {podIP: 10.1.1.2}}",
    "{apiVersion: v1, kind: Pod, metadata: {name: b}, spec: {nodeName: gone, containers: [{name: c}]}, status: {podIPs: [{ip: 10.77.0.2}, {ip: 'fd00:9::2'}], hostIP: 192.0.2.8}}",
    "{apiVersion: v1, kind: Pod, metadata: {name: c, labels: {app: web}}, spec: {nodeSelector: {disk: ssd}, containers: [{name: c}]}}",
    "{apiVersion: v1, kind: Pod, metadata: {name: d}, spec: {nodeName: n3, hostNetwork: true, containers: [{name: c}]}}",
    "{apiVersion: v1, kind: Pod, metadata: {name: e}, spec: {nodeName: n3, containers: [{name: c}]}, status: {phase: Succeeded}}",
    "{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}, spec: {template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c, ports: [{name: http, containerPort: 80, protocol: TCP}]}]}}}}",
    "{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: web}, spec: {template: {spec: {initContainers: [{name: i, ports: [{containerPort: 1}]}], containers: [{name: c}]}}}}",
    "{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: agent}, spec: {template: {spec: {hostNetwork: true, containers: [{name: c}]}}}}",
    "{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {selector: {app: web}, ports: [{port: 80, targetPort: http}, {port: 53, protocol: UDP}]}}",
    "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: p}, spec: {podSelector: {}, egress: [{to: [{ipBlock: {cidr: 10.244.0.0/16}}, {ipBlock: {cidr: 0.0.0.0/0, except: [10.0.0.0/8]}}]}]}}",
];

proptest! {
    /// Laws: completing a completed input again adds nothing. The input together with the added
    /// manifests gives the completed contents. The content of the input never changes. No address
    /// is assigned twice.
    #[test]
    fn laws_of_completion(chosen in proptest::collection::vec(any::<bool>(), PARTS.len())) {
        let parts: Vec<&str> =
            PARTS.iter().zip(&chosen).filter(|(_, chosen)| **chosen).map(|(part, _)| *part).collect();
        let text = parts.join("\n---\n");
        let input = Contents::from_texts([("i", text.as_str())]);
        let mut contents = input.clone();
        let assumed = complete(&mut contents, Options::default()).unwrap();

        let mut again = contents.clone();
        let nothing = complete(&mut again, Options::default()).unwrap();
        prop_assert!(nothing.manifests.is_empty(), "{:#?}", nothing.manifests);

        let mut objects: BTreeMap<ObjectKey, Json> = parts.iter().map(|part| {
            let one = Contents::from_texts([("i", *part)]);
            let key = one.objects.into_keys().next().unwrap();
            (key, to_json(part))
        }).collect();
        for (key, fields) in &assumed.manifests {
            merge(objects.entry(key.clone()).or_insert(Json::Null), fields.clone());
        }
        let merged: Vec<String> = objects.values().map(Json::to_string).collect();
        let merged = Contents::from_texts([("m", merged.join("\n---\n").as_str())]);
        prop_assert_eq!(states(&merged), states(&contents));

        let known: BTreeSet<&ObjectKey> = assumed.manifests.keys().collect();
        for (key, stored) in &input.objects {
            prop_assert!(known.contains(key) || contents.objects[key].state == stored.state);
        }
        let mut seen = BTreeSet::new();
        for (name, pod) in pods(&contents) {
            for address in pod.every_address() {
                prop_assert!(seen.insert(address), "{} has {} of another", name, address);
            }
        }
    }
}

fn states(contents: &Contents) -> BTreeMap<ObjectKey, State> {
    contents.objects.iter().map(|(key, stored)| (key.clone(), stored.state.clone())).collect()
}

/// Converts a text in YAML's flow style to JSON.
fn to_json(text: &str) -> Json {
    fn of(node: &manx_objects::tree::Node<'_>) -> Json {
        use manx_objects::tree::Value;
        match &node.value {
            Value::Null => Json::Null,
            Value::Boolean(value) => (*value).into(),
            Value::Integer(value) => i64::try_from(*value).unwrap().into(),
            Value::Float(value) | Value::String(value) => value.to_string().into(),
            Value::Sequence(items) => items.iter().map(of).collect(),
            Value::Mapping(entries) => Json::Object(
                entries.iter().map(|entry| (entry.key.to_string(), of(&entry.node))).collect(),
            ),
        }
    }
    of(&manx_objects::yaml::parse(text).unwrap()[0].root)
}

#[test]
fn ten_thousand_pods_are_completed() {
    let pods: String = (0..10_000).map(|number| pod(&format!("p{number}"), "", "")).collect();
    let services: Vec<String> = (0..50).map(|number| {
        format!("---\n{{apiVersion: v1, kind: Service, metadata: {{name: s{number}}}, spec: {{selector: {{app: p{number}}}, ports: [{{port: 80}}]}}}}\n")
    }).collect();
    let nodes: Vec<String> = (0..300)
        .map(|number| {
            format!("---\n{{apiVersion: v1, kind: Node, metadata: {{name: n{number}}}}}\n")
        })
        .collect();
    let (contents, assumed) = completed(&(pods + &services.concat() + &nodes.concat()));
    assert_eq!(assumed.addresses.len(), 10_000);
    assert_eq!(contents.of_kind(Kind::EndpointSlice).count(), 50);
}

#[test]
fn a_service_that_a_cluster_would_give_an_address_gets_one_of_each_family() {
    let service = |name: &str, spec: &str| {
        format!(
            "---\n{{apiVersion: v1, kind: Service, metadata: {{name: {name}}}, spec: {{{spec}}}}}\n"
        )
    };
    let of = |objects: &[&str]| {
        let (mut contents, mut assumed) = completed(&objects.concat());
        let before = assumed.clone();
        give_cluster_ips(&mut contents, &mut assumed);
        for (key, given) in &assumed.cluster_ips {
            let Some(Object::Service(service)) = contents.valid(key) else { panic!("{key}") };
            assert!(
                service.cluster_ips.iter().eq(given)
                    && service.addresses.is_superset(&service.cluster_ips)
            );
            assert_eq!(assumed.manifests[key]["spec"]["clusterIP"], json(given[0]));
        }
        assert_eq!(assumed.manifests.len(), before.manifests.len() + assumed.cluster_ips.len());
        let given =
            assumed.cluster_ips.iter().map(|(key, given)| format!("{} {given:?}", key.name));
        let notes = assumed.notes.into_iter().skip(before.notes.len());
        given.chain(notes).collect::<Vec<_>>().join("\n")
    };
    let (web, api) = (service("web", "ports: [{port: 80}]"), service("api", "type: NodePort"));
    assert_eq!(
        of(&[&web, &api]),
        "api [10.96.0.2]\nweb [10.96.0.3]\nno clusterIP: default/api 10.96.0.2, default/web 10.96.0.3"
    );
    let others = [
        service("a", "clusterIP: None"),
        service("b", "type: ExternalName, externalName: a.example.com"),
        service("c", "clusterIP: 10.96.0.2"),
    ];
    assert_eq!(of(&[&others.concat()]), "");
    // A range with a used address is not used.
    assert_eq!(of(&[&web, &others[2]]), "web [10.43.0.2]\nno clusterIP: default/web 10.43.0.2");
    let range = "---\n{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: k}, spec: {cidrs: [10.96.0.0/30]}}\n";
    assert_eq!(of(&[&web, &api, range]), "api [10.96.0.2]\nno clusterIP: default/api 10.96.0.2");
    assert_eq!(of(&[&web, &others[2], range]), "");
    let node = "---\n{apiVersion: v1, kind: Node, metadata: {name: n1}, spec: {podCIDRs: [10.1.0.0/24, 'fd00:1::/64']}}\n";
    assert_eq!(
        of(&[&web, node]),
        "web [10.96.0.2, fd00:10:245::2]\nno clusterIP: default/web 10.96.0.2"
    );
}

fn json(address: IpAddr) -> Json {
    Json::from(address.to_string())
}
