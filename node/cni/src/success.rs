//! The result of an ADD (specification 1.1.0, section 5, "ADD Success"), and the results of plugins before this one.

use std::net::IpAddr;
use std::path::Path;

use manx_api::{Attached, gateway};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::{Code, Error};

/// The result of a chain of plugins so far. Fields that only other plugins know are passed on.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Success {
    /// The version of the specification that the result follows.
    #[serde(rename = "cniVersion", default)]
    pub version: String,
    #[serde(default)]
    pub interfaces: Vec<Interface>,
    #[serde(default)]
    pub ips: Vec<Ip>,
    #[serde(default)]
    pub routes: Vec<Route>,
    #[serde(default)]
    pub dns: Map<String, Value>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Interface {
    pub name: String,
    /// The interface's hardware address, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// The MTU in bytes. The specification has it from 1.1.0 on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// The path of the interface's namespace; empty or absent: the node's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ip {
    /// `4` or `6`. The specification has it until 0.4.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The address with its prefix length.
    pub address: String,
    /// The next hop of the default route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
    /// The index of the interface that has the address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<usize>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Route {
    #[serde(rename = "dst")]
    pub destination: String,
    #[serde(rename = "gw", default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// The destination of a default route.
pub(crate) const fn default_route(is_v4: bool) -> &'static str {
    if is_v4 { "0.0.0.0/0" } else { "::/0" }
}

impl Success {
    /// The index of a container's interface.
    pub(crate) fn find(&self, netns: &Path, interface: &str) -> Option<usize> {
        let is_it = |it: &Interface| {
            it.name == interface && it.sandbox.as_deref().map(Path::new) == Some(netns)
        };
        self.interfaces.iter().position(is_it)
    }

    /// The addresses of an interface.
    pub(crate) fn addresses_of(&self, interface: usize) -> impl Iterator<Item = Option<IpAddr>> {
        let of_it = self.ips.iter().filter(move |ip| ip.interface == Some(interface));
        of_it.map(|ip| ip.address.split('/').next()?.parse().ok())
    }

    /// The result in the form of this version.
    pub(crate) fn in_version(&self, version: &str) -> Self {
        Self { version: version.to_owned(), ..self.clone() }
    }

    /// The result with the agent's additions.
    ///
    /// A pod's interface has no net of its own: each address is alone (/32, /128). The gateway is the same as that of
    /// Calico's pods. The kernel's routes name it, except on a TUN device, where they name only the device.
    pub(crate) fn with_interface(mut self, netns: &Path, interface: &str, made: &Attached) -> Self {
        let index = self.interfaces.len();
        self.interfaces.push(Interface {
            name: interface.to_owned(),
            mac: made.mac.map(mac_text),
            mtu: (self.version == "1.1.0").then_some(made.mtu),
            sandbox: Some(netns.display().to_string()),
            ..Interface::default()
        });
        for address in &made.addresses {
            let (family, length) = if address.is_ipv4() { ("4", 32) } else { ("6", 128) };
            let gateway = gateway(*address);
            self.ips.push(Ip {
                version: (self.version == "0.4.0").then(|| family.to_owned()),
                address: format!("{address}/{length}"),
                gateway: Some(gateway),
                interface: Some(index),
                ..Ip::default()
            });
            self.routes.push(Route {
                destination: default_route(address.is_ipv4()).to_owned(),
                gateway: made.device.is_ethernet().then_some(gateway),
                ..Route::default()
            });
        }
        self
    }

    /// The text for standard output.
    pub(crate) fn to_json(&self) -> Result<String, Error> {
        let text = serde_json::to_string_pretty(self)
            .map_err(|error| Error::new(Code::Internal, format!("the result: {error}")))?;
        Ok(text + "\n")
    }
}

/// A hardware address as text.
pub(crate) fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

#[cfg(test)]
mod tests {
    use manx_api::Device;
    use serde_json::json;

    use super::*;
    use crate::config::Config;

    fn config(version: &str, more: &Value) -> Config {
        let mut all = json!({"cniVersion": version, "name": "pods", "type": "manx-cni"});
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Config::parse(&serde_json::to_vec(&all).unwrap()).unwrap()
    }

    fn extended(config: &Config, device: Device) -> String {
        let addresses = ["10.244.1.2", "fd00::2"].map(|it| it.parse().unwrap()).to_vec();
        let mac = device.is_ethernet().then_some([0x0a, 0x58, 10, 244, 1, 2]);
        let made = Attached { addresses, device, mtu: 1480, mac };
        let all = config.previous_result().with_interface(Path::new("/run/netns/a"), "eth0", &made);
        assert_eq!(
            all.addresses_of(all.find(Path::new("/run/netns/a"), "eth0").unwrap()).count(),
            2
        );
        serde_json::to_string_pretty(&all).unwrap()
    }

    #[test]
    fn each_version_has_its_own_form() {
        let texts = [("0.4.0", Device::Tun), ("1.0.0", Device::Veth), ("1.1.0", Device::Tap)]
            .map(|(version, device)| extended(&config(version, &json!({})), device));
        insta::assert_snapshot!(texts.join("\n"));
    }

    #[test]
    fn what_others_have_made_is_handed_on_and_comes_first() {
        let previous = json!({
            "prevResult": {
                "cniVersion": "1.0.0", "vendor": {"a": 1},
                "interfaces": [{"name": "lo", "mac": "00:00:00:00:00:00", "sandbox": "/run/netns/a"}],
                "ips": [{"address": "127.0.0.1/8", "interface": 0}],
                "routes": [{"dst": "198.51.100.0/24", "mtu": 1300}]
            },
            "dns": {"nameservers": ["10.96.0.10"]}
        });
        insta::assert_snapshot!(extended(&config("1.0.0", &previous), Device::Tun));
    }
}
