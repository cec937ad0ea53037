//! The calculation makes the dataplane's tables from the cluster, the topology and this node's attachments.
//!
//! The result depends on the current state only, never on the changes that led to it. Three things are exceptions,
//! because they must outlive a table: the indexes of tunnels, the revisions by which a flow finds that its policy has
//! changed, and the counts of rules.

mod delta;
mod routes;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use ipnet::IpNet;
use manx_dataplane::tables::{
    Connections, Endpoint, HostPolicy, InterfaceChains, Link, ManxPorts, NextHop, OwnedChains,
    PortId, Role, ServicePort, Tables,
};
use manx_dataplane::wire::address::Address;
use manx_policy_compiler::compile::Compiler;
use manx_policy_compiler::image::{ChainId, Image};
use manx_policy_compiler::model::{Direction, Noted, ObjectName, Reason, Verdict};
use manx_policy_compiler::resolve::Stage;

use crate::import::Cluster;
use crate::interfaces::Interfaces;
use crate::overlay::Underlay;
use crate::services::{Frontends, ServiceRanges, Services};
use crate::topology::Topology;

pub use delta::NextStep;
use routes::RouteTables;
pub use routes::{InPlace, own_routes};

/// A pod that is attached to this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalPod {
    /// The index of the pod's endpoint. It stays the same from attach to detach.
    pub index: u32,
    /// The number of the attachment. No other attachment ever gets it.
    pub attachment: u32,
    /// The pod's port.
    pub port: PortId,
    /// The pod's own way to the node, if another plugin has connected the pod.
    pub host: Option<HostSide>,
    /// The addresses that the pod was given.
    pub addresses: Vec<IpAddr>,
    /// The MTU of the pod's interface.
    pub mtu: u32,
}

/// The way from a pod to the node that another plugin has made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostSide {
    /// The port.
    pub port: PortId,
    /// The node's own addresses on this way.
    pub gateways: Vec<IpAddr>,
}

/// Everything from which a node's tables are made.
#[derive(Debug)]
pub struct Inputs<'a> {
    /// The objects of the datastore, imported.
    pub cluster: &'a Cluster,
    /// The route of each prefix, seen from this node.
    pub topology: &'a Topology,
    /// The attached pods.
    pub locals: &'a BTreeMap<&'a ObjectName, &'a LocalPod>,
    /// The ports and the MTU by which packets reach other nodes.
    pub underlay: &'a Underlay,
    /// The link to this node. Without an `uplink` packets also leave the node by it.
    pub host: Link,
    /// The port that brings the packets that this node forwards. `None`: they come by `host`, as the node's own do.
    pub forwarded: Option<PortId>,
    /// The link by which packets leave the node, if the uplink is Manx's own.
    pub uplink: Option<Link>,
    /// The addresses that the kernel takes for the node's own, on all interfaces.
    pub own_addresses: &'a BTreeSet<IpNet>,
    /// The service addresses, and who translates them.
    pub services: Translation<'a>,
    /// The settings by which connections are followed.
    pub connections: Connections,
    /// The node's own interfaces.
    pub interfaces: Interfaces<'a>,
}

/// Who translates service addresses, and which ones.
#[derive(Debug, Clone, Copy)]
pub enum Translation<'a> {
    /// Nobody: they are addresses of the world.
    Nobody,
    /// The node's kube-proxy, behind this link.
    KubeProxy(&'a Services, Link),
    /// Manx. Addresses of the ranges that no service has are refused.
    Manx(&'a Frontends, &'a ServiceRanges, Option<ManxPort>),
}

/// The port of the node for Manx's own translation.
#[derive(Debug, Clone, Copy)]
pub struct ManxPort {
    /// The link to the node by it.
    pub link: Link,
    /// The ports of the way out, the first and the last.
    pub egress: (u16, u16),
    /// The node's addresses, of IPv4 and of IPv6.
    pub addresses: [Option<IpAddr>; 2],
    /// The addresses by which the world sees pods.
    pub outgoing: [Option<IpAddr>; 2],
    /// The ports that bring ICMP messages about packets with these addresses.
    pub icmp: [Option<PortId>; 2],
}

