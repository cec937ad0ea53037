//! What a pod got, in the form of the request's version.

use std::net::IpAddr;

use manx_api::Attached;
use serde_json::{Value, json};

use crate::request::{Attachment, Configuration};

/// The next hop that pods' IPv4 routes name on a veth, as Calico's do.
const GATEWAY_V4: &str = "169.254.1.1";
/// The same for IPv6.
const GATEWAY_V6: &str = "fe80::1";

/// The result of ADD. What plugins before this one in the chain have made stays in it.
pub(crate) fn added(configuration: &Configuration, to: &Attachment, got: &Attached) -> Value {
    let mut result = configuration.prev_result.clone().unwrap_or_else(|| json!({}));
    let version = configuration.cni_version.as_str();
    result["cniVersion"] = version.into();
    let mut interface = json!({ "name": to.interface, "sandbox": to.netns });
    // Before 1.1.0 interfaces had no MTU.
    if version == "1.1.0" {
        interface["mtu"] = got.mtu.into();
    }
    let index = append(&mut result, "interfaces", interface);
    for address in &got.addresses {
        let (family, prefix, gateway, all) = match address {
            IpAddr::V4(_) => ("4", 32, GATEWAY_V4, "0.0.0.0/0"),
            IpAddr::V6(_) => ("6", 128, GATEWAY_V6, "::/0"),
        };
        let mut ip = json!({
            "address": format!("{address}/{prefix}"), "gateway": gateway, "interface": index,
        });
        if version == "0.4.0" {
            ip["version"] = family.into();
        }
        append(&mut result, "ips", ip);
        append(&mut result, "routes", json!({ "dst": all }));
    }
    result
}

/// Appends to a list of the result, and returns the place.
fn append(result: &mut Value, list: &str, item: Value) -> usize {
    if !result[list].is_array() {
        result[list] = json!([]);
    }
    match result[list].as_array_mut() {
        Some(items) => {
            items.push(item);
            items.len() - 1
        }
        None => 0,
    }
}

/// The addresses that a result gives to the interface.
pub(crate) fn addresses(result: &Value, interface: &str) -> Vec<IpAddr> {
    let interfaces = result["interfaces"].as_array();
    let index = interfaces.and_then(|all| all.iter().position(|it| it["name"] == *interface));
    let ips = result["ips"].as_array().into_iter().flatten();
    let own = ips.filter(|ip| ip["interface"].as_u64().map(|it| it as usize) == index);
    let address = |ip: &Value| ip["address"].as_str()?.split('/').next()?.parse().ok();
    own.filter_map(address).collect()
}
