//! The truth table in groups: destinations with equal columns form a block, and sources with equal rows share a row.
//!
//! Law: the cells can be read back from the blocks (`expand` of the tests). A pod is never probed from itself, so if a
//! pod is both source and destination of a block, the block stands only for the pairs of different pods. The node of
//! the pod at the other end is called "the node", so pods of different nodes can be alike.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::probers::Probers;
use crate::plan::prober::Prober;
use crate::traffic::check::{Finding, Observed};
use crate::traffic::matrix::{Cell, Outcome};
use crate::world::service::Service;

/// The source or the destination of cells in a block.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum End {
    Prober(Prober),
    /// The node of the pod at the other end.
    OwnNode,
}

impl End {
    /// The prober, if the end is the same prober in every pair.
    pub(super) const fn prober(&self) -> Option<&Prober> {
        match self {
            Self::Prober(prober) => Some(prober),
            Self::OwnNode => None,
        }
    }
}

/// A column of the table: whether the port is closed, the service, and whether the family is IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Column {
    /// Nothing listens there.
    pub closed: bool,
    pub service: Service,
    pub v6: bool,
}

/// The content of a cell: the expected and the observed result.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Seen {
    pub expected: Outcome,
    pub observed: Observed,
}

impl Seen {
    /// The content of a finding's cell.
    pub fn of(finding: &Finding) -> Self {
        Self { expected: finding.cell.expected, observed: finding.observed.clone() }
    }

    /// Whether the observed result is the expected one.
    pub fn as_expected(&self) -> bool {
        self.observed == Observed::Clear(self.expected)
    }
}

/// The place of a cell: source, destination, column.
pub(super) type Place = (Prober, Prober, Column);

/// The place of a cell in the table.
pub(super) fn place(cell: &Cell) -> Place {
    let column =
        Column { closed: !cell.listening, service: cell.service, v6: cell.address.is_ipv6() };
    (cell.source.clone(), cell.destination.clone(), column)
}

/// A row: the content of each column. A column that is absent has no cell.
pub(super) type Row<V> = BTreeMap<Column, V>;

/// The rows of all sources.
type Rows<V> = BTreeMap<End, Row<V>>;

/// A group of destinations with equal columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Block<V> {
    pub destinations: Vec<End>,
    /// Groups of sources with equal rows. A source that is absent has no cell.
    pub rows: Vec<(Vec<End>, Row<V>)>,
}

impl<V> Block<V> {
    /// The destination, if there is only one. The text may name it among the sources of any row, because it is not a
    /// source of its own cells.
    pub(super) fn alone(&self) -> Option<&End> {
        if let [only] = &self.destinations[..] { Some(only) } else { None }
    }

    /// All columns of the block.
    pub(super) fn columns(&self) -> BTreeSet<Column> {
        self.rows.iter().flat_map(|(_, row)| row.keys().copied()).collect()
    }
}

/// Groups cells into blocks. The destinations of one workload are handled one after the other, so that they stand
/// together.
pub(super) fn group<V: Clone + Eq>(cells: BTreeMap<Place, V>, probers: &Probers) -> Vec<Block<V>> {
    let mut table: BTreeMap<End, Rows<V>> = BTreeMap::new();
    for ((source, destination, column), value) in cells {
        let ends = (end(&source, &destination, probers), end(&destination, &source, probers));
        let of_destination = table.entry(ends.1).or_default();
        of_destination.entry(ends.0).or_default().insert(column, value);
    }
    let mut table: Vec<(End, Rows<V>)> = table.into_iter().collect();
    table.sort_by_cached_key(|(end, _)| first_of_workload(end, probers));
    let mut groups: Vec<(Vec<End>, Rows<V>)> = Vec::new();
    for (end, rows) in table {
        match groups.iter_mut().find(|(ends, known)| alike((ends, known), (&end, &rows))) {
            Some((ends, known)) => {
                known.extend(rows);
                ends.push(end);
            }
            None => groups.push((vec![end], rows)),
        }
    }
    let blocks = groups.into_iter().map(|(destinations, rows)| {
        let mut shared: Vec<(Vec<End>, Row<V>)> = Vec::new();
        for (source, row) in rows {
            match shared.iter_mut().find(|(_, known)| *known == row) {
                Some((sources, _)) => sources.push(source),
                None => shared.push((vec![source], row)),
            }
        }
        Block { destinations, rows: shared }
    });
    blocks.collect()
}

/// Whether a destination has the same rows as the destinations of a group. Rows of a pod for itself are not compared,
/// because they do not exist.
fn alike<V: Eq>((ends, known): (&[End], &Rows<V>), (end, rows): (&End, &Rows<V>)) -> bool {
    let only = if let [only] = ends { Some(only) } else { None };
    let excepted = |source: &&End| *source != end && Some(*source) != only;
    known.keys().chain(rows.keys()).filter(excepted).all(|it| known.get(it) == rows.get(it))
}

/// A prober as the end of a cell whose other end is `other`.
fn end(prober: &Prober, other: &Prober, probers: &Probers) -> End {
    match prober {
        Prober::Node(node) if node_of(other, probers) == Some(node) => End::OwnNode,
        _ => End::Prober(prober.clone()),
    }
}

fn node_of<'a>(prober: &Prober, probers: &'a Probers) -> Option<&'a String> {
    probers.get(prober)?.node.as_ref()
}

