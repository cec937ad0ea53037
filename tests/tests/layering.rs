//! Dependencies point one way.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

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
    ("inquiry", &["manifest", "oracle", "store"]),
    // Tables, made of what was imported, are held to what the objects say.
    ("proof", &["import", "manifest", "oracle", "store"]),
    ("api", &["inquiry", "proof"]),
    ("client", &["api", "inquiry"]),
    ("ipam", &["api"]),
    ("references", &["manifest", "store"]),
    ("interfaces", &[]),
    ("topology", &["import", "interfaces", "ipam", "manifest"]),
    ("calc", &["import", "interfaces", "store", "topology"]),
    (
        "agent",
        &[
            "api", "calc", "doctor", "import", "inquiry", "ipam", "manifest", "netlink", "netns",
            "oracle", "proof", "store", "topology",
        ],
    ),
    // The rig speaks with agents as everybody does, by their sockets.
    (
        "rig",
        &["api", "client", "doctor", "import", "manifest", "netlink", "netns", "oracle", "store"],
    ),
    (
        "cli",
        &[
            "agent",
            "api",
            "client",
            "doctor",
            "inquiry",
            "manifest",
            "oracle",
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
