//! The matrix as a graph: sources on the left, destinations on the right, an edge where something passes.
//!
//! Sources with equal rows are one box, and destinations with equal columns. What most sources may do at a destination
//! is one line in its box ("everyone else: all"), and edges are drawn for the others only. So the graph grows with what
//! is different, not with the number of pods.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::shown::Shown;
use manx_analysis::matrix::{Cell, fold};

/// The most names in a box.
const MOST_NAMES: usize = 6;
/// The most letters of a line.
const MOST_LETTERS: usize = 52;
const LINE: usize = 16;
const GAP: usize = 14;
const WIDTH: usize = 380;
const LEFT: usize = 20;
const RIGHT: usize = 760;
const TOP: usize = 50;
const COLOURS: [&str; 8] =
    ["#1b6ca8", "#b3541e", "#2e7d32", "#8e24aa", "#6d4c41", "#00838f", "#c2185b", "#5c6bc0"];

/// A box with lines of text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Box {
    pub(super) x: usize,
    pub(super) y: usize,
    pub(super) lines: Vec<String>,
}

/// An edge from a source's box to a line of a destination's box.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Edge {
    source: usize,
    destination: usize,
    line: usize,
    services: String,
    nothing: bool,
}

/// The graph.
#[derive(Debug, Default)]
pub(super) struct Graph {
    pub(super) sources: Vec<Box>,
    pub(super) destinations: Vec<Box>,
    pub(super) edges: Vec<Edge>,
}

/// Destinations with equal columns, before they have a place.
struct Destination {
    names: Vec<String>,
    /// What each of the sources' boxes reaches; `None`: there is no such pair.
    column: Vec<Option<Cell>>,
}

impl Box {
    fn height(&self) -> usize {
        (self.lines.len() + 1) * LINE
    }
}

impl Graph {
    pub(super) fn new(shown: &Shown<'_>) -> Self {
        let (blocks, _) = shown.view.blocks(false);
        let mut columns: BTreeMap<usize, Vec<Option<Cell>>> = BTreeMap::new();
        for (index, block) in blocks.iter().enumerate() {
            for line in block.lines.iter().chain(&block.none) {
                for to in &line.destinations {
                    let column = columns.entry(*to).or_insert_with(|| vec![None; blocks.len()]);
                    column[index] = Some(line.cell);
                }
            }
        }
        let mut joined: BTreeMap<Vec<Option<Cell>>, Vec<usize>> = BTreeMap::new();
        for (to, column) in columns {
            joined.entry(column).or_default().push(to);
        }
        let mut graph = Self::default();
        let mut y = TOP;
        for block in &blocks {
            let lines = named(fold(shown.matrix, &block.sources, &shown.view.sources));
            let placed = Box { x: LEFT, y, lines };
            y += placed.height() + GAP;
            graph.sources.push(placed);
        }
        let weights: Vec<usize> = blocks.iter().map(|block| block.sources.len()).collect();
        let mut destinations: Vec<Destination> = joined
            .into_iter()
            .map(|(column, parties)| Destination {
                names: fold(shown.matrix, &parties, &shown.view.destinations),
                column,
            })
            .collect();
        // A destination stands at the height of what reaches it, so that few edges cross.
        destinations.sort_by_cached_key(|it| {
            let usual = usual(&it.column, &weights);
            let unusual = it.column.iter().enumerate().filter(|(_, cell)| **cell != usual);
            let at: Vec<usize> =
                unusual.filter(|(_, cell)| cell.is_some()).map(|(at, _)| at).collect();
            (at.iter().sum::<usize>() * 1000 / at.len().max(1), it.names.clone())
        });
        let mut y = TOP;
        for destination in destinations {
            let number = graph.destinations.len();
            let placed = graph.destination(shown, destination, &weights, number, y);
            y += placed.height() + GAP;
            graph.destinations.push(placed);
        }
        graph
    }

    /// Makes a destination's box and adds its edges.
    fn destination(
        &mut self,
        shown: &Shown<'_>,
        Destination { names, column }: Destination,
        weights: &[usize],
        number: usize,
        y: usize,
    ) -> Box {
        let mut lines = named(names);
        let usual = usual(&column, weights);
        if let Some(cell) = usual.filter(|cell| !shown.matrix.is_none(*cell)) {
            let others = column.iter().any(|it| it.is_some() && *it != usual);
            let who = if others { "everyone else" } else { "everyone" };
            lines.push(cut(format!("\u{25c2} {who}: {}", shown.matrix.text(cell))));
        }
        let mut slots: BTreeMap<Cell, usize> = BTreeMap::new();
        let quiet = usual.is_none_or(|cell| shown.matrix.is_none(cell));
        for (source, cell) in column.iter().enumerate() {
            let Some(cell) = cell.filter(|cell| Some(*cell) != usual) else { continue };
            let nothing = shown.matrix.is_none(cell);
            if nothing && quiet {
                continue;
            }
            let services = shown.matrix.text(cell);
            let line = *slots.entry(cell).or_insert_with(|| {
                lines.push(cut(format!("\u{25c2} {services}")));
                lines.len() - 1
            });
            self.edges.push(Edge { source, destination: number, line, services, nothing });
        }
        Box { x: RIGHT, y, lines }
    }

