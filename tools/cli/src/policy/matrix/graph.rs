//! The layout of the picture: a frame for each namespace on each side, boxes in it, and edges.
//!
//! Sources are on the left, destinations on the right. In a namespace, sources with equal rows are one box, and so are
//! destinations with equal columns. If most sources have the same cell at a destination, that cell
//! is a line in the destination's box ("everyone else: all"), and only the other sources have
//! edges. A source with the same cell to everyone has that cell in its own box. So the graph grows
//! with the differences, not with the number of pods.

use std::collections::{BTreeMap, BTreeSet};

use super::shown::Shown;
use manx_analysis::matrix::{Block, Cell, Matrix, fold};
use manx_objects::few;

/// The most names in a box.
const MOST_NAMES: usize = 6;
/// The most characters of a line of text.
pub(super) const MOST_LETTERS: usize = 52;
/// The most names at each end in the title of an edge.
const MOST_IN_TITLE: usize = 3;
/// The most edges. Without a bound, each box could have an edge to each box of the other side.
const MOST_EDGES: usize = 2_000;
pub(super) const LINE: usize = 16;
/// The space between two boxes, and round the boxes of a frame.
const GAP: usize = 10;
/// The space between two frames.
const BETWEEN: usize = 18;
/// The width of a box.
pub(super) const WIDTH: usize = 380;
/// The horizontal positions of the frames of sources and of destinations.
pub(super) const LEFT: usize = 20;
pub(super) const RIGHT: usize = 800;
pub(super) const FRAME: usize = WIDTH + 2 * GAP;
pub(super) const TOP: usize = 50;

/// The title of the frame of parties in no namespace.
const NO_NAMESPACE: &str = "nodes and outside";

/// The frame of a namespace on one side.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) x: usize,
    pub(super) y: usize,
    pub(super) height: usize,
    pub(super) name: String,
}

/// A box with lines of text.
#[derive(Debug, Default)]
pub(super) struct TextBox {
    pub(super) x: usize,
    pub(super) y: usize,
    pub(super) lines: Vec<String>,
    /// The whole text, if `lines` are shortened.
    pub(super) whole: Option<String>,
    /// The first names in the box with their namespace, for the titles of edges.
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

#[derive(Debug, Default)]
pub(super) struct Graph {
    pub(super) frames: Vec<Frame>,
    pub(super) sources: Vec<TextBox>,
    pub(super) destinations: Vec<TextBox>,
    pub(super) edges: Vec<Edge>,
    /// Whether the box of any source shows the cell that the source has at every destination.
    pub(super) has_uniform: bool,
    /// The number of edges that are left out.
    pub(super) left: usize,
    pub(super) height: usize,
}

/// The sort key of a namespace. Parties in no namespace are last.
type Namespace<'a> = (bool, &'a str);

/// The sources of one box, before they are placed.
struct Source<'a> {
    namespace: Namespace<'a>,
    block: usize,
    parties: Vec<usize>,
}

/// The destinations of one box, which have equal columns, before they are placed.
struct Destination<'a> {
    namespace: Namespace<'a>,
    parties: Vec<usize>,
    /// The cell of each block of sources; `None` if there is no such pair.
    column: Vec<Option<Cell>>,
    /// The cell that more than half of the sources have, if there is one.
    usual: Option<Cell>,
}

