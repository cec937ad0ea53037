//! The rights of `deploy/manx.yaml`: the token of a node's agent may write its own node's objects and no others, and the
//! Job's token may make the first pool.
//!
//! An attacker who controls a node, or a tenant, could send each request that is refused here.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Server, manifest};

const ACCOUNT: &str = "manx-node";

/// The annotations that agents write.
const POD_IP: &str = "cni.projectcalico.org/podIP";
const POD_IPS: &str = "cni.projectcalico.org/podIPs";
const TUNNEL: &str = "projectcalico.org/IPv4IPIPTunnelAddr";
const ADDRESS: &str = "projectcalico.org/IPv4Address";

/// The time that the server may take to put a new policy into force.
const IN_FORCE: Duration = Duration::from_secs(30);

/// Makes the accounts, rights and policies of the manifest. Calico's kinds exist already.
pub(super) fn install(server: &Server) {
    let [_, rest] = manifest();
    let told = server.kubectl(&["create", "-f", "-"], &rest);
    assert!(told.contains("daemonset.apps/manx-node created"), "{told}");
    // kubectl reads an object before it patches it; an agent does not.
    let reads =
        ["create", "clusterrole", "reads", "--verb=get", "--resource=pods/status,nodes/status"];
    server.kubectl(&reads, "");
    let account = format!("--serviceaccount=kube-system:{ACCOUNT}");
    let bound = ["create", "clusterrolebinding", "reads", "--clusterrole=reads", &account];
    server.kubectl(&bound, "");
}

/// The pod of a node's agent, with the fields that its token needs.
pub(super) fn agent_pod(node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "namespace": "kube-system", "name": format!("agent-{node}") },
        "spec": { "nodeName": node, "serviceAccountName": ACCOUNT, "containers": [{ "name": "c", "image": "i" }] },
    })
}

/// The kubeconfig of a node's agent, with the token that kubelet would give its pod. The pod exists.
pub(super) fn agent(server: &Server, node: &str) -> PathBuf {
    let pod = format!("agent-{node}");
    let uid = ["-n", "kube-system", "get", "pod", &pod, "-o", "jsonpath={.metadata.uid}"];
    let uid = server.kubectl(&uid, "");
    let bound =
        ["--bound-object-kind=Pod", "--bound-object-name", &pod, "--bound-object-uid", &uid];
    as_account(server, ACCOUNT, &bound)
}

/// A kubeconfig with a token of a service account.
pub(super) fn as_account(server: &Server, account: &str, bound: &[&str]) -> PathBuf {
    let token = [&["-n", "kube-system", "create", "token", account], bound].concat();
    let token = server.kubectl(&token, "");
    let mut config: Value =
        serde_json::from_str(&server.kubectl(&["config", "view", "--raw", "-o", "json"], ""))
            .unwrap();
    config["users"][0]["user"] = json!({ "token": token.trim() });
    let file = server.folder.path().join(format!("{account}{}.kubeconfig", bound.concat()));
    fs::write(&file, config.to_string()).unwrap();
    file
}

/// Sends a patch as the user of a kubeconfig. `Err`: the answer of the server.
fn patch(server: &Server, as_whom: &Path, what: &[&str], object: &Value) -> Result<String, String> {
    patch_by(server, as_whom, "--type=merge", what, object)
}

/// Sends a patch of a given type.
fn patch_by(
    server: &Server,
    as_whom: &Path,
    by: &str,
    what: &[&str],
    object: &Value,
) -> Result<String, String> {
    let text = object.to_string();
    let kubeconfig = ["--kubeconfig", as_whom.to_str().unwrap()];
    let with = [by, "-p", &text];
    server.try_kubectl(&[&kubeconfig[..], &["patch"], what, &with].concat(), "")
}

