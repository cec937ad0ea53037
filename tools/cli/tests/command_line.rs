//! The `manx` program as its users start it: exit codes, standard output and standard error, and nothing left behind.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::ffi::OsStr;
use std::fs;
use std::process::{Command, Output};

use clap::CommandFactory as _;

fn manx(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_manx"))
        .args(arguments)
        .env_remove("MANX_SOCKET")
        .env("XDG_RUNTIME_DIR", "/nonexistent")
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn doctor_ends_with_what_it_says_and_leaves_nothing_behind() {
    let output = manx(&["doctor", "--output", "json"]);
    for file in ["/proc/self/mounts", "/proc/net/dev"] {
        let text = fs::read_to_string(file).unwrap();
        assert!(
            !text
                .lines()
                .any(|line| line.trim_start().starts_with("manx ") || line.contains("manx-doctor")),
            "{text}"
        );
    }
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rig = report["rig"].as_bool().unwrap();
    assert_eq!(output.status.code(), Some(if rig { 0 } else { 3 }), "{report}");
    let checks = report["checks"].as_array().unwrap();
    for check in checks {
        let allowed = check["allowed"].as_bool().unwrap();
        assert_eq!(check["remedy"].is_string(), !allowed, "{check}");
    }
    let names: Vec<_> = checks.iter().map(|check| check["capability"].as_str().unwrap()).collect();
    for name in ["kernel", "user-namespaces", "tun", "no-ipip-module", "io-uring", "cores"] {
        assert!(names.contains(&name), "{name} is not among {names:?}");
    }
    let table = text(&manx(&["doctor"]).stdout);
    assert!(!table.contains('\u{1b}'), "no colours into a pipe: {table:?}");
    assert!(names.iter().all(|name| table.contains(name)));
}

#[test]
fn calicos_ipam_is_not_shown_without_a_server_and_the_reason_is_told() {
    let server = ["--api-endpoint", "http://127.0.0.1:9", "--api-token", "t"];
    for command in
        [&["show"][..], &["check"], &["release", "--ip=10.65.0.1"], &["split", "2", "--name=p"]]
    {
        let output = manx(&[&["ipam"], command, &server].concat());
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{told}");
        assert!(told.starts_with("manx: the API server cannot be asked: "), "{told}");
    }
    let output = manx(&["ipam", "release", "--ip=10.65.0.1", "--from-report=r"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn that_an_address_is_assumed_is_said_once_and_json_is_alone_on_its_stream() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("web.yaml");
    let web = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}, spec: {replicas: 1, template: {spec: {containers: [{name: c}]}}}}";
    fs::write(&file, web).unwrap();
    let path = file.to_str().unwrap();
    let explain = ["policy", "explain", "--from", "web-1", "--to", "192.0.2.1", "--port", "tcp/80"];
    let matrix = ["policy", "matrix"];
    let prove = ["policy", "prove"];
    for command in [&explain[..], &matrix, &prove] {
        let output = manx(&[command, &[path]].concat());
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(0), "{command:?}: {err}");
        assert_eq!(out.matches("o address in the manifests, assumed:").count(), 1, "{out}");
        assert!(!err.contains("no address"), "{err}");
        assert!(err.contains("assumed: no Node object: node-1, node-2\n"), "{err}");
        let output = manx(&[command, &["--output", "json", path]].concat());
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(json.to_string().contains("default/web-1"), "{json}");
        assert!(!text(&output.stderr).contains("no address"));
    }
    let output = manx(&[&matrix[..], &["--output", "csv", path]].concat());
    assert!(!text(&output.stdout).contains("assumed"));
    assert_eq!(text(&output.stderr).matches("No address in the manifests, assumed:").count(), 1);
}

const SERVICE: &str = "
{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {nodeName: n1}}
---
{apiVersion: v1, kind: Pod, metadata: {name: b, labels: {app: b}}, spec: {nodeName: n2}}
---
{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {clusterIP: 10.96.0.7, selector: {app: b}, ports: [{name: http, port: 80, targetPort: 8080}]}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: closed}, spec: {podSelector: {matchLabels: {app: b}}, ingress: [{ports: [{port: 81}]}]}}
";

