//! The network configuration that the runtime writes to standard input (specification 1.1.0, sections 1 and 3).

use std::net::IpAddr;
use std::path::PathBuf;

use manx_api::Device;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::error::{Code, Error};
use crate::parameters::{NAME_FORM, is_name};
use crate::success::Success;
use crate::version::{self, VERSIONS};

/// The path of the agent's socket if the configuration does not give it.
pub(crate) const SOCKET: &str = "/run/manx/node.sock";

/// An attachment that the runtime still has.
#[derive(Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct ValidAttachment {
    /// `CNI_CONTAINERID`.
    #[serde(rename = "containerID")]
    pub container: String,
    /// `CNI_IFNAME`.
    #[serde(rename = "ifname")]
    pub interface: String,
}

/// The configuration as it is written.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawConfig {
    cni_version: Option<String>,
    #[serde(default)]
    name: String,
    socket: Option<PathBuf>,
    device_type: Option<String>,
    #[serde(default)]
    policy_only: bool,
    #[serde(default)]
    dns: Map<String, Value>,
    prev_result: Option<Success>,
    #[serde(default)]
    runtime_config: Map<String, Value>,
    #[serde(rename = "cni.dev/valid-attachments")]
    valid: Option<Vec<ValidAttachment>>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// A configuration in a version that the plugin supports. Some fields are checked later, by [`Config::attachment_options`].
#[derive(Debug)]
pub(crate) struct Config {
    pub version: String,
    pub network: String,
    pub socket: PathBuf,
    /// The name servers that the configuration passes to the runtime.
    pub dns: Map<String, Value>,
    /// Whether an earlier plugin connects the pods, and Manx only enforces policy.
    pub policy_only: bool,
    /// The result of the plugins before this one.
    pub previous: Option<Success>,
    /// The attachments that the runtime still has, for GC.
    pub valid: Option<Vec<ValidAttachment>>,
    device_type: Option<String>,
    runtime: Map<String, Value>,
    others: Map<String, Value>,
}

/// The options of a pod's attachment in the configuration.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct AttachmentOptions {
    /// The kind of device; `None`: the agent's settings decide.
    pub device: Option<Device>,
    /// The addresses that the configuration requests. If it requests none, the agent gives the next free ones.
    pub addresses: Vec<IpAddr>,
}

impl Config {
    /// Reads the fields that every verb needs.
    pub(crate) fn parse(input: &[u8]) -> Result<Self, Error> {
        let raw: RawConfig = serde_json::from_slice(input)
            .map_err(|error| Error::new(Code::Decode, format!("standard input: {error}")))?;
        let RawConfig {
            cni_version, name, socket, device_type, policy_only, dns, prev_result, ..
        } = raw;
        let version = cni_version.unwrap_or_default();
        if !VERSIONS.contains(&version.as_str()) {
            let text = format!("`cniVersion` is {version:?}: expected one of {}", version::all());
            return Err(Error::new(Code::Version, text));
        }
        if !is_name(&name) {
            return Err(Error::new(Code::Config, format!("`name`: {name:?} {NAME_FORM}")));
        }
        let socket = socket.unwrap_or_else(|| SOCKET.into());
        if !socket.is_absolute() {
            let text = format!(
                "`socket` is {}: expected the path of the agent's socket from the root on",
                socket.display()
            );
            return Err(Error::new(Code::Config, text));
        }
        let (runtime, others) = (raw.runtime_config, raw.others);
        let (network, previous, valid) = (name, prev_result, raw.valid);
        Ok(Self {
            version,
            network,
            socket,
            dns,
            policy_only,
            previous,
            valid,
            device_type,
            runtime,
            others,
        })
    }

    /// The result of the plugins before this one, with the configuration's additions.
    pub(crate) fn previous_result(&self) -> Success {
        let mut made = self.previous.clone().unwrap_or_default();
        made.version.clone_from(&self.version);
        made.dns.extend(self.dns.clone());
        made
    }

    /// Reads the options of an attachment. An option that the plugin cannot fulfil is an error and is never ignored, so
    /// that no user relies on a limit or a port that does not exist.
    pub(crate) fn attachment_options(&self) -> Result<AttachmentOptions, Error> {
        self.others.iter().try_for_each(|(key, value)| check_other(key, value))?;
        if self.policy_only {
            self.check_policy_only()?;
        }
        let mut options = AttachmentOptions { device: self.device()?, addresses: Vec::new() };
        for (key, value) in &self.runtime {
            match key.as_str() {
                "ips" => options.addresses = addresses(value)?,
                "bandwidth" => check_bandwidth(value)?,
                _ => return Err(unsupported(&format!("runtimeConfig.{key}"), value, CAPABILITIES)),
            }
        }
        Ok(options)
    }

    fn check_policy_only(&self) -> Result<(), Error> {
        let wish = self.device_type.is_some().then_some("deviceType");
        let wish = wish.or((!self.dns.is_empty()).then_some("dns"));
        let wish = wish.or_else(|| self.runtime.keys().next().map(|_| "runtimeConfig"));
        wish.map_or(Ok(()), |wish| {
            let text = format!(
                "`{wish}` beside `policyOnly`: with that the plugin before manx-cni makes the interface and the result; leave `{wish}` out"
            );
            Err(Error::new(Code::Config, text))
        })
    }

    fn device(&self) -> Result<Option<Device>, Error> {
        let Some(name) = &self.device_type else { return Ok(None) };
        Device::named(name).map(Some).ok_or_else(|| {
            let known = Device::ALL.map(|device| format!("{:?}", device.name())).join(", ");
            let text = format!("`deviceType` is {name:?}: expected one of {known}");
            Error::new(Code::Config, text)
        })
    }
}

const CAPABILITIES: &str =
    "manx-cni has the capabilities `ips` and `bandwidth`; a plugin behind it may have others";

