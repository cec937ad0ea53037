//! The first `IPPool`s of a cluster: one for each family that has none.
//!
//! Source: Calico's reference, "Configuring calico/node", sections "IP pool configuration". (Calico creates them when a
//! node starts.)

use ipnet::IpNet;
use manx_objects::object::Kind;
use manx_objects::problem::Problem;
use saphyr::{LoadableYamlNode, Yaml};
use serde_json::{Value, json};

use crate::served::ServedKey;
use crate::writes::{WriteError, Writes};

/// A pool that is created if there is none of its family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DefaultPool {
    /// The pool's addresses.
    pub cidr: IpNet,
    /// `ipipMode`, for IPv4 only.
    pub ipip: &'static str,
    /// `vxlanMode`.
    pub vxlan: &'static str,
    /// `natOutgoing`.
    pub nat_outgoing: bool,
    /// `blockSize`, if it differs from the default of the family.
    pub block_size: Option<u8>,
    /// `nodeSelector`, if the pool is not for all nodes.
    pub node_selector: Option<String>,
    /// `disableBGPExport`.
    pub hidden_from_peers: bool,
}

impl DefaultPool {
    fn is_v4(&self) -> bool {
        self.cidr.addr().is_ipv4()
    }

    /// Returns the pool's key, with the name that Calico uses.
    fn key(&self) -> ServedKey {
        let name = if self.is_v4() { "default-ipv4-ippool" } else { "default-ipv6-ippool" };
        ServedKey::new(Kind::IpPool, "", name)
    }

    /// Returns the object, without the fields of its key.
    fn object(&self) -> Value {
        let mut spec = json!({ "cidr": self.cidr.to_string(), "natOutgoing": self.nat_outgoing });
        if self.is_v4() {
            spec["ipipMode"] = self.ipip.into();
        }
        if self.vxlan != "Never" {
            spec["vxlanMode"] = self.vxlan.into();
        }
        if let Some(size) = self.block_size {
            spec["blockSize"] = size.into();
        }
        if let Some(selector) = &self.node_selector {
            spec["nodeSelector"] = selector.as_str().into();
        }
        if self.hidden_from_peers {
            spec["disableBGPExport"] = true.into();
        }
        json!({ "spec": spec })
    }

    /// Returns a problem that an agent would find in the pool.
    pub fn problem(&self) -> Option<String> {
        let mut object = self.object();
        object["apiVersion"] = "projectcalico.org/v3".into();
        object["kind"] = Kind::IpPool.name().into();
        let name = self.key().name;
        object["metadata"] = json!({ "name": name });
        let manifest = manx_objects::read(&name, &object.to_string());
        match manifest {
            Err(problem) => Some(problem.finding()),
            Ok(manifest) if manifest.entries.iter().any(|it| it.state.valid().is_none()) => {
                let all: Vec<String> = manifest.problems.iter().map(Problem::finding).collect();
                Some(all.join("; "))
            }
            Ok(_) => None,
        }
    }
}

/// Creates each pool, unless a pool of its family exists, whatever its name. Returns the pools that were created.
pub(crate) async fn make_first(
    writes: &impl Writes,
    pools: &[DefaultPool],
) -> Result<Vec<DefaultPool>, WriteError> {
    let present = writes.list(Kind::IpPool.into(), "").await?;
    let is_present = |is_v4: bool| {
        present.iter().any(|(_, object, _)| {
            let cidr = object["spec"]["cidr"].as_str().and_then(|it| it.parse::<IpNet>().ok());
            // A pool that cannot be read may be of either family.
            cidr.is_none_or(|it| it.addr().is_ipv4() == is_v4)
        })
    };
    let mut made = Vec::new();
    for pool in pools.iter().filter(|it| !is_present(it.is_v4())) {
        match writes.create(&pool.key(), pool.object()).await {
            Ok(_) => made.push(pool.clone()),
            // Another writer has created it first.
            Err(WriteError::Conflict) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(made)
}

/// Returns the pods' networks in kubeadm's `ClusterConfiguration` (`networking.podSubnet`). The list is empty if there
/// are none.
pub(crate) fn pod_networks(configuration: &str) -> Result<Vec<IpNet>, String> {
    let documents = Yaml::load_from_str(configuration).map_err(|error| error.to_string())?;
    let networking = documents.first().and_then(|it| it.as_mapping_get("networking"));
    let subnets = networking.and_then(|it| it.as_mapping_get("podSubnet"));
    let text = subnets.and_then(Yaml::as_str).unwrap_or_default();
    let each = text.split(',').map(str::trim).filter(|it| !it.is_empty());
    let read = |text: &str| {
        let net = text.parse::<IpNet>();
        net.map_err(|_| format!("podSubnet: found {text:?}, expected nets such as 10.244.0.0/16"))
    };
    each.map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubeadm_says_which_networks_are_the_pods() {
        let of = |text: &str| {
            pod_networks(text).map(|all| all.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        let both = "apiServer: {}\nkind: ClusterConfiguration\nnetworking:\n  dnsDomain: cluster.local\n  podSubnet: 10.244.0.0/16,fd00:10:244::/56\n  serviceSubnet: 10.96.0.0/12\n";
        assert_eq!(of(both).unwrap(), ["10.244.0.0/16", "fd00:10:244::/56"]);
        for none in
            ["", "networking: {dnsDomain: cluster.local}", "networking: {podSubnet: ''}", "kind: x"]
        {
            assert_eq!(of(none).unwrap(), [""; 0], "{none}");
        }
        let wrong = of("networking: {podSubnet: 10.244.0.0}").unwrap_err();
        assert_eq!(wrong, "podSubnet: found \"10.244.0.0\", expected nets such as 10.244.0.0/16");
        of("networking: [").unwrap_err();
    }
}
