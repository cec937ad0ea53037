//! The writes of agents at an API server, with only the rights of `deploy/manx.yaml`: their pods' addresses, their node's
//! network condition, and Events about objects that are not valid.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use manx_datastore::api_server::Access;
use manx_datastore::{Follower, Source};
use manx_objects::object::{Kind, Object, ObjectKey};
use serde_json::{Value, json};

use super::{Server, rights};

/// The time in which a write of one agent must reach another one.
const PATIENCE: Duration = Duration::from_secs(15);

/// The datastore sources of the agents of two nodes.
struct Agents {
    runtime: tokio::runtime::Runtime,
    sources: [Source; 2],
}

impl Agents {
    /// Starts each source as the user of its kubeconfig.
    fn start(kubeconfigs: &[PathBuf; 2]) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let sources = [("n1", 0), ("n2", 1)].map(|(node, at)| {
            let kubeconfig = Some(kubeconfigs[at].clone());
            let access = Access { kubeconfig, ..Access::default() };
            let follower = Follower {
                node: node.to_owned(),
                namespace: "kube-system".to_owned(),
                state: None,
            };
            runtime.block_on(Source::open_api_server(access, follower, |_| {})).unwrap()
        });
        Self { runtime, sources }
    }

    /// Follows the server until a condition holds. Each agent reports invalid objects, as agents do
    /// after every import.
    fn until(&mut self, what: &str, mut holds: impl FnMut(&mut [Source; 2]) -> bool) {
        let start = Instant::now();
        while !holds(&mut self.sources) {
            assert!(start.elapsed() < PATIENCE, "{what}");
            for source in &mut self.sources {
                let problems = source.contents().problems.clone();
                source.report(&problems);
                let next = async {
                    let _ = tokio::time::timeout(Duration::from_millis(100), source.next()).await;
                };
                self.runtime.block_on(next);
            }
        }
    }
}

fn pod(name: &str) -> ObjectKey {
    ObjectKey { kind: Kind::Pod, namespace: "written".to_owned(), name: name.to_owned() }
}

fn addresses(source: &Source, name: &str) -> Vec<IpAddr> {
    match source.contents().valid(&pod(name)) {
        Some(Object::Pod(pod)) => pod.every_address().into_iter().collect(),
        _ => Vec::new(),
    }
}

fn objects() -> Vec<Value> {
    let node =
        |name: &str| json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name } });
    let namespace =
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "written" } });
    let metadata = |name: &str| json!({ "namespace": "written", "name": name });
    let pod = |name: &str| {
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": metadata(name),
            "spec": { "nodeName": "n1", "containers": [{ "name": "c", "image": "i" }] },
        })
    };
    let policy = |name: &str, selector: &str| {
        json!({
            "apiVersion": "projectcalico.org/v3", "kind": "NetworkPolicy", "metadata": metadata(name),
            "spec": { "selector": selector, "types": ["Ingress"] },
        })
    };
    let policies = [policy("wrong", "app == "), policy("right", "app == 'web'")];
    let pods = [pod("web"), pod("db"), rights::agent_pod("n1"), rights::agent_pod("n2")];
    [node("n1"), node("n2"), namespace].into_iter().chain(pods).chain(policies).collect()
}

/// The Events of the namespace.
fn events(server: &Server) -> Vec<Value> {
    let path = "/apis/events.k8s.io/v1/namespaces/written/events";
    let all: Value = serde_json::from_str(&server.kubectl(&["get", "--raw", path], "")).unwrap();
    let own = all["items"].as_array().unwrap().iter();
    own.filter(|it| it["reportingController"] == "manx").cloned().collect()
}

pub(super) fn check(server: &Server) {
    let objects = objects();
    server.fill(&objects);
    let kubeconfigs = ["n1", "n2"].map(|node| rights::agent(server, node));
    let mut agents = Agents::start(&kubeconfigs);
    check_addresses(server, &mut agents);
    check_condition(server, &mut agents);
    check_events(server, &kubeconfigs, agents);
    server.clear(&objects);
}

