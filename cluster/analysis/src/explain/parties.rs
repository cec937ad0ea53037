//! The parties that texts name: pods, nodes and addresses.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::net::IpAddr;

use manx_objects::State;
use manx_objects::contents::Contents;
use manx_objects::object::{Kind, Object, ObjectKey};
use manx_oracle::{Oracle, Party};

use crate::matrix::unnamed_addresses;

/// The text that stands for an address that no object names.
const OUTSIDE: &str = "outside";

/// The pods that are endpoints, and the valid nodes, by name and by address.
#[derive(Debug)]
pub(super) struct Parties<'a> {
    contents: &'a Contents,
    /// The pods by `NAMESPACE/NAME`, with one party for each address.
    pods: BTreeMap<String, Vec<Party>>,
    /// The nodes by name, with one party for each address. Nodes without an address are not included.
    nodes: BTreeMap<String, Vec<Party>>,
    by_address: BTreeMap<IpAddr, Vec<Party>>,
    /// An address of each family that no object names, calculated at first use.
    outside: OnceCell<Vec<IpAddr>>,
}

impl<'a> Parties<'a> {
    pub(super) fn new(contents: &'a Contents, oracle: &Oracle) -> Self {
        let mut pods: BTreeMap<String, Vec<Party>> = BTreeMap::new();
        let mut by_address: BTreeMap<IpAddr, Vec<Party>> = BTreeMap::new();
        for party in oracle.pods() {
            by_address.entry(party.address()).or_default().push(party.clone());
            if let Party::Pod { namespace, name, .. } = &party {
                pods.entry(format!("{namespace}/{name}")).or_default().push(party);
            }
        }
        let mut nodes = BTreeMap::new();
        for (key, _) in contents.of_kind(Kind::Node) {
            let of_node = addresses_of_node(contents, key);
            for party in &of_node {
                by_address.entry(party.address()).or_default().push(party.clone());
            }
            if !of_node.is_empty() {
                nodes.insert(key.name.clone(), of_node);
            }
        }
        Self { contents, pods, nodes, by_address, outside: OnceCell::new() }
    }

    /// Returns the names of all pods and nodes, in the form of requests.
    pub(super) fn names(&self) -> impl Iterator<Item = String> {
        let nodes = self.nodes.keys().map(|name| format!("node/{name}"));
        self.pods.keys().cloned().chain(nodes)
    }

    /// Returns a node as one party for each of its addresses.
    pub(super) fn node(&self, name: &str) -> &[Party] {
        self.nodes.get(name).map_or(&[], Vec::as_slice)
    }

    /// Returns the pods and nodes that have an address.
    pub(super) fn having(&self, address: IpAddr) -> &[Party] {
        self.by_address.get(&address).map_or(&[], Vec::as_slice)
    }

    /// Returns the parties that a text names. A pod or a node is one party for each of its addresses. The text of an
    /// address names the pod or node that has it. The text `outside` names an address of each family that no object
    /// names. A pod on the host's network is replaced by its node, and `stand_ins` gets a note about this. Returns
    /// `Err`, with the reason, if the text names no party.
    pub(super) fn named(
        &self,
        text: &str,
        stand_ins: &mut Vec<String>,
    ) -> Result<Vec<Party>, String> {
        if text == OUTSIDE {
            let outside = self.outside.get_or_init(|| unnamed_addresses(self.contents));
            return if outside.is_empty() {
                Err(format!("{OUTSIDE} is nowhere: the manifests name every address"))
            } else {
                Ok(outside.iter().copied().map(Party::Address).collect())
            };
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            return match self.having(address) {
                [] => Ok(vec![Party::Address(address)]),
                [one] => Ok(vec![one.clone()]),
                several => {
                    let names: Vec<String> = several.iter().map(ToString::to_string).collect();
                    let names = names.join(" and ");
                    Err(format!("{address} belongs to {names}; name the one that is meant"))
                }
            };
        }
        if let Some(name) = text.strip_prefix("node/") {
            return match self.node(name) {
                [] => Err(format!("there is no node {name} with an InternalIP in the manifests")),
                addresses => Ok(addresses.to_vec()),
            };
        }
        let (namespace, name) = text.split_once('/').unwrap_or(("default", text));
        if let Some(of_pod) = self.pods.get(&format!("{namespace}/{name}")) {
            return Ok(of_pod.clone());
        }
        let key = ObjectKey::new(Kind::Pod, namespace, name);
        if let Some(node) = host_of(&key, self.contents)
            && let addresses @ [_, ..] = self.node(node)
        {
            stand_ins.push(format!("{key} is on its host's network: judged as node {node}"));
            return Ok(addresses.to_vec());
        }
        Err(no_pod(&key, self.contents))
    }
}

/// Returns a valid node as one party for each of its addresses.
fn addresses_of_node(contents: &Contents, key: &ObjectKey) -> Vec<Party> {
    let Some(Object::Node(node)) = contents.valid(key) else { return Vec::new() };
    let mut addresses = node.internal_ips.clone();
    addresses.extend(node.calico_address.map(|net| net.addr()));
    addresses.sort();
    addresses.dedup();
    let party = |address| Party::Node { name: key.name.clone(), address };
    addresses.into_iter().map(party).collect()
}

/// Returns the node of a pod that is on its host's network.
fn host_of<'a>(key: &ObjectKey, contents: &'a Contents) -> Option<&'a str> {
    let Object::Pod(pod) = contents.valid(key)? else { return None };
    pod.node_name.as_deref().filter(|_| pod.host_network)
}

/// Returns the reason why a text in the form of a pod's name names no party.
fn no_pod(key: &ObjectKey, contents: &Contents) -> String {
    let Some(stored) = contents.objects.get(key) else {
        return format!(
            "{key} is not in the manifests; expected NAMESPACE/POD, POD of the namespace default, node/NAME, svc/NAMESPACE/NAME, outside or an address"
        );
    };
    let pod = match stored.state.valid() {
        Some(Object::Pod(pod)) => pod,
        Some(_) => return format!("{key} is no endpoint"),
        None => return format!("{key} is not valid, so it is no endpoint and nothing passes"),
    };
    let is_invalid = |kind: Kind, namespace: &str, name: &str| {
        let stored = contents.objects.get(&ObjectKey::new(kind, namespace, name));
        stored.is_some_and(|stored| matches!(stored.state, State::Invalid(_)))
    };
    let account = pod.service_account.as_deref().unwrap_or("default");
    let why = match &pod.node_name {
        _ if pod.is_finished() => "it is finished, so its addresses are another's".to_owned(),
        Some(node) if pod.host_network => {
            format!("it is on the network of node {node}, which has no InternalIP in the manifests")
        }
        None if pod.host_network => "it is on its host's network, and has no node".to_owned(),
        _ if is_invalid(Kind::Namespace, "", &key.namespace) => {
            format!("Namespace {} is not valid, so nothing passes its pods", key.namespace)
        }
        _ if is_invalid(Kind::ServiceAccount, &key.namespace, account) => {
            format!(
                "ServiceAccount {account} is not valid, so nothing passes the pods that run as it"
            )
        }
        _ if pod.deleting => "it is being deleted and has released its addresses".to_owned(),
        _ => "it has no address: status.podIPs is empty".to_owned(),
    };
    format!("{key} is no endpoint: {why}")
}
