//! The input of a rig: a directory of manifests and perhaps `rig.yaml`, a file, or standard input.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use super::objects::Objects;
use super::settings::Settings;
use super::settings::file::{FILE, SettingsError};
use manx_assume::{Assumed, Options, Refusal};
use manx_calculation::import;
use manx_objects::contents::Contents;
use manx_objects::problem::Severity;
use manx_objects::tree::{Node, Value};
use manx_objects::yaml;

/// The reason why no rig can be made from an input.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// A file or directory cannot be read or written.
    #[error("{path} cannot be used: {source}")]
    File { path: PathBuf, source: io::Error },
    /// There is no such path.
    #[error(
        "there is no {0}: expected a directory with manifests, a file of them, or - for standard input; `manx rig init {0}` makes \
         a directory with an example"
    )]
    NoPath(PathBuf),
    /// The directory contains no manifests.
    #[error(
        "{0} holds no manifests: expected *.yaml, *.yml or *.json (-R enters subdirectories); `manx rig init {0}` writes an example"
    )]
    Empty(PathBuf),
    /// The missing objects cannot be assumed.
    #[error(transparent)]
    Incomplete(#[from] Refusal),
    /// `rig.yaml` cannot be used.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The manifests are not valid. The text contains all their problems.
    #[error("{0}")]
    Manifests(String),
}

impl InputError {
    /// An error of the file or directory at this path.
    pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::File { path: path.to_owned(), source }
    }
}

/// The input of a rig, read, validated and completed.
#[derive(Debug, Clone)]
pub struct Input {
    /// The objects, including the assumed ones.
    pub objects: Objects,
    pub assumed: Assumed,
    /// `rig.yaml`.
    pub settings: Settings,
    /// Warnings about ignored parts, for the user.
    pub warnings: Vec<String>,
}

/// Reads the input of a rig: a directory of manifests and perhaps `rig.yaml`, a file, or standard
/// input (`-`). Missing objects are assumed, according to `options`.
pub fn read(path: &Path, recursive: bool, options: Options) -> Result<Input, InputError> {
    if path != Path::new("-") && !path.exists() {
        return Err(InputError::NoPath(path.to_owned()));
    }
    let mut settings = Settings::default();
    let file = path.join(FILE);
    if file.is_file() {
        settings = Settings::parse(&fs::read_to_string(&file).map_err(InputError::at(&file))?)?;
    }
    let mut files = manx_datastore::manifests(path, recursive).map_err(InputError::at(path))?;
    files.retain(|manifest| *manifest != file);
    if files.is_empty() {
        return Err(InputError::Empty(path.to_owned()));
    }
    let Manifests { mut contents, mut objects, warnings } = read_files(&files)?;
    let assumed = manx_assume::complete(&mut contents, options)?;
    for (key, fields) in &assumed.manifests {
        manx_assume::merge(objects.0.entry(key.clone()).or_default(), fields.clone());
    }
    Ok(Input { objects, assumed, settings, warnings })
}

/// Manifests, read and validated.
#[derive(Debug)]
pub struct Manifests {
    /// The objects as they are read.
    pub contents: Contents,
    /// The same objects as JSON.
    pub objects: Objects,
    /// Warnings about ignored parts, for the user.
    pub warnings: Vec<String>,
}

/// Reads the manifests of files, directories (not their `rig.yaml`) and standard input (`-`).
pub fn read_paths(paths: &[PathBuf]) -> Result<Manifests, InputError> {
    let mut files = Vec::new();
    for path in paths {
        files.extend(manx_datastore::manifests(path, false).map_err(InputError::at(path))?);
    }
    files.retain(|file| file.file_name() != Some(FILE.as_ref()));
    let manifests = read_files(&files)?;
    if manifests.objects.0.is_empty() {
        let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        return Err(InputError::Manifests(format!(
            "{}: no object of a kind that Manx reads; expected manifests",
            names.join(", ")
        )));
    }
    Ok(manifests)
}

fn read_files(files: &[PathBuf]) -> Result<Manifests, InputError> {
    let mut texts = Vec::new();
    for path in files {
        let text = fs::read_to_string(path).map_err(InputError::at(path))?;
        texts.push((path.display().to_string(), text));
    }
    let contents =
        Contents::from_texts(texts.iter().map(|(name, text)| (name.as_str(), text.as_str())));
    let cluster = import::import(&contents);
    let of = |severity| {
        cluster
            .problems
            .iter()
            .filter(move |problem| problem.severity == severity)
            .map(ToString::to_string)
            .collect::<Vec<String>>()
    };
    let errors = of(Severity::Error);
    if !errors.is_empty() {
        return Err(InputError::Manifests(errors.join("\n\n")));
    }
    let mut objects = Vec::new();
    for (name, text) in &texts {
        // The import has already read the same text.
        let documents =
            yaml::parse(text).map_err(|error| InputError::Manifests(format!("{name}: {error}")))?;
        objects.extend(documents.iter().map(|document| json_of(&document.root)));
    }
    let warnings = of(Severity::Warning);
    Ok(Manifests { contents, objects: Objects::from_json(&objects), warnings })
}