fn objects() -> Vec<Value> {
    let node = |name: &str| {
        json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": name, "annotations": { "theirs": "stays" }, "labels": { "zone": "a" } },
            "spec": { "podCIDR": "10.0.0.0/24", "taints": [{ "key": "theirs", "effect": "NoSchedule" }] },
            "status": {
                "addresses": [{ "type": "InternalIP", "address": "192.0.2.7" }],
                "capacity": { "pods": "110" },
                "conditions": [{ "type": "Ready", "status": "False", "reason": "KubeletNotReady" }],
            },
        })
    };
    let pod = |name: &str, node: &str| {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "namespace": "rights", "name": name, "annotations": { "theirs": "stays" }, "labels": { "app": "web" } },
            "spec": { "nodeName": node, "containers": [{ "name": "c", "image": "i" }] },
            "status": { "phase": "Running", "podIP": "10.0.0.9", "podIPs": [{ "ip": "10.0.0.9" }] },
        })
    };
    let namespace =
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "rights" } });
    let nodes = [node("n1"), node("n2"), agent_pod("n1"), agent_pod("n2")];
    let mut restored = pod("restored", "n1");
    restored["metadata"]["annotations"] = json!({ POD_IP: "10.0.0.6/32", POD_IPS: "10.0.0.6/32" });
    let pods = [namespace, pod("own", "n1"), pod("others", "n2"), pod("bare", "n1"), restored];
    nodes.into_iter().chain(pods).collect()
}

pub(super) fn check(server: &Server) {
    let objects = objects();
    server.fill(&objects);
    let agent = agent(server, "n1");
    let addresses =
        |text: &str| json!({ "metadata": { "annotations": { POD_IP: text, POD_IPS: text } } });
    let own = ["-n", "rights", "pod", "own", "--subresource=status"];
    let others = ["-n", "rights", "pod", "others", "--subresource=status"];

    // A policy takes effect some time after it was made.
    let start = Instant::now();
    while patch(server, &agent, &others, &addresses("192.0.2.1/32")).is_ok() {
        assert!(start.elapsed() < IN_FORCE, "a pod of another node is changed");
        std::thread::sleep(Duration::from_millis(200));
    }
    for text in ["10.0.0.5/32", "10.0.0.5/32,fd00::5/128", ""] {
        patch(server, &agent, &own, &addresses(text)).unwrap();
    }

    let own_pod = "changes pods of its own node alone";
    let own_annotations = "changes the annotations cni.projectcalico.org/podIP and podIPs alone";
    let no_status = "nothing of a pod's spec or status";
    let no_metadata = "nothing else of a pod's metadata";
    for (what, object, told) in [
        (&others, addresses("10.0.0.5/32"), own_pod),
        (&others, addresses(""), own_pod),
        (&own, annotation("cni.projectcalico.org/ipAddrs", &json!("[]")), own_annotations),
        (&own, annotation("theirs", &json!("changed")), own_annotations),
        (&own, annotation("theirs", &Value::Null), own_annotations),
        (&own, json!({ "metadata": { "annotations": null } }), own_annotations),
        (&own, json!({ "metadata": { "labels": { "app": "db" } } }), no_metadata),
        (&own, json!({ "metadata": { "labels": null } }), no_metadata),
        (&own, json!({ "metadata": { "finalizers": ["example.com/never"] } }), no_metadata),
        (&own, json!({ "status": { "phase": "Failed" } }), no_status),
        (
            &own,
            json!({ "status": { "podIP": "10.0.0.7", "podIPs": [{ "ip": "10.0.0.7" }] } }),
            no_status,
        ),
        (&own, json!({ "status": null }), no_status),
    ] {
        let error = patch(server, &agent, what, &object).unwrap_err();
        assert!(error.contains(told), "{object}: {error}");
    }

    // No role allows these.
    let forbidden = "is forbidden";
    for (what, object) in [
        (&["-n", "rights", "pod", "own"][..], addresses("10.0.0.5/32")),
        (&["node", "n1"], json!({ "metadata": { "labels": { "a": "b" } } })),
    ] {
        let error = patch(server, &agent, what, &object).unwrap_err();
        assert!(error.contains(forbidden) && !error.contains("manx-node' with binding"), "{error}");
    }
    let kubeconfig = ["--kubeconfig", agent.to_str().unwrap()];
    let create = [&kubeconfig[..], &["create", "-f", "-"]].concat();
    let error = server.try_kubectl(&create, &pool("192.0.2.0/24").to_string()).unwrap_err();
    assert!(error.contains(forbidden) && error.contains("ippools"), "{error}");

    // A token without a node, like those of older API servers and Secrets, is refused.
    let unbound = as_account(server, ACCOUNT, &[]);
    let error = patch(server, &unbound, &own, &addresses("10.0.0.5/32")).unwrap_err();
    assert!(error.contains("names no node"), "{error}");
    // The policy does not restrict other accounts.
    patch(server, &server.kubeconfig(), &others, &annotation("theirs", &json!("changed"))).unwrap();
    check_others(server, &agent);
    check_condition(server, &agent, &unbound);
    check_ipam(server, &agent);
    check_statuses(server, &agent);
    check_secrets(server, &agent);
    check_first_pool(server);
    server.clear(&objects);
}