#[test]
fn a_service_is_found_in_manifests_and_a_wrong_question_is_2() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("web.yaml");
    fs::write(&file, SERVICE).unwrap();
    let path = file.to_str().unwrap();
    let asked = |arguments: &[&str], status| {
        let output = manx(&[arguments, &[path]].concat());
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {out}{err}");
        (out, err)
    };
    let list = asked(&["service", "list"], 0).0;
    assert_eq!(list.lines().count(), 2, "{list}");
    assert!(list.contains("default/web") && list.contains("1/1"), "{list}");
    let told = asked(&["service", "list", "-n", "other"], 2).1;
    assert!(told.contains("manx: no Service in namespace other; found default\n"), "{told}");
    let shown = asked(&["service", "show", "web"], 0).0;
    assert!(shown.contains("10.96.0.7:80 (cluster IP)") && shown.contains("every node"), "{shown}");
    assert_eq!(asked(&["service", "show", "default/web"], 0).0, shown);
    let json = asked(&["service", "show", "web", "-n", "default", "-o", "json"], 0).0;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["schemaVersion"], 1);
    let told = asked(&["service", "show", "api"], 2).1;
    assert!(told.contains("manx: Service default/api is not in the manifests; found"), "{told}");
    let told = asked(&["service", "list", "--node", "n9"], 2).1;
    assert!(told.contains("there is no node \"n9\" in the manifests; found n1, n2"), "{told}");
    let explain = ["policy", "explain", "--from", "a", "--to"];
    let denied = asked(&[&explain[..], &["svc/web:http"]].concat(), 1).0;
    assert!(denied.contains("to port 8080: DENIED"), "{denied}");
    let told = asked(&[&explain[..], &["svc/web"]].concat(), 2).1;
    assert!(told.contains("--port is missing"), "{told}");
    let told = asked(&[&explain[..], &["svc/web:http", "--port", "tcp/80"]].concat(), 2).1;
    assert!(told.contains("leave one of them out"), "{told}");
    for wrong in ["a/b/c", "", "/web", "default/"] {
        let told = asked(&["service", "show", wrong], 2).1;
        assert!(told.contains("for '<NAME>': expected NAME or NAMESPACE/NAME\n"), "{told}");
    }
    let told = asked(&["service", "show", "default/web", "-n", "other"], 2).1;
    assert!(told.contains("of namespace default, and --namespace says other: leave"), "{told}");
    let without_input =
        [&["service", "show", "web"][..], &["service", "list"], &["policy", "check"]];
    for command in without_input {
        let output = manx(command);
        assert_eq!(output.status.code(), Some(2));
        let told = text(&output.stderr);
        assert!(told.contains("  tip: name manifests, or read a live cluster by --live"), "{told}");
    }
    assert!(!text(&manx(&["rig", "apply"]).stderr).contains("--live"));
}

#[test]
fn a_value_that_is_refused_is_told_with_the_variable_that_it_came_from() {
    let told = |arguments: &[&str], variables: &[(&str, &str)]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_manx"));
        command.args(arguments).env_clear().envs(variables.iter().copied());
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?} {variables:?}");
        text(&output.stderr).lines().next().unwrap().to_owned()
    };
    let node = ["node", "--name", "n", "--datastore", "DIR"];
    let of_variables = [
        ("MANX_EXTERNAL_IPS", "203.0.113.0/28,203.0.113.5"),
        ("MANX_SERVICE_CIDR", "10.96.0.1/12"),
        ("MANX_EGRESS_PORTS", "65535"),
        ("MANX_NODE_PORTS", "40000-30000"),
        ("MANX_SERVICES", "ipvs"),
        ("MANX_STANDBY", "maybe"),
    ]
    .map(|variable| told(&node, &[variable]));
    insta::assert_snapshot!(of_variables.join("\n"), @"
    error: invalid value '203.0.113.5' for '--external-ips <CIDR,...> (variable MANX_EXTERNAL_IPS)': expected a net such as 203.0.113.0/28; for this address alone 203.0.113.5/32
    error: invalid value '10.96.0.1/12' for '--service-cidr <CIDR,...> (variable MANX_SERVICE_CIDR)': 10.96.0.1 is no net's first address with this length: expected 10.96.0.0/12, which holds it, or 10.96.0.1/32 for it alone
    error: invalid value '65535' for '--egress-ports <FIRST-LAST> (variable MANX_EGRESS_PORTS)': expected FIRST-LAST, both between 1 and 65534 and the lower one first, such as 61000-65534
    error: invalid value '40000-30000' for '--node-ports <FIRST-LAST> (variable MANX_NODE_PORTS)': expected FIRST-LAST, both between 1 and 65534 and the lower one first, such as 30000-32767
    error: invalid value 'ipvs' for '--services <SERVICES> (variable MANX_SERVICES)'
    error: invalid value 'maybe' for '--standby (variable MANX_STANDBY)'
    ");
    let list = ["service", "list", "DIR"];
    let of_list = told(&list, &[("MANX_NODE_PORTS", "0-1")]);
    assert!(of_list.contains("(variable MANX_NODE_PORTS)"), "{of_list}");
    let of_pool = told(&["pool"], &[("CALICO_IPV4POOL_CIDR", "10.244.0.1")]);
    assert!(of_pool.contains("(variable CALICO_IPV4POOL_CIDR)"), "{of_pool}");
    // The flag overrides the variable, whatever its value is.
    for flag in [&["--external-ips", "bogus"][..], &["--external-ips=bogus"]] {
        let of_flag = told(&[&node, flag].concat(), &[("MANX_EXTERNAL_IPS", "bogus")]);
        assert!(of_flag.contains("'--external-ips <CIDR,...>'"), "{of_flag}");
    }
}

