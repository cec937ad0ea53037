//! Dependencies point one way.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, MetadataCommand};

/// The normal and build dependencies of every package of the workspace, direct ones, by name; optional ones too.
fn direct() -> BTreeMap<String, BTreeSet<String>> {
    let metadata = MetadataCommand::new().no_deps().exec().unwrap();
    metadata
        .workspace_packages()
        .into_iter()
        .map(|package| {
            let dependencies = package
                .dependencies
                .iter()
                .filter(|dependency| dependency.kind != DependencyKind::Development)
                .map(|dependency| dependency.name.clone())
                .collect();
            (package.name.to_string(), dependencies)
        })
        .collect()
}

/// Everything that a package is built of, however far down.
fn all(root: &str) -> BTreeSet<String> {
    // Without a platform, cargo would fetch what only other platforms need.
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let options = ["--locked", "--filter-platform", &platform].map(str::to_owned);
    let metadata = MetadataCommand::new().other_options(options).exec().unwrap();
    let resolve = metadata.resolve.as_ref().unwrap();
    let name = |id| {
        let package = metadata.packages.iter().find(|package| package.id == id);
        package.unwrap().name.to_string()
    };
    let node = |id| resolve.nodes.iter().find(|node| node.id == id).unwrap();
    let mut found = BTreeSet::new();
    let mut open: Vec<_> = metadata
        .workspace_packages()
        .into_iter()
        .filter(|package| package.name.as_str() == root)
        .map(|package| package.id.clone())
        .collect();
    while let Some(id) = open.pop() {
        for dependency in &node(id).deps {
            let needed =
                dependency.dep_kinds.iter().any(|kind| kind.kind != DependencyKind::Development);
            if needed && found.insert(name(dependency.pkg.clone())) {
                open.push(dependency.pkg.clone());
            }
        }
    }
    found
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn product_crates_depend_on_each_other_one_way() {
    let direct = direct();
    let ours: BTreeSet<String> = direct.keys().cloned().collect();
    let of =
        |name: &str| -> BTreeSet<String> { direct[name].intersection(&ours).cloned().collect() };
    assert_eq!(of("manx-policy-compiler"), set(&[]));
    assert_eq!(of("manx-dataplane"), set(&["manx-policy-compiler"]));
    assert_eq!(of("manx"), set(&["manx-dataplane", "manx-policy-compiler"]));
    assert_eq!(of("manx-fixtures"), set(&[]), "fixtures are data");
}

#[test]
fn the_dataplane_knows_no_runtime_no_serialization_and_no_cluster() {
    let all = all("manx-dataplane");
    assert!(all.contains("libc"), "the walk finds what is there");
    for package in ["tokio", "serde", "serde_json", "kube", "k8s-openapi", "rtnetlink", "clap"] {
        assert!(!all.contains(package), "{package} among {all:?}");
    }
}

#[test]
fn the_policy_compiler_makes_no_system_calls_of_its_own() {
    let direct = direct();
    let direct = &direct["manx-policy-compiler"];
    for package in ["tokio", "serde", "kube", "libc", "nix", "rustix", "mio", "notify"] {
        assert!(!direct.contains(package), "{package} among {direct:?}");
    }
    // What hashing brings with it is for its seeds only.
    let all = all("manx-policy-compiler");
    assert!(all.contains("ahash"), "the walk finds what is there");
    for package in ["tokio", "serde", "kube", "nix", "rustix", "mio", "notify"] {
        assert!(!all.contains(package), "{package} among {all:?}");
    }
}

/// What reaches past the program: files, sockets, processes, threads, clocks, the environment, a terminal, system calls.
const SYSTEM: &[&str] = &[
    "std::env",
    "std::fs",
    "io::std",
    "std::os",
    "std::process",
    "std::thread",
    "std::{",
    "File::",
    "Instant",
    "OpenOptions",
    "SystemTime",
    "TcpListener",
    "TcpStream",
    "UdpSocket",
    "UnixDatagram",
    "UnixListener",
    "UnixStream",
    "libc::",
    "nix::",
    "rustix::",
    "tokio::",
    "print!",
    "println!",
    "dbg!",
    ".await",
];

/// Every source below these paths with its text, tests and comments left out.
fn sources(paths: impl IntoIterator<Item = PathBuf>) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut open: Vec<PathBuf> = paths.into_iter().collect();
    while let Some(path) = open.pop() {
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "tests" && name != "snapshots") {
                open.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            }
        } else if path.is_file()
            && path.file_stem().is_some_and(|stem| stem != "tests" && stem != "testing")
        {
            let text = fs::read_to_string(&path).unwrap();
            let text = text.split("\nmod tests {").next().unwrap_or_default();
            let code = |line: &&str| !line.trim_start().starts_with("//");
            found.push((path, text.lines().filter(code).collect::<Vec<_>>().join("\n")));
        }
    }
    found
}

/// Where the sources of a crate are.
fn crate_sources(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).join("src")
}

/// The names of [`SYSTEM`] that sources have, each with its file.
fn reached(paths: impl IntoIterator<Item = PathBuf>) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in sources(paths) {
        let named = SYSTEM.iter().filter(|name| text.contains(*name));
        found.extend(named.map(|name| format!("{name} in {}", path.display())));
    }
    found
}

