//! Tests with a real API server. Every cluster of `fixtures/` has the same verdicts as files and
//! through the server. `written` tests the writes of agents, `rights` their rights, `definitions`
//! the kinds that Manx installs, and `controllers` the work that is done once in a cluster.
//!
//! The server is that of `tests/cluster`, without nodes. So these tests write what a cluster's
//! programs would write: the status of pods, which a server drops when an object is made, and the
//! end of a deleted namespace. The server accepts every object in this form: without `uid` and
//! `resourceVersion`, and Jobs with `manualSelector`, because their selector is their former uid.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod controllers;
mod definitions;
mod rights;
mod written;

use std::collections::BTreeSet;
use std::fmt::Display;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use manx_fixtures::skip::{Need, skip};
use serde_json::{Value, json};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The kinds of fixtures that neither a server nor Manx defines: version, kind, plural. None has
/// namespaces.
const CUSTOM: [(&str, &str, &str); 3] = [
    ("policy.networking.k8s.io/v1alpha2", "ClusterNetworkPolicy", "clusternetworkpolicies"),
    ("policy.networking.k8s.io/v1alpha1", "AdminNetworkPolicy", "adminnetworkpolicies"),
    (
        "policy.networking.k8s.io/v1alpha1",
        "BaselineAdminNetworkPolicy",
        "baselineadminnetworkpolicies",
    ),
];

/// The namespaces that a server makes itself and that cannot be deleted.
const LASTING: [&str; 4] = ["default", "kube-node-lease", "kube-public", "kube-system"];

/// etcd and an API server. They end when this is dropped.
struct Server {
    folder: tempfile::TempDir,
}

impl Server {
    /// Starts both. The first start builds their programs, which takes minutes. An error says what
    /// failed.
    fn start() -> Result<Self, String> {
        let folder = tempfile::tempdir().unwrap();
        let driver = folder.path().join("driver");
        let mut go = Command::new("go");
        go.args(["build", "-o"]).arg(&driver).arg(".").env("CGO_ENABLED", "0");
        succeed(&mut go, "")?;
        let server = Self { folder };
        succeed(&mut server.driver(&["build", "k8s"]), "")?;
        succeed(&mut server.driver(&["up", "--nodes", "0"]), "")?;
        let [definitions, _] = manifest();
        server.kubectl(&["create", "-f", "-"], &definitions);
        server.kubectl(&["create", "-f", "-"], &list(&CUSTOM.map(definition)));
        let all = ["wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"];
        server.kubectl(&all, "");
        Ok(server)
    }

    fn driver(&self, arguments: &[&str]) -> Command {
        let mut driver = Command::new(self.folder.path().join("driver"));
        driver.args(arguments).env("MANX_CLUSTER_DIR", self.folder.path().join("cluster"));
        driver
    }

    fn kubectl(&self, arguments: &[&str], input: &str) -> String {
        self.try_kubectl(arguments, input).unwrap()
    }

    fn try_kubectl(&self, arguments: &[&str], input: &str) -> Result<String, String> {
        let arguments = [&["kubectl"], arguments].concat();
        succeed(&mut self.driver(&arguments), input)
    }

    fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("cluster/kubeconfig")
    }

    /// The objects of manifests, without fields that only a server sets.
    fn objects(&self, manifests: &[PathBuf]) -> Vec<Value> {
        let mut arguments = vec!["create", "--dry-run=client", "--validate=false", "-o", "json"];
        for file in manifests {
            arguments.extend(["-f", file.to_str().unwrap()]);
        }
        let text = self.kubectl(&arguments, "");
        let printed = serde_json::Deserializer::from_str(&text).into_iter().map(Result::unwrap);
        let mut objects: Vec<Value> = printed
            .flat_map(|mut object: Value| match object.get_mut("items").map(Value::take) {
                Some(Value::Array(items)) => items,
                _ => vec![object],
            })
            .collect();
        for object in &mut objects {
            let metadata = object["metadata"].as_object_mut().unwrap();
            metadata.remove("uid");
            metadata.remove("resourceVersion");
            if object["kind"] == "Job" {
                object["spec"]["manualSelector"] = true.into();
            }
        }
        objects
    }

    /// Makes the objects and their namespaces.
    fn fill(&self, objects: &[Value]) {
        let spaces = namespaces(objects).into_iter().filter(|name| {
            !objects.iter().any(|it| it["kind"] == "Namespace" && it["metadata"]["name"] == *name)
        });
        let missing = spaces.map(
            |name| json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } }),
        );
        let (first, second): (Vec<Value>, Vec<Value>) =
            objects.iter().cloned().partition(|it| it["kind"] == "Namespace");
        let all: Vec<Value> = first.into_iter().chain(missing).chain(second).collect();
        self.kubectl(&["apply", "-f", "-"], &list(&all));
        let pods = objects.iter().filter(|it| it["kind"] == "Pod" && it["status"].is_object());
        let pods: Vec<Value> = pods.cloned().collect();
        if !pods.is_empty() {
            self.kubectl(&["replace", "--subresource=status", "-f", "-"], &list(&pods));
        }
    }

    /// Deletes the objects that `fill` has made.
    fn clear(&self, objects: &[Value]) {
        let lasting = |it: &Value| {
            it["kind"] == "Namespace"
                && it["metadata"]["name"].as_str().is_some_and(|name| LASTING.contains(&name))
        };
        let spaces = namespaces(objects);
        let gone = objects.iter().filter(|it| !lasting(it)).cloned();
        let now = ["--force", "--grace-period=0", "--wait=false", "--ignore-not-found"];
        let delete = [&["delete", "-f", "-"][..], &now].concat();
        self.kubectl(&delete, &list(&gone.collect::<Vec<_>>()));
        for name in spaces.iter().filter(|name| !LASTING.contains(&name.as_str())) {
            self.kubectl(&[&["delete", "namespace", name][..], &now[2..]].concat(), "");
            let object = json!({ "apiVersion": "v1", "kind": "Namespace",
                "metadata": { "name": name }, "spec": { "finalizers": [] } });
            let path = format!("/api/v1/namespaces/{name}/finalize");
            self.kubectl(&["replace", "--raw", &path, "-f", "-"], &object.to_string());
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let down = succeed(&mut self.driver(&["down"]), "");
        assert!(down.is_ok() || std::thread::panicking(), "{down:?}");
    }
}

/// Runs a command in the folder of the cluster's module, and returns its output, or the reason why it fails.
fn succeed(command: &mut Command, input: &str) -> Result<String, String> {
    command.current_dir(format!("{ROOT}/tests/cluster"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let name = format!("{command:?}");
    let failed = |error: &dyn Display| format!("{name}: {error}");
    let mut child = command.spawn().map_err(|error| failed(&error))?;
    let written = child.stdin.take().unwrap().write_all(input.as_bytes());
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    if !status.success() {
        return Err(failed(&format!("{status}: {}", String::from_utf8_lossy(&stderr))));
    }
    written.map_err(|error| failed(&error))?;
    Ok(String::from_utf8(stdout).unwrap())
}

fn list(items: &[Value]) -> String {
    json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string()
}

/// The documents of `deploy/manx.yaml`: the definitions of Calico's kinds that Manx is installed with, and the rest.
fn manifest() -> [String; 2] {
    let manifest = fs::read_to_string(format!("{ROOT}/deploy/manx.yaml")).unwrap();
    let (definitions, rest): (Vec<&str>, Vec<&str>) =
        manifest.split("\n---\n").partition(|text| text.contains("\nkind: List\n"));
    assert_eq!(definitions.len(), 2);
    [definitions, rest].map(|documents| documents.join("\n---\n"))
}

/// The definition of a kind, with any fields.
fn definition((version, kind, plural): (&str, &str, &str)) -> Value {
    let (group, version) = version.split_once('/').unwrap();
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": format!("{plural}.{group}"),
            // The API server requires this annotation for groups of Kubernetes' own.
            "annotations": { "api-approved.kubernetes.io": "unapproved, for a test" },
        },
        "spec": {
            "group": group,
            "names": { "kind": kind, "plural": plural, "singular": kind.to_lowercase() },
            "scope": "Cluster",
            "versions": [{ "name": version, "served": true, "storage": true, "schema": {
                "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
            } }],
        },
    })
}

