//! The truth table as text: a block for each group of destinations, with a row for each group of sources.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::IpAddr;

use comfy_table::{Cell, ContentArrangement};

use super::probers::{ProberReport, Probers};
use super::table::{Style, push_table, table};
use super::truth::{Block, Column, End, Row};
use crate::plan::prober::Prober;
use crate::world::service::Service;

/// The width at which lists of names are folded, between two names.
const NAMES: usize = 60;
/// The width at which the heads of columns are folded.
const HEAD: usize = 24;

/// Writes the probers: the pods of each node with their addresses, and the pods of each workload.
pub(super) fn push_probers(out: &mut String, probers: &Probers, style: Style) {
    let width = usize::from(style.width);
    for (prober, report) in probers {
        let own = |(other, of): (&Prober, &ProberReport)| match prober {
            Prober::Node(node) if of.node.as_ref() == Some(node) => {
                let device = of.device.map_or("the node's network".to_owned(), |it| it.to_string());
                Some(format!("{other} ({}, {device})", list(&of.addresses)))
            }
            _ => None,
        };
        let pods: Vec<String> = probers.iter().filter_map(own).collect();
        if !matches!(prober, Prober::Pod(_)) {
            push_folded(out, &format!("{prober} ({})", list(&report.addresses)), &pods, width);
        }
    }
    push_workloads::<()>(out, probers, style, None);
}

/// Writes the pods of each workload that blocks name, or of all workloads.
pub(super) fn push_workloads<V>(
    out: &mut String,
    probers: &Probers,
    style: Style,
    of: Option<&[Block<V>]>,
) {
    let mut named = BTreeSet::new();
    for block in of.unwrap_or_default() {
        let alone = block.alone();
        named.extend(names(&block.destinations, None, probers));
        named.extend(block.rows.iter().flat_map(|(sources, _)| names(sources, alone, probers)));
    }
    for (workload, pods) in workloads(probers) {
        let whole = whole(workload, pods.len());
        if of.is_none() || named.contains(&whole) {
            let names: Vec<String> = pods.iter().map(ToString::to_string).collect();
            push_folded(out, &whole, &names, usize::from(style.width));
        }
    }
    out.push('\n');
}

fn list(addresses: &[IpAddr]) -> String {
    addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ")
}

fn push_folded(out: &mut String, head: &str, items: &[String], width: usize) {
    // Writing to a String cannot fail.
    let _ = match items {
        [] => writeln!(out, "{head}"),
        items => {
            writeln!(out, "{head}:\n  {}", fold(items, width.max(NAMES)).replace('\n', "\n  "))
        }
    };
}

/// The workloads with more than one pod.
fn workloads(probers: &Probers) -> BTreeMap<&String, BTreeSet<&Prober>> {
    let mut workloads: BTreeMap<&String, BTreeSet<&Prober>> = BTreeMap::new();
    for (prober, report) in probers {
        if let Some(workload) = &report.workload {
            workloads.entry(workload).or_default().insert(prober);
        }
    }
    workloads.retain(|_, pods| pods.len() > 1);
    workloads
}

/// The name for all pods of a workload.
fn whole(workload: &str, pods: usize) -> String {
    format!("{workload} ({pods})")
}

