//! The CNI plugin and a real agent: what a container runtime would ask for, in namespaces of a rig.

use std::collections::BTreeMap;
use std::path::Path;
use std::thread;

use manx_api::client::Client;
use serde_json::{Value, json};

use crate::bench::Bench;

/// A node of a rig, as a container runtime sees it.
struct Runtime {
    bench: Bench,
    socket: String,
}

impl Runtime {
    fn new() -> Option<Self> {
        let bench = Bench::new()?;
        bench.keep_open(&[]);
        let socket = bench.socket(0);
        Some(Self { bench, socket })
    }

    /// The namespace of a pod of the rig. It may hold many interfaces.
    fn netns(&self) -> String {
        let path = self.bench.folder.path().join("manx/rigs/demo/ns/pod-1");
        path.display().to_string()
    }

    fn configuration(&self, version: &str, more: &Value) -> Value {
        let mut configuration = json!({
            "cniVersion": version, "name": "manx", "type": "manx-cni", "socket": self.socket,
        });
        for (key, value) in more.as_object().unwrap() {
            configuration[key] = value.clone();
        }
        configuration
    }

    /// What the plugin prints, or its error as the runtime reads it.
    fn ask(
        &self,
        command: &str,
        pod: &str,
        container: &str,
        configuration: &Value,
    ) -> Result<Value, Value> {
        let variables = BTreeMap::from([
            ("CNI_CONTAINERID", container.to_owned()),
            ("CNI_IFNAME", format!("c-{container}")),
            ("CNI_NETNS", self.netns()),
            ("CNI_ARGS", format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=demo;K8S_POD_NAME={pod}")),
        ]);
        let variable = |name: &str| variables.get(name).cloned();
        let text = configuration.to_string();
        let value = |text: &str| serde_json::from_str(text).unwrap();
        match manx_cni::answer(command, &variable, &text) {
            Ok(None) => Ok(Value::Null),
            Ok(Some(answer)) => Ok(value(&answer)),
            Err(error) => Err(value(&error.render(&text))),
        }
    }

    /// The container and the addresses of each pod that was attached by the plugin.
    fn attached(&self) -> BTreeMap<String, (String, Vec<String>)> {
        let status = Client::connect(Path::new(&self.socket)).unwrap().status().unwrap();
        let with_sandbox = status.endpoints.into_iter().filter_map(|endpoint| {
            let addresses = endpoint.addresses.iter().map(ToString::to_string).collect();
            Some((endpoint.pod.name, (endpoint.sandbox?, addresses)))
        });
        with_sandbox.collect()
    }
}

fn code(error: &Value) -> u64 {
    error["code"].as_u64().unwrap()
}

#[test]
fn each_verb_does_what_the_specification_says() {
    let Some(runtime) = Runtime::new() else { return };
    let ask = |command: &str, pod: &str, container: &str, more: &Value| {
        runtime.ask(command, pod, container, &runtime.configuration("1.0.0", more))
    };
    let none = json!({});
    assert_eq!(ask("STATUS", "", "", &none), Ok(Value::Null));

    let added = ask("ADD", "web", "one", &none).unwrap();
    let address = added["ips"][0]["address"].as_str().unwrap().to_owned();
    let expected = json!({
        "cniVersion": "1.0.0",
        "interfaces": [{ "name": "c-one", "sandbox": runtime.netns() }],
        "ips": [{ "address": address, "gateway": "169.254.1.1", "interface": 0 }],
        "routes": [{ "dst": "0.0.0.0/0" }],
    });
    assert_eq!(added, expected);
    let bare = address.trim_end_matches("/32").to_owned();
    assert_eq!(runtime.attached()["web"], ("one".to_owned(), vec![bare.clone()]));
    assert_eq!(ask("ADD", "web", "one", &none).unwrap(), added, "the same again");
    let older = runtime.ask("ADD", "web", "one", &runtime.configuration("0.4.0", &none)).unwrap();
    assert_eq!(older["ips"][0]["version"], "4");
    let newer = runtime.ask("ADD", "web", "one", &runtime.configuration("1.1.0", &none)).unwrap();
    assert!(newer["interfaces"][0]["mtu"].as_u64().unwrap() >= 1280);

    assert_eq!(ask("CHECK", "web", "one", &json!({ "prevResult": added })), Ok(Value::Null));
    let mut wrong = added.clone();
    wrong["ips"][0]["address"] = "192.0.2.1/32".into();
    assert_eq!(code(&ask("CHECK", "web", "one", &json!({ "prevResult": wrong })).unwrap_err()), 3);
    assert_eq!(code(&ask("CHECK", "web", "other", &none).unwrap_err()), 3);

    // The runtime makes the sandbox anew, and takes the old one away later.
    ask("ADD", "web", "two", &none).unwrap();
    assert_eq!(runtime.attached()["web"].0, "two");
    assert_eq!(ask("DEL", "web", "one", &none), Ok(Value::Null));
    assert_eq!(runtime.attached()["web"].0, "two", "the deletion was of the older one");
    assert_eq!(ask("DEL", "web", "two", &none), Ok(Value::Null));
    assert_eq!(ask("DEL", "web", "two", &none), Ok(Value::Null), "what is gone is no error");
    assert!(runtime.attached().is_empty());
}

#[test]
fn what_is_not_in_use_is_collected_and_what_is_stays() {
    let Some(runtime) = Runtime::new() else { return };
    let configuration = runtime.configuration("1.1.0", &json!({}));
    for number in 0..3 {
        let (pod, container) = (format!("p{number}"), format!("c{number}"));
        runtime.ask("ADD", &pod, &container, &configuration).unwrap();
    }
    let endpoints = || {
        let status = Client::connect(Path::new(&runtime.socket)).unwrap().status().unwrap();
        status.endpoints.len()
    };
    let before = endpoints();
    let without = runtime.ask("GC", "", "", &configuration).unwrap_err();
    assert_eq!(code(&without), 7, "{without}");
    let valid = json!({ "cni.dev/valid-attachments": [{ "containerID": "c1", "ifname": "eth0" }] });
    let collect = runtime.configuration("1.1.0", &valid);
    assert_eq!(runtime.ask("GC", "", "", &collect), Ok(Value::Null));
    assert_eq!(runtime.attached().into_keys().collect::<Vec<_>>(), ["p1"]);
    assert_eq!(endpoints(), before - 2, "the rig's own pods have no sandbox, and stay");
}

#[test]
fn many_additions_at_once_give_no_address_twice() {
    let Some(runtime) = Runtime::new() else { return };
    let configuration = runtime.configuration("1.0.0", &json!({}));
    let one = |number: usize| {
        let (pod, container) = (format!("p{number}"), format!("c{number}"));
        let added = runtime.ask("ADD", &pod, &container, &configuration).unwrap();
        added["ips"][0]["address"].as_str().unwrap().to_owned()
    };
    let mut addresses: Vec<String> = thread::scope(|scope| {
        let all: Vec<_> = (0..100).map(|number| scope.spawn(move || one(number))).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    addresses.sort();
    addresses.dedup();
    assert_eq!(addresses.len(), 100);
    assert_eq!(runtime.attached().len(), 100);
}

#[test]
fn what_cannot_be_done_says_so_in_cnis_codes() {
    let Some(runtime) = Runtime::new() else { return };
    let fail = |command: &str, configuration: &Value| {
        let error = runtime.ask(command, "web", "one", configuration).unwrap_err();
        (code(&error), error["msg"].as_str().unwrap().to_owned())
    };
    let with = |more: &Value| runtime.configuration("1.0.0", more);
    let limits = json!({ "runtimeConfig": { "bandwidth": { "ingressRate": 1 } } });
    let cases = [
        ("ADD", runtime.configuration("0.3.1", &json!({})), 1),
        ("ADD", with(&limits), 2),
        ("TURN", with(&json!({})), 4),
        ("ADD", json!({ "cniVersion": 1 }), 6),
        ("ADD", with(&json!({ "runtimeConfig": { "ips": ["nonsense"] } })), 7),
        ("ADD", with(&json!({ "runtimeConfig": { "ips": ["127.0.0.1"] } })), 101),
        ("ADD", with(&json!({ "socket": "/nonexistent/node.sock" })), 11),
        ("DEL", with(&json!({ "socket": "/nonexistent/node.sock" })), 11),
        ("STATUS", with(&json!({ "socket": "/nonexistent/node.sock" })), 50),
    ];
    for (command, configuration, expected) in cases {
        let (code, message) = fail(command, &configuration);
        assert_eq!(code, expected, "{command}: {message}");
        assert!(message.len() > 20, "{message}");
    }
    assert!(runtime.attached().is_empty(), "nothing is left behind");
}