/// The two annotations keep their values when another user than the agent changes a pod, or tries
/// to.
fn check_others(server: &Server, agent: &Path) {
    let everything = |user: &str, pod: &str, part: &[&str], object: &Value| {
        let user = ["--as", user, "--as-group=system:masters", "-n", "rights", "patch", "pod", pod];
        let text = object.to_string();
        let with = ["--type=merge", "-p", &text];
        server.try_kubectl(&[&user[..], part, &with].concat(), "")
    };
    let status = &["--subresource=status"][..];
    let own = ["-n", "rights", "pod", "own", "--subresource=status"];
    let refused = "are the network's to write";
    let some = |value: &str| annotation(POD_IP, &json!(value));

    let start = Instant::now();
    while everything("ann", "others", &[], &some("192.0.2.1/32")).is_ok() {
        assert!(start.elapsed() < IN_FORCE, "anybody changes an annotation of the network");
        std::thread::sleep(Duration::from_millis(200));
    }
    patch(server, agent, &own, &annotation(POD_IP, &json!("10.0.0.5/32"))).unwrap();
    for (part, pod, object) in [
        (&[][..], "bare", some("")),
        (&[], "bare", annotation(POD_IPS, &json!("192.0.2.1/32"))),
        (&[], "bare", annotation("vpc.amazonaws.com/pod-ips", &json!("192.0.2.1"))),
        (status, "bare", some("192.0.2.1/32")),
        (&[], "own", some("192.0.2.1/32")),
        (status, "own", some("")),
        (&[], "own", annotation(POD_IP, &Value::Null)),
        (status, "own", json!({ "metadata": { "annotations": null } })),
        (&[], "restored", annotation(POD_IPS, &Value::Null)),
    ] {
        let error = everything("ann", pod, part, &object).unwrap_err();
        assert!(error.contains(refused), "{pod}, {part:?}, {object}: {error}");
    }
    for user in ["system:node:n1", "system:serviceaccount:rights:calico-node"] {
        let error = everything(user, "restored", status, &some("192.0.2.1/32")).unwrap_err();
        assert!(error.contains(refused), "{user}: {error}");
    }
    for pod in ["bare", "own"] {
        let mut object = annotation("theirs", &json!("changed"));
        object["metadata"]["labels"] = json!({ "app": "db" });
        everything("ann", pod, &[], &object).unwrap();
        everything("ann", pod, status, &json!({ "status": { "message": "m" } })).unwrap();
    }
    // An empty annotation may be removed.
    patch(server, agent, &own, &some("")).unwrap();
    everything("ann", "own", &[], &annotation(POD_IP, &Value::Null)).unwrap();
    let accounts =
        ["kube-system:calico-node", "calico-system:calico-cni-plugin", "kube-system:aws-node"];
    for account in accounts {
        let user = format!("system:serviceaccount:{account}");
        everything(&user, "restored", status, &annotation(POD_IP, &json!(account))).unwrap();
    }
}

