//! `rig.yaml`: the few settings of a rig that are in no Kubernetes object.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use extra_ports::ExtraPorts;
use file::{SettingsError, wrong};
use manx_objects::tree::{Node, Value};
use manx_objects::yaml;

pub(super) mod extra_ports;
pub mod file;

/// Settings of a rig. The file may be absent, and each key is optional.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// `mtu`: the underlay's MTU in bytes, from 1280 (the minimum of IPv6) to 9000.
    pub mtu: u32,
    /// `outside`: the outside host's addresses; if empty, they are chosen in the first node's
    /// subnets.
    pub outside: Vec<IpAddr>,
    /// `samples`: whether throughput and latency are measured.
    pub samples: bool,
    /// `services`: whether the agents translate services, and masquerade pods that connect to the outside, as with
    /// `--services manx`.
    pub translates: bool,
    /// `ports`: ports on which pods listen and that no container declares.
    pub ports: Vec<ExtraPorts>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { mtu: 1500, outside: Vec::new(), samples: true, translates: false, ports: Vec::new() }
    }
}

impl Settings {
    /// Reads the file's text.
    pub fn parse(text: &str) -> Result<Self, SettingsError> {
        let documents = yaml::parse(text)
            .map_err(|error| SettingsError { at: error.position(), message: error.to_string() })?;
        let mut settings = Self::default();
        let Some(document) = documents.first() else { return Ok(settings) };
        if let Some(flaw) = document.flaws.first() {
            return Err(SettingsError { at: Some(flaw.at), message: flaw.kind.to_string() });
        }
        if let Some(second) = documents.get(1) {
            return Err(wrong(&second.root, "one document only"));
        }
        let Value::Mapping(entries) = &document.root.value else {
            return Err(wrong(&document.root, "keys and values"));
        };
        for entry in entries {
            match &*entry.key {
                "mtu" => settings.mtu = mtu(&entry.node)?,
                "outside" => settings.outside = addresses(&entry.node)?,
                "samples" => settings.samples = boolean(&entry.node)?,
                "services" => settings.translates = translates(&entry.node)?,
                "ports" => settings.ports = extra_ports::parse(&entry.node)?,
                key => {
                    let message = format!(
                        "the key `{key}` is unknown: expected mtu, outside, samples, services or ports"
                    );
                    return Err(SettingsError { at: Some(entry.at), message });
                }
            }
        }
        Ok(settings)
    }
}

fn mtu(node: &Node) -> Result<u32, SettingsError> {
    let mtu = match node.value {
        Value::Integer(mtu) => u32::try_from(mtu).ok(),
        _ => None,
    };
    let mtu = mtu.filter(|mtu| (1280..=9000).contains(mtu));
    mtu.ok_or_else(|| wrong(node, "an MTU from 1280 to 9000 bytes"))
}

fn translates(node: &Node<'_>) -> Result<bool, SettingsError> {
    match &node.value {
        Value::String(text) if text == "manx" => Ok(true),
        Value::String(text) if text == "none" => Ok(false),
        _ => Err(wrong(node, "manx or none")),
    }
}

fn boolean(node: &Node) -> Result<bool, SettingsError> {
    match node.value {
        Value::Boolean(value) => Ok(value),
        _ => Err(wrong(node, "true or false")),
    }
}

fn addresses(node: &Node) -> Result<Vec<IpAddr>, SettingsError> {
    let Value::Sequence(items) = &node.value else {
        return Err(wrong(node, "a list of addresses"));
    };
    items
        .iter()
        .map(|item| match &item.value {
            Value::String(text) => text.parse().map_err(|_| wrong(item, "an IP address")),
            _ => Err(wrong(item, "an IP address")),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_absent_has_its_default() {
        assert_eq!(Settings::parse("").unwrap(), Settings::default());
        let settings =
            Settings::parse("mtu: 1400\noutside: [172.18.0.99]\nsamples: false\nservices: manx")
                .unwrap();
        assert_eq!(settings.mtu, 1400);
        assert_eq!(settings.outside, ["172.18.0.99".parse::<IpAddr>().unwrap()]);
        assert!(!settings.samples && settings.translates);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        let said = |text| Settings::parse(text).unwrap_err().to_string();
        insta::assert_snapshot!(
            [
                said("mtu: 100"),
                said("samples: 3"),
                said("services: kube-proxy"),
                said("outside: 172.18.0.99"),
                said("outside: [here]"),
                said("speed: 9"),
                said("- mtu"),
                said("mtu: 1500\nmtu: 1400"),
                said("mtu: ["),
                said("ports: {shop/web: 80}"),
                said("ports: [80]"),
                said("ports: [{ports: [80]}]"),
                said("ports: [{workload: shop/web, selector: {app: web}, ports: [80]}]"),
                said("ports: [{workload: shop/web, namespace: shop, ports: [80]}]"),
                said("ports: [{workload: a/b/c, ports: [80]}]"),
                said("ports: [{workload: shop/web}]"),
                said("ports:\n- workload: shop/web\n  ports: [0]"),
                said("ports: [{workload: shop/web, ports: [80/ICMP]}]"),
                said("ports: [{selector: {app: 3}, ports: [80]}]"),
                said("ports: [{selector: {}, ports: [80]}]"),
                said("ports: [{pods: web, ports: [80]}]")
            ]
            .join("\n")
        );
    }
}