impl Graph {
    pub(super) fn new(shown: &Shown<'_>) -> Self {
        let (blocks, _) = shown.view.blocks(false);
        let sources = sources(shown.matrix, &blocks);
        let mut destinations = destinations(shown.matrix, &blocks);
        let uniform = uniform_cells(shown.matrix, &blocks, &destinations);
        destinations.sort_by_cached_key(|it| {
            (it.namespace, it.height(shown.matrix, &sources, &uniform), it.parties[0])
        });

        let has_uniform = uniform.iter().any(Option::is_some);
        let mut graph = Self { has_uniform, ..Self::default() };
        for source in &sources {
            let fact = uniform[source.block].map(|cell| {
                let services = shown.matrix.text(cell);
                let nothing = shown.matrix.is_none(cell);
                let text =
                    if nothing { "nothing".to_owned() } else { format!("everyone: {services}") };
                format!("\u{25b8} {text}")
            });
            let names = names(shown, source.namespace, &source.parties, &shown.view.sources);
            graph.sources.push(TextBox::new(source.namespace, names, fact.into_iter().collect()));
        }
        for destination in &destinations {
            graph.add(shown, destination, &sources, &uniform);
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
        uniform: &[Option<Cell>],
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
            let cell = edge_cell(matrix, column[*block], *usual);
            let Some(cell) = cell.filter(|_| uniform[*block].is_none()) else { continue };
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
        self.destinations.push(TextBox::new(*namespace, names, facts));
    }

    /// Places every box. The frames of a namespace begin at the same height on both sides.
    fn place(&mut self, sources: &[Source<'_>], destinations: &[Destination<'_>]) {
        let left = sources.iter().map(|it| it.namespace).zip(&mut self.sources);
        let right = destinations.iter().map(|it| it.namespace).zip(&mut self.destinations);
        let mut sides: BTreeMap<Namespace<'_>, [Vec<&mut TextBox>; 2]> = BTreeMap::new();
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

    /// The title of an edge.
    pub(super) fn title(&self, edge: &Edge) -> String {
        let (from, to) = (&self.sources[edge.source], &self.destinations[edge.destination]);
        format!("{} -> {}: {}", from.name, to.name, edge.services)
    }
}

impl TextBox {
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
    /// The mean position of the sources that have edges to the destination, in thousandths of a position. If the
    /// destinations are sorted by it, few edges cross.
    fn height(&self, matrix: &Matrix, sources: &[Source<'_>], uniform: &[Option<Cell>]) -> usize {
        let has_edge = |block: usize| {
            uniform[block].is_none() && edge_cell(matrix, self.column[block], self.usual).is_some()
        };
        let edges = sources.iter().enumerate().filter(|(_, source)| has_edge(source.block));
        let at: Vec<usize> = edges.map(|(at, _)| at).collect();
        at.iter().sum::<usize>() * 1000 / at.len().max(1)
    }
}

/// The sources of each block and namespace.
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

/// For each block of sources: its cell, if it has the same cell at every destination, and the cell would be on more
/// than one edge.
fn uniform_cells(
    matrix: &Matrix,
    blocks: &[Block],
    destinations: &[Destination<'_>],
) -> Vec<Option<Cell>> {
    let blocks = 0..blocks.len();
    blocks
        .map(|block| {
            let cells: BTreeSet<Cell> =
                destinations.iter().filter_map(|it| it.column[block]).collect();
            let edges = destinations
                .iter()
                .filter(|it| edge_cell(matrix, it.column[block], it.usual).is_some())
                .count();
            cells.first().copied().filter(|_| cells.len() == 1 && edges > 1)
        })
        .collect()
}

/// The cell, if it needs an edge because it is not the usual one. A destination that is unreachable
/// for most sources has no edges for "nothing".
fn edge_cell(matrix: &Matrix, cell: Option<Cell>, usual: Option<Cell>) -> Option<Cell> {
    let quiet = usual.is_none_or(|cell| matrix.is_none(cell));
    cell.filter(|it| cell != usual && !(quiet && matrix.is_none(*it)))
}

/// The cell that more than half of the parties among the sources have.
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

/// The names of parties of one namespace, without the namespace, which is in the frame's title.
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

/// Shortens a long line in its middle, because names mostly differ at the end.
pub(super) fn shortened(line: &str) -> String {
    let letters: Vec<char> = line.chars().collect();
    if letters.len() <= MOST_LETTERS {
        return line.to_owned();
    }
    let end = (MOST_LETTERS - 1) / 2;
    let (start, end) = (&letters[..MOST_LETTERS - 1 - end], &letters[letters.len() - end..]);
    start.iter().chain(&['\u{2026}']).chain(end).collect()
}