/// The order of destinations: pods of one workload stand together, at the place of the first of them.
fn first_of_workload(end: &End, probers: &Probers) -> (End, End) {
    let workload = |prober: &Prober| probers.get(prober)?.workload.as_ref();
    let first = end.prober().and_then(workload).and_then(|of| {
        let mut alike = probers.keys().filter(|other| workload(other) == Some(of));
        alike.next().cloned().map(End::Prober)
    });
    (first.unwrap_or_else(|| end.clone()), end.clone())
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;

    use super::*;
    use crate::plan::port::Port;
    use crate::report::probers::ProberReport;
    use manx_api::PodName;
    use manx_policy_compiler::model::Protocol;

    /// Seven pods on two nodes, some of them of workloads.
    pub(crate) fn probers() -> Probers {
        let pods = [
            ("api-1", "n1", Some("shop/Deployment api")),
            ("api-2", "n2", Some("shop/Deployment api")),
            ("api-3", "n2", Some("shop/Deployment api")),
            ("db", "n1", None),
            ("job", "n2", Some("shop/Job job")),
            ("web-1", "n1", Some("shop/Deployment web")),
            ("web-2", "n2", Some("shop/Deployment web")),
        ];
        let report = |node: Option<&str>, workload: Option<&str>| ProberReport {
            addresses: vec!["10.1.1.3".parse().unwrap()],
            node: node.map(str::to_owned),
            workload: workload.map(str::to_owned),
            device: None,
        };
        let hosts = [Prober::Node("n1".into()), Prober::Node("n2".into()), Prober::Outside];
        let hosts = hosts.into_iter().map(|host| (host, report(None, None)));
        let pods = pods.into_iter().map(|(name, node, workload)| {
            let name = PodName { namespace: "shop".to_owned(), name: name.to_owned() };
            (Prober::Pod(name), report(Some(node), workload))
        });
        hosts.chain(pods).collect()
    }

    fn column(number: u16) -> Column {
        let port = Port { protocol: Protocol::Tcp, number: number / 2 + 1 };
        Column { closed: number > 3, service: Service::Port(port), v6: number % 2 == 1 }
    }

    /// Tables whose cells depend on a few kinds of ends, with some cells that differ and some that are missing, and
    /// perhaps with probes between pods and nodes of other pods.
    pub(crate) fn tables() -> impl Strategy<Value = BTreeMap<Place, u8>> {
        let all: Vec<Prober> = probers().into_keys().collect();
        let count = all.len();
        let kinds = vec(0..3_usize, count);
        let verdicts = vec(0..2_u8, 9);
        let odd = btree_map((0..count, 0..count, 0..6_u16), prop::option::of(0..2_u8), 0..4);
        (kinds, verdicts, odd, any::<bool>()).prop_map(move |(kinds, verdicts, odd, far)| {
            let probers = probers();
            let far_node = |prober: &Prober, other: &Prober| {
                matches!(end(prober, other, &probers), End::Prober(Prober::Node(_)))
            };
            let mut cells = BTreeMap::new();
            for (from, source) in all.iter().enumerate() {
                for (to, destination) in all.iter().enumerate() {
                    let pods = [source, destination].map(|it| matches!(it, Prober::Pod(_)));
                    if from == to || pods == [false, false] {
                        continue;
                    }
                    if !far && (far_node(source, destination) || far_node(destination, source)) {
                        continue;
                    }
                    for number in 0..6 {
                        let value = verdicts[kinds[from] * 3 + kinds[to]];
                        let value = odd.get(&(from, to, number)).copied().unwrap_or(Some(value));
                        let place = (source.clone(), destination.clone(), column(number));
                        cells.extend(value.map(|value| (place, value)));
                    }
                }
            }
            cells
        })
    }

    /// The cells that the blocks stand for.
    pub(crate) fn expand<V: Clone>(blocks: &[Block<V>], probers: &Probers) -> BTreeMap<Place, V> {
        let prober = |end: &End, other: &End| match (end, other) {
            (End::Prober(prober), _) => Some(prober.clone()),
            (End::OwnNode, End::Prober(other)) => {
                node_of(other, probers).cloned().map(Prober::Node)
            }
            (End::OwnNode, End::OwnNode) => None,
        };
        let mut cells = BTreeMap::new();
        for block in blocks {
            for (sources, row) in &block.rows {
                for source in sources {
                    for destination in block.destinations.iter().filter(|it| *it != source) {
                        let ends = (prober(source, destination), prober(destination, source));
                        let (Some(source), Some(destination)) = ends else { continue };
                        for (column, value) in row {
                            let place = (source.clone(), destination.clone(), *column);
                            cells.insert(place, value.clone());
                        }
                    }
                }
            }
        }
        cells
    }

    proptest! {
        #[test]
        fn every_cell_is_read_back_from_the_groups(cells in tables()) {
            let probers = probers();
            prop_assert_eq!(expand(&group(cells.clone(), &probers), &probers), cells);
        }
    }

    #[test]
    fn what_is_alike_is_one_block_and_one_row() {
        let probers = probers();
        let mut cells = BTreeMap::new();
        for source in probers.keys() {
            for destination in
                probers.keys().filter(|it| matches!(it, Prober::Pod(_)) && *it != source)
            {
                if end(source, destination, &probers) == End::Prober(Prober::Node("n1".into()))
                    || end(source, destination, &probers) == End::Prober(Prober::Node("n2".into()))
                {
                    continue;
                }
                cells.insert((source.clone(), destination.clone(), column(0)), 1);
            }
        }
        let blocks = group(cells.clone(), &probers);
        assert_eq!(blocks.len(), 1);
        assert_eq!(blocks[0].rows.len(), 1);
        assert_eq!(blocks[0].destinations.len(), 7);
        assert_eq!(expand(&blocks, &probers), cells);
    }
}