/// The state that is kept from one version of the tables to the next.
#[derive(Default)]
pub struct Calculation {
    compiler: Compiler,
    route_tables: RouteTables,
    version: u64,
    /// The revision of each attached pod's policy.
    revisions: BTreeMap<ObjectName, Revision>,
    /// The revision of the policy at the node's own interfaces, if there is one.
    host_revision: Option<Revision>,
    /// The number of the newest revision.
    last_revision: u32,
    /// The counter slots that are in use or kept, by number.
    counted: BTreeMap<u32, Counted>,
    /// The number of slots that the last tables name.
    named: usize,
    /// The counts of the reclaimed slots that no rule has got yet. A rule that gets one counts from there.
    bases: BTreeMap<u32, u64>,
    /// The packets that reclaimed slots have counted: allowed, denied.
    reclaimed: [u64; 2],
}

/// The revision of an endpoint's policy: the image's hash of it, and the number by which flows remember it. Two
/// policies that differ never have the same number. This holds for one pod, and for pods that had an address one after
/// the other.
#[derive(Clone, Copy)]
struct Revision {
    hash: u64,
    number: u32,
}

/// The meaning of a counter slot.
struct Counted {
    reason: Reason,
    noted: Vec<Noted>,
    /// The version of the last tables that name it.
    last: u64,
    /// The packets that the slot had counted for other rules before.
    base: u64,
}

/// Slots that no tables name are kept, so that a policy that comes back goes on counting where it stopped. As many may be
/// kept as the last tables name, and always this many.
const KEPT_SLOTS: usize = 1024;

impl Calculation {
    /// Makes the next tables.
    pub fn tables(&mut self, inputs: &Inputs<'_>) -> Tables {
        let model = &inputs.cluster.model;
        let hosts = [
            inputs.interfaces.uplink_host_endpoint(model),
            inputs.interfaces.tunnel_host_endpoint(model),
        ];
        let hosts = hosts.map(|host| host.map(|name| ObjectName::new("", name)));
        let local_names =
            inputs.locals.keys().copied().chain(hosts.iter().flatten()).cloned().collect();
        let image = Arc::new(self.compiler.compile(&inputs.cluster.model, &local_names));
        self.route_tables.refresh(inputs);
        self.version += 1;
        self.count(&image);
        Tables {
            version: self.version,
            endpoints: self.endpoints(inputs, &image),
            host_policy: self.host_policy(inputs, &image, hosts),
            image,
            routes: Arc::clone(&self.route_tables.map),
            tunnels: Arc::clone(&self.route_tables.tunnels),
            peers: self.route_tables.peers.clone(),
            underlay_address: inputs.topology.underlay,
            host: Some(inputs.host),
            uplink: inputs.uplink,
            service: match inputs.services {
                Translation::KubeProxy(services, link) => {
                    Some(ServicePort { link, hosts: Arc::clone(&services.hosts) })
                }
                Translation::Nobody | Translation::Manx(..) => None,
            },
            services: match inputs.services {
                Translation::Manx(frontends, ..) => Some(Arc::clone(frontends.table())),
                Translation::Nobody | Translation::KubeProxy(..) => None,
            },
            manx_ports: match inputs.services {
                Translation::Manx(_, _, Some(port)) => Some(ManxPorts {
                    link: port.link,
                    egress: port.egress,
                    addresses: port.addresses.map(|address| address.map(Address::from)),
                    outgoing: port.outgoing.map(|address| address.map(Address::from)),
                    masquerade: Arc::clone(&self.route_tables.masquerade),
                }),
                Translation::Nobody | Translation::KubeProxy(..) | Translation::Manx(..) => None,
            },
            roles: roles(inputs),
            host_sides: host_sides(inputs),
            connections: inputs.connections,
            router_v4: router(inputs, |ip| match ip {
                IpAddr::V4(v4) => Some(v4),
                IpAddr::V6(_) => None,
            }),
            router_v6: router::<Ipv6Addr>(inputs, |ip| match ip {
                IpAddr::V6(v6) => Some(v6),
                IpAddr::V4(_) => None,
            }),
        }
    }

    /// Stores in `tables`, which are in use, that routes have changed. `only`: nothing has changed but which of these addresses
    /// are services'.
    pub fn change_routes(
        &mut self,
        tables: &Tables,
        inputs: &Inputs<'_>,
        only: Option<&BTreeSet<IpAddr>>,
    ) -> InPlace {
        self.route_tables.change_in_place(tables, inputs, only)
    }

