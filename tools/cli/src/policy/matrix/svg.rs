//! The matrix as a picture: the graph, and the notes below it.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::graph::{FRAME, Frame, Graph, LEFT, LINE, RIGHT, TOP, TextBox, WIDTH, shortened};
use super::shown::Shown;
use super::text::wrap;

const COLOURS: [&str; 8] =
    ["#1b6ca8", "#b3541e", "#2e7d32", "#8e24aa", "#6d4c41", "#00838f", "#c2185b", "#5c6bc0"];

pub(super) fn render(shown: &Shown<'_>) -> String {
    let graph = Graph::new(shown);
    let mut notes = vec![
        "A frame is a namespace. A box holds those of it that policy treats alike.".to_owned(),
    ];
    if graph.has_uniform {
        notes.push(
            "What a source does everywhere is said once, in its own box (\u{25b8}), and not at the destinations."
                .to_owned(),
        );
    }
    if graph.edges.iter().any(|edge| edge.nothing) {
        notes.push("A dashed edge: nothing passes, although it does for everyone else.".to_owned());
    }
    if graph.left > 0 {
        notes.push(format!(
            "{} edges are left out. Choose fewer with --namespace, --from and --to.",
            graph.left
        ));
    }
    notes.extend(shown.notes.iter().cloned());
    let notes: String = notes.iter().map(|note| wrap(note, "", "  ")).collect();
    let notes: Vec<&str> = notes.lines().collect();
    draw(&graph, &notes)
}

fn draw(graph: &Graph, notes: &[&str]) -> String {
    let width = RIGHT + FRAME + LEFT;
    let height = graph.height + (notes.len() + 1) * LINE;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<style>path:hover{{stroke-width:5;opacity:1}}</style>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"{LEFT}\" y=\"{y}\" font-size=\"16\">from</text><text x=\"{RIGHT}\" y=\"{y}\" font-size=\"16\">to</text>\n",
        y = TOP - 20
    );
    for frame in &graph.frames {
        draw_frame(&mut svg, frame);
    }
    draw_edges(&mut svg, graph);
    for placed in graph.sources.iter().chain(&graph.destinations) {
        draw_box(&mut svg, placed);
    }
    for (index, note) in notes.iter().enumerate() {
        let y = graph.height + (index + 1) * LINE;
        let note = escaped(note);
        // Writing to a String cannot fail.
        let _ = writeln!(svg, "<text x=\"{LEFT}\" y=\"{y}\" fill=\"#4b5a68\">{note}</text>");
    }
    svg + "</svg>\n"
}

fn draw_frame(svg: &mut String, Frame { x, y, height, name }: &Frame) {
    let (name_x, name_y) = (x + 10, y + LINE);
    let (whole, name) = (escaped(name), escaped(&shortened(name)));
    // Writing to a String cannot fail.
    let _ = writeln!(
        svg,
        "<g><title>{whole}</title><rect class=\"frame\" x=\"{x}\" y=\"{y}\" width=\"{FRAME}\" height=\"{height}\" rx=\"6\" fill=\"#fafbfc\" \
         stroke=\"#c3cdd6\"/>\n<text x=\"{name_x}\" y=\"{name_y}\" font-weight=\"bold\" fill=\"#4b5a68\">{name}</text></g>"
    );
}

fn draw_edges(svg: &mut String, graph: &Graph) {
    let services: BTreeSet<&str> = graph.edges.iter().map(|edge| edge.services.as_str()).collect();
    let services: Vec<&str> = services.into_iter().collect();
    for edge in &graph.edges {
        let (from, to) = (&graph.sources[edge.source], &graph.destinations[edge.destination]);
        let (x, y) = (from.x + WIDTH, from.y + from.height() / 2);
        let (end, slot) = (to.x, to.y + LINE * (edge.line + 1) - LINE / 4);
        let middle = x.midpoint(end);
        let colour = services.binary_search(&edge.services.as_str()).unwrap_or_default();
        let colour = COLOURS[colour % COLOURS.len()];
        let dashes = if edge.nothing { " stroke-dasharray=\"4 4\"" } else { "" };
        let title = escaped(&graph.title(edge));
        // Writing to a String cannot fail.
        let _ = writeln!(
            svg,
            "<path d=\"M{x} {y}C{middle} {y} {middle} {slot} {end} {slot}\" fill=\"none\" stroke=\"{colour}\" \
             stroke-width=\"1.5\" opacity=\".75\"{dashes}><title>{title}</title></path>"
        );
    }
}

fn draw_box(svg: &mut String, placed: &TextBox) {
    let (x, y, height) = (placed.x, placed.y, placed.height());
    let whole = placed.whole.as_deref().map(escaped);
    let whole = whole.map(|whole| format!("<title>{whole}</title>")).unwrap_or_default();
    // Writing to a String cannot fail.
    let _ = writeln!(
        svg,
        "<g>{whole}<rect class=\"box\" x=\"{x}\" y=\"{y}\" width=\"{WIDTH}\" height=\"{height}\" rx=\"4\" fill=\"#edf2f6\" \
         stroke=\"#8fa1b3\"/>"
    );
    for (index, line) in placed.lines.iter().enumerate() {
        let (x, y) = (x + 8, y + LINE * (index + 1));
        let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y}\">{}</text>", escaped(line));
    }
    svg.push_str("</g>\n");
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
