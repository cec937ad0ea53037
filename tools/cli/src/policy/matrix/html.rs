//! The matrix as one page that needs no other file: it contains the data as JSON, and a script that shows them without
//! network.
//!
//! Names and paths of files come from manifests, so they must not become markup: the data are JSON in which `<` is escaped,
//! and the script makes text, never markup. The page's content policy forbids the browser to load anything.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use serde::Serialize;

use super::shown::Shown;
use manx_analysis::matrix::{Matrix, Whys};
use manx_calculation::import::policy_name;
use manx_objects::contents::Contents;
use manx_oracle::Oracle;
use manx_policy_compiler::model::Family;

const PAGE: &str = include_str!("page.html");

/// The placeholder for the data in the page.
const DATA: &str = "/*DATA*/";

/// The most groups of parties in a page, because a page of many megabytes opens slowly.
const MOST_GROUPS: usize = 400;

/// The most cells with `explain`'s text.
const MOST_EXPLAINED: usize = 1_500;

/// The most evaluations of a policy for all these texts. If there are many policies, fewer cells have a text.
const MOST_POLICIES: usize = 300_000;

/// The data of the page. Parties of one group have equal rows and columns.
#[derive(Serialize)]
struct Page<'a> {
    parties: Vec<PageParty>,
    /// The rows and the columns, as indexes of parties.
    sources: Vec<usize>,
    destinations: Vec<usize>,
    /// The different values of cells: the text, and `all`, `some` or `none`.
    values: Vec<(String, &'static str)>,
    /// The value of each cell, if there is such a pair, by the groups of the source and of the destination.
    cells: Vec<Vec<Option<usize>>>,
    /// The texts of reasons.
    whys: Vec<String>,
    /// The reasons at the source and at the destination, in the form of `cells`.
    egress: Vec<Vec<Option<usize>>>,
    ingress: Vec<Vec<Option<usize>>>,
    /// The texts of `explain` by `SOURCE,DESTINATION`.
    explained: BTreeMap<String, Vec<String>>,
    notes: Vec<&'a str>,
}

#[derive(Serialize)]
struct PageParty {
    name: String,
    namespace: String,
    pods: Vec<String>,
    /// The group; absent if the party is left out.
    group: Option<usize>,
    /// Whether the party is in a requested namespace, or no namespace is requested. At least one end of every pair on
    /// the page is such a party.
    inside: bool,
}

/// Numbered texts, without duplicates.
#[derive(Default)]
struct Texts {
    all: Vec<String>,
    numbers: HashMap<String, usize>,
}

impl Texts {
    fn number(&mut self, text: String) -> usize {
        let next = self.all.len();
        let all = &mut self.all;
        *self.numbers.entry(text).or_insert_with_key(|text| {
            all.push(text.clone());
            next
        })
    }
}

/// The groups of parties that the page shows.
#[derive(Default)]
struct ShownGroups {
    /// The number of each group in the page.
    numbers: HashMap<usize, usize>,
    /// The groups by number.
    order: Vec<usize>,
    /// The number of parties that are left out, because the page has no room for their groups.
    left: usize,
}

impl ShownGroups {
    /// Adds the groups of these parties, up to [`MOST_GROUPS`]. Returns the parties whose groups are shown.
    fn keep(&mut self, matrix: &Matrix, parties: &[usize]) -> Vec<usize> {
        let mut kept = Vec::new();
        for party in parties {
            let group = matrix.group(*party);
            if !self.numbers.contains_key(&group) {
                if self.order.len() == MOST_GROUPS {
                    self.left += 1;
                    continue;
                }
                self.numbers.insert(group, self.order.len());
                self.order.push(group);
            }
            kept.push(*party);
        }
        kept
    }
}

pub(super) fn render(shown: &Shown<'_>, contents: &Contents) -> Result<String, String> {
    let (matrix, view) = (shown.matrix, &shown.view);
    let mut groups = ShownGroups::default();
    let sources = groups.keep(matrix, &view.sources);
    let destinations = groups.keep(matrix, &view.destinations);
    let left = groups.left;
    let mut notes: Vec<String> = shown.notes.clone();
    if left > 0 {
        notes.push(format!(
            "This page holds {MOST_GROUPS} kinds of rows and columns; {left} more are left out. Choose fewer with \
             --namespace, --from and --to, or take --output csv."
        ));
    }
    let tables = Tables::new(shown, &groups.order);
    let policies = contents.objects.keys().filter(|key| policy_name(key).is_some()).count();
    let most = (MOST_POLICIES / policies.max(1)).clamp(1, MOST_EXPLAINED);
    let (explained, missing) = explained(shown, contents, most, &sources, &destinations);
    if missing > 0 {
        notes.push(format!(
            "{most} cells have explain's text, those that name ports first; {missing} more have only the reasons. Choose \
             fewer with --namespace, --from and --to, or run manx policy explain."
        ));
    }
    let parties = matrix.parties.iter().enumerate().map(|(index, party)| PageParty {
        name: party.to_string(),
        namespace: party.namespace().to_owned(),
        pods: party.pods.iter().map(ToString::to_string).collect(),
        group: groups.numbers.get(&party.group).copied(),
        inside: view.is_in_namespace(index),
    });
    let page = Page {
        parties: parties.collect(),
        sources,
        destinations,
        values: tables.values,
        cells: tables.cells,
        whys: tables.whys.all,
        egress: tables.egress,
        ingress: tables.ingress,
        explained,
        notes: notes.iter().map(String::as_str).collect(),
    };
    let data = serde_json::to_string(&page).map_err(|error| error.to_string())?;
    Ok(PAGE.replacen(DATA, &inert(&data), 1))
}

