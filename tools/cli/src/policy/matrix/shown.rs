//! The content that all forms of the matrix show.

use manx_analysis::matrix::{Block, Line, Matrix, View, Whys};

pub(super) struct Shown<'a> {
    pub(super) matrix: &'a Matrix,
    pub(super) view: View<'a>,
    pub(super) why: bool,
    pub(super) notes: Vec<String>,
}

impl Shown<'_> {
    /// The names of parties, as a list.
    pub(super) fn names(&self, parties: &[usize]) -> Vec<String> {
        parties.iter().map(|party| self.matrix.parties[*party].to_string()).collect()
    }

    /// The reasons: a line for each end and family. Families that agree share a line.
    pub(super) fn whys(line: &Line, whys: &Whys) -> Vec<String> {
        let families: &[&str] = match line.why.len() {
            2 => &["IPv4 ", "IPv6 "],
            _ => &[""],
        };
        let mut lines = Vec::new();
        for (family, [egress, ingress]) in families.iter().zip(&line.why) {
            lines.push(format!("{family}egress: {}", whys.text(*egress)));
            lines.push(format!("{family}ingress: {}", whys.text(*ingress)));
        }
        lines
    }
}

/// The destinations of a block.
pub(super) fn of_block(block: &Block) -> Vec<usize> {
    let lines = block.lines.iter().chain(&block.none);
    lines.flat_map(|line| line.destinations.iter().copied()).collect()
}
