//! Secrets that are requested by name, from the manifests of a directory.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use manx_objects::tree::{Node, Value};
use manx_objects::yaml;

use super::file;
use crate::secrets::{Found, Secrets};

/// Reads all manifests, if any Secret is requested, and records the values. If a Secret is defined twice, or if a file
/// cannot be read, there is no value, because the right value is not known.
pub(crate) fn read_secrets(directory: &Path, secrets: &Secrets) {
    let wanted = secrets.wanted();
    let names: BTreeSet<String> = wanted.borrow().iter().map(|it| it.name.clone()).collect();
    if names.is_empty() {
        return;
    }
    let mut found: BTreeMap<&str, Vec<BTreeMap<String, Found>>> = BTreeMap::new();
    let mut fault = None;
    let files = file::names(directory).unwrap_or_else(|error| {
        fault = Some(format!("{}: {error}", directory.display()));
        BTreeSet::new()
    });
    for file in files {
        let text = match file::text(&directory.join(&file)) {
            Ok(text) if text.contains("Secret") => text,
            Ok(_) => continue,
            Err(error) => {
                fault = Some(format!("{file}: {error}"));
                continue;
            }
        };
        let Ok(documents) = yaml::parse(&text) else {
            // The error message of the parser would contain a line of the file.
            fault = Some(format!("{file} is no YAML"));
            continue;
        };
        for document in &documents {
            for object in objects(&document.root) {
                let name = name(object, secrets.namespace());
                if let Some(name) = names.iter().find(|it| Some(&***it) == name) {
                    found.entry(name).or_default().push(values(object));
                }
            }
        }
    }
    for name in &names {
        match (found.get(&**name).map(Vec::as_slice), &fault) {
            (_, Some(fault)) => secrets.note(name, |_| Found::Unreadable(fault.clone())),
            (None | Some([]), None) => secrets.note(name, |_| Found::NoSecret),
            (Some([values]), None) => {
                secrets.note(name, |key| values.get(key).cloned().unwrap_or(Found::NoKey));
            }
            (Some(_), None) => {
                secrets.note(name, |_| Found::Unreadable("it is there twice".to_owned()));
            }
        }
    }
}

/// Returns the objects of a document: the document itself, or the items of a list.
fn objects<'a>(root: &'a Node<'a>) -> impl Iterator<Item = &'a Node<'a>> {
    let items = match root.get("items").map(|it| &it.value) {
        Some(Value::Sequence(items)) if is(root, "kind", "List") => &**items,
        _ => &[],
    };
    items.iter().chain([root])
}

fn is(object: &Node<'_>, field: &str, expected: &str) -> bool {
    text(object.get(field)) == Some(expected)
}

fn text<'a>(node: Option<&'a Node<'a>>) -> Option<&'a str> {
    match &node?.value {
        Value::String(text) => Some(text),
        _ => None,
    }
}

/// Returns the name of an object, if it is a Secret in this namespace.
fn name<'a>(object: &'a Node<'a>, namespace: &str) -> Option<&'a str> {
    let metadata = object.get("metadata")?;
    let is_secret = is(object, "kind", "Secret") && is(object, "apiVersion", "v1");
    let is_there = text(metadata.get("namespace")).unwrap_or("default") == namespace;
    text(metadata.get("name")).filter(|_| is_secret && is_there)
}

/// Returns the values of a Secret, by key. As in an API server, `stringData` takes precedence over `data`.
fn values(secret: &Node<'_>) -> BTreeMap<String, Found> {
    let mut values = BTreeMap::new();
    for (field, is_encoded) in [("data", true), ("stringData", false)] {
        let Some(Value::Mapping(entries)) = secret.get(field).map(|it| &it.value) else { continue };
        for entry in entries {
            let value = match text(Some(&entry.node)) {
                None => Found::Unreadable(format!("the value of {} is no text", entry.key)),
                Some(text) if is_encoded => match BASE64_STANDARD.decode(text) {
                    Ok(bytes) => Found::Value(bytes.into()),
                    Err(_) => {
                        Found::Unreadable(format!("the value of {} is not base64", entry.key))
                    }
                },
                Some(text) => Found::Value(text.as_bytes().to_vec().into()),
            };
            values.insert(entry.key.to_string(), value);
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use std::fs;

    use manx_objects::object::bgp::SecretKey;

    use super::*;

    #[test]
    fn values_come_from_the_only_secret_of_the_name_in_the_namespace() {
        let folder = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| fs::write(folder.path().join(file), text).unwrap();
        let secrets = Secrets::new("kube-system");
        let key = |key: &str| SecretKey { name: "bgp".to_owned(), key: key.to_owned() };
        secrets.want(["a", "b", "c", "d"].map(key).into());
        let found = || {
            read_secrets(folder.path(), &secrets);
            secrets.found().into_values().collect::<Vec<_>>()
        };
        let value = |text: &str| Found::Value(text.as_bytes().to_vec().into());
        let all = |it: Found| vec![it; 4];
        let of = |namespace: &str, data: &str| {
            format!(
                "apiVersion: v1\nkind: Secret\nmetadata: {{name: bgp, namespace: {namespace}}}\n{data}\n"
            )
        };
        write("other.yaml", &of("default", "stringData: {a: other}"));
        assert_eq!(found(), all(Found::NoSecret));
        write(
            "a.yaml",
            &of("kube-system", "data: {a: aGlkZGVu, b: '!', d: eA==}\nstringData: {d: d}"),
        );
        let not_base64 = Found::Unreadable("the value of b is not base64".to_owned());
        assert_eq!(found(), [value("hidden"), not_base64, Found::NoKey, value("d")]);
        let again = of("kube-system", "data: {a: aGlkZGVu}").replace('\n', "\n  ");
        write("b.yaml", &format!("apiVersion: v1\nkind: List\nitems:\n- {again}"));
        assert_eq!(found(), all(Found::Unreadable("it is there twice".to_owned())));
        write("b.yaml", "kind: [Secret\n");
        assert_eq!(found(), all(Found::Unreadable("b.yaml is no YAML".to_owned())));
        fs::remove_file(folder.path().join("b.yaml")).unwrap();
        fs::remove_file(folder.path().join("a.yaml")).unwrap();
        assert_eq!(found(), all(Found::NoSecret));
    }
}