    pub(super) fn height(&self) -> usize {
        let ends = [self.sources.last(), self.destinations.last()].into_iter().flatten();
        ends.map(|last| last.y + last.height()).max().unwrap_or(TOP) + TOP
    }

    fn draw(&self, notes: &[String]) -> String {
        let (width, height) = (RIGHT + WIDTH + LEFT, self.height());
        let below = height + notes.len() * LINE;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {below}\" width=\"{width}\" height=\"{below}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n<style>path:hover{{stroke-width:5;opacity:1}}</style>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
             <text x=\"{LEFT}\" y=\"30\" font-size=\"16\">from</text><text x=\"{RIGHT}\" y=\"30\" font-size=\"16\">to</text>\n"
        );
        let services: std::collections::BTreeSet<&str> =
            self.edges.iter().map(|edge| edge.services.as_str()).collect();
        let services: Vec<&str> = services.into_iter().collect();
        for Edge { source, destination, line, services: of, nothing } in &self.edges {
            let (from, to) = (&self.sources[*source], &self.destinations[*destination]);
            let (x, y) = (LEFT + WIDTH, from.y + from.height() / 2);
            let slot = to.y + LINE * (line + 1) - LINE / 4;
            let middle = x.midpoint(RIGHT);
            let colour = services.binary_search(&of.as_str()).unwrap_or_default() % COLOURS.len();
            let dashes = if *nothing { " stroke-dasharray=\"4 4\"" } else { "" };
            let title = format!("{} -> {}: {of}", from.lines.join(", "), to.lines[0]);
            // Writing to a String cannot fail.
            let _ = writeln!(
                svg,
                "<path d=\"M{x} {y}C{middle} {y} {middle} {slot} {RIGHT} {slot}\" fill=\"none\" stroke=\"{}\" \
                 stroke-width=\"1.5\" opacity=\".75\"{dashes}><title>{}</title></path>",
                COLOURS[colour],
                escaped(&title)
            );
        }
        for placed in self.sources.iter().chain(&self.destinations) {
            let (x, y, high) = (placed.x, placed.y, placed.height());
            let _ = writeln!(
                svg,
                "<rect x=\"{x}\" y=\"{y}\" width=\"{WIDTH}\" height=\"{high}\" rx=\"4\" fill=\"#f2f5f8\" stroke=\"#8fa1b3\"/>"
            );
            for (index, line) in placed.lines.iter().enumerate() {
                let (x, y) = (x + 8, y + LINE * (index + 1));
                let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y}\">{}</text>", escaped(line));
            }
        }
        for (index, note) in notes.iter().enumerate() {
            let y = height - TOP / 2 + index * LINE;
            let _ = writeln!(
                svg,
                "<text x=\"{LEFT}\" y=\"{y}\" fill=\"#4b5a68\">{}</text>",
                escaped(note)
            );
        }
        svg + "</svg>\n"
    }
}

/// The picture.
pub(super) fn render(shown: &Shown<'_>) -> String {
    let mut notes = shown.notes.clone();
    notes.insert(
        0,
        "Boxes hold what policy treats alike. A dashed edge: nothing passes, although it does for everyone else.".to_owned(),
    );
    Graph::new(shown).draw(&notes)
}

/// What more than half of the sources may do, counted by parties.
fn usual(column: &[Option<Cell>], weights: &[usize]) -> Option<Cell> {
    let mut count: BTreeMap<Cell, usize> = BTreeMap::new();
    let mut all = 0;
    for (cell, weight) in column.iter().zip(weights) {
        if let Some(cell) = cell {
            *count.entry(*cell).or_default() += weight;
            all += weight;
        }
    }
    let most = count.into_iter().max_by_key(|(_, weight)| *weight);
    most.filter(|(_, weight)| *weight * 2 > all).map(|(cell, _)| cell)
}

/// At most [`MOST_NAMES`] lines.
fn named(mut names: Vec<String>) -> Vec<String> {
    if names.len() > MOST_NAMES {
        let more = names.split_off(MOST_NAMES - 1).len();
        names.push(format!("and {more} more"));
    }
    names.into_iter().map(cut).collect()
}

fn cut(text: String) -> String {
    if text.chars().count() <= MOST_LETTERS {
        return text;
    }
    let mut short: String = text.chars().take(MOST_LETTERS - 1).collect();
    short.push('\u{2026}');
    short
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
impl Graph {
    /// Whether no box covers another, and every line is short enough for its box.
    pub(super) fn is_legible(&self) -> bool {
        let apart =
            |boxes: &[Box]| boxes.windows(2).all(|pair| pair[0].y + pair[0].height() < pair[1].y);
        let all = || self.sources.iter().chain(&self.destinations);
        apart(&self.sources)
            && apart(&self.destinations)
            && all().all(|it| it.lines.len() <= MOST_NAMES + 20)
            && all().flat_map(|it| &it.lines).all(|line| line.chars().count() <= MOST_LETTERS)
    }
}
