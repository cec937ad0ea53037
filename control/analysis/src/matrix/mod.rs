//! Who reaches whom on which ports: every pair of pods, and of pods with nodes and with the world outside.
//!
//! One image is compiled in which every pod is local, so that every pod has its chains. Ends that its tables cannot
//! tell apart are one group (`groups`). Between two groups the verdict is read from two rows: what the source's egress
//! chain lets through to the destination's class, and what the destination's ingress chain lets through from the
//! source's class. What is in both passes (`services`). [`Party`] is what people see: the pods of one workload, if they
//! are of one group; otherwise single pods.
//!
//! Law: a cell is what the oracle says about every pair of pods of its two parties, for every packet from
//! [`Packet::EPHEMERAL`].
//!
//! Not included: what host endpoints do to traffic that passes a node's interfaces, and routes. A pod always reaches
//! itself. A node is asked by its first address of each family.

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
pub use services::{KINDS, Keys, OF_ICMP, OF_OTHERS, Services, packet};
pub use view::{Block, Filter, Line, View, fold};
pub use why::Whys;

/// Bytes of rows that the image may hold: it has rows for every pod of the cluster, not for those of one node.
const BUDGET: usize = 4 << 30;

/// Every pair.
#[derive(Debug)]
pub struct Matrix {
    /// The parties: pods by namespace and name, then nodes, then addresses outside.
    pub parties: Vec<Party>,
    /// The pods that are no party, and why.
    pub left_out: Vec<LeftOut>,
    /// How many pods are in it.
    pub pods: usize,
    /// How many different nets policies name, if they are too many to be parties ([`MOST_NETS`]). Then those that were
    /// asked for are parties.
    pub too_many_nets: Option<usize>,
    /// Whether a host endpoint exists, whose policy is not in the matrix.
    pub has_host_endpoints: bool,
    /// The parties of each net that was asked for.
    asked: BTreeMap<IpNet, BTreeSet<usize>>,
    groups: Vec<Group>,
    node_kinds: Vec<NodeKind>,
    cells: Cells,
    image: Image,
    cluster: Cluster,
    places: Places,
}

/// What passes from one party to another, in each family that both have: numbers for [`Matrix::services`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cell {
    /// By IPv4.
    pub v4: Option<u32>,
    /// By IPv6.
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

    /// The matrix of these objects. It knows which of its parties hold or overlap these nets
    /// ([`Matrix::parties_of`]), and has them even where nets are too many to be parties.
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

    /// The parties of a net that was asked for: those outside of the cluster that hold or overlap it; of a single
    /// address the pod or node that has it, if one has.
    pub fn parties_of(&self, net: IpNet) -> impl Iterator<Item = usize> {
        self.asked.get(&net).into_iter().flatten().copied()
    }

    /// What passes from one party to another. `None`: there is no such pair (a pod and itself, two ends of which none
    /// is a pod, a node that is only the pod's own, or no common family).
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

    /// What passes from a group to another, even if it is from a pod to itself.
    pub fn between(&self, from: usize, to: usize) -> Option<Cell> {
        self.cells.between(from, to)
    }

    /// How many groups there are: parties of one group have equal rows and columns.
    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    /// The services of a number.
    pub fn services(&self, number: u32) -> &Services {
        self.cells.services(number)
    }

    /// Whether a rule that was looked at asks for source ports: the cells hold for packets from
    /// [`Packet::EPHEMERAL`].
    pub fn looks_at_source_ports(&self) -> bool {
        self.cells.by_source
    }

    /// The text of a cell: one if all families agree.
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