fn check_addresses(server: &Server, agents: &mut Agents) {
    let given: Vec<IpAddr> = vec!["10.0.0.5".parse().unwrap(), "fd00::5".parse().unwrap()];
    agents.sources[0].assign(pod("web"), Some(given.clone()));
    // The pod runs on the other node.
    agents.sources[1].assign(pod("db"), Some(vec!["10.0.0.6".parse().unwrap()]));
    agents.until("node n2 learns the address", |[_, other]| addresses(other, "web") == given);
    let annotations = "jsonpath={.metadata.annotations}";
    let get =
        |name: &str| server.kubectl(&["-n", "written", "get", "pod", name, "-o", annotations], "");
    let written: Value = serde_json::from_str(&get("web")).unwrap();
    assert_eq!(written["cni.projectcalico.org/podIPs"], "10.0.0.5/32,fd00::5/128");
    agents.sources[0].assign(pod("web"), None);
    agents.until("node n2 learns that the address is released", |[_, other]| {
        addresses(other, "web").is_empty()
    });
    let emptied: Value = serde_json::from_str(&get("web")).unwrap();
    assert_eq!(emptied["cni.projectcalico.org/podIP"], "");
    let other = get("db");
    assert!(!other.contains("cni.projectcalico.org"), "a pod of another node: {other}");
}

fn check_condition(server: &Server, agents: &mut Agents) {
    let of = |node: &str| {
        let what = "jsonpath={range .status.conditions[*]}{.type} {.status} {.reason}\n{end}";
        server.kubectl(&["get", "node", node, "-o", what], "")
    };
    // The policy may need a moment to take effect. Until then all writes are refused.
    agents.sources[0].tell_network_up();
    let up = "NetworkUnavailable False ManxIsUp\n";
    agents.until("the network of n1 is up", |_| of("n1") == up);
    assert_eq!(of("n2"), "");
    let [one, _] = &agents.sources;
    assert_eq!(one.warnings(), [""; 0]);
    agents.runtime.block_on(one.tell_network_down());
    assert_eq!(of("n1"), "NetworkUnavailable True ManxIsDown\n");
    one.tell_network_up();
    agents.until("and up again", |_| of("n1") == up);
}

fn check_events(server: &Server, kubeconfigs: &[PathBuf; 2], mut agents: Agents) {
    agents.until("an Event about the policy", |_| !events(server).is_empty());
    // Restarted agents find the same problem.
    drop(agents);
    let mut agents = Agents::start(kubeconfigs);
    let start = Instant::now();
    agents.until("two seconds", |_| start.elapsed() > Duration::from_secs(2));
    let written = events(server);
    assert_eq!(written.len(), 1, "{written:#?}");
    let event = &written[0];
    let told = ["type", "reason", "note"].map(|field| event[field].as_str().unwrap().to_owned());
    assert_eq!(told[..2], ["Warning", "Invalid"]);
    assert!(told[2].starts_with("spec.selector: "), "{}", told[2]);
    let path = ["-n", "written", "get", "networkpolicies.projectcalico.org", "wrong", "-o"];
    let uid = server.kubectl(&[&path[..], &["jsonpath={.metadata.uid}"]].concat(), "");
    let regarding = &event["regarding"];
    assert_eq!(
        (regarding["name"].as_str(), regarding["uid"].as_str()),
        (Some("wrong"), Some(&*uid))
    );

    // The object is corrected, and then made invalid in another way.
    let change = |selector: &str| {
        let object = json!({ "spec": { "selector": selector } }).to_string();
        let patch = ["-n", "written", "patch", "networkpolicies.projectcalico.org", "wrong"];
        server.kubectl(&[&patch[..], &["--type=merge", "-p", &object]].concat(), "");
    };
    change("all()");
    agents.until("the policy is valid", |sources| {
        sources.iter().all(|source| source.contents().problems.is_empty())
    });
    change("nonsense(");
    agents.until("a second Event", |_| events(server).len() == 2);
}
