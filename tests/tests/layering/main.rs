//! Dependencies go one way.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, MetadataCommand};

mod imports;

/// The direct normal and build dependencies of every package of the workspace, by name, including optional ones.
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

/// All packages that a package depends on, directly or not.
fn all(root: &str) -> BTreeSet<String> {
    // Without a platform, cargo would fetch packages that only other platforms need.
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
    let packages: Vec<String> = FOLDERS.iter().map(|(folder, _)| package(folder)).collect();
    for (at, (folder, depends_on)) in FOLDERS.iter().enumerate() {
        assert_eq!(of(&packages[at]), set(depends_on), "{folder}");
        let later = packages[at..].iter().find(|it| depends_on.contains(&it.as_str()));
        assert_eq!(later, None, "stands before {folder}");
    }
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
fn the_plugin_knows_no_cluster_and_no_command_line_library() {
    let all = all("manx-cni");
    assert!(all.contains("serde_json"), "the walk finds what is there");
    for package in ["kube", "k8s-openapi", "clap", "manx-agent", "manx-objects"] {
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
    // The hash function's other dependencies are only for its seeds.
    let all = all("manx-policy-compiler");
    assert!(all.contains("ahash"), "the walk finds what is there");
    for package in ["tokio", "serde", "kube", "nix", "rustix", "mio", "notify"] {
        assert!(!all.contains(package), "{package} among {all:?}");
    }
}

/// Names that reach outside the program: files, sockets, processes, threads, clocks, the environment, a terminal,
/// system calls.
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

/// Every source below these paths with its text, without tests and comments.
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

/// The names of [`SYSTEM`] in these sources, each with its file.
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
    let compiler = sources_of("policy-compiler");
    assert!(sources([compiler.clone()]).len() > 20, "the walk finds what is there");
    // The compiler may use a second core, in one place; its results do not depend on threads.
    let [threads] = &reached([compiler])[..] else { panic!("one name, in join.rs alone") };
    assert!(threads.starts_with("std::thread in ") && threads.ends_with("join.rs"), "{threads}");
    let dataplane = sources_of("dataplane");
    let pure = [
        "wire",
        "packet.rs",
        "checksum.rs",
        "drop_reason.rs",
        "parse.rs",
        "encapsulation.rs",
        "fragment",
        "offload",
        "icmp.rs",
        "flow",
        "tables.rs",
        "policy.rs",
        "rewrite.rs",
        "decide",
        "fate.rs",
        "pipeline",
        "port_table/rate_limit.rs",
        "port_table/fairness.rs",
    ];
    let pure = pure.map(|name| dataplane.join(name));
    assert!(pure.iter().all(|path| path.exists()), "a module that has another name: {pure:?}");
    assert_eq!(reached(pure), [""; 0]);
    assert!(!reached([dataplane.join("sys")]).is_empty(), "and sees what does reach the system");
}

#[test]
fn what_is_calculated_from_a_clusters_objects_alone_reaches_no_file_and_no_clock() {
    let of_cluster =
        FOLDERS.iter().map(|(folder, _)| *folder).filter(|it| it.starts_with("cluster/"));
    for name in of_cluster.filter(|it| *it != "cluster/datastore") {
        let sources = sources_of(name);
        assert!(sources.is_dir(), "{name}");
        let mut reached = reached([sources]);
        // This crate awaits calls of the store that its callers provide.
        reached.retain(|it| name != "cluster/block-ipam" || !it.starts_with(".await in "));
        assert_eq!(reached, [""; 0]);
    }
    let pure = ["block.rs", "plan.rs", "free_order.rs", "leases.rs", "saved.rs"];
    let pure = pure.map(|name| sources_of("node/ipam").join(name));
    assert!(pure.iter().all(|path| path.exists()), "a module that has another name: {pure:?}");
    assert_eq!(reached(pure), [""; 0]);
    let datastore = sources_of("cluster/datastore");
    assert!(!reached([datastore]).is_empty(), "and sees what does reach the system");
}

/// Orders, actions and ICMP types of objects are the compiler's types. The oracle reads the values that they hold, and
/// uses nothing that they decide.
#[test]
fn the_oracle_judges_by_code_of_its_own() {
    let decides = |folder: &str| {
        let root = sources_of(folder);
        let sources = files(&root).into_iter();
        let sources = sources.filter(|path| !path.starts_with(root.join("tests")));
        let texts = sources.map(|path| (fs::read_to_string(&path).unwrap(), path));
        let words = ["manx_policy_compiler", "Order::LAST", "Order::KUBERNETES", ".covers("];
        let found = texts.flat_map(|(text, path)| {
            let found = words.into_iter().filter(|word| text.contains(word));
            found.map(|word| format!("{word} in {}", path.display())).collect::<Vec<_>>()
        });
        found.collect::<Vec<String>>()
    };
    assert_eq!(decides("cluster/oracle"), [""; 0]);
    assert!(!decides("policy-compiler").is_empty(), "and sees who does");
}

/// The folders of crates of `cluster`, `node` and `tools`, in the order of the layers, and the crates of the workspace
/// that each depends on.
const FOLDERS: &[(&str, &[&str])] = &[
    ("cluster/objects", &["manx-policy-compiler"]),
    ("cluster/assume", &["manx-objects"]),
    ("cluster/datastore", &["manx-objects"]),
    // The store holds the API server's objects, one by one.
    ("cluster/block-ipam", &["manx-datastore", "manx-objects", "manx-policy-compiler"]),
    ("cluster/bgp", &["manx-objects", "manx-policy-compiler"]),
    // A program that talks to an agent needs nothing else.
    ("node/api", &[]),
    // The oracle judges the objects themselves, so it must not share the import with the code under
    // test. Its traces have the types that the agent's socket carries.
    ("cluster/oracle", &["manx-api", "manx-objects"]),
    ("node/ipam", &["manx-api", "manx-objects"]),
    (
        "cluster/calculation",
        &["manx-dataplane", "manx-ipam", "manx-objects", "manx-policy-compiler"],
    ),
    // Tables made of the imported objects are compared with the objects.
    (
        "cluster/analysis",
        &["manx-api", "manx-calculation", "manx-objects", "manx-oracle", "manx-policy-compiler"],
    ),
    // The fixtures are behind the feature `testing`, which only tests of other crates turn on.
    ("node/linux", &["manx-dataplane", "manx-fixtures"]),
    // The agent and the plugin make devices by one mechanism.
    ("node/devices", &["manx-api", "manx-dataplane", "manx-linux"]),
    // A container runtime starts it for every pod.
    ("node/cni", &["manx-api", "manx-dataplane", "manx-devices", "manx-linux"]),
    // Its callers provide the data that it shows.
    ("node/observe", &["manx-api"]),
    // It implements BGP sessions, and does not know clusters.
    ("node/speaker", &["manx-bgp"]),
    (
        "node/agent",
        &[
            "manx-analysis",
            "manx-api",
            "manx-bgp",
            "manx-block-ipam",
            "manx-calculation",
            "manx-dataplane",
            "manx-datastore",
            "manx-devices",
            "manx-ipam",
            "manx-linux",
            "manx-objects",
            "manx-observe",
            "manx-oracle",
            "manx-policy-compiler",
            "manx-speaker",
        ],
    ),
    // The rig talks to agents through their sockets, as every client does.
    (
        "tools/rig",
        &[
            "manx-api",
            "manx-assume",
            "manx-calculation",
            "manx-datastore",
            "manx-ipam",
            "manx-linux",
            "manx-objects",
            "manx-oracle",
            "manx-policy-compiler",
        ],
    ),
    (
        "tools/cli",
        &[
            "manx-agent",
            "manx-analysis",
            "manx-api",
            "manx-assume",
            "manx-block-ipam",
            "manx-calculation",
            "manx-dataplane",
            "manx-datastore",
            "manx-linux",
            "manx-objects",
            "manx-oracle",
            "manx-policy-compiler",
            "manx-rig",
        ],
    ),
];

/// The package of a crate's folder.
fn package(folder: &str) -> String {
    match Path::new(folder).file_name().and_then(|name| name.to_str()) {
        Some("cli") => "manx".to_owned(),
        name => format!("manx-{}", name.unwrap()),
    }
}

#[test]
fn every_crate_of_the_workspace_is_known_here() {
    let names: BTreeSet<String> = direct().into_keys().collect();
    let mut known = set(&[
        "manx-bench",
        "manx-dataplane",
        "manx-fixtures",
        "manx-policy-compiler",
        "manx-tests",
    ]);
    known.extend(FOLDERS.iter().map(|(folder, _)| package(folder)));
    assert_eq!(names, known, "a new crate needs a place in the order of layers");
}

/// The folder of the sources of a package in this folder of the workspace.
fn sources_of(package: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(package).join("src")
}

/// The imports of the library and the programs of a package. Every source file is included, except
/// those of tests.
fn imports_of(package: &str) -> imports::Imports {
    let folder = sources_of(package);
    let roots = ["lib.rs", "main.rs"].map(|name| folder.join(name));
    let roots: Vec<_> = roots.into_iter().filter(|root| root.exists()).collect();
    let all: imports::Imports = roots.iter().flat_map(|root| imports::read(root)).collect();
    let tests: Vec<_> = roots.iter().flat_map(|root| imports::test_modules(root)).collect();
    let is_of = |module: &PathBuf, file: &Path| {
        file.starts_with(module) || file.with_extension("") == *module
    };
    let is_known =
        |file: &PathBuf| all.contains_key(file) || tests.iter().any(|module| is_of(module, file));
    let unknown: Vec<PathBuf> = files(&folder).into_iter().filter(|it| !is_known(it)).collect();
    assert!(unknown.is_empty() && all.len() > 3, "the reader does not see {unknown:?}");
    all
}

/// The source files of a folder and those below it.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let sources = files.into_iter().filter(|path| path.extension().is_some_and(|it| it == "rs"));
    sources.chain(folders.iter().flat_map(|folder| self::files(folder))).collect()
}

