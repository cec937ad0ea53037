//! The services that pass between any two groups. A service is a protocol with a port, or an ICMP type with a code.

use std::collections::HashMap;

use manx_oracle::Packet;
use manx_policy_compiler::image::{Image, Lookups};
use manx_policy_compiler::model::{Direction, Family, Verdict};

use super::Cell;
use super::groups::{End, Group, NodeKind, Place};
use super::packet_set::PacketSet;

/// The numbers of two fixed sets of services: the empty set, and the set of all services.
const NONE: u32 = 0;
const ALL: u32 = 1;

/// The value for a pair that does not exist.
const ABSENT: u32 = u32::MAX;

/// For any two groups and each family, the services that pass from one to the other.
#[derive(Debug)]
pub(super) struct Cells {
    /// For each family and each pair of groups, the number of a set of services in `services`. The sources are rows,
    /// and the destinations of one source are adjacent. Empty if no group has the family.
    all: [Vec<u32>; 2],
    groups: usize,
    services: Vec<PacketSet>,
    /// Whether a chain depends on source ports.
    pub(super) by_source: bool,
}

/// Reads the rows of an image. Each row is read once.
struct Reader<'a> {
    image: &'a Image,
    family: Family,
    services: Interned,
    /// For each row of the image, the number of its set of services.
    rows: Vec<u32>,
    /// The numbers of the sets of services of chains that have no rows.
    rules: HashMap<Lookups, u32>,
    /// The intersection of two sets of services. All three are given by their numbers.
    both: HashMap<(u32, u32), u32>,
    by_source: bool,
}

/// The distinct sets of services, each with a number.
struct Interned {
    all: Vec<PacketSet>,
    numbers: HashMap<PacketSet, u32>,
}

impl Cells {
    pub(super) fn new(image: &Image, groups: &[Group], nodes: &[NodeKind]) -> Self {
        let mut services = Interned { all: Vec::new(), numbers: HashMap::new() };
        services.number(PacketSet::default());
        services.number(PacketSet::all());
        let mut by_source = false;
        let mut all: [Vec<u32>; 2] = Default::default();
        for family in Family::ALL {
            let has = |group: &Group| group.ends[family as usize].is_some();
            let is_pod = |group: &Group| matches!(group.place, Place::Pods { .. });
            if !groups.iter().any(|group| is_pod(group) && has(group)) {
                continue;
            }
            let mut reader = Reader {
                image,
                family,
                services,
                rows: Vec::new(),
                rules: HashMap::new(),
                both: HashMap::new(),
                by_source,
            };
            let cells = &mut all[family as usize];
            cells.reserve_exact(groups.len() * groups.len());
            for from in groups {
                cells.extend(groups.iter().map(|to| reader.cell(nodes, from, to)));
            }
            (services, by_source) = (reader.services, reader.by_source);
        }
        Self { all, groups: groups.len(), services: services.all, by_source }
    }

    /// Returns `None` if there is no such pair.
    pub(super) fn between(&self, from: usize, to: usize) -> Option<Cell> {
        let [v4, v6] = self.all.each_ref().map(|all| {
            let number = all.get(from * self.groups + to).copied().filter(|_| to < self.groups);
            number.filter(|number| *number != ABSENT)
        });
        (v4.is_some() || v6.is_some()).then_some(Cell { v4, v6 })
    }

    pub(super) fn services(&self, number: u32) -> &PacketSet {
        // The first set is the empty one, so an unknown number allows nothing.
        self.services.get(number as usize).unwrap_or(&self.services[NONE as usize])
    }
}

/// How a pair of groups is decided in one family.
pub(super) enum Pair {
    /// The policies of both ends decide.
    Policy(End, End),
    /// The source is the pod's own node, which always reaches its pods.
    OwnNode,
    /// The destination is the pod's own node, which accepts nothing from its own pods.
    Dropped,
}