fn json_of(node: &Node<'_>) -> Json {
    match &node.value {
        Value::Null => Json::Null,
        Value::Boolean(value) => (*value).into(),
        Value::Integer(value) => match (i64::try_from(*value), u64::try_from(*value)) {
            (Ok(value), _) => value.into(),
            (_, Ok(value)) => value.into(),
            _ => value.to_string().into(),
        },
        Value::Float(text) => text.parse::<f64>().map_or_else(|_| text.clone().into(), Json::from),
        Value::String(text) => text.clone().into(),
        Value::Sequence(items) => items.iter().map(json_of).collect(),
        Value::Mapping(entries) => entries
            .iter()
            .map(|entry| (entry.key.to_string(), json_of(&entry.node)))
            .collect::<serde_json::Map<String, Json>>()
            .into(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use manx_api::PodName;
    use manx_objects::object::ObjectKey;

    use super::*;

    const PODS: &str = "
apiVersion: v1
kind: PodList
items:
- metadata: {name: a}
  spec: {containers: [{name: c, ports: [{containerPort: 80}]}]}
- metadata: {name: b, namespace: shop}
  spec: {containers: [{name: c}]}
";
    /// The number of assumed objects: two nodes and a pool.
    const ASSUMED: usize = 3;
    const POLICY: &str = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed, namespace: shop}
spec: {podSelector: {}}
";

    fn input() -> (tempfile::TempDir, Input) {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("pods.yaml"), PODS).unwrap();
        fs::write(folder.path().join("policy.yml"), POLICY).unwrap();
        fs::write(folder.path().join("rig.yaml"), "mtu: 1400").unwrap();
        fs::write(folder.path().join("README.md"), "not read").unwrap();
        let input = read(folder.path(), false, Options::default()).unwrap();
        (folder, input)
    }

    fn pod(namespace: &str, name: &str) -> PodName {
        PodName { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    #[test]
    fn a_directory_becomes_one_file_an_object_that_reads_the_same() {
        let (_folder, input) = input();
        assert_eq!(input.settings.mtu, 1400);
        assert_eq!(input.objects.0.len(), 3 + ASSUMED);
        let live = tempfile::tempdir().unwrap();
        input.objects.write(live.path()).unwrap();
        assert_eq!(Objects::read(live.path()).unwrap(), input.objects);
        let keys: Vec<ObjectKey> = input.objects.contents().objects.into_keys().collect();
        assert_eq!(keys, input.objects.0.into_keys().collect::<Vec<_>>());
    }

    #[test]
    fn a_placed_pod_is_an_endpoint_with_its_addresses() {
        let (_folder, mut input) = input();
        let address: IpAddr = "10.1.1.2".parse().unwrap();
        input.objects.place(&pod("default", "a"), "n1", &[address]).unwrap();
        assert!(input.objects.place(&pod("default", "nobody"), "n1", &[address]).is_none());
        let live = tempfile::tempdir().unwrap();
        input.objects.write(live.path()).unwrap();
        let cluster = import::import(&manx_datastore::Store::load(live.path()));
        let (name, endpoint) = cluster.model.endpoints.iter().next().unwrap();
        assert_eq!(name.to_string(), "default/a");
        assert!(endpoint.addresses.contains(&address));
        assert_eq!(&*cluster.pods_by_node[name], "n1");
    }

    #[test]
    fn a_withheld_policy_is_gone_from_the_rest() {
        let (_folder, mut input) = input();
        let closed = "shop/closed".into();
        assert_eq!(
            input.objects.withhold(&closed).unwrap().0.to_string(),
            "NetworkPolicy shop/closed"
        );
        assert!(input.objects.withhold(&closed).is_err());
        assert_eq!(input.objects.0.len(), 2 + ASSUMED);
    }

    #[test]
    fn manifests_that_are_not_valid_are_refused_with_their_place() {
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(
            read(folder.path(), false, Options::default()),
            Err(InputError::Empty(_))
        ));
        let bad = POLICY.replace("podSelector: {}", "podSelector: 3");
        fs::write(folder.path().join("policy.yaml"), bad).unwrap();
        let said = read(folder.path(), false, Options::default()).unwrap_err().to_string();
        assert!(said.contains("policy.yaml") && said.contains("spec.podSelector"), "{said}");
    }
}