fn unsupported(key: &str, value: &Value, what: &str) -> Error {
    Error::new(Code::UnsupportedField, format!("`{key}` is {value}: {what}"))
}

/// Checks a field that the plugin does not read.
fn check_other(key: &str, value: &Value) -> Result<(), Error> {
    let is_empty = match value {
        Value::Null | Value::Bool(false) => true,
        Value::Object(fields) => fields.is_empty(),
        Value::Array(values) => values.is_empty(),
        _ => false,
    };
    match key {
        // These fields are for the runtime.
        "type" | "capabilities" | "args" => Ok(()),
        key if key.starts_with("cni.dev/") => Ok(()),
        "ipam" | "ipMasq" if is_empty => Ok(()),
        "ipam" => Err(unsupported(
            key,
            value,
            "the agent itself takes addresses of the node's pod CIDRs; leave the field out",
        )),
        "ipMasq" => Err(unsupported(
            key,
            value,
            "the agent does not translate addresses; leave the field out",
        )),
        _ => Err(unsupported(
            key,
            value,
            "manx-cni does not know this field; it reads `socket`, `deviceType`, `policyOnly` and `dns`",
        )),
    }
}

/// The capability `bandwidth`: limits in bits a second, and bursts. A limit of 0 is no limit.
fn check_bandwidth(value: &Value) -> Result<(), Error> {
    let is_none = match value {
        Value::Null => true,
        Value::Object(limits) => limits.values().all(|limit| limit.as_f64() == Some(0.0)),
        _ => false,
    };
    if is_none {
        return Ok(());
    }
    Err(unsupported(
        "runtimeConfig.bandwidth",
        value,
        "Manx does not limit a pod's bandwidth, and the plugin `bandwidth` cannot either, because a pod's device has no other end on the node: \
         remove the pod's bandwidth annotations",
    ))
}

/// The capability `ips`: addresses with or without a prefix length. A pod's address is always alone on its link.
fn addresses(value: &Value) -> Result<Vec<IpAddr>, Error> {
    let wrong = || {
        let text = format!("`runtimeConfig.ips` is {value}: expected a list of IP addresses");
        Error::new(Code::Config, text)
    };
    let texts = value.as_array().ok_or_else(wrong)?.iter().map(Value::as_str);
    let parse = |text: Option<&str>| text?.split('/').next()?.parse().ok();
    texts.map(|text| parse(text).ok_or_else(wrong)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(more: &Value) -> Result<Config, Error> {
        let mut all = json!({"cniVersion": "1.1.0", "name": "pods", "type": "manx-cni"});
        let fields = all.as_object_mut().unwrap();
        fields.extend(more.as_object().unwrap().clone());
        Config::parse(&serde_json::to_vec(&all).unwrap())
    }

    #[test]
    fn what_is_wanted_is_read() {
        let config = parse(&json!({
            "socket": "/run/x.sock", "deviceType": "veth", "ipam": {}, "args": {"cni": {}},
            "capabilities": {"ips": true}, "cni.dev/attachments": [],
            "runtimeConfig": {"ips": ["10.0.0.9/24", "fd00::9"], "bandwidth": {"ingressRate": 0}},
            "cni.dev/valid-attachments": [{"containerID": "c", "ifname": "eth0"}]
        }));
        let config = config.unwrap();
        assert_eq!(config.socket, PathBuf::from("/run/x.sock"));
        let addresses = ["10.0.0.9", "fd00::9"].map(|it| it.parse().unwrap()).to_vec();
        let options = AttachmentOptions { device: Some(Device::Veth), addresses };
        assert_eq!(config.attachment_options().unwrap(), options);
        let valid = ValidAttachment { container: "c".to_owned(), interface: "eth0".to_owned() };
        assert_eq!(config.valid, Some(vec![valid]));
        let least = parse(&json!({})).unwrap();
        assert_eq!(
            (least.attachment_options().unwrap(), least.valid),
            (AttachmentOptions::default(), None)
        );
        assert_eq!(least.socket, PathBuf::from(SOCKET));
    }

    #[test]
    fn what_is_not_heeded_is_refused() {
        let mut texts = Vec::new();
        let mut refused = |more: Value| {
            let error = parse(&more).and_then(|config| config.attachment_options()).unwrap_err();
            texts.push(format!("{}: {error}", error.code as u32));
        };
        refused(json!({"cniVersion": "0.3.1"}));
        refused(json!({"cniVersion": "2.0.0"}));
        refused(json!({"cniVersion": 1}));
        refused(json!({"name": "a/b"}));
        refused(json!({"socket": "manx.sock"}));
        refused(json!({"deviceType": "bridge"}));
        refused(json!({"ipam": {"type": "host-local"}}));
        refused(json!({"ipMasq": true}));
        refused(json!({"sokcet": "/run/manx/node.sock"}));
        refused(json!({"runtimeConfig": {"bandwidth": {"ingressRate": 1000, "ingressBurst": 1}}}));
        refused(json!({"runtimeConfig": {"bandwidth": "1M"}}));
        refused(json!({"runtimeConfig": {"portMappings": [{"hostPort": 80}]}}));
        refused(json!({"runtimeConfig": {"ips": ["10.0.0"]}}));
        refused(json!({"runtimeConfig": {"ips": "10.0.0.9"}}));
        refused(json!({"policyOnly": "yes"}));
        refused(json!({"policyOnly": true, "deviceType": "veth"}));
        refused(json!({"policyOnly": true, "runtimeConfig": {"ips": ["10.0.0.9"]}}));
        let error = Config::parse(b"{").unwrap_err();
        texts.push(format!("{}: {error}", error.code as u32));
        insta::assert_snapshot!(texts.join("\n"));
    }
}