    /// The attached pods' endpoints, by index. A pod has no endpoint until the cluster has its object, because its
    /// policy depends on its labels. It has none while its object lacks an address that the agent gave it, because
    /// other nodes would not know the sender.
    fn endpoints(&mut self, inputs: &Inputs<'_>, image: &Image) -> Vec<Option<Endpoint>> {
        self.revisions.retain(|name, _| inputs.locals.contains_key(name));
        let len = inputs.locals.values().map(|local| local.index as usize + 1).max().unwrap_or(0);
        let mut endpoints = vec![None; len];
        for (&name, local) in inputs.locals {
            let chains =
                (image.chain(name, Direction::Ingress), image.chain(name, Direction::Egress));
            let known = inputs.cluster.model.endpoints.get(name);
            let has_all = known.is_some_and(|pod| {
                local.addresses.iter().all(|address| pod.addresses.contains(address))
            });
            if let (Some(ingress), Some(egress), true) = (chains.0, chains.1, has_all) {
                let before = self.revisions.get(name).copied();
                let revision = self.renumber(before, image.revision(name));
                self.revisions.insert(name.clone(), revision);
                let revision = revision.number;
                let link = Link::native(local.port, local.mtu);
                let attachment = local.attachment;
                endpoints[local.index as usize] =
                    Some(Endpoint { attachment, link, ingress, egress, revision });
            }
        }
        endpoints
    }

    fn host_policy(
        &mut self,
        inputs: &Inputs<'_>,
        image: &Image,
        hosts: [Option<ObjectName>; 2],
    ) -> HostPolicy {
        let drops_to_node = inputs.cluster.drops_to_node;
        if !drops_to_node && hosts.iter().all(Option::is_none) {
            self.host_revision = None;
            return HostPolicy::default();
        }
        let mut hasher = DefaultHasher::new();
        drops_to_node.hash(&mut hasher);
        let [native, tunnelled] = hosts.map(|host| {
            let host = host?;
            image.revision(&host).hash(&mut hasher);
            Some(interface_chains(image, &host, inputs.uplink.is_some()))
        });
        (native.is_some(), tunnelled.is_some(), inputs.uplink.is_some()).hash(&mut hasher);
        let revision = self.renumber(self.host_revision, hasher.finish());
        self.host_revision = Some(revision);
        let revision = revision.number;
        HostPolicy { native, tunnelled, drops_to_node, revision }
    }

    /// Returns the revision of a policy with this hash: `before` if the hash is the same, else one with the next
    /// number.
    fn renumber(&mut self, before: Option<Revision>, hash: u64) -> Revision {
        if let Some(before) = before.filter(|before| before.hash == hash) {
            return before;
        }
        self.last_revision = self.last_revision.wrapping_add(1).max(1);
        Revision { hash, number: self.last_revision }
    }

    /// Records what each slot of the image counts.
    fn count(&mut self, image: &Image) {
        self.named = image.paths().len();
        for path in image.paths() {
            let bases = &mut self.bases;
            let counted = self.counted.entry(path.slot).or_insert_with(|| Counted {
                reason: path.decision.reason.clone(),
                noted: path.decision.noted.clone(),
                last: 0,
                base: bases.remove(&path.slot).unwrap_or_default(),
            });
            counted.last = self.version;
        }
    }

    /// Reclaims counter slots for other rules, if too many are named only by tables that no worker uses: those up to
    /// version `unused`. `read` returns the count of a slot; the counts of reclaimed slots are added to
    /// [`Calculation::reclaimed_count`]. Flows remember slots, so the next tables, which are the first that may use a
    /// reclaimed slot for another rule, make all flows be judged again.
    pub fn reclaim_slots(&mut self, unused: u64, read: impl Fn(u32) -> u64) {
        if self.counted.len() <= self.named + self.named.max(KEPT_SLOTS) {
            return;
        }
        let gone: BTreeSet<u32> = self
            .counted
            .iter()
            .filter(|(_, counted)| counted.last <= unused && counted.last < self.version)
            .map(|(slot, _)| *slot)
            .collect();
        for slot in &gone {
            let Some(Counted { reason, base, .. }) = self.counted.remove(slot) else { continue };
            let total = read(*slot);
            self.reclaimed[reason.verdict() as usize] += total.wrapping_sub(base);
            self.bases.insert(*slot, total);
        }
        self.compiler.release(&gone);
        self.revisions.clear();
        self.host_revision = None;
    }

    /// The local endpoints that the last tables leave out: [`Compiler::left_out`].
    pub fn left_out(&self) -> &BTreeSet<ObjectName> {
        self.compiler.left_out()
    }