#[test]
fn what_promises_no_system_calls_no_clock_and_no_files_names_none() {
    let compiler = crate_sources("policy-compiler");
    assert!(sources([compiler.clone()]).len() > 20, "the walk finds what is there");
    // It may use a second core, in one place: what it makes depends on no thread.
    let [threads] = &reached([compiler])[..] else { panic!("one name, in beside.rs alone") };
    assert!(threads.starts_with("std::thread in ") && threads.ends_with("beside.rs"), "{threads}");
    let dataplane = crate_sources("dataplane");
    let pure = [
        "wire",
        "packet.rs",
        "checksum.rs",
        "parse.rs",
        "encapsulation.rs",
        "fragment",
        "offload",
        "icmp.rs",
        "flow",
        "tables.rs",
        "policy.rs",
        "decide",
        "fate.rs",
        "pipeline.rs",
        "pipeline",
        "rate_limit.rs",
        "denials.rs",
    ];
    let pure = pure.map(|name| dataplane.join(name));
    assert!(pure.iter().all(|path| path.exists()), "a module that has another name: {pure:?}");
    assert_eq!(reached(pure), [""; 0]);
    assert!(!reached([dataplane.join("sys")]).is_empty(), "and sees what does reach the system");
}

#[test]
fn what_control_calculates_from_objects_alone_reaches_no_file_and_no_clock() {
    let control = crate_sources("control");
    let pure = [
        "manifest",
        "import",
        "oracle",
        "inquiry",
        "proof",
        "references",
        "interfaces",
        "block",
        "topology",
        "calc",
    ];
    let both = |name: &str| [control.join(name), control.join(name).with_extension("rs")];
    assert!(pure.iter().all(|name| both(name).iter().any(|path| path.exists())), "{pure:?}");
    assert_eq!(reached(pure.iter().flat_map(|name| both(name))), [""; 0]);
    assert!(!reached([control.join("store")]).is_empty(), "and sees what does reach the system");
}

/// The modules of the control crate and what each may know of the others.
const CONTROL: &[(&str, &[&str])] = &[
    ("netns", &[]),
    ("netlink", &["netns"]),
    ("doctor", &["netlink", "netns"]),
    ("manifest", &[]),
    ("store", &["manifest"]),
    ("import", &["manifest", "store"]),
    // The oracle judges the objects themselves: it must not share the import with what it judges.
    ("oracle", &["manifest", "store"]),
    // Tables, made of what was imported, are held to what the objects say.
    ("proof", &["import", "manifest", "oracle", "store"]),
    // Folders that nobody else can write to.
    ("private", &[]),
    ("block", &[]),
    ("interfaces", &[]),
    ("topology", &["block", "import", "interfaces", "manifest"]),
    // Where packets go is the topology's to say, as for the agent; what passes is the oracle's.
    ("inquiry", &["import", "manifest", "oracle", "store", "topology"]),
    ("api", &["inquiry", "proof"]),
    ("client", &["api", "inquiry"]),
    ("ipam", &["api", "block"]),
    ("references", &["import", "manifest", "store"]),
    ("calc", &["import", "interfaces", "store", "topology"]),
    (
        "agent",
        &[
            "api", "calc", "doctor", "import", "inquiry", "ipam", "manifest", "netlink", "netns",
            "oracle", "private", "proof", "store", "topology",
        ],
    ),
    // The rig speaks with agents as everybody does, by their sockets.
    (
        "rig",
        &[
            "api", "client", "doctor", "import", "manifest", "netlink", "netns", "oracle",
            "private", "store",
        ],
    ),
    (
        "cli",
        &[
            "agent",
            "api",
            "client",
            "doctor",
            "import",
            "inquiry",
            "manifest",
            "oracle",
            "private",
            "proof",
            "references",
            "rig",
            "store",
        ],
    ),
];

/// The modules that a module's sources name by `crate::`, its tests left out.
fn known_to(module: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut open = vec![module.to_owned(), module.with_extension("rs")];
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.is_file()
            && path.file_stem().is_some_and(|stem| stem != "tests" && stem != "testing")
        {
            let text = fs::read_to_string(&path).unwrap();
            let text = text.split("\nmod tests {").next().unwrap_or_default();
            for after in text.split("crate::").skip(1) {
                let list = after.strip_prefix('{').and_then(|after| after.split('}').next());
                let names = list.unwrap_or(after).split(',');
                let names = names.take(if list.is_some() { usize::MAX } else { 1 });
                let head = |name: &str| -> String {
                    name.trim().chars().take_while(|c| c.is_lowercase() || *c == '_').collect()
                };
                found.extend(names.map(head).filter(|name| !name.is_empty()));
            }
        }
    }
    let own = module.file_name().unwrap().to_string_lossy().into_owned();
    found.remove(&own);
    found
}

#[test]
fn modules_of_control_depend_on_each_other_one_way() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../control/src");
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(&sources).unwrap() {
        let path = entry.unwrap().path().with_extension("");
        found.insert(path.file_name().unwrap().to_string_lossy().into_owned());
    }
    let found: BTreeSet<&str> = found
        .iter()
        .map(String::as_str)
        .filter(|name| !["lib", "main", "snapshots"].contains(name))
        .collect();
    assert_eq!(found, CONTROL.iter().map(|(module, _)| *module).collect());
    for (at, (module, may_know)) in CONTROL.iter().enumerate() {
        let before = &CONTROL[..at];
        for known in *may_know {
            assert!(before.iter().any(|(module, _)| module == known), "{module} before {known}");
        }
        assert_eq!(known_to(&sources.join(module)), set(may_know), "{module}");
    }
}

#[test]
fn every_crate_of_the_workspace_is_known_here() {
    let names: BTreeSet<String> = direct().into_keys().collect();
    let known = set(&[
        "manx",
        "manx-bench",
        "manx-dataplane",
        "manx-fixtures",
        "manx-policy-compiler",
        "manx-tests",
    ]);
    assert_eq!(names, known, "a new crate needs a place in the order of layers");
}