/// Escapes JSON so that it ends no script element and begins no comment. Only strings contain the escaped characters,
/// so the data stay the same.
fn inert(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for letter in json.chars() {
        match letter {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                // Writing to a String cannot fail.
                let _ = write!(text, "\\u{:04x}", u32::from(letter));
            }
            _ => text.push(letter),
        }
    }
    text
}

/// The cells and reasons of every pair of groups.
#[derive(Default)]
struct Tables {
    values: Vec<(String, &'static str)>,
    cells: Vec<Vec<Option<usize>>>,
    whys: Texts,
    egress: Vec<Vec<Option<usize>>>,
    ingress: Vec<Vec<Option<usize>>>,
}

impl Tables {
    fn new(shown: &Shown<'_>, groups: &[usize]) -> Self {
        let matrix = shown.matrix;
        let mut tables = Self::default();
        let (mut numbers, mut texts) = (HashMap::new(), Whys::default());
        let mut known: HashMap<[Option<usize>; 2], usize> = HashMap::new();
        for from in groups {
            let mut rows: [Vec<Option<usize>>; 3] = Default::default();
            for to in groups {
                let Some(cell) = matrix.between(*from, *to) else {
                    for row in &mut rows {
                        row.push(None);
                    }
                    continue;
                };
                let value = *numbers.entry(cell).or_insert_with(|| {
                    let kind = match cell {
                        all if matrix.is_all(all) => "all",
                        none if matrix.is_none(none) => "none",
                        _ => "some",
                    };
                    tables.values.push((matrix.text(cell), kind));
                    tables.values.len() - 1
                });
                let mut families = Family::ALL.into_iter().zip([cell.v4, cell.v6]);
                let whys = [(); 2].map(|()| {
                    let (family, number) = families.next()?;
                    number.and_then(|_| texts.numbers(matrix, *from, *to, family))
                });
                let [egress, ingress] = [0, 1].map(|side: usize| {
                    let of_families = whys.map(|why| why.map(|why| why[side]));
                    *known.entry(of_families).or_insert_with(|| {
                        let text = of_families.map(|it| it.map(|it| texts.text(it).to_owned()));
                        tables.whys.number(both(text))
                    })
                });
                for (row, value) in rows.iter_mut().zip([value, egress, ingress]) {
                    row.push(Some(value));
                }
            }
            let [cells, egress, ingress] = rows;
            tables.cells.push(cells);
            tables.egress.push(egress);
            tables.ingress.push(ingress);
        }
        tables
    }
}

/// Joins the texts of both families.
fn both([v4, v6]: [Option<String>; 2]) -> String {
    match (v4, v6) {
        (Some(v4), Some(v6)) if v4 == v6 => v4,
        (Some(v4), Some(v6)) => format!("IPv4: {v4}\nIPv6: {v6}"),
        (one, other) => one.or(other).unwrap_or_default(),
    }
}

/// The texts of `explain` for at most `most` cells, and the number of cells without a text. The cells that name ports
/// come first.
fn explained(
    shown: &Shown<'_>,
    contents: &Contents,
    most: usize,
    sources: &[usize],
    destinations: &[usize],
) -> (BTreeMap<String, Vec<String>>, usize) {
    let oracle = Oracle::new(&contents.objects);
    let pairs = sources.iter().flat_map(|from| destinations.iter().map(move |to| (*from, *to)));
    let mut cells: Vec<(bool, (usize, usize))> = pairs
        .filter_map(|(from, to)| {
            let cell = shown.view.cell(from, to)?;
            Some((shown.matrix.is_all(cell) || shown.matrix.is_none(cell), (from, to)))
        })
        .collect();
    cells.sort_unstable();
    let texts = cells.iter().take(most).map(|(_, (from, to))| {
        let traces = shown.matrix.explain(&oracle, *from, *to);
        (format!("{from},{to}"), traces.iter().map(ToString::to_string).collect())
    });
    (texts.collect(), cells.len().saturating_sub(most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_end_no_script_and_are_read_back() {
        let evil = "</script><!--<script>alert(1)&amp;\u{2028}\"";
        let json = serde_json::to_string(evil).unwrap();
        let text = inert(&json);
        assert!(!text.contains(['<', '>', '&', '\u{2028}']), "{text}");
        assert_eq!(serde_json::from_str::<String>(&text).unwrap(), evil);
    }

    #[test]
    fn the_page_has_one_place_for_data_and_loads_nothing() {
        assert_eq!(PAGE.matches(DATA).count(), 1);
        for loads in ["http:", "https:", "src=", "@import", "url(", "fetch", "innerHTML", "XMLHttp"]
        {
            assert!(!PAGE.contains(loads), "{loads}");
        }
        assert!(PAGE.contains("default-src 'none'"));
    }
}
