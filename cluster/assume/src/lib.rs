//! Completes manifests with the objects that a cluster adds.
//!
//! Manifests rarely describe a whole cluster: a `GitOps` folder has Deployments but no pods, a dump has no `IPPool`,
//! and a chart has no Node. [`complete`] adds what a cluster's controllers would make (pods of workloads, endpoints of
//! services). It also invents what only an administrator knows (nodes, pools, addresses). It never changes content of
//! the input. An invented address does not occur in the input, and is in no net that a rule of the input names. So a
//! verdict about it is valid for any such pod or node. If rules name all private ranges, the address is in a range that
//! no rule divides.
//!
//! [`Assumed`] contains everything that was added: lines for users, and manifests that can be added to the input.

mod addresses;
mod cluster_ips;
mod manifest;
mod network;
mod nodes;
mod services;
mod space;
mod workloads;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use manx_objects::contents::{Contents, Stored};
use manx_objects::object::{Kind, Node, Object, ObjectKey, Pod};
use manx_objects::problem::Place;
use manx_objects::{State, few};
use serde_json::Value as Json;

pub use cluster_ips::give_cluster_ips;
pub use manifest::{MANAGER, merge};
pub use services::endpoint_slices;
use space::{Space, User};

/// The default number of pods that are made for a workload.
pub const REPLICAS: u32 = 2;

/// The options of a completion.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// The number of pods for each workload that runs pods. If it is absent, the number that the workload requests, but
    /// at most [`REPLICAS`].
    pub replicas: Option<u32>,
}

/// The objects and fields that were added.
#[derive(Debug, Clone, Default)]
pub struct Assumed {
    /// One line for each kind of object that was added. There is no line for [`Assumed::addresses`], because the caller
    /// may prefer a note at each pod with an assumed address. The line for them is [`Assumed::note_of_addresses`].
    pub notes: Vec<String>,
    /// Whole objects, and the fields that were added to objects of the input. [`merge`] applies them.
    pub manifests: BTreeMap<ObjectKey, Json>,
    /// The addresses of pods that had none.
    pub addresses: BTreeMap<ObjectKey, Vec<IpAddr>>,
    /// The cluster IPs of Services that had none ([`give_cluster_ips`]).
    pub cluster_ips: BTreeMap<ObjectKey, Vec<IpAddr>>,
}

impl Assumed {
    /// Returns the manifests as YAML: a file that makes the input complete when it is added to it.
    pub fn yaml(&self) -> String {
        self.manifests.values().map(manifest::yaml).collect()
    }

    /// Returns the line about the addresses of pods that had none. Returns `None` if every pod had an address.
    pub fn note_of_addresses(&self) -> Option<String> {
        let named = self.addresses.iter().filter_map(|(key, given)| {
            Some(format!("{}/{} {}", key.namespace, key.name, given.first()?))
        });
        let named: Vec<String> = named.collect();
        (!named.is_empty())
            .then(|| format!("no address: {}", list(named.iter().map(String::as_str))))
    }
}

/// The reason why manifests cannot be completed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Every private range is in use.
    #[error(
        "no private range is free for {whom}: every one holds an address or block of the manifests, or a part of it is \
         in a net that a rule names; add {what}"
    )]
    NoRange {
        /// The objects that need addresses, by name.
        whom: String,
        /// The fields that the manifests may set instead.
        what: &'static str,
    },
}

/// Adds the missing objects to the contents. The result depends only on the contents and the options. Complete contents
/// are not changed.
pub fn complete(contents: &mut Contents, options: Options) -> Result<Assumed, Refusal> {
    let space = Space::of(contents);
    let mut completion = Completion { contents, space, assumed: Assumed::default() };
    workloads::make_pods(&mut completion, options);
    nodes::make_nodes(&mut completion)?;
    workloads::make_daemon_pods(&mut completion);
    nodes::place_pods(&mut completion);
    addresses::assign_blocks(&mut completion)?;
    addresses::assign_addresses(&mut completion);
    network::make_pools(&mut completion);
    services::make_slices(&mut completion);
    Ok(completion.assumed)
}

/// Contents that are being completed.
struct Completion<'a> {
    contents: &'a mut Contents,
    space: Space,
    assumed: Assumed,
}

impl Completion<'_> {
    /// Returns the valid pods that are not finished.
    fn pods(&self) -> impl Iterator<Item = (&ObjectKey, &Pod)> {
        self.contents.all_valid().filter_map(|(key, object)| match object {
            Object::Pod(pod) if !pod.is_finished() => Some((key, &**pod)),
            _ => None,
        })
    }

    /// Returns the valid nodes.
    fn nodes(&self) -> impl Iterator<Item = (&ObjectKey, &Node)> {
        self.contents.of_kind(Kind::Node).filter_map(|(key, _)| match self.contents.valid(key) {
            Some(Object::Node(node)) => Some((key, &**node)),
            _ => None,
        })
    }

    /// Takes a range that contains no address or net of the input. If a rule names the range, a note is added about
    /// this.
    fn take_range(&mut self, user: User, v4: bool) -> Option<IpNet> {
        let range = self.space.free_range(user, v4)?;
        if let Some(net) = self.space.named_around(range) {
            self.note(format!(
                "every private range is in a net that a rule names: {range} is assumed for {}, and is in {net}, which a \
                 rule names",
                match user {
                    User::Nodes => "Nodes",
                    User::Pods => "pods",
                    User::Services => "Services",
                }
            ));
        }
        self.space.take_block(range);
        Some(range)
    }

    /// Returns the address families in use, IPv4 first. `true` stands for IPv4, and `false` for IPv6. If no object has
    /// an address, the only family is IPv4.
    fn families(&self) -> Vec<bool> {
        let of_nodes = self.nodes().flat_map(|(_, node)| {
            node.pod_cidrs.iter().map(IpNet::addr).chain(node.internal_ips.iter().copied())
        });
        let of_pods = self.pods().flat_map(|(_, pod)| pod.every_address());
        let known: BTreeSet<bool> = of_nodes.chain(of_pods).map(|it| it.is_ipv4()).collect();
        match known.len() {
            0 => vec![true],
            _ => known.into_iter().rev().collect(),
        }
    }

    fn add(&mut self, key: ObjectKey, object: Object) {
        self.assumed.manifests.insert(key.clone(), manifest::of_object(&key, &object));
        self.store(key, State::Valid(Arc::new(object)));
    }

    /// Adds an object. The object may be invalid.
    fn store(&mut self, key: ObjectKey, state: State) {
        let place = Place { file: "(assumed)".into(), document: 0, at: None };
        self.contents.objects.insert(key, Stored { state, place: Arc::new(place) });
    }

    /// Changes a valid object, and records the fields that were added.
    fn amend(&mut self, key: &ObjectKey, fields: Json, change: impl FnOnce(&mut Object)) {
        if let Some(Stored { state: State::Valid(object), .. }) = self.contents.objects.get_mut(key)
        {
            change(Arc::make_mut(object));
            let manifests = &mut self.assumed.manifests;
            let of_object = manifests.entry(key.clone()).or_insert_with(|| manifest::identity(key));
            merge(of_object, fields);
        }
    }

    fn note(&mut self, text: String) {
        self.assumed.notes.push(text);
    }
}

/// Joins names for a sentence.
fn list<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    few(names, 4)
}

#[cfg(test)]
mod tests;