#[test]
fn settings_of_services_are_refused_where_manx_does_not_translate_or_they_overlap() {
    let folder = tempfile::tempdir().unwrap();
    let node = |more: &[&str]| {
        let node = ["node", "--name", "n", "--datastore", "DIR", "--socket", "DIR/s"];
        said(folder.path(), &[&node[..], more].concat())
    };
    for services in ["kube-proxy", "none"] {
        for (option, variable, value) in [
            ("--service-cidr", "MANX_SERVICE_CIDR", "10.96.0.0/12"),
            ("--external-ips", "MANX_EXTERNAL_IPS", "203.0.113.0/28"),
            ("--egress-ports", "MANX_EGRESS_PORTS", "61000-65534"),
            ("--node-ports", "MANX_NODE_PORTS", "30000-32767"),
        ] {
            let expected = format!(
                "2 manx: {option} ({variable}) is for --services manx (MANX_SERVICES): set both or neither\n"
            );
            assert_eq!(node(&["--services", services, option, value]), expected);
        }
    }
    let overlapping = [&["--egress-ports", "32767-40000"][..], &["--node-ports", "30000-61000"]];
    let told = overlapping.map(|ports| node(&[&["--services", "manx"], ports].concat()));
    insta::assert_snapshot!(told.join(""), @"
    2 manx: --egress-ports (MANX_EGRESS_PORTS), 32767-40000, and --node-ports (MANX_NODE_PORTS), 30000-32767, overlap: expected ranges without a common port
    2 manx: --egress-ports (MANX_EGRESS_PORTS), 61000-65534, and --node-ports (MANX_NODE_PORTS), 30000-61000, overlap: expected ranges without a common port
    ");
}

#[test]
fn a_wrong_usage_is_2_and_help_is_0() {
    for wrong in [&["fly"][..], &[], &["status", "--output", "xml"], &["capture", "web"], &["node"]]
    {
        let output = manx(wrong);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
        assert_eq!(text(&output.stdout), "", "{wrong:?}");
        assert!(!output.stderr.is_empty(), "{wrong:?}");
    }
    for right in
        [&["--help"][..], &["help", "rig"], &["version"], &["--version"], &["completions", "bash"]]
    {
        let output = manx(right);
        assert_eq!(output.status.code(), Some(0), "{right:?}");
        assert!(!output.stdout.is_empty(), "{right:?}");
    }
}

#[test]
fn a_variable_that_is_set_to_nothing_counts_as_not_set() {
    let node = manx::Manx::command().find_subcommand("node").unwrap().clone();
    let variables: Vec<_> = node.get_arguments().filter_map(clap::Arg::get_env).collect();
    assert!(variables.len() > 20, "{variables:?}");
    let all = variables.iter().map(|name| (*name, ""));
    let folder = tempfile::tempdir().unwrap();
    let run = |variables: Vec<(&OsStr, &str)>| {
        let output = Command::new(env!("CARGO_BIN_EXE_manx"))
            .args(["node", "--datastore", "/nonexistent", "--socket"])
            .arg(folder.path().join("node.sock"))
            .env_clear()
            .env("MANX_NAME", "n")
            .envs(variables)
            .output()
            .unwrap();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let without = run(Vec::new());
    assert!(without.2.contains("/nonexistent"), "{}", without.2);
    assert_eq!(run(all.clone().collect()), without);
    for one in all {
        assert_eq!(run(vec![one]), without, "{one:?}");
    }
}

/// In the agent's own container, the agent's variables are also set for a command.
#[test]
fn the_status_of_a_node_is_asked_whatever_the_agents_variables_say_and_not_beside_its_flags() {
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_manx"));
        command.args(arguments).env_clear().env("MANX_SOCKET", "/nonexistent/node.sock");
        for variable in ["MANX_SUPERVISE", "MANX_STANDBY", "MANX_BGP"] {
            command.env(variable, "true");
        }
        let output = command.env("MANX_NAME", "n").env("MANX_SERVICES", "manx").output().unwrap();
        (output.status.code(), text(&output.stderr))
    };
    let (code, told) = run(&["node", "status"]);
    assert_eq!(code, Some(3), "{told}");
    assert!(told.starts_with("manx: no agent listens at /nonexistent/node.sock "), "{told}");
    let (code, told) = run(&["node", "--name", "n", "status"]);
    assert_eq!(code, Some(2), "{told}");
}

#[test]
fn version_names_the_commit_that_is_checked_out() {
    let said = text(&manx(&["version"]).stdout);
    assert!(said.starts_with(concat!("manx ", env!("CARGO_PKG_VERSION"))), "{said}");
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let git = Command::new("git").args(["-C", root, "rev-parse", "HEAD"]).output();
    let commit = git.ok().filter(|git| git.status.success()).map(|git| text(&git.stdout));
    match commit.filter(|_| fs::exists(format!("{root}/.git")).unwrap()) {
        Some(commit) => assert!(said.contains(&format!("(commit {})\n", &commit[..12])), "{said}"),
        None => assert!(!said.contains("commit"), "{said}"),
    }
}

#[test]
fn without_an_agent_the_answer_is_3_and_a_capture_writes_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("agent.sock");
    let file = folder.path().join("out.pcapng");
    let (socket, file) = (socket.to_str().unwrap(), file.to_str().unwrap());
    for command in [
        &["status", "--socket", socket][..],
        &["node", "status", "--socket", socket],
        &["capture", "host", "-w", file, "--socket", socket],
    ] {
        let output = manx(command);
        assert_eq!(output.status.code(), Some(3), "{command:?}");
        assert_eq!(
            text(&output.stderr),
            format!(
                "manx: no agent listens at {socket} (No such file or directory (os error 2)): start one with `manx node`, or name \
                 its socket by --socket\n"
            )
        );
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// The program's exit code and standard error, in which `DIR` replaces the test's folder.
fn said(folder: &std::path::Path, arguments: &[&str]) -> String {
    let arguments: Vec<String> =
        arguments.iter().map(|word| word.replace("DIR", folder.to_str().unwrap())).collect();
    let output = manx(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(text(&output.stdout), "", "{arguments:?}");
    let error = text(&output.stderr).replace(folder.to_str().unwrap(), "DIR");
    format!("{} {error}", output.status.code().unwrap())
}

#[test]
fn an_agent_that_has_never_read_its_datastore_whole_ends_before_anything_is_attached() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("bad")).unwrap();
    fs::write(folder.path().join("bad/policies.yaml"), "kind: [NetworkPolicy\n").unwrap();
    let told = said(
        folder.path(),
        &["node", "--name", "n1", "--datastore", "DIR/bad", "--socket", "DIR/s", "--uplink", "lo"],
    );
    assert!(told.contains("policies.yaml"), "{told}");
    assert!(!told.starts_with('0'), "{told}");
    assert!(!folder.path().join("s").exists(), "the agent listens for pods to attach");
}

/// The manifests run commands that this program has, and kubelet's probes use a socket that no other user can have.
#[test]
fn the_manifests_run_commands_of_this_program_and_probe_the_agents_socket() {
    for (manifest, makes_pool) in [
        (include_str!("../../../deploy/manx.yaml"), true),
        (include_str!("../../../deploy/policy-only.yaml"), false),
    ] {
        let commands = manifest.lines().filter_map(|line| line.split_once("command: [/manx, "));
        let commands: Vec<Vec<&str>> = commands
            .map(|(_, rest)| rest.trim_end_matches(['}', ']']).split(", ").collect())
            .collect();
        // The pool's Job gets its settings from variables.
        let (of_pool, commands): (Vec<_>, Vec<_>) =
            commands.into_iter().partition(|it| it[0] == "pool");
        assert_eq!(of_pool, if makes_pool { vec![vec!["pool"]] } else { Vec::new() });
        assert_eq!(manifest.contains("{name: CALICO_IPV4POOL_CIDR, value: "), makes_pool);
        let of_pool = vec!["pool", "--cidr", "10.244.0.0/16"];
        for command in commands.iter().chain([&of_pool]) {
            let taken =
                manx::Manx::command().try_get_matches_from([&["manx"], &command[..]].concat());
            assert!(taken.is_ok(), "{command:?}: {taken:?}");
        }
        for command in &commands {
            let socket = command.iter().skip_while(|it| **it != "--socket").nth(1);
            assert_eq!(socket, Some(&"/run/manx/node.sock"), "{command:?}");
        }
        let verbs: Vec<&str> = commands.iter().map(|it| it[0]).collect();
        assert_eq!(verbs, ["node", "health", "health", "health"]);
        assert!(commands[0].contains(&"--supervise"));
        let asked: Vec<&str> = commands[1..].iter().map(|it| it[1]).collect();
        assert_eq!(asked, ["liveness", "liveness", "readiness"]);
        for answered_by_anybody in ["httpGet", "tcpSocket", "grpc"] {
            assert!(!manifest.contains(&format!("{answered_by_anybody}:")));
        }
    }
}

/// The manifest of controllers runs a command of this program. The command may only make its Lease,
/// Events, and records of IPAM, and may change only the status of a Service.
#[test]
fn the_manifest_of_controllers_runs_a_command_of_this_program_with_few_rights() {
    let manifest = include_str!("../../../deploy/controllers.yaml");
    let command = manifest.lines().find_map(|line| line.trim().strip_prefix("command: [/manx, "));
    assert_eq!(command, Some("controllers]"));
    assert!(manx::Manx::command().try_get_matches_from(["manx", "controllers"]).is_ok());
    let values = |name: &str| -> Vec<&str> {
        manifest.lines().filter_map(|line| line.trim().strip_prefix(name)).collect()
    };
    assert_eq!(
        values("verbs: "),
        [
            "[get, list]",
            "[get, list, create, update, delete]",
            "[get]",
            "[get, list, watch]",
            "[patch]",
            "[get]",
            "[list, watch]",
            "[list]",
            "[list]",
            "[create]",
            "[get, update]",
            "[create]"
        ]
    );
    let resources = values("resources: [");
    assert_eq!(resources[1], "ipamblocks, blockaffinities, ipamhandles]");
    assert_eq!(resources[3..5], ["services]", "services/status]"]);
    assert_eq!(resources[9..], ["events]", "leases]", "leases]"]);
}

#[test]
fn an_agent_that_cannot_start_says_what_was_found_and_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for directory in ["empty", "bad", "good"] {
        fs::create_dir(at(directory)).unwrap();
    }
    let nodes = "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\n---\n\
                 apiVersion: v1\nkind: Node\nmetadata: {name: n2}\nspec: {podCIDRs: [10.1.2.0/24]}\n\
                 status: {addresses: [{type: InternalIP, address: 10.0.0.2}]}\n";
    fs::write(at("good/nodes.yaml"), nodes).unwrap();
    fs::write(at("bad/nodes.yaml"), "kind: [Node\n").unwrap();
    fs::write(at("file"), "").unwrap();
    let taken = std::os::unix::net::UnixListener::bind(at("taken.sock")).unwrap();
    let long = format!("DIR/{}", "x".repeat(120));
    let node = |name: &str, datastore: &str, socket: &str, more: &[&str]| {
        let mut all = vec!["node", "--name", name, "--datastore", datastore, "--socket", socket];
        all.extend(more);
        said(folder.path(), &all)
    };
    let uplink = ["--uplink", "nowhere0"];
    let told = [
        node("n2", "DIR/none", "DIR/s", &uplink),
        node("n2", "DIR/file", "DIR/s", &uplink),
        node("n2", "DIR/bad", "DIR/s", &uplink),
        node("n2", "DIR/empty", "DIR/s", &uplink),
        node("n3", "DIR/good", "DIR/s", &uplink),
        node("n1", "DIR/good", "DIR/s", &uplink),
        node("n2", "DIR/good", "DIR/file", &uplink),
        node("n2", "DIR/good", "DIR/taken.sock", &uplink),
        node("n2", "DIR/good", "DIR/file/s", &uplink),
        node("n2", "DIR/good", &long, &uplink).replace(&"x".repeat(120), "xxx"),
        node("n2", "DIR/good", "DIR/s", &["--uplink", "lo"]),
    ];
    drop(taken);
    insta::assert_snapshot!(told.join(""));
    // These messages depend on the machine.
    let no_uplink = node("n2", "DIR/good", "DIR/s", &uplink);
    assert!(
        no_uplink.starts_with(
            "3 manx: there is no interface nowhere0 in this network namespace: there is lo"
        ),
        "{no_uplink}"
    );
    let no_core = node("n2", "DIR/good", "DIR/s", &["--uplink", "lo", "--pin", "1023"]);
    let expected = "2 manx: a worker cannot be pinned to core 1023: this process may use ";
    assert!(no_core.starts_with(expected), "{no_core}");
    let workers =
        |extra: &[&str]| node("n2", "DIR/good", "DIR/s", &[&["--uplink", "lo"], extra].concat());
    let of_workers = [
        (
            workers(&["--workers", "1", "--pin", "0,1"]),
            "2 manx: --pin names 2 cores for 1 workers: name at most one for each",
        ),
        (
            workers(&["--pin", "0,0"]),
            "2 manx: --pin names core 0 twice: expected a core of its own for each worker",
        ),
        (
            workers(&["--workers", "256"]),
            "2 error: invalid value '256' for '--workers <N>': expected 1 to 255",
        ),
        (
            workers(&["--workers", "0"]),
            "2 error: invalid value '0' for '--workers <N>': expected 1 to 255",
        ),
    ];
    for (told, expected) in of_workers {
        assert!(told.starts_with(expected), "{told}");
    }
}

