//! The network configurations that the installer writes: Manx's own network, or the network of another plugin, with
//! Manx after the plugin that makes the interface.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::version::VERSIONS;

/// The program's name, which is the plugin's type.
pub(crate) const NAME: &str = "manx-cni";
/// The field that names the author of a configuration. Runtimes ignore fields that they do not know.
const MARK: (&str, &str) = ("writtenBy", "manx-cni install");

/// The plugins whose CHECK looks for the host end of the interface, which is no longer in the node.
const CHECK_FAILS: [&str; 2] = ["bridge", "flannel"];

/// The reason why this plugin cannot be added to a network.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    /// The text is no network configuration.
    #[error("it is no network configuration: {0}")]
    Unreadable(String),
    /// The configuration already names this plugin.
    #[error(
        "it names manx-cni already, and manx-cni did not write it: leave manx-cni out, or write that file by hand"
    )]
    Already,
    /// The configuration has a version that this plugin does not support.
    #[error("cniVersion is {0}, manx-cni speaks {versions}", versions = VERSIONS.join(", "))]
    Version(String),
}

/// A configuration to write.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Conflist {
    pub text: String,
    /// A text for the user, printed after the configuration's name.
    pub told: String,
}

fn text(conflist: &Value) -> String {
    format!("{conflist:#}\n")
}

/// Whether [`own`] or [`add_to`] has made this configuration.
pub(crate) fn is_ours(bytes: &[u8]) -> bool {
    serde_json::from_slice::<Value>(bytes)
        .is_ok_and(|it| it.get(MARK.0).and_then(Value::as_str) == Some(MARK.1))
}

/// A network of Manx's own. Version 1.0.0 is the one of containerd 1.6. `bandwidth` is listed so that the plugin
/// refuses it: otherwise a runtime ignores a pod's limits without a message.
pub(crate) fn own(socket: &Path, has_portmap: bool) -> Conflist {
    let own = json!({
        "type": NAME,
        "socket": socket,
        "capabilities": {"ips": true, "bandwidth": true}
    });
    let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
    let plugins: Vec<Value> = [own].into_iter().chain(has_portmap.then_some(portmap)).collect();
    let conflist =
        json!({"cniVersion": "1.0.0", "name": "manx", MARK.0: MARK.1, "plugins": plugins});
    let told = if has_portmap { ", with portmap behind it" } else { "" };
    Conflist { text: text(&conflist), told: told.to_owned() }
}

/// The network of the configuration `bytes`, which is in `path`, with this plugin after the first one. The name stays
/// the same, because the other plugins store addresses under it.
pub(crate) fn add_to(path: &Path, bytes: &[u8], socket: &Path) -> Result<Conflist, Error> {
    let mut list = list(bytes)?;
    let wrong = |expected: &str| Error::Unreadable(format!("expected {expected}"));
    let version = list.get("cniVersion").and_then(Value::as_str).unwrap_or("0.2.0").to_owned();
    let version = list_version(&version).ok_or(Error::Version(version))?;
    let plugins = list.get_mut("plugins").and_then(Value::as_array_mut);
    let plugins = plugins.ok_or_else(|| wrong("`plugins` or `type`"))?;
    let types: Option<Vec<&str>> = plugins.iter().map(|it| it.get("type")?.as_str()).collect();
    let types = types.ok_or_else(|| wrong("a `type` in each of `plugins`"))?;
    let first = (*types.first().ok_or_else(|| wrong("a plugin"))?).to_owned();
    if types.contains(&NAME) {
        return Err(Error::Already);
    }
    plugins.insert(1, json!({"type": NAME, "policyOnly": true, "socket": socket}));
    list.insert("cniVersion".to_owned(), version.into());
    if CHECK_FAILS.contains(&first.as_str()) {
        list.insert("disableCheck".to_owned(), true.into());
    }
    list.insert(MARK.0.to_owned(), MARK.1.into());
    let told = format!(": the network of {}, with manx-cni behind {first}", path.display());
    Ok(Conflist { text: text(&Value::Object(list)), told })
}

/// A list of plugins. A single plugin becomes a list.
fn list(bytes: &[u8]) -> Result<Map<String, Value>, Error> {
    let found: Map<String, Value> =
        serde_json::from_slice(bytes).map_err(|error| Error::Unreadable(error.to_string()))?;
    if found.contains_key("plugins") || !found.contains_key("type") {
        return Ok(found);
    }
    let of_list = ["cniVersion", "name"].into_iter();
    let mut list: Map<String, Value> =
        of_list.filter_map(|key| Some((key.to_owned(), found.get(key)?.clone()))).collect();
    list.insert("plugins".to_owned(), json!([found]));
    Ok(list)
}

/// The version of the whole list. It is the configuration's version; if that is newer than all supported ones, it is the
/// oldest one that this plugin supports. Plugins with an earlier version also support this one, since 2019.
fn list_version(version: &str) -> Option<&'static str> {
    match VERSIONS.iter().find(|known| **known == version) {
        Some(known) => Some(known),
        None if version.starts_with("0.") => VERSIONS.first().copied(),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add_to(bytes: &str) -> Result<Conflist, Error> {
        super::add_to(Path::new("/etc/cni/net.d/10-x.conf"), bytes.as_bytes(), Path::new("/s"))
    }

    #[test]
    fn the_other_network_stays_as_it_is_with_manx_behind_its_first_plugin() {
        let flannel = r#"{"name": "cbr0", "cniVersion": "0.3.1", "plugins": [
            {"type": "flannel", "delegate": {"hairpinMode": true, "isDefaultGateway": true}},
            {"type": "portmap", "capabilities": {"portMappings": true}}]}"#;
        let alone = r#"{"cniVersion": "1.0.0", "name": "pods", "type": "ptp", "ipam": {"type": "host-local"}}"#;
        let texts = [flannel, alone].map(|it| {
            let Conflist { text, told } = add_to(it).unwrap();
            assert!(is_ours(text.as_bytes()));
            format!("{told}\n{text}")
        });
        insta::assert_snapshot!(texts.concat());
    }

    #[test]
    fn what_cannot_have_manx_behind_it_is_refused() {
        let refused = |text: &str| add_to(text).unwrap_err().to_string();
        let told = [
            refused("{"),
            refused("[]"),
            refused(r#"{"name": "x"}"#),
            refused(r#"{"plugins": []}"#),
            refused(r#"{"plugins": "ptp"}"#),
            refused(r#"{"plugins": [{"name": "x"}]}"#),
            refused(r#"{"cniVersion": "2.0.0", "type": "ptp"}"#),
            refused(
                r#"{"cniVersion": "1.0.0", "plugins": [{"type": "ptp"}, {"type": "manx-cni"}]}"#,
            ),
        ];
        insta::assert_snapshot!(told.join("\n"));
    }
}