/// An agent may change one condition of its own node, and nothing of other nodes.
fn check_condition(server: &Server, agent: &Path, unbound: &Path) {
    let own = ["node", "n1", "--subresource=status"];
    let others = ["node", "n2", "--subresource=status"];
    let by = |as_whom: &Path, what: &[&str], object: &Value| {
        patch_by(server, as_whom, "--type=strategic", what, object)
    };
    let conditions = |all: &Value| json!({ "status": { "conditions": all } });
    let network = |status: &str| json!({ "type": "NetworkUnavailable", "status": status });
    let ready = |status: &str| json!({ "type": "Ready", "status": status });
    let up = conditions(&json!([network("False")]));
    let found = || {
        let node = server.kubectl(&["get", "node", "n1", "-o", "json"], "");
        let mut node: Value = serde_json::from_str(&node).unwrap();
        let metadata = node["metadata"].as_object_mut().unwrap();
        metadata.retain(|field, _| field != "resourceVersion" && field != "managedFields");
        node
    };

    let start = Instant::now();
    while by(agent, &others, &up).is_ok() {
        assert!(start.elapsed() < IN_FORCE, "a condition of another node is changed");
        std::thread::sleep(Duration::from_millis(200));
    }
    // A new Node has an address before it has the condition of its network.
    check_address(server, agent);
    for status in ["True", "False"] {
        by(agent, &own, &conditions(&json!([network(status)]))).unwrap();
    }
    let before = found();
    assert_eq!(before["status"]["conditions"].as_array().unwrap().len(), 2);

    let own_node = "changes its own node alone";
    let this_condition = "changes the condition NetworkUnavailable alone";
    let no_status = "nothing else of a node's status";
    let no_metadata = "nothing else of a node's metadata";
    let no_annotation = "no other annotation of it";
    let address = |address: &str| json!([{ "type": "InternalIP", "address": address }]);
    let with = |field: &str, value: Value| {
        let mut object = conditions(&json!([network("True")]));
        object["status"][field] = value;
        object
    };
    for (what, object, told) in [
        (&others, up.clone(), own_node),
        (&own, conditions(&json!([ready("True")])), this_condition),
        (&own, conditions(&json!([network("True"), ready("True")])), this_condition),
        (
            &own,
            conditions(&json!([{ "type": "MemoryPressure", "status": "True" }])),
            this_condition,
        ),
        (&own, conditions(&json!([{ "type": "Ready", "$patch": "delete" }])), this_condition),
        (
            &own,
            conditions(&json!([{ "type": "NetworkUnavailable", "$patch": "delete" }])),
            this_condition,
        ),
        (&own, with("addresses", address("192.0.2.8")), no_status),
        (&own, with("addresses", Value::Null), no_status),
        (&own, with("capacity", json!({ "pods": "1" })), no_status),
        (&own, with("allocatable", json!({ "example.com/gpu": "8" })), no_status),
        (&own, with("images", json!([{ "names": ["i"] }])), no_status),
        (&own, with("nodeInfo", json!({ "kubeletVersion": "v0" })), no_status),
        (&own, with("volumesAttached", json!([{ "name": "v", "devicePath": "" }])), no_status),
        (&own, json!({ "metadata": { "labels": { "zone": "b" } } }), no_metadata),
        (&own, json!({ "metadata": { "labels": { "more": "b" } } }), no_metadata),
        (&own, json!({ "metadata": { "labels": null } }), no_metadata),
        (&own, annotation("theirs", &json!("changed")), no_annotation),
        (&own, annotation("theirs", &Value::Null), no_annotation),
        (&own, annotation("more", &json!("changed")), no_annotation),
        (&own, json!({ "metadata": { "annotations": null } }), no_annotation),
        (&others, annotation(TUNNEL, &json!("10.65.0.7")), own_node),
        (&others, annotation(ADDRESS, &json!("192.0.2.7/24")), own_node),
        (&own, json!({ "metadata": { "finalizers": ["example.com/never"] } }), no_metadata),
    ] {
        let error = by(agent, what, &object).unwrap_err();
        assert!(error.contains(told), "{object}: {error}");
    }
    for address in [json!("10.65.0.7"), json!("10.65.0.8"), Value::Null] {
        by(agent, &own, &annotation(TUNNEL, &address)).unwrap();
    }
    check_address(server, agent);
    // A patch of another type replaces a list.
    let lists = [
        json!([network("True")]),
        json!([network("True"), network("False"), before["status"]["conditions"][0]]),
        Value::Null,
    ];
    for list in lists {
        let error = patch(server, agent, &own, &conditions(&list)).unwrap_err();
        assert!(error.contains(this_condition), "{list}: {error}");
    }
    // A patch of the status cannot change other fields: the server ignores them.
    for spec in [json!({ "taints": null }), json!({ "unschedulable": true })] {
        by(agent, &own, &json!({ "spec": spec })).unwrap();
    }
    assert_eq!(found(), before);
    let error = by(unbound, &own, &up).unwrap_err();
    assert!(error.contains("names no node"), "{error}");
    // The policy does not restrict other accounts. After Manx is removed, one of them may remove
    // the condition.
    by(&server.kubeconfig(), &others, &conditions(&json!([ready("True")]))).unwrap();
    let without = conditions(&json!([{ "type": "NetworkUnavailable", "$patch": "delete" }]));
    by(&server.kubeconfig(), &own, &without).unwrap();
    assert_eq!(found()["status"]["conditions"].as_array().unwrap().len(), 1);
}