    /// The routes of the last tables.
    pub fn current_routes(&self) -> impl Iterator<Item = (IpNet, NextHop)> + '_ {
        self.route_tables.routes.iter().map(|(net, via)| (*net, *via))
    }

    /// The reason whose packets a counter slot counts.
    pub fn reason(&self, slot: u32) -> Option<&Reason> {
        self.counted.get(&slot).map(|counted| &counted.reason)
    }

    /// The reason and the count of every slot that is not reclaimed. `read` returns what the workers have counted in a
    /// slot.
    pub fn counts(&self, read: impl Fn(u32) -> u64) -> impl Iterator<Item = (&Reason, u64)> {
        self.counted
            .iter()
            .map(move |(slot, counted)| (&counted.reason, read(*slot).wrapping_sub(counted.base)))
    }

    /// The number of packets that met each noted rule before the rule that decided, by the slots that are not
    /// reclaimed.
    pub fn noted(&self, read: impl Fn(u32) -> u64) -> BTreeMap<&Noted, u64> {
        let mut noted = BTreeMap::new();
        for (slot, counted) in &self.counted {
            let packets = read(*slot).wrapping_sub(counted.base);
            counted.noted.iter().for_each(|met| *noted.entry(met).or_default() += packets);
        }
        noted
    }

    /// The number of packets with this verdict that reclaimed slots have counted.
    pub fn reclaimed_count(&self, verdict: Verdict) -> u64 {
        self.reclaimed[verdict as usize]
    }
}

/// The chains of an interface that a host endpoint governs: those for forwarded packets, and those for all other
/// packets if the uplink is Manx's own (`owned`).
fn interface_chains(image: &Image, host: &ObjectName, owned: bool) -> InterfaceChains {
    let chain =
        |stage, direction| image.chain_at(host, stage, direction).unwrap_or(ChainId::MISSING);
    let both = |stage| Direction::ALL.map(|direction| chain(stage, direction));
    // A chain without a policy decides nothing.
    let asked = |chain: ChainId| {
        let decides = image.describe(chain).is_none_or(|it| !it.list.policies.is_empty());
        decides.then_some(chain)
    };
    let rest = OwnedChains {
        local: both(Stage::Host),
        pre_dnat: asked(chain(Stage::PreDnat, Direction::Ingress)),
        untracked: both(Stage::Untracked).map(asked),
    };
    InterfaceChains { forward: both(Stage::Forward), owned: owned.then_some(rest) }
}

/// The link to each pod's own way to the node, by the index of the pod's endpoint.
fn host_sides(inputs: &Inputs<'_>) -> Vec<Option<Link>> {
    let mut links = Vec::new();
    for local in inputs.locals.values() {
        let Some(HostSide { port, .. }) = local.host else { continue };
        let at = local.index as usize;
        links.resize(links.len().max(at + 1), None);
        links[at] = Some(Link::native(port, local.mtu));
    }
    links
}

fn roles(inputs: &Inputs<'_>) -> Vec<Role> {
    let mut roles = Vec::new();
    let mut set = |port: PortId, role| {
        let at = port.0 as usize;
        if roles.len() <= at {
            roles.resize(at + 1, Role::Closed);
        }
        roles[at] = role;
    };
    set(inputs.host.port, Role::Host);
    if let Some(forwarded) = inputs.forwarded {
        set(forwarded, Role::Forwarded);
    }
    if let Some(uplink) = inputs.uplink {
        set(uplink.port, Role::Uplink);
    }
    match inputs.services {
        Translation::KubeProxy(_, service) => set(service.port, Role::Service),
        Translation::Manx(_, _, Some(port)) => {
            let ports = [Some(port.link.port)].into_iter().chain(port.icmp).flatten();
            ports.for_each(|port| set(port, Role::ManxPorts));
        }
        Translation::Nobody | Translation::Manx(..) => {}
    }
    set(inputs.underlay.raw, Role::Underlay);
    if let Some((packet_socket, _)) = inputs.underlay.packet_socket {
        set(packet_socket, Role::Underlay);
    }
    for socket in inputs.underlay.sockets.values() {
        set(*socket, Role::Underlay);
    }
    for local in inputs.locals.values() {
        set(local.port, Role::Endpoint(local.index));
        if let Some(host) = &local.host {
            set(host.port, Role::HostSide(local.index));
        }
    }
    roles
}

fn router<A>(inputs: &Inputs<'_>, of_family: impl Fn(IpAddr) -> Option<A>) -> Option<A> {
    let Topology { tunnel_addresses, addresses, .. } = inputs.topology;
    tunnel_addresses.iter().chain(addresses).copied().find_map(of_family)
}

#[cfg(test)]
mod tests;
