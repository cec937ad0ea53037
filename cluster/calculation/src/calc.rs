//! Calculates the dataplane's tables from the cluster, the topology and the pods that are attached to this node.
//!
//! The result depends on the current state only, never on the changes that led to it. There are three exceptions,
//! because these values must keep their meaning from one version of the tables to the next: the indexes of tunnels, the
//! revisions by which a flow detects that its policy has changed, and the counts of rules.

mod delta;
mod routes;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use ipnet::IpNet;
use manx_dataplane::tables::{
    Endpoint, HostPolicy, InterfaceChains, KubeProxyPort, Link, ManxPorts, NextHop, OwnedChains,
    PortId, Role, Tables, TrackingSettings,
};
use manx_dataplane::wire::address::Address;
use manx_policy_compiler::compile::Compiler;
use manx_policy_compiler::image::{ChainId, Image};
use manx_policy_compiler::model::{Direction, Noted, ObjectName, Reason, Verdict};
use manx_policy_compiler::resolve::Stage;

use crate::import::Cluster;
use crate::interfaces::Interfaces;
use crate::overlay::Underlay;
use crate::services::{Frontends, KubeProxyServices, ServiceRanges};
use crate::topology::Topology;

pub use delta::NextStep;
use routes::RouteTables;
pub use routes::{InPlace, own_routes};

/// A pod that is attached to this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalPod {
    /// The index of the pod's endpoint. It stays the same from attach to detach.
    pub index: u32,
    /// The number of the attachment, which is never used for another attachment.
    pub attachment: u32,
    /// The pod's port.
    pub port: PortId,
    /// The pod's link to the node, if another plugin has made it.
    pub host: Option<HostSide>,
    /// The addresses that the pod was given.
    pub addresses: Vec<IpAddr>,
    /// The MTU of the pod's interface.
    pub mtu: u32,
}

/// The pod's link to the node, which another plugin has made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostSide {
    /// The port on the host side of this link.
    pub port: PortId,
    /// The node's own addresses on this link.
    pub gateways: Vec<IpAddr>,
}

/// All inputs from which a node's tables are calculated.
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
    /// The link to this node. If there is no `uplink`, packets also leave the node by this link.
    pub host: Link,
    /// The port from which the packets come that this node forwards. `None` if they come from the port of `host`, like
    /// the node's own packets.
    pub forwarded: Option<PortId>,
    /// The link by which packets leave the node, if Manx owns the uplink.
    pub uplink: Option<Link>,
    /// The addresses that the kernel treats as the node's own, on all interfaces.
    pub own_addresses: &'a BTreeSet<IpNet>,
    /// The service addresses, and what translates them.
    pub services: ServiceMode<'a>,
    /// The settings for connection tracking.
    pub connections: TrackingSettings,
    /// The node's own interfaces.
    pub interfaces: Interfaces<'a>,
}

/// The component that translates service addresses, and the addresses that it translates.
#[derive(Debug, Clone, Copy)]
pub enum ServiceMode<'a> {
    /// Nothing translates service addresses. They are treated like addresses outside the cluster.
    Nobody,
    /// The node's kube-proxy translates service addresses. The link leads to the node.
    KubeProxy(&'a KubeProxyServices, Link),
    /// Manx translates service addresses. Packets to an address in the ranges are refused if no service has the
    /// address.
    Manx(&'a Frontends, &'a ServiceRanges, Option<ManxPortsInput>),
}

/// The port for Manx's own translation, which leads to the node.
#[derive(Debug, Clone, Copy)]
pub struct ManxPortsInput {
    /// The link to the node through this port.
    pub link: Link,
    /// The first and the last source port for masqueraded packets that leave the cluster.
    pub egress: (u16, u16),
    /// The node's IPv4 and IPv6 address.
    pub addresses: [Option<IpAddr>; 2],
    /// The source addresses of masqueraded packets that leave the cluster, for IPv4 and IPv6.
    pub outgoing: [Option<IpAddr>; 2],
    /// The ports that receive ICMP messages about packets with the node's own address, for IPv4 and IPv6.
    pub icmp: [Option<PortId>; 2],
}

/// The state that is kept between versions of the tables.
#[derive(Default)]
pub struct Calculation {
    compiler: Compiler,
    route_tables: RouteTables,
    version: u64,
    /// The revision of each attached pod's policy.
    revisions: BTreeMap<ObjectName, Revision>,
    /// The revision of the policy at the node's own interfaces, if there is such a policy.
    host_revision: Option<Revision>,
    /// The number of the newest revision.
    last_revision: u32,
    /// The counter slots that tables use or have used and that are not reclaimed, by their number.
    counted: BTreeMap<u32, Counted>,
    /// The number of counter slots that the last tables use.
    named: usize,
    /// The counts of reclaimed slots that are not assigned to another rule yet. When a rule gets such a slot, it counts
    /// from this value on.
    bases: BTreeMap<u32, u64>,
    /// The number of packets that reclaimed slots have counted: first the allowed ones, then the denied ones.
    reclaimed: [u64; 2],
}

/// The revision of an endpoint's policy: the image's hash of the policy, and a number that flows store. Two different
/// policies of one pod never have the same number. The same holds for two pods that have had the same address at
/// different times.
#[derive(Clone, Copy)]
struct Revision {
    hash: u64,
    number: u32,
}