/// An agent may set the address of its own node, but not remove it.
fn check_address(server: &Server, agent: &Path) {
    let by = |as_whom: &Path, address: &Value| {
        let own = ["node", "n1", "--subresource=status"];
        patch_by(server, as_whom, "--type=strategic", &own, &annotation(ADDRESS, address))
    };
    for address in ["192.0.2.7/24", "192.0.2.8/24"] {
        by(agent, &json!(address)).unwrap();
    }
    let error = by(agent, &Value::Null).unwrap_err();
    assert!(error.contains("no other annotation of it"), "the address stays: {error}");
    by(&server.kubeconfig(), &Value::Null).unwrap();
}

/// An agent may write the records of IPAM, and only read its settings and reservations.
fn check_ipam(server: &Server, agent: &Path) {
    let may = |verb: &str, resource: &str| {
        let resource = format!("{resource}.projectcalico.org");
        let asked = ["--kubeconfig", agent.to_str().unwrap(), "auth", "can-i", verb, &resource];
        server.try_kubectl(&asked, "").is_ok()
    };
    for (resources, writes) in [
        (&["ipamblocks", "blockaffinities", "ipamhandles"][..], true),
        (&["ipamconfigurations", "ipreservations", "ippools"], false),
    ] {
        for resource in resources {
            for verb in ["get", "list", "watch"] {
                assert!(may(verb, resource), "{verb} {resource}");
            }
            for verb in ["create", "update", "delete"] {
                assert_eq!(may(verb, resource), writes, "{verb} {resource}");
            }
            for verb in ["patch", "deletecollection"] {
                assert!(!may(verb, resource), "{verb} {resource}");
            }
        }
    }
}

/// An agent may write the status of a `CalicoNodeStatus` for its own node, but nothing else of any
/// such object.
fn check_statuses(server: &Server, agent: &Path) {
    let object = |name: &str, node: &str| {
        json!({
            "apiVersion": "projectcalico.org/v3", "kind": "CalicoNodeStatus", "metadata": { "name": name },
            "spec": { "node": node, "classes": ["BGP"], "updatePeriodSeconds": 10 },
        })
    };
    for (name, node) in [("own", "n1"), ("others", "n2")] {
        server.kubectl(&["create", "-f", "-"], &object(name, node).to_string());
    }
    let kind = "caliconodestatuses.projectcalico.org";
    let status = json!({ "status": { "bgp": { "numberEstablishedV4": 1, "numberNotEstablishedV4": 0,
        "numberEstablishedV6": 0, "numberNotEstablishedV6": 0, "peersV4": [], "peersV6": [] } } });
    let others = [kind, "others", "--subresource=status"];
    let start = Instant::now();
    while patch(server, agent, &others, &status).is_ok() {
        assert!(start.elapsed() < IN_FORCE, "the status of another node's object is changed");
        std::thread::sleep(Duration::from_millis(200));
    }
    let error = patch(server, agent, &others, &status).unwrap_err();
    assert!(error.contains("of its own node alone"), "{error}");
    patch(server, agent, &[kind, "own", "--subresource=status"], &status).unwrap();
    let stands = ["get", kind, "own", "-o", "jsonpath={.status.bgp.numberEstablishedV4}"];
    assert_eq!(server.kubectl(&stands, ""), "1");
    for (object, told) in [
        (json!({ "spec": { "node": "n2" } }), "nothing of what is asked"),
        (json!({ "spec": { "updatePeriodSeconds": 1 } }), "nothing of what is asked"),
        (json!({ "metadata": { "labels": { "a": "b" } } }), "nothing of an object's metadata"),
    ] {
        let error = patch(server, agent, &[kind, "own"], &object).unwrap_err();
        assert!(error.contains(told), "{object}: {error}");
    }
    // The server selects by node.
    let only = [
        "--kubeconfig",
        agent.to_str().unwrap(),
        "get",
        kind,
        "--field-selector=spec.node=n1",
        "-o",
        "name",
    ];
    let found = server.try_kubectl(&only, "").unwrap();
    assert!(found.contains("/own") && !found.contains("/others"), "{found}");
    server.kubectl(&["delete", kind, "own", "others"], "");
}

