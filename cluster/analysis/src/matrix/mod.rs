//! The matrix of the ports on which parties reach each other: all pairs of pods, and pods with nodes and with addresses
//! outside the cluster.
//!
//! One image is compiled as if every pod were local, so that every pod has its chains. A group consists of ends that
//! the tables cannot distinguish (`groups`). The verdict between two groups comes from two rows: the services that the
//! source's egress chain allows to the destination's class, and the services that the destination's ingress chain
//! allows from the source's class. Services in both rows pass. A service here is a protocol with a port, not an object
//! of Kubernetes. A [`Party`] is a row and a column of the matrix that users see. It contains the pods of one workload
//! if they are all in one group, and otherwise a single pod.
//!
//! Law: a cell equals the oracle's verdict on every pair of pods of its two parties, for every packet from
//! [`Packet::EPHEMERAL`].
//!
//! The matrix includes neither the policy of host endpoints at a node's interfaces nor routes. A pod always reaches
//! itself. A node is represented by its first address of each family.

mod cells;
mod groups;
mod outside;
mod packet_set;
mod parties;
mod view;
mod why;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use manx_calculation::import::{Cluster, import};
use manx_objects::contents::Contents;
use manx_oracle::Packet;
use manx_policy_compiler::compile::Compiler;
use manx_policy_compiler::image::Image;
use manx_policy_compiler::model::Family;
use manx_policy_compiler::resolve::LocalName;

use cells::Cells;
use groups::{Group, NodeKind};
use outside::Outside;
use why::Places;

pub use outside::{MOST_ASKED_NETS, MOST_NETS};
pub use packet_set::{KINDS, OF_ICMP, OF_OTHERS, PacketSet, packet};
pub use parties::{LeftOut, Party, PartyKind};
pub use view::{Block, Filter, Line, View, fold};
pub use why::Whys;

/// The maximum size of the image's rows, in bytes. The image has rows for every pod of the cluster, not only for those
/// of one node.
const BUDGET: usize = 4 << 30;

/// The matrix of all pairs.
#[derive(Debug)]
pub struct Matrix {
    /// The parties: pods by namespace and name, then nodes, then addresses outside the cluster.
    pub parties: Vec<Party>,
    /// The pods that are not parties, with the reasons.
    pub left_out: Vec<LeftOut>,
    /// The number of pods in the matrix.
    pub pods: usize,
    /// The number of different nets in policies, if it exceeds [`MOST_NETS`]. Only requested nets are then parties.
    pub too_many_nets: Option<usize>,
    /// Whether there is a host endpoint. The policy of host endpoints is not in the matrix.
    pub has_host_endpoints: bool,
    /// The parties of each requested net.
    asked: BTreeMap<IpNet, BTreeSet<usize>>,
    groups: Vec<Group>,
    node_kinds: Vec<NodeKind>,
    cells: Cells,
    image: Image,
    cluster: Cluster,
    places: Places,
}

/// The services that pass from one party to another, for each family that both have. Each is a number for
/// [`Matrix::services`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cell {
    pub v4: Option<u32>,
    pub v6: Option<u32>,
}

/// Returns, for each family, an address that no object names, if there is one.
pub fn unnamed_addresses(contents: &Contents) -> Vec<IpAddr> {
    outside::unnamed_addresses(&import(contents), contents)
}

impl Matrix {
    /// Returns the matrix of these objects.
    pub fn new(contents: &Contents) -> Self {
        Self::with_nets(contents, &[])
    }