/// Crates in which no files import one another in a loop.
const WITHOUT_LOOPS: &[&str] = &[
    "bench",
    "node/agent",
    "node/api",
    "tools/cli",
    "node/cni",
    "cluster/datastore",
    "node/ipam",
    "cluster/objects",
    "node/observe",
    "node/speaker",
    "cluster/oracle",
    "tools/rig",
    "dataplane",
    "policy-compiler",
];

#[test]
fn no_files_import_one_another_in_a_loop() {
    for name in WITHOUT_LOOPS {
        let imports = imports_of(name);
        let found = imports::loops(&imports);
        let found = found.iter().map(|files| imports::describe(&imports, files));
        assert_eq!(found.collect::<Vec<_>>(), [""; 0], "{name}");
    }
}

/// A loop of files stays in one folder, and no folders of the first level import one another in a loop.
#[test]
fn no_folders_import_one_another_in_a_loop() {
    for (name, _) in FOLDERS {
        let imports = imports_of(name);
        let sources = sources_of(name);
        let modules = imports::between_modules(&imports, &sources);
        let has_folder = |it: &BTreeSet<PathBuf>| it.iter().any(|it| sources.join(it).is_dir());
        let loops = imports::loops(&modules);
        let loops = loops.iter().filter(|it| has_folder(it));
        let mut found: Vec<String> = loops.map(|it| imports::describe(&modules, it)).collect();
        for files in imports::loops(&imports) {
            let folders: BTreeSet<PathBuf> =
                files.iter().map(|it| imports::folder(it, &imports)).collect();
            if folders.len() > 1 {
                found.push(imports::describe(&imports, &files));
            }
        }
        assert_eq!(found, [""; 0], "{name}");
    }
}