/// An agent may read the Secret with passwords of BGP peers, and no other one.
fn check_secrets(server: &Server, agent: &Path) {
    let may = |verb: &str, what: &str, namespace: &str| {
        let kubeconfig = ["--kubeconfig", agent.to_str().unwrap(), "-n", namespace];
        server.try_kubectl(&[&kubeconfig[..], &["auth", "can-i", verb, what]].concat(), "").is_ok()
    };
    for verb in ["get", "list", "watch"] {
        assert!(may(verb, "secrets/bgp-secrets", "kube-system"), "{verb}");
        assert!(!may(verb, "secrets/other", "kube-system"), "{verb}");
        assert!(!may(verb, "secrets", "kube-system"), "{verb}");
        assert!(!may(verb, "secrets/bgp-secrets", "default"), "{verb}");
    }
    for verb in ["create", "update", "patch", "delete"] {
        assert!(!may(verb, "secrets/bgp-secrets", "kube-system"), "{verb}");
    }
    // An agent's request is a list of the one object with this name.
    let list = |name: &str| {
        let only = format!("--field-selector=metadata.name={name}");
        let kubeconfig = ["--kubeconfig", agent.to_str().unwrap(), "-n", "kube-system"];
        server.try_kubectl(&[&kubeconfig[..], &["get", "secrets", &only]].concat(), "")
    };
    list("bgp-secrets").unwrap();
    assert!(list("other").unwrap_err().contains("is forbidden"));
}

fn annotation(name: &str, value: &Value) -> Value {
    json!({ "metadata": { "annotations": { name: value } } })
}

fn pool(cidr: &str) -> Value {
    json!({
        "apiVersion": "projectcalico.org/v3", "kind": "IPPool", "metadata": { "name": "default-ipv4-ippool" },
        "spec": { "cidr": cidr, "ipipMode": "Never" },
    })
}

/// The Job's command makes a pool if there is none, and does not change an existing one.
fn check_first_pool(server: &Server) {
    let kubeconfig = as_account(server, "manx-pool", &[]);
    let make = |cidr: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_manx"))
            .args(["pool", "--cidr", cidr, "--kubeconfig"])
            .arg(&kubeconfig)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let found = || {
        let spec =
            "jsonpath={range .items[*]}{.metadata.name} {.spec.cidr} {.spec.ipipMode}\n{end}";
        server.kubectl(&["get", "ippools.projectcalico.org", "-o", spec], "")
    };
    assert_eq!(found(), "");
    assert_eq!(
        make("10.7.0.0/16"),
        "made the first IPPool: 10.7.0.0/16, ipipMode: Always, vxlanMode: Never, natOutgoing: true\n"
    );
    assert_eq!(found(), "default-ipv4-ippool 10.7.0.0/16 Always\n");
    let none = "the cluster has an IPPool of each family that was asked for: none was made\n";
    assert_eq!(make("10.8.0.0/16"), none);
    assert_eq!(found(), "default-ipv4-ippool 10.7.0.0/16 Always\n");
    server.kubectl(&["delete", "ippools.projectcalico.org", "default-ipv4-ippool"], "");
    // A pool of another name counts, too.
    let mut other = pool("10.9.0.0/16");
    other["metadata"]["name"] = "mine".into();
    server.kubectl(&["create", "-f", "-"], &other.to_string());
    make("10.8.0.0/16");
    assert_eq!(found(), "mine 10.9.0.0/16 Never\n");
    server.kubectl(&["delete", "ippools.projectcalico.org", "mine"], "");
}
