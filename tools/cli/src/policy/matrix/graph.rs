//! What the picture holds, and where it stands: a frame for each namespace on either side, boxes in it, edges.
//!
//! Sources stand on the left, destinations on the right. In a namespace, sources with equal rows are one box, and
//! destinations with equal columns. What most sources may do at a destination is one line in its box ("everyone else:
//! all"), and edges are drawn for the others only. A source with the same cell to everyone is said once, in its own
//! box. So the graph grows with what is different, not with the number of pods.

use std::collections::{BTreeMap, BTreeSet};

use super::shown::Shown;
use manx_analysis::matrix::{Block, Cell, Matrix, fold};
use manx_objects::few;

/// The most names in a box.
const MOST_NAMES: usize = 6;
/// The most letters of a line.
pub(super) const MOST_LETTERS: usize = 52;
/// The most names at either end of what an edge says.
const MOST_IN_TITLE: usize = 3;
/// The most edges: each box of one side may have one to each of the other.
const MOST_EDGES: usize = 2_000;
pub(super) const LINE: usize = 16;
/// Between two boxes, and round the boxes of a frame.
const GAP: usize = 10;
/// Between two frames.
const BETWEEN: usize = 18;
/// The width of a box.
pub(super) const WIDTH: usize = 380;
/// Where the frames of sources and of destinations begin.
pub(super) const LEFT: usize = 20;
pub(super) const RIGHT: usize = 800;
pub(super) const FRAME: usize = WIDTH + 2 * GAP;
pub(super) const TOP: usize = 50;

/// The frame of what is in no namespace.
const NO_NAMESPACE: &str = "nodes and outside";

/// A namespace, on one side.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) x: usize,
    pub(super) y: usize,
    pub(super) height: usize,
    pub(super) name: String,
}

/// A box with lines of text.
#[derive(Debug, Default)]
pub(super) struct Box {
    pub(super) x: usize,
    pub(super) y: usize,
    pub(super) lines: Vec<String>,
    /// All that `lines` shorten, if they do.
    pub(super) whole: Option<String>,
    /// The first of its names with the namespace, for the edges.
    name: String,
}

/// An edge from a source's box to a line of a destination's box.
#[derive(Debug)]
pub(super) struct Edge {
    pub(super) source: usize,
    pub(super) destination: usize,
    pub(super) line: usize,
    pub(super) services: String,
    pub(super) nothing: bool,
}

/// The graph.
#[derive(Debug, Default)]
pub(super) struct Graph {
    pub(super) frames: Vec<Frame>,
    pub(super) sources: Vec<Box>,
    pub(super) destinations: Vec<Box>,
    pub(super) edges: Vec<Edge>,
    /// Whether a source says in its box what it does everywhere.
    pub(super) has_said: bool,
    /// How many edges are left out.
    pub(super) left: usize,
    pub(super) height: usize,
}

/// Where a namespace stands; what is in none stands last.
type Namespace<'a> = (bool, &'a str);

/// Sources of a block, before they have a place.
struct Source<'a> {
    namespace: Namespace<'a>,
    block: usize,
    parties: Vec<usize>,
}

/// Destinations with equal columns, before they have a place.
struct Destination<'a> {
    namespace: Namespace<'a>,
    parties: Vec<usize>,
    /// What each of the blocks reaches; `None`: there is no such pair.
    column: Vec<Option<Cell>>,
    /// What more than half of the sources may do.
    usual: Option<Cell>,
}

impl Graph {
    pub(super) fn new(shown: &Shown<'_>) -> Self {
        let (blocks, _) = shown.view.blocks(false);
        let sources = sources(shown.matrix, &blocks);
        let mut destinations = destinations(shown.matrix, &blocks);
        let said = said(shown.matrix, &blocks, &destinations);
        destinations.sort_by_cached_key(|it| {
            (it.namespace, it.height(shown.matrix, &sources, &said), it.parties[0])
        });

        let has_said = said.iter().any(Option::is_some);
        let mut graph = Self { has_said, ..Self::default() };
        for source in &sources {
            let fact = said[source.block].map(|cell| {
                let services = shown.matrix.text(cell);
                let nothing = shown.matrix.is_none(cell);
                let text =
                    if nothing { "nothing".to_owned() } else { format!("everyone: {services}") };
                format!("\u{25b8} {text}")
            });
            let names = names(shown, source.namespace, &source.parties, &shown.view.sources);
            graph.sources.push(Box::new(source.namespace, names, fact.into_iter().collect()));
        }
        for destination in &destinations {
            graph.add(shown, destination, &sources, &said);
        }
        graph.place(&sources, &destinations);
        graph
    }