#[test]
fn a_rig_that_cannot_be_says_what_was_found_and_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for directory in ["empty", "bad", "wrong"] {
        fs::create_dir(at(directory)).unwrap();
    }
    let policy = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p}\nspec: {podSelector: 3}\n";
    fs::write(at("bad/nodes.yaml"), "kind: [Node\n").unwrap();
    fs::write(at("wrong/policy.yaml"), policy).unwrap();
    let said = |arguments: &[&str]| said(folder.path(), arguments);
    let told = [
        said(&["rig", "run", "DIR/none"]),
        said(&["rig", "run", "DIR/bad/nodes.yaml"]),
        said(&["rig", "run", "DIR/empty"]),
        said(&["rig", "run", "DIR/bad"]),
        said(&["rig", "run", "DIR/wrong"]),
    ];
    insta::assert_snapshot!(told.join(""));
}

#[test]
fn policy_explain_ends_with_its_verdict() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    let objects = "
{apiVersion: v1, kind: Pod, metadata: {name: a}, status: {podIP: 10.0.0.1}}
---
{apiVersion: v1, kind: Pod, metadata: {name: b}, status: {podIP: 10.0.0.2}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: only-80}
spec: {podSelector: {}, ingress: [{ports: [{port: 80}]}]}
";
    fs::write(directory.path().join("objects.yaml"), objects).unwrap();
    let explain = |from, port, more: &[&str]| {
        let arguments = ["policy", "explain", "--from", from, "--to", "b", "--port", port, path];
        manx(&[&arguments[..], more].concat())
    };
    let allowed = explain("a", "tcp/80", &[]);
    assert_eq!(allowed.status.code(), Some(0), "{}", text(&allowed.stderr));
    assert!(text(&allowed.stdout).contains("ALLOWED"));
    let assumed = text(&allowed.stderr);
    assert!(assumed.lines().all(|line| line.starts_with("assumed: ")), "{assumed}");
    assert!(assumed.contains("assumed: no Node object: node-1, node-2\n"), "{assumed}");
    let yaml = text(&explain("a", "tcp/80", &["--show-assumed"]).stdout);
    assert!(yaml.contains("  name: node-1\n"), "{yaml}");
    let denied = explain("a", "tcp/81", &["--output", "json"]);
    assert_eq!(denied.status.code(), Some(1));
    let story: serde_json::Value = serde_json::from_slice(&denied.stdout).unwrap();
    assert_eq!(story["allowed"], false);
    for (from, port) in [("nobody", "tcp/80"), ("a", "tcp/http")] {
        let wrong = explain(from, port, &[]);
        assert_eq!(wrong.status.code(), Some(2));
        assert_eq!(text(&wrong.stdout), "");
        assert!(!wrong.stderr.is_empty());
    }
    // An invalid object is reported and fails closed; a file that cannot be parsed makes everything unknown.
    fs::write(
        directory.path().join("broken.yaml"),
        objects.replace("only-80", "b").replace("[{port: 80}]", "5"),
    )
    .unwrap();
    let closed = explain("a", "tcp/81", &[]);
    assert_eq!(closed.status.code(), Some(1));
    assert!(text(&closed.stderr).contains("ports"), "{}", text(&closed.stderr));
    fs::write(directory.path().join("broken.yaml"), "{").unwrap();
    assert_eq!(explain("a", "tcp/80", &[]).status.code(), Some(2));
    assert_eq!(
        manx(&[
            "policy",
            "explain",
            "--from",
            "a",
            "--to",
            "b",
            "--port",
            "tcp/80",
            "/nonexistent"
        ])
        .status
        .code(),
        Some(2)
    );
}