/// The meaning of a counter slot.
struct Counted {
    reason: Reason,
    noted: Vec<Noted>,
    /// The version of the newest tables that use the slot.
    last: u64,
    /// The number of packets that the slot has counted for other rules before.
    base: u64,
}

/// Counter slots that no tables use are kept for some time, so that the counts of a policy continue if it is removed
/// and added again. Unused slots are reclaimed when their number exceeds both this constant and the number of slots
/// that the last tables use.
const KEPT_SLOTS: usize = 1024;

impl Calculation {
    /// Calculates the next tables.
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
            kube_proxy_port: match inputs.services {
                ServiceMode::KubeProxy(services, link) => {
                    Some(KubeProxyPort { link, hosts: Arc::clone(&services.hosts) })
                }
                ServiceMode::Nobody | ServiceMode::Manx(..) => None,
            },
            services: match inputs.services {
                ServiceMode::Manx(frontends, ..) => Some(Arc::clone(frontends.table())),
                ServiceMode::Nobody | ServiceMode::KubeProxy(..) => None,
            },
            manx_ports: match inputs.services {
                ServiceMode::Manx(_, _, Some(port)) => Some(ManxPorts {
                    link: port.link,
                    egress: port.egress,
                    addresses: port.addresses.map(|address| address.map(Address::from)),
                    outgoing: port.outgoing.map(|address| address.map(Address::from)),
                    masquerade: Arc::clone(&self.route_tables.masquerade),
                }),
                ServiceMode::Nobody | ServiceMode::KubeProxy(..) | ServiceMode::Manx(..) => None,
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

    /// Stores changed routes in `tables`, which are in use. If `only` is given, the caller guarantees that nothing has
    /// changed except whether these addresses are services' addresses.
    pub fn change_routes(
        &mut self,
        tables: &Tables,
        inputs: &Inputs<'_>,
        only: Option<&BTreeSet<IpAddr>>,
    ) -> InPlace {
        self.route_tables.change_in_place(tables, inputs, only)
    }

    /// Returns the endpoints of the attached pods, by index. A pod has no endpoint before its object is in the cluster,
    /// because the pod's policy depends on the object's labels. A pod also has no endpoint while its object lacks an
    /// address that the agent has assigned to it, because other nodes would not know the sender.
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

    /// Returns the revision of a policy with this hash: `before` if the hash is the same, and otherwise a revision with
    /// the next number.
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

    /// Reclaims counter slots for other rules, if too many slots are used only by tables that no worker uses. These are
    /// the tables up to version `unused`. `read` returns the count of a slot; the counts of reclaimed slots are added
    /// to [`Calculation::reclaimed_count`]. Flows store slots. So the next tables, which are the first that may assign
    /// a reclaimed slot to another rule, cause all flows to be judged again.
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

    /// Returns the local endpoints that the last tables leave out: [`Compiler::left_out`].
    pub fn left_out(&self) -> &BTreeSet<ObjectName> {
        self.compiler.left_out()
    }

    /// Returns the routes of the last tables.
    pub fn current_routes(&self) -> impl Iterator<Item = (IpNet, NextHop)> + '_ {
        self.route_tables.routes.iter().map(|(net, via)| (*net, *via))
    }

    /// Returns the reason for the verdicts that a counter slot counts.
    pub fn reason(&self, slot: u32) -> Option<&Reason> {
        self.counted.get(&slot).map(|counted| &counted.reason)
    }

    /// Returns the reason and the count of every slot that is not reclaimed. `read` returns the count of the workers
    /// for a slot.
    pub fn counts(&self, read: impl Fn(u32) -> u64) -> impl Iterator<Item = (&Reason, u64)> {
        self.counted
            .iter()
            .map(move |(slot, counted)| (&counted.reason, read(*slot).wrapping_sub(counted.base)))
    }

    /// Returns, for each noted rule, the number of packets that matched the rule before a later rule decided them. Only
    /// counter slots that are not reclaimed are included.
    pub fn noted(&self, read: impl Fn(u32) -> u64) -> BTreeMap<&Noted, u64> {
        let mut noted = BTreeMap::new();
        for (slot, counted) in &self.counted {
            let packets = read(*slot).wrapping_sub(counted.base);
            counted.noted.iter().for_each(|met| *noted.entry(met).or_default() += packets);
        }
        noted
    }

    /// Returns the number of packets with this verdict that reclaimed slots have counted.
    pub fn reclaimed_count(&self, verdict: Verdict) -> u64 {
        self.reclaimed[verdict as usize]
    }
}

/// Returns the chains of an interface to which a host endpoint applies: those for forwarded packets and, if Manx owns
/// the uplink (`owned`), those for all other packets.
fn interface_chains(image: &Image, host: &ObjectName, owned: bool) -> InterfaceChains {
    let chain =
        |stage, direction| image.chain_at(host, stage, direction).unwrap_or(ChainId::MISSING);
    let both = |stage| Direction::ALL.map(|direction| chain(stage, direction));
    // A chain without a policy decides nothing, so it is left out.
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

/// Returns the links to the host sides of the pods that another plugin has connected, by the index of the pod's
/// endpoint.
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
        ServiceMode::KubeProxy(_, service) => set(service.port, Role::Service),
        ServiceMode::Manx(_, _, Some(port)) => {
            let ports = [Some(port.link.port)].into_iter().chain(port.icmp).flatten();
            ports.for_each(|port| set(port, Role::ManxPorts));
        }
        ServiceMode::Nobody | ServiceMode::Manx(..) => {}
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