    /// Adds a destination's box and its edges.
    fn add(
        &mut self,
        shown: &Shown<'_>,
        Destination { namespace, parties, column, usual }: &Destination<'_>,
        sources: &[Source<'_>],
        said: &[Option<Cell>],
    ) {
        let matrix = shown.matrix;
        let names = names(shown, *namespace, parties, &shown.view.destinations);
        let first = names.len().min(MOST_NAMES);
        let mut facts = Vec::new();
        if let Some(cell) = usual.filter(|cell| !matrix.is_none(*cell)) {
            let others = column.iter().any(|it| it.is_some() && it != usual);
            let who = if others { "everyone else" } else { "everyone" };
            facts.push(format!("\u{25c2} {who}: {}", matrix.text(cell)));
        }
        let mut slots: BTreeMap<Cell, usize> = BTreeMap::new();
        for (source, Source { block, .. }) in sources.iter().enumerate() {
            let cell = drawn(matrix, column[*block], *usual);
            let Some(cell) = cell.filter(|_| said[*block].is_none()) else { continue };
            let line = first
                + *slots.entry(cell).or_insert_with(|| {
                    facts.push(format!("\u{25c2} {}", matrix.text(cell)));
                    facts.len() - 1
                });
            if self.edges.len() == MOST_EDGES {
                self.left += 1;
                continue;
            }
            let (services, nothing) = (matrix.text(cell), matrix.is_none(cell));
            let destination = self.destinations.len();
            self.edges.push(Edge { source, destination, line, services, nothing });
        }
        self.destinations.push(Box::new(*namespace, names, facts));
    }

    /// Gives every box its place: the frames of a namespace begin at one height on both sides.
    fn place(&mut self, sources: &[Source<'_>], destinations: &[Destination<'_>]) {
        let left = sources.iter().map(|it| it.namespace).zip(&mut self.sources);
        let right = destinations.iter().map(|it| it.namespace).zip(&mut self.destinations);
        let mut sides: BTreeMap<Namespace<'_>, [Vec<&mut Box>; 2]> = BTreeMap::new();
        for (namespace, source) in left {
            sides.entry(namespace).or_default()[0].push(source);
        }
        for (namespace, destination) in right {
            sides.entry(namespace).or_default()[1].push(destination);
        }
        let mut top = TOP;
        for ((_, namespace), sides) in sides {
            let mut below = top;
            for (x, boxes) in [LEFT, RIGHT].into_iter().zip(sides) {
                if boxes.is_empty() {
                    continue;
                }
                let mut y = top + LINE + GAP;
                for placed in boxes {
                    (placed.x, placed.y) = (x + GAP, y);
                    y += placed.height() + GAP;
                }
                let name = if namespace.is_empty() { NO_NAMESPACE } else { namespace };
                self.frames.push(Frame { x, y: top, height: y - top, name: name.to_owned() });
                below = below.max(y);
            }
            top = below + BETWEEN;
        }
        self.height = top;
    }

    /// What an edge says.
    pub(super) fn title(&self, edge: &Edge) -> String {
        let (from, to) = (&self.sources[edge.source], &self.destinations[edge.destination]);
        format!("{} -> {}: {}", from.name, to.name, edge.services)
    }
}

impl Box {
    fn new((_, namespace): Namespace<'_>, names: Vec<String>, facts: Vec<String>) -> Self {
        let prefix = if namespace.is_empty() { String::new() } else { format!("{namespace}/") };
        let name = few(names.iter().map(|name| format!("{prefix}{name}")), MOST_IN_TITLE);
        let mut lines = names.clone();
        if lines.len() > MOST_NAMES {
            let more = lines.split_off(MOST_NAMES - 1).len();
            lines.push(format!("and {more} more"));
        }
        lines.extend(facts.iter().cloned());
        let lines: Vec<String> = lines.iter().map(|line| shortened(line)).collect();
        let whole: Vec<String> = names.into_iter().chain(facts).collect();
        let whole = (whole != lines).then(|| whole.join("\n"));
        Self { lines, whole, name, ..Self::default() }
    }