#[test]
fn policy_explain_denies_what_no_route_leads_to() {
    let folder = tempfile::tempdir().unwrap();
    let objects = "
{apiVersion: v1, kind: Node, metadata: {name: n1}, spec: {podCIDR: 'fd00:1::/64'}, status: {addresses: [{type: InternalIP, address: 'fc00::1'}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: n2}, spec: {podCIDR: 'fd00:2::/64'}, status: {addresses: [{type: InternalIP, address: 'fc00::2'}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {nodeName: n1, containers: [{name: c}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: c}, spec: {nodeName: n2, containers: [{name: c}]}}
---
{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: p}, spec: {cidr: 'fd00::/16', vxlanMode: MODE}}
";
    let file = folder.path().join("objects.yaml");
    for (mode, code) in [("Never", 0), ("Always", 1), ("Perhaps", 2)] {
        fs::write(&file, objects.replace("MODE", mode)).unwrap();
        let file = file.to_str().unwrap();
        let output = manx(&[
            "policy", "explain", "--routes", "-6", "--from", "c", "--to", "a", "--port", "tcp/80",
            file,
        ]);
        let told = text(&output.stdout) + &text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{told}");
        assert_eq!(
            told.contains("no route: node n2 has no route to fd00:1::"),
            code == 1,
            "{told}"
        );
    }
}

#[test]
fn policy_check_ends_with_2_only_if_something_is_not_valid() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let policy = "apiVersion: projectcalico.org/v3\nkind: NetworkPolicy\nmetadata: {name: p}\nspec: {tier: t, order: 1}\n";
    fs::create_dir(at("good")).unwrap();
    fs::write(at("good/policy.yaml"), policy).unwrap();
    fs::write(at("bad.yaml"), policy.replace("order: 1", "order: first")).unwrap();
    let check = |paths: &[String], more: &[&str]| {
        let mut arguments = vec!["policy", "check"];
        arguments.extend(paths.iter().map(String::as_str));
        arguments.extend(more);
        let output = manx(&arguments);
        assert_eq!(text(&output.stderr), "", "{arguments:?}");
        (output.status.code(), text(&output.stdout))
    };
    let (code, told) = check(&[at("good")], &[]);
    assert_eq!(code, Some(0));
    assert!(told.starts_with("warning[no-such-tier]: spec.tier: tier t is not defined"), "{told}");
    assert!(
        told.ends_with(
            "1 file, 1 object (1 Calico NetworkPolicy): 0 invalid, 0 errors, 1 warning\n"
        )
    );
    let (code, told) = check(&[at("good"), at("bad.yaml")], &["--output", "json"]);
    assert_eq!(code, Some(2));
    let report: serde_json::Value = serde_json::from_str(&told).unwrap();
    // One policy is invalid, and another policy has the same name.
    assert_eq!(report["errors"], 2);
    assert_eq!(report["files"], 2);
    let (code, told) = check(&[at("none")], &[]);
    assert_eq!(code, Some(2), "{told}");
    assert_eq!(manx(&["policy", "check"]).status.code(), Some(2));
    // A file that two paths lead to counts once.
    assert_eq!(check(&[at("good"), at("good/policy.yaml")], &[]).0, Some(0));
}

/// If nothing was read, nothing was checked, so a wrong path must not look like success.
#[test]
fn what_holds_no_manifest_is_neither_checked_nor_proved() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let node = "{apiVersion: v1, kind: Node, metadata: {name: n1}, spec: {podCIDR: 10.1.0.0/24}}\n";
    for name in ["empty", "above", "above/below", "above/.hidden", "text", "comments", "unread"] {
        fs::create_dir(at(name)).unwrap();
    }
    fs::write(at("above/below/node.yaml"), node).unwrap();
    fs::write(at("above/.hidden/broken.yaml"), "{").unwrap();
    fs::write(at("text/a.txt"), node).unwrap();
    fs::write(at("comments/a.yaml"), "# later\n---\n").unwrap();
    let map = "{apiVersion: v1, kind: ConfigMap, metadata: {name: d}}\n";
    fs::write(at("unread/a.yaml"), map).unwrap();
    let said = |command: &str, name: &str, more: &[&str]| {
        let output = manx(&[&["policy", command, &at(name)], more].concat());
        (output.status.code().unwrap(), text(&output.stdout) + &text(&output.stderr))
    };
    for (name, found) in [("empty", "nothing"), ("above", "below/, .hidden/"), ("text", "a.txt")] {
        let found = format!("holds no manifest: found {found}, expected *.yaml, *.yml or *.json");
        for command in ["check", "prove"] {
            let (code, told) = said(command, name, &[]);
            assert!(code == 2 && told.contains(&found), "{command} {name}: {code}\n{told}");
        }
        assert!(said("check", name, &[]).1.contains("--recursive"), "{name}");
    }
    for command in ["check", "prove"] {
        let (code, told) = said(command, "comments", &[]);
        assert!(code == 2 && told.contains("holds no object"), "{command}: {code}\n{told}");
        let (code, told) = said(command, "above", &["-R"]);
        assert_eq!(code, 0, "{command}: {told}");
        assert_eq!(said(command, "empty", &["--recursive"]).0, 2);
    }
    let (code, told) = said("check", "unread", &[]);
    assert!(code == 2 && told.contains("found only what is skipped"), "{code}\n{told}");
    assert_eq!(said("prove", "unread", &[]).0, 2);
    // It is also an error if only one of several paths holds no manifest.
    assert_eq!(said("check", "above/below", &[&at("empty")]).0, 2);
}

#[test]
fn warnings_end_with_2_if_policy_check_is_strict_and_may_be_allowed() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("policy.yaml");
    let policy = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: p}}\n";
    fs::write(&file, policy).unwrap();
    let check = |more: &[&str]| {
        let output = manx(&[&["policy", "check", file.to_str().unwrap()], more].concat());
        (output.status.code().unwrap(), text(&output.stdout) + &text(&output.stderr))
    };
    let (code, told) = check(&[]);
    assert!(code == 0 && told.starts_with("warning[empty-spec]: spec: is empty"), "{code}\n{told}");
    assert_eq!(check(&["--strict"]).0, 2);
    assert_eq!(check(&["--strict", "--allow", "empty-spec"]).0, 0);
    assert_eq!(check(&["--strict", "--allow", "host-bits"]).0, 2);
    let (code, told) = check(&["--allow", "missing-field"]);
    assert!(
        code == 2 && told.contains("is an error, and only warnings and notes can be left out"),
        "{told}"
    );
    let (code, told) = check(&["--allow", "emptyspec"]);
    assert!(code == 2 && told.contains("expected a code such as"), "{told}");
    let (code, told) = check(&["--strict", "--output", "sarif"]);
    let log: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!((code, &log["runs"][0]["results"][0]["ruleId"]), (2, &"empty-spec".into()));
}

