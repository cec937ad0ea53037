//! The ports on which parties reach each other: every pair of pods, and pods with nodes and with addresses outside the
//! cluster.
//!
//! One image is compiled in which every pod is local, so that every pod has its chains. Ends that its tables cannot
//! tell apart are one group (`groups`). Between two groups the verdict is read from two rows: the services that the
//! source's egress chain allows to the destination's class, and those that the destination's ingress chain allows from
//! the source's class. The intersection passes (`services`). A [`Party`] is a row and column for users: the pods of one
//! workload if they are of one group, otherwise single pods.
//!
//! Law: a cell equals the oracle's verdict on every pair of pods of its two parties, for every packet from
//! [`Packet::EPHEMERAL`].
//!
//! Not included: host endpoint policy at a node's interfaces, and routes. A pod always reaches itself. A node is
//! represented by its first address of each family.

mod cells;
mod groups;
mod outside;
mod parties;
mod services;
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
pub use parties::{LeftOut, Party, PartyKind};
pub use services::{KINDS, OF_ICMP, OF_OTHERS, Services, packet};
pub use view::{Block, Filter, Line, View, fold};
pub use why::Whys;

/// The largest size of the image's rows, in bytes. The image has rows for every pod of the cluster, not only for those
/// of one node.
const BUDGET: usize = 4 << 30;

/// Every pair.
#[derive(Debug)]
pub struct Matrix {
    /// The parties: pods by namespace and name, then nodes, then addresses outside the cluster.
    pub parties: Vec<Party>,
    /// The pods that are no party, with the reasons.
    pub left_out: Vec<LeftOut>,
    /// The number of pods in the matrix.
    pub pods: usize,
    /// The number of different nets that policies name, if it is too large for all of them to be parties
    /// ([`MOST_NETS`]). Then only requested nets are parties.
    pub too_many_nets: Option<usize>,
    /// Whether a host endpoint exists, whose policy is not in the matrix.
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

/// The services that pass from one party to another, in each family that both have, as numbers for
/// [`Matrix::services`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cell {
    pub v4: Option<u32>,
    pub v6: Option<u32>,
}

/// An address of each family that no object names, if there is one.
pub fn unnamed_addresses(contents: &Contents) -> Vec<IpAddr> {
    outside::unnamed_addresses(&import(contents), contents)
}

impl Matrix {
    /// The matrix of these objects.
    pub fn new(contents: &Contents) -> Self {
        Self::with_nets(contents, &[])
    }

    /// The matrix of these objects. [`Matrix::parties_of`] works for the nets in `asked`, and these are parties even if
    /// there are too many nets.
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

    /// The parties of a requested net: those outside the cluster that contain or overlap it. For a single address, the
    /// pod or node that has it, if one does.
    pub fn parties_of(&self, net: IpNet) -> impl Iterator<Item = usize> {
        self.asked.get(&net).into_iter().flatten().copied()
    }

    /// The cell of two parties. `None` if they are no pair: a pod and itself, two ends without a pod, a pod and a node
    /// that is only its own, or two ends without a common family.
    pub fn cell(&self, from: usize, to: usize) -> Option<Cell> {
        let (source, destination) = (self.parties.get(from)?, self.parties.get(to)?);
        // Traffic of a pod to itself is not judged.
        if source.is_pods() && source.pods.len() < 2 && source.pods == destination.pods {
            return None;
        }
        self.cells.between(source.group, destination.group)
    }

    /// The groups of two parties, which are what a cell depends on.
    pub fn group(&self, party: usize) -> usize {
        self.parties.get(party).map_or(usize::MAX, |party| party.group)
    }

    /// The cell of two groups, also for a pod to itself.
    pub fn between(&self, from: usize, to: usize) -> Option<Cell> {
        self.cells.between(from, to)
    }

    /// The number of groups. Parties of one group have equal rows and columns.
    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    /// The services of a number.
    pub fn services(&self, number: u32) -> &Services {
        self.cells.services(number)
    }

    /// Whether an evaluated rule depends on source ports. The cells hold for packets from [`Packet::EPHEMERAL`].
    pub fn looks_at_source_ports(&self) -> bool {
        self.cells.by_source
    }

    /// The text of a cell, one text if all families agree.
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

    /// Whether nothing passes.
    pub fn is_none(&self, cell: Cell) -> bool {
        [cell.v4, cell.v6].into_iter().flatten().all(|number| self.services(number).is_none())
    }

    /// Whether everything passes.
    pub fn is_all(&self, cell: Cell) -> bool {
        [cell.v4, cell.v6].into_iter().flatten().all(|number| self.services(number).is_all())
    }

    /// The source port from which the packets come.
    pub const fn source_port() -> u16 {
        Packet::EPHEMERAL
    }
}