/// Returns how a pair of groups is decided in a family. Returns `None` if the matrix has no such pair.
pub(super) fn pair(nodes: &[NodeKind], family: Family, from: &Group, to: &Group) -> Option<Pair> {
    let end = |group: &Group| group.ends[family as usize];
    let of_node = |kind: usize| nodes.get(kind)?.ends[family as usize];
    match (from.place, to.place) {
        (Place::Pods { .. }, Place::Pods { .. } | Place::Outside)
        | (Place::Outside, Place::Pods { .. }) => Some(Pair::Policy(end(from)?, end(to)?)),
        (Place::OwnNode, Place::Pods { own }) => of_node(own?).and(end(to)).map(|_| Pair::OwnNode),
        (Place::Pods { own }, Place::OwnNode) => {
            let ends = Pair::Policy(end(from)?, of_node(own?)?);
            Some(if nodes.get(own?)?.accepts { ends } else { Pair::Dropped })
        }
        (Place::Pods { own }, Place::Nodes(kind)) | (Place::Nodes(kind), Place::Pods { own }) => {
            let is_only_own = own == Some(kind) && nodes.get(kind)?.names.len() == 1;
            if is_only_own { None } else { Some(Pair::Policy(end(from)?, end(to)?)) }
        }
        _ => None,
    }
}

impl Reader<'_> {
    fn cell(&mut self, nodes: &[NodeKind], from: &Group, to: &Group) -> u32 {
        match pair(nodes, self.family, from, to) {
            None => ABSENT,
            Some(Pair::OwnNode) => ALL,
            Some(Pair::Dropped) => NONE,
            Some(Pair::Policy(from, to)) => {
                let egress = self.side(Direction::Egress, &from, &to);
                if egress == NONE {
                    return NONE;
                }
                let ingress = self.side(Direction::Ingress, &to, &from);
                self.both(egress, ingress)
            }
        }
    }

    /// Returns the number of the set of services that the policies of `local` allow in a direction.
    fn side(&mut self, direction: Direction, local: &End, peer: &End) -> u32 {
        let Some(chain) = local.chain(direction) else { return ALL };
        let place = self.image.lookups(chain, local.identity, peer.identity);
        let known = match place {
            Lookups::Nowhere => return NONE,
            Lookups::Row(row) => self.rows.get(row as usize).copied().filter(|it| *it != ABSENT),
            Lookups::Rules { .. } => self.rules.get(&place).copied(),
        };
        if let Some(known) = known {
            return known;
        }
        let (local, peer) = (local.identity, peer.identity);
        let decisions = self.image.decisions(chain, local, peer, self.family, Packet::EPHEMERAL);
        self.by_source |= decisions.by_source;
        let allows = |path| self.image.path(path).verdict == Verdict::Allow;
        let number = self.services.number(PacketSet::from_decisions(&decisions, allows));
        match place {
            Lookups::Row(row) => {
                let row = row as usize;
                if self.rows.len() <= row {
                    self.rows.resize(row + 1, ABSENT);
                }
                self.rows[row] = number;
            }
            Lookups::Nowhere | Lookups::Rules { .. } => _ = self.rules.insert(place, number),
        }
        number
    }

    fn both(&mut self, one: u32, other: u32) -> u32 {
        match (one, other) {
            (NONE, _) | (_, NONE) => NONE,
            (ALL, services) | (services, ALL) => services,
            (one, other) if one == other => one,
            (one, other) => {
                let pair = (one.min(other), one.max(other));
                let services = &mut self.services;
                *self.both.entry(pair).or_insert_with(|| {
                    let [one, other] = [one, other].map(|it| &services.all[it as usize]);
                    let both = one.intersection(other);
                    services.number(both)
                })
            }
        }
    }
}

impl Interned {
    fn number(&mut self, services: PacketSet) -> u32 {
        if let Some(number) = self.numbers.get(&services) {
            return *number;
        }
        let number = self.all.len() as u32;
        self.all.push(services.clone());
        self.numbers.insert(services, number);
        number
    }
}