/// Files that are no manifests are read, or the message says what to do.
#[test]
fn what_is_no_manifest_of_yaml_is_read_or_said_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let check = |name: &str| {
        let output = manx(&["policy", "check", &at(name)]);
        (output.status.code().unwrap(), text(&output.stdout) + &text(&output.stderr))
    };
    let namespace = r#"{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}"#;
    let far = namespace.replace("shop", "far");

    // These are outputs of kubectl without a result, and a form that the API server may write.
    for (name, items) in [("none.yaml", "[]"), ("null.yaml", "null")] {
        let list = format!(
            "apiVersion: v1\nitems: {items}\nkind: List\nmetadata:\n  resourceVersion: \"\"\n"
        );
        fs::write(at(name), list).unwrap();
        let (code, told) = check(name);
        assert!(code == 2 && told.contains("found a list without items"), "{code}\n{told}");
        assert!(told.contains("kubectl") && told.contains("-A"), "{told}");
    }

    fs::write(at("lines.json"), format!("{namespace}\n{far}\n")).unwrap();
    assert_eq!(
        check("lines.json"),
        (0, "1 file, 2 objects (2 Namespace): 0 invalid, 0 errors, 0 warnings\n".to_owned())
    );

    let utf16: Vec<u8> =
        format!("\u{feff}{namespace}").encode_utf16().flat_map(u16::to_le_bytes).collect();
    fs::write(at("utf16.yaml"), utf16).unwrap();
    assert_eq!(check("utf16.yaml").0, 0);

    for (name, template) in [
        (
            "if.yaml",
            "{{- if .Values.on }}\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n{{- end }}\n",
        ),
        (
            "name.yaml",
            "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata:\n  name: {{ .Release.Name }}\n",
        ),
        (
            "text.yaml",
            "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata:\n  name: \"{{ .Release.Name }}\"\n",
        ),
    ] {
        fs::write(at(name), template).unwrap();
        let (code, told) = check(name);
        assert!(code == 2 && told.contains("helm template"), "{name}: {code}\n{told}");
        assert!(told.contains(" 1 error,"), "{name}: {told}");
    }

    // A folder with other files in it.
    fs::create_dir(at("gitops")).unwrap();
    fs::write(at("gitops/namespace.json"), namespace).unwrap();
    fs::write(at("gitops/package.json"), "{\"name\": \"shop\", \"version\": \"1.0.0\"}\n").unwrap();
    fs::write(at("gitops/values.yaml"), "replicas: 2\nimage: {tag: v1}\n").unwrap();
    fs::write(at("gitops/Chart.yaml"), "apiVersion: v2\nname: shop\nversion: 1.0.0\n").unwrap();
    fs::write(at("gitops/patch.yaml"), "- {op: replace, path: /spec/replicas, value: 3}\n")
        .unwrap();
    let (code, told) = check("gitops");
    assert_eq!(code, 0, "{told}");
    assert_eq!(
        told.matches("warning[skipped-document]: is no Kubernetes object").count(),
        4,
        "{told}"
    );
    // A file that is named directly must hold objects.
    let (code, told) = check("gitops/package.json");
    assert!(code == 2 && told.contains("error[not-an-object]: is no Kubernetes object"), "{told}");
    // A file that may hold a policy does not count as another file.
    for may_be in [
        "spec: {podSelector: {}}\n",
        "metadata: {name: a}\n",
        "apiVersion: networking.k8s.io/v1\n",
        "kind: NetworkPolicy\n",
        "- {apiVersion: networking.k8s.io/v1}\n",
        "- {kind: NetworkPolicy}\n",
    ] {
        fs::write(at("gitops/patch.yaml"), may_be).unwrap();
        let (code, told) = check("gitops");
        assert!(code == 2 && told.contains("error["), "{may_be}: {code}\n{told}");
    }
}