/// The names of ends: a workload in place of its pods if all of them are among the ends.
fn names(ends: &[End], alone: Option<&End>, probers: &Probers) -> Vec<String> {
    let here: BTreeSet<&Prober> = ends.iter().chain(alone).filter_map(End::prober).collect();
    let mut workloads = workloads(probers);
    workloads.retain(|_, pods| pods.is_subset(&here));
    let mut names = Vec::new();
    for end in ends {
        let Some(prober) = end.prober() else {
            names.push("its own node".to_owned());
            continue;
        };
        let workload = probers.get(prober).and_then(|it| it.workload.as_ref());
        let name = match workload.and_then(|it| Some(whole(it, workloads.get(it)?.len()))) {
            Some(whole) => whole,
            None => prober.to_string(),
        };
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// The words for all sources that stand in no other row of a block. The first word is used if the block has all pods,
/// the destination's own node and the outside host as sources, the second one if it has all pods.
const OTHERS: [&str; 2] = ["all others", "all other pods"];
/// The sources of a row are always named one by one if there are at most this many.
const NAMED: usize = 3;

/// The sources that a block must have for each of the words in [`OTHERS`].
fn universes(probers: &Probers) -> [BTreeSet<End>; 2] {
    let pods = probers.keys().filter(|prober| matches!(prober, Prober::Pod(_)));
    let pods: BTreeSet<End> = pods.cloned().map(End::Prober).collect();
    let hosts = [End::OwnNode, End::Prober(Prober::Outside)];
    [pods.iter().cloned().chain(hosts).collect(), pods]
}

/// The names of the sources of each row. If every source has a row, the row with the most sources is named "all
/// others".
fn sources<V>(block: &Block<V>, probers: &Probers) -> Vec<Vec<String>> {
    let alone = block.alone();
    let all = block.rows.iter().map(|(sources, _)| names(sources, alone, probers));
    let mut all: Vec<Vec<String>> = all.collect();
    let alone_pod = alone.filter(|it| matches!(it.prober(), Some(Prober::Pod(_))));
    let with_row = block.rows.iter().flat_map(|(sources, _)| sources).chain(alone_pod);
    let with_row: BTreeSet<End> = with_row.cloned().collect();
    let word = universes(probers).iter().position(|universe| *universe == with_row);
    let most = all.iter_mut().max_by_key(|names| names.len()).filter(|it| it.len() > NAMED);
    if let (Some(word), Some(most)) = (word, most) {
        *most = vec![OTHERS[word].to_owned()];
    }
    all
}

/// Joins items by commas, in lines of at most `width` columns unless an item is longer.
fn fold(items: &[String], width: usize) -> String {
    let mut text = String::new();
    let mut column = 0;
    for (index, item) in items.iter().enumerate() {
        let comma = usize::from(index + 1 < items.len());
        let length = item.chars().count() + comma;
        if column > 0 && column + 1 + length > width {
            text.push('\n');
            column = 0;
        } else if column > 0 {
            text.push(' ');
            column += 1;
        }
        text.push_str(item);
        text.push_str(&","[..comma]);
        column += length;
    }
    text
}

/// Writes blocks. `show` makes the text of a cell.
pub(super) fn push_blocks<V: Eq>(
    out: &mut String,
    blocks: &[Block<V>],
    probers: &Probers,
    style: Style,
    show: impl Fn(&V) -> Cell,
) {
    let all: BTreeSet<Column> = blocks.iter().flat_map(Block::columns).collect();
    let both = all.iter().map(|column| column.v6).collect::<BTreeSet<_>>().len() > 1;
    for block in blocks {
        let destinations = fold(&names(&block.destinations, None, probers), NAMES);
        let _ = writeln!(out, "to {}", destinations.replace('\n', "\n   "));
        let columns = columns(block);
        let heads = columns.iter().map(|columns| {
            let heads: Vec<String> = columns.iter().map(|column| head(*column, both)).collect();
            Cell::new(fold(&heads, HEAD))
        });
        let mut table = table(style);
        table.set_content_arrangement(ContentArrangement::Disabled);
        table.set_header([Cell::new("from")].into_iter().chain(heads));
        for ((_, row), sources) in block.rows.iter().zip(sources(block, probers)) {
            let cells = columns
                .iter()
                .map(|columns| row.get(&columns[0]).map_or_else(|| Cell::new("-"), &show));
            let sources = Cell::new(fold(&sources, NAMES));
            table.add_row([sources].into_iter().chain(cells));
        }
        push_table(out, &table);
        out.push('\n');
    }
}

/// The columns of a block. Columns that are equal in every row are grouped.
fn columns<V: Eq>(block: &Block<V>) -> Vec<Vec<Column>> {
    let mut groups: Vec<Vec<Column>> = Vec::new();
    for column in block.columns() {
        let equal = |row: &Row<V>, other: &Column| row.get(other) == row.get(&column);
        let alike =
            |group: &&mut Vec<Column>| block.rows.iter().all(|(_, row)| equal(row, &group[0]));
        match groups.iter_mut().find(alike) {
            Some(group) => group.push(column),
            None => groups.push(vec![column]),
        }
    }
    groups
}

fn head(column: Column, both: bool) -> String {
    let family = match (both, column.v6) {
        (false, _) => "",
        (true, false) => " v4",
        (true, true) => " v6",
    };
    let closed = if column.closed { " closed" } else { "" };
    let service = match column.service {
        Service::Echo => "echo".to_owned(),
        Service::Port(port) => port.to_string(),
    };
    format!("{service}{family}{closed}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    use super::*;
    use crate::report::truth;
    use crate::report::truth::tests::{expand, probers, tables};

    /// The ends to which a printed name refers.
    fn ends(name: &str, probers: &Probers) -> Vec<End> {
        if name == "its own node" {
            return vec![End::OwnNode];
        }
        let all = workloads(probers);
        let pods = all.iter().find(|(workload, pods)| whole(workload, pods.len()) == name);
        match pods {
            Some((_, pods)) => pods.iter().map(|pod| End::Prober((*pod).clone())).collect(),
            None => vec![End::Prober(Prober::from(name.to_owned()))],
        }
    }

    /// A block after its names are printed, folded and parsed again.
    fn reread(block: Block<u8>, probers: &Probers) -> Block<u8> {
        let read = |names: &[String]| {
            let text = fold(names, NAMES).replace('\n', " ");
            text.split(", ").flat_map(|name| ends(name, probers)).collect::<Vec<End>>()
        };
        let printed = sources(&block, probers);
        let is_rest = |names: &[String]| OTHERS.iter().position(|word| names == [*word]);
        let named: BTreeSet<End> =
            printed.iter().filter(|it| is_rest(it).is_none()).flat_map(|it| read(it)).collect();
        let again = |names: &Vec<String>| match is_rest(names) {
            Some(word) => universes(probers)[word].difference(&named).cloned().collect(),
            None => read(names),
        };
        let rows = block.rows.into_iter().zip(&printed);
        let rows = rows.map(|((_, row), names)| (again(names), row)).collect();
        Block { destinations: read(&names(&block.destinations, None, probers)), rows }
    }

    #[test]
    fn the_tables_of_these_tests_have_rows_for_all_others() {
        let mut runner = TestRunner::deterministic();
        let mut printed = BTreeSet::new();
        for _ in 0..200 {
            let cells = tables().new_tree(&mut runner).unwrap().current();
            for block in truth::group(cells, &probers()) {
                printed.extend(sources(&block, &probers()).into_iter().flatten());
            }
        }
        assert!(OTHERS.iter().all(|word| printed.contains(*word)), "{printed:?}");
    }

    proptest! {
        #[test]
        fn printed_names_mean_the_same_cells(cells in tables()) {
            let probers = probers();
            let blocks = truth::group(cells.clone(), &probers);
            let read = blocks.into_iter().map(|block| reread(block, &probers)).collect::<Vec<_>>();
            prop_assert_eq!(expand(&read, &probers), cells);
        }

        #[test]
        fn columns_that_stand_together_say_the_same(cells in tables()) {
            for block in truth::group(cells, &probers()) {
                let groups = columns(&block);
                prop_assert_eq!(groups.iter().flatten().count(), block.columns().len());
                for (_, row) in &block.rows {
                    for group in &groups {
                        prop_assert!(group.iter().all(|it| row.get(it) == row.get(&group[0])));
                    }
                }
            }
        }

        #[test]
        fn a_fold_breaks_between_names_only(names in prop::collection::vec("[a-z]{1,70}( \\([0-9]\\))?", 0..9)) {
            let text = fold(&names, NAMES);
            prop_assert_eq!(text.replace('\n', " "), names.join(", "));
            for line in text.lines().filter(|line| line.chars().count() > NAMES) {
                prop_assert_eq!(line.matches(", ").count(), 0, "only one name that is too long: {}", line);
            }
        }
    }
}