/// The namespaces among the objects, and those that contain objects.
fn namespaces(objects: &[Value]) -> BTreeSet<String> {
    let name = |object: &Value| match object["kind"].as_str() {
        Some("Namespace") => object["metadata"]["name"].as_str().map(str::to_owned),
        _ => object["metadata"]["namespace"].as_str().map(str::to_owned),
    };
    objects.iter().filter_map(name).collect()
}

/// The folders and files of fixtures that hold a cluster each. `shop/tier.yaml` holds another state
/// of a policy of `shop/cluster.yaml`. A server can have only one of them, and both files together
/// are an error. Another test compares the other forms of the dump with this one.
fn clusters() -> Vec<PathBuf> {
    let rigs = fs::read_dir(format!("{ROOT}/fixtures/rigs")).unwrap();
    let mut all: Vec<PathBuf> = rigs.map(|entry| entry.unwrap().path()).collect();
    all.sort();
    let files = ["shop/cluster.yaml", "dumps/json/cluster.json"];
    all.extend(files.map(|name| Path::new(ROOT).join("fixtures").join(name)));
    all
}

/// The manifests of a cluster. `rig.yaml` is left out, because it holds no objects but settings of
/// a rig.
fn manifests(cluster: &Path) -> Vec<PathBuf> {
    if cluster.is_file() {
        return vec![cluster.to_owned()];
    }
    let files = fs::read_dir(cluster).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = files.filter(|file| !file.ends_with("rig.yaml")).collect();
    files.sort();
    files
}

/// The matrix of a source, with the command's assumptions and notes.
fn matrix(source: &[&str]) -> (Value, String) {
    let arguments = [&["policy", "matrix", "--output", "json"], source].concat();
    let output = Command::new(env!("CARGO_BIN_EXE_manx")).args(&arguments).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {said}");
    (serde_json::from_slice(&output.stdout).unwrap(), said)
}

/// Runs a check with a server of its own.
fn with_server(what: &str, check: impl FnOnce(&Server)) {
    match Server::start() {
        Ok(server) => check(&server),
        Err(reason) => skip(Need::Cluster, what, &reason),
    }
}

#[test]
fn objects_of_an_api_server_are_judged_as_the_same_in_files_and_agents_write_what_is_read() {
    with_server("objects of an API server", |server| {
        check_verdicts(server);
        rights::install(server);
        written::check(server);
    });
}

#[test]
fn an_agents_token_writes_the_addresses_of_its_own_nodes_pods_and_nothing_else() {
    with_server("the rights of agents", |server| {
        rights::install(server);
        rights::check(server);
    });
}

#[test]
fn services_get_addresses_from_controllers_with_the_rights_of_their_manifest() {
    with_server("the controllers", controllers::check);
}

#[test]
fn what_agents_would_not_take_is_refused_when_it_is_applied_and_all_else_is_kept() {
    with_server("the definitions of Calico's kinds", definitions::check);
}

fn check_verdicts(server: &Server) {
    let kubeconfig = server.kubeconfig();
    for cluster in clusters() {
        let objects = server.objects(&manifests(&cluster));
        server.fill(&objects);
        let files = matrix(&[cluster.to_str().unwrap()]);
        let live = matrix(&["--kubeconfig", kubeconfig.to_str().unwrap()]);
        let cells = files.0["cells"].as_array().map_or(0, Vec::len);
        assert!(cells > 0, "{}: nobody to judge", cluster.display());
        assert_eq!(live, files, "{}: from the server, and from files", cluster.display());
        server.clear(&objects);
    }
}