#[test]
fn policy_check_reads_standard_input() {
    use std::io::Write as _;
    use std::process::Stdio;
    for (manifest, code) in
        [("{apiVersion: v1, kind: Namespace, metadata: {name: a}}", 0), ("[", 2)]
    {
        let mut command = Command::new(env!("CARGO_BIN_EXE_manx"));
        let command = command.args(["policy", "check", "-"]).stdin(Stdio::piped());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(manifest.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{}", text(&output.stdout));
        assert!(text(&output.stdout).contains("1 file"), "{}", text(&output.stdout));
    }
}

#[test]
fn bench_is_the_program_beside_manx_and_without_it_says_how_to_get_it() {
    use std::os::unix::fs::PermissionsExt as _;
    let own = std::path::Path::new(env!("CARGO_BIN_EXE_manx"));
    // The folder allows a link to the program, and holds nothing else.
    let folder = tempfile::tempdir_in(own.parent().unwrap()).unwrap();
    let manx = folder.path().join("manx");
    fs::hard_link(own, &manx).unwrap();
    let bench =
        |arguments: &[&str]| Command::new(&manx).arg("bench").args(arguments).output().unwrap();
    let build = "cargo build --release -p manx-bench";
    let output = bench(&["--quick"]);
    assert_eq!(output.status.code(), Some(3));
    let told = text(&output.stderr);
    assert!(told.contains(build) && told.contains("manx-bench is not there"), "{told}");
    assert_eq!(text(&output.stdout), "");
    let output = bench(&["--help"]);
    assert_eq!(output.status.code(), Some(0));
    let help = text(&output.stdout);
    assert!(help.contains("Measure Manx beside") && help.contains(build), "{help}");

    let program = folder.path().join("manx-bench");
    fs::write(&program, "#!/bin/sh\nfor word; do echo \"[$word]\"; done\nexit 7\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let output = bench(&["--only", "a row", "--help", "--", "-x"]);
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "[--only]\n[a row]\n[--help]\n[--]\n[-x]\n");
}