    /// Returns the matrix of these objects. The nets in `asked` become parties even if there are too many nets.
    /// [`Matrix::parties_of`] knows only these nets.
    pub fn with_nets(contents: &Contents, asked: &[IpNet]) -> Self {
        let mut cluster: Cluster = import(contents);
        let pods: BTreeSet<LocalName> = cluster.model.endpoints.keys().cloned().collect();
        let image = Compiler::with_budget(BUDGET).compile(&cluster.model, &pods);
        let (node_kinds, kind_of_node) = groups::node_kinds(&image, &mut cluster, contents);
        let (mut groups, grouped) = groups::group_pods(&image, &cluster, &kind_of_node);
        let mut outside = Outside::new(&image, &cluster, contents, asked);
        for family in Family::ALL {
            if !groups.iter().any(|group| group.ends[family as usize].is_some()) {
                outside.forget(family);
            }
        }
        let mut parties = parties::of_pods(contents, grouped);
        parties::add_nodes(&mut parties, &mut groups, &node_kinds);
        let mut asked = parties::add_outside(&mut parties, &mut groups, &outside);
        for (net, of_net) in &mut asked {
            let address = Some(net.addr()).filter(|_| net.prefix_len() == net.max_prefix_len());
            let having = address.map(|it| parties::having(&parties, &cluster, it));
            if let Some(having) = having.filter(|having| !having.is_empty()) {
                *of_net = having;
            }
        }
        let cells = Cells::new(&image, &groups, &node_kinds);
        Self {
            left_out: parties::left_out(contents, &cluster),
            pods: pods.len(),
            too_many_nets: outside.too_many,
            has_host_endpoints: !cluster.model.host_endpoints.is_empty(),
            places: Places::new(contents),
            asked,
            parties,
            groups,
            node_kinds,
            cells,
            image,
            cluster,
        }
    }

    /// Returns the parties of a requested net, which are the parties outside the cluster that contain the net or
    /// overlap it. For a single address, the pod or the node that has it is included.
    pub fn parties_of(&self, net: IpNet) -> impl Iterator<Item = usize> {
        self.asked.get(&net).into_iter().flatten().copied()
    }

    /// Returns the cell of two parties. Returns `None` if they are not a pair: a pod and itself, two ends without a
    /// pod, a pod and a node that can only be the pod's own, or two ends without a common family.
    pub fn cell(&self, from: usize, to: usize) -> Option<Cell> {
        let (source, destination) = (self.parties.get(from)?, self.parties.get(to)?);
        // Traffic of a pod to itself is not judged.
        if source.is_pods() && source.pods.len() < 2 && source.pods == destination.pods {
            return None;
        }
        self.cells.between(source.group, destination.group)
    }

    /// Returns the group of a party. A cell depends only on the groups of its two parties.
    pub fn group(&self, party: usize) -> usize {
        self.parties.get(party).map_or(usize::MAX, |party| party.group)
    }

    /// Returns the cell of two groups, also for a pod and itself.
    pub fn between(&self, from: usize, to: usize) -> Option<Cell> {
        self.cells.between(from, to)
    }

    /// Returns the number of groups. Parties of one group have equal rows and columns.
    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Returns the services with this number.
    pub fn services(&self, number: u32) -> &PacketSet {
        self.cells.services(number)
    }

    /// Returns whether a rule depends on source ports. The cells are valid for packets with the source port
    /// [`Packet::EPHEMERAL`].
    pub fn looks_at_source_ports(&self) -> bool {
        self.cells.by_source
    }

    /// Returns the text of a cell. There is only one text if both families have the same services.
    pub fn text(&self, cell: Cell) -> String {
        match (cell.v4, cell.v6) {
            (Some(v4), Some(v6)) if v4 == v6 => self.services(v4).to_string(),
            (Some(one), None) | (None, Some(one)) => self.services(one).to_string(),
            (Some(v4), Some(v6)) => {
                format!("IPv4 {}; IPv6 {}", self.services(v4), self.services(v6))
            }
            (None, None) => "no common family".to_owned(),
        }
    }

    /// Returns whether nothing passes.
    pub fn is_none(&self, cell: Cell) -> bool {
        [cell.v4, cell.v6].into_iter().flatten().all(|number| self.services(number).is_none())
    }

    /// Returns whether everything passes.
    pub fn is_all(&self, cell: Cell) -> bool {
        [cell.v4, cell.v6].into_iter().flatten().all(|number| self.services(number).is_all())
    }

    /// Returns the source port of the packets for which the cells are valid.
    pub const fn source_port() -> u16 {
        Packet::EPHEMERAL
    }
}