    pub(super) fn height(&self) -> usize {
        (self.lines.len() + 1) * LINE
    }
}

impl Destination<'_> {
    /// The height of the sources that have edges to it: if it stands there, few edges cross.
    fn height(&self, matrix: &Matrix, sources: &[Source<'_>], said: &[Option<Cell>]) -> usize {
        let has_edge = |block: usize| {
            said[block].is_none() && drawn(matrix, self.column[block], self.usual).is_some()
        };
        let edges = sources.iter().enumerate().filter(|(_, source)| has_edge(source.block));
        let at: Vec<usize> = edges.map(|(at, _)| at).collect();
        at.iter().sum::<usize>() * 1000 / at.len().max(1)
    }
}

/// The blocks by namespace.
fn sources<'a>(matrix: &'a Matrix, blocks: &[Block]) -> Vec<Source<'a>> {
    let mut sources: BTreeMap<(Namespace<'_>, usize), Vec<usize>> = BTreeMap::new();
    for (number, block) in blocks.iter().enumerate() {
        for party in &block.sources {
            sources.entry((namespace(matrix, *party), number)).or_default().push(*party);
        }
    }
    let sources = sources.into_iter();
    sources.map(|((namespace, block), parties)| Source { namespace, block, parties }).collect()
}

/// The destinations of each namespace with equal columns.
fn destinations<'a>(matrix: &'a Matrix, blocks: &[Block]) -> Vec<Destination<'a>> {
    let mut columns: BTreeMap<usize, Vec<Option<Cell>>> = BTreeMap::new();
    for (index, block) in blocks.iter().enumerate() {
        for line in block.lines.iter().chain(&block.none) {
            for to in &line.destinations {
                let column = columns.entry(*to).or_insert_with(|| vec![None; blocks.len()]);
                column[index] = Some(line.cell);
            }
        }
    }
    let mut joined: BTreeMap<(Namespace<'_>, Vec<Option<Cell>>), Vec<usize>> = BTreeMap::new();
    for (to, column) in columns {
        joined.entry((namespace(matrix, to), column)).or_default().push(to);
    }
    let joined = joined.into_iter();
    joined
        .map(|((namespace, column), parties)| {
            let usual = usual(&column, blocks);
            Destination { namespace, parties, column, usual }
        })
        .collect()
}

/// By block, the cell that it has with everyone, if edges would say so more than once.
fn said(matrix: &Matrix, blocks: &[Block], destinations: &[Destination<'_>]) -> Vec<Option<Cell>> {
    let blocks = 0..blocks.len();
    blocks
        .map(|block| {
            let cells: BTreeSet<Cell> =
                destinations.iter().filter_map(|it| it.column[block]).collect();
            let edges = destinations
                .iter()
                .filter(|it| drawn(matrix, it.column[block], it.usual).is_some())
                .count();
            cells.first().copied().filter(|_| cells.len() == 1 && edges > 1)
        })
        .collect()
}

/// A cell that is not the usual one: an edge says it. What nobody reaches needs no edges.
fn drawn(matrix: &Matrix, cell: Option<Cell>, usual: Option<Cell>) -> Option<Cell> {
    let quiet = usual.is_none_or(|cell| matrix.is_none(cell));
    cell.filter(|it| cell != usual && !(quiet && matrix.is_none(*it)))
}

/// What more than half of the sources may do, counted by parties.
fn usual(column: &[Option<Cell>], blocks: &[Block]) -> Option<Cell> {
    let mut count: BTreeMap<Cell, usize> = BTreeMap::new();
    let mut all = 0;
    for (cell, block) in column.iter().zip(blocks) {
        if let Some(cell) = cell {
            *count.entry(*cell).or_default() += block.sources.len();
            all += block.sources.len();
        }
    }
    let most = count.into_iter().max_by_key(|(_, weight)| *weight);
    most.filter(|(_, weight)| *weight * 2 > all).map(|(cell, _)| cell)
}

fn namespace(matrix: &Matrix, party: usize) -> Namespace<'_> {
    let name = matrix.parties[party].namespace();
    (name.is_empty(), name)
}

/// The names of parties of one namespace, which its frame has.
fn names(
    shown: &Shown<'_>,
    (_, namespace): Namespace<'_>,
    parties: &[usize],
    all: &[usize],
) -> Vec<String> {
    let prefix = format!("{namespace}/");
    let names = fold(shown.matrix, parties, all);
    let own = names.iter().map(|name| match name.strip_prefix(&prefix) {
        Some("*") => "every pod".to_owned(),
        Some(own) => own.to_owned(),
        None => name.clone(),
    });
    own.collect()
}

/// A line without its middle, if it is long: names differ at the end.
pub(super) fn shortened(line: &str) -> String {
    let letters: Vec<char> = line.chars().collect();
    if letters.len() <= MOST_LETTERS {
        return line.to_owned();
    }
    let end = (MOST_LETTERS - 1) / 2;
    let (start, end) = (&letters[..MOST_LETTERS - 1 - end], &letters[letters.len() - end..]);
    start.iter().chain(&['\u{2026}']).chain(end).collect()
}
