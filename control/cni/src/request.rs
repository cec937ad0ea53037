//! What the runtime asks for.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use manx_api::PodName;
use serde::Deserialize;
use serde_json::Value;

use crate::{Error, VERSIONS};

/// Where the agent listens if the configuration does not say it.
pub(crate) const SOCKET: &str = "/run/manx/node.sock";

/// The network configuration, as far as it is read; chained plugins have fields of their own in it.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Configuration {
    pub(crate) cni_version: String,
    socket: Option<PathBuf>,
    #[serde(default)]
    runtime_config: RuntimeConfig,
    pub(crate) prev_result: Option<Value>,
    #[serde(rename = "cni.dev/valid-attachments")]
    valid_attachments: Option<Vec<ValidAttachment>>,
}

/// What the runtime adds, by capability (CNI conventions).
#[derive(Debug, Default, Deserialize)]
struct RuntimeConfig {
    #[serde(default)]
    ips: Vec<String>,
    bandwidth: Option<Value>,
}

/// An attachment that is still in use (GC).
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ValidAttachment {
    #[serde(rename = "containerID")]
    container_id: String,
}

/// The version that a configuration names, if the plugin speaks it: errors are told in it.
pub(crate) fn version_of(text: &str) -> &'static str {
    let value: Value = serde_json::from_str(text).unwrap_or_default();
    let newest = VERSIONS[VERSIONS.len() - 1];
    VERSIONS.into_iter().find(|known| value["cniVersion"] == **known).unwrap_or(newest)
}

impl Configuration {
    /// Reads the configuration on standard input.
    pub(crate) fn read(text: &str) -> Result<Self, Error> {
        let configuration: Self = serde_json::from_str(text)?;
        if !VERSIONS.contains(&configuration.cni_version.as_str()) {
            return Err(Error::Version { found: configuration.cni_version });
        }
        Ok(configuration)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.socket.clone().unwrap_or_else(|| SOCKET.into())
    }

    /// The addresses that the pod is to get; none: the agent chooses.
    pub(crate) fn addresses(&self) -> Result<Vec<IpAddr>, Error> {
        if self.runtime_config.bandwidth.is_some() {
            return Err(Error::Unsupported(
                "runtimeConfig.bandwidth: found limits, expected none: Manx does not shape the traffic of pods yet; remove the \
                 pod's annotations kubernetes.io/ingress-bandwidth and egress-bandwidth, or the capability from the configuration"
                    .to_owned(),
            ));
        }
        let address = |text: &String| {
            let address = text.parse::<IpAddr>();
            address.or_else(|_| text.parse::<IpNet>().map(|net| net.addr())).map_err(|_| {
                Error::Value {
                    field: "runtimeConfig.ips",
                    found: format!("{text:?}"),
                    expected: "addresses of IPv4 or IPv6",
                }
            })
        };
        self.runtime_config.ips.iter().map(address).collect()
    }

    /// The containers that are still in use.
    pub(crate) fn valid(&self) -> Result<BTreeSet<String>, Error> {
        let Some(valid) = &self.valid_attachments else {
            return Err(Error::Value {
                field: "cni.dev/valid-attachments",
                found: "nothing".to_owned(),
                expected: "the attachments that are in use: without them all would be removed",
            });
        };
        Ok(valid.iter().map(|it| it.container_id.clone()).collect())
    }
}

/// A container and its interface, by the variables of the request.
#[derive(Debug)]
pub(crate) struct Attachment {
    pub(crate) container: String,
    pub(crate) interface: String,
    /// `None`: the namespace is gone (DEL).
    pub(crate) netns: Option<PathBuf>,
    pub(crate) pod: PodName,
}

impl Attachment {
    /// Reads the variables. Without a pod's name in `CNI_ARGS` the container is a pod in the namespace `default` by its
    /// own name, so that tools without Kubernetes can attach one.
    pub(crate) fn read(variable: &impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let required = |name: &'static str, expected| {
            let value = variable(name).filter(|value| !value.is_empty());
            value.ok_or(Error::Variable { name, found: "nothing".to_owned(), expected })
        };
        let container = required("CNI_CONTAINERID", "the container's id")?;
        let interface = required("CNI_IFNAME", "the name of the pod's interface")?;
        // The rule of the specification; what is more the kernel says.
        let legal = |c: char| !c.is_whitespace() && c != '/' && c != ':';
        if interface.len() > 15 || !interface.chars().all(legal) {
            return Err(Error::Variable {
                name: "CNI_IFNAME",
                found: format!("{interface:?}"),
                expected: "at most 15 characters, without space, / and :",
            });
        }
        let args = variable("CNI_ARGS").unwrap_or_default();
        let pairs = args.split(';').filter_map(|pair| pair.split_once('='));
        let arg = |name| {
            let mut pairs = pairs.clone();
            pairs.find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
        };
        let pod = match (arg("K8S_POD_NAMESPACE"), arg("K8S_POD_NAME")) {
            (Some(namespace), Some(name)) => PodName { namespace, name },
            _ => PodName { namespace: "default".to_owned(), name: container.clone() },
        };
        let netns = variable("CNI_NETNS").filter(|path| !path.is_empty()).map(PathBuf::from);
        Ok(Self { container, interface, netns, pod })
    }

    /// The namespace, where the request needs one.
    pub(crate) fn netns(&self) -> Result<PathBuf, Error> {
        self.netns.clone().ok_or(Error::Variable {
            name: "CNI_NETNS",
            found: "nothing".to_owned(),
            expected: "the path of the container's network namespace",
        })
    }
}
