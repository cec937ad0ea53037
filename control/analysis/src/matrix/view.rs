//! What of a matrix is shown: the parties that a filter lets through, with equal rows joined.

use std::collections::{BTreeMap, HashMap};

use manx_policy_compiler::model::Family;

use super::{Cell, Matrix, Why};

/// Which pairs are shown. An empty list is every party.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Patterns of sources.
    pub from: Vec<String>,
    /// Patterns of destinations.
    pub to: Vec<String>,
    /// Namespaces; one end is in one of them.
    pub namespaces: Vec<String>,
}

/// The sources and destinations that are shown, and what is shown of each pair.
#[derive(Debug)]
pub struct View<'a> {
    matrix: &'a Matrix,
    filter: &'a Filter,
    /// The sources, as indexes of parties.
    pub sources: Vec<usize>,
    /// The destinations.
    pub destinations: Vec<usize>,
}

/// What is shown of a cell. Cells with equal ones are shown together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Line {
    /// The services.
    pub cell: Cell,
    /// What decides, in each family that the cell has, if that was asked for.
    pub why: Vec<Why>,
    /// The destinations.
    pub destinations: Vec<usize>,
}

/// Sources with equal rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The sources.
    pub sources: Vec<usize>,
    /// Their row, without what reaches nothing: the destinations of each cell.
    pub lines: Vec<Line>,
    /// The destinations that they do not reach at all, with the reason if that was asked for.
    pub none: Vec<Line>,
}

impl<'a> View<'a> {
    /// What the filter shows of the matrix.
    pub fn new(matrix: &'a Matrix, filter: &'a Filter) -> Self {
        let shown = |patterns: &[String]| -> Vec<usize> {
            let parties = matrix.parties.iter().enumerate();
            let parties = parties.filter(|(_, party)| {
                let names = || party.names();
                patterns.is_empty()
                    || names().iter().any(|name| patterns.iter().any(|it| fits(it, name)))
            });
            parties.map(|(index, _)| index).collect()
        };
        let mut view =
            Self { matrix, filter, sources: shown(&filter.from), destinations: shown(&filter.to) };
        if !filter.namespaces.is_empty() {
            let (sources, destinations) = (view.sources.clone(), view.destinations.clone());
            let inside = |party: &usize| view.is_in_namespace(*party);
            let of = |list: &[usize], others: &[usize]| -> Vec<usize> {
                let any = others.iter().any(inside);
                list.iter().copied().filter(|party| any || inside(party)).collect()
            };
            let both = (of(&sources, &destinations), of(&destinations, &sources));
            (view.sources, view.destinations) = both;
        }
        view
    }

    /// The cell of a pair, if it exists and the filter shows it.
    pub fn cell(&self, from: usize, to: usize) -> Option<Cell> {
        let shown = self.filter.namespaces.is_empty()
            || self.is_in_namespace(from)
            || self.is_in_namespace(to);
        shown.then(|| self.matrix.cell(from, to)).flatten()
    }

    fn is_in_namespace(&self, party: usize) -> bool {
        let namespace = self.matrix.parties[party].namespace();
        self.filter.namespaces.iter().any(|wanted| wanted == namespace)
    }

    /// The rows, equal ones joined, in the order of their first sources. Sources are joined only if what decides is
    /// equal too, if `why`.
    pub fn blocks(&self, why: bool) -> Vec<Block> {
        // The key of a row: for each destination what is shown. A pod's own cell may be anything.
        let mut rows: HashMap<Vec<u64>, usize> = HashMap::new();
        let mut joined: Vec<Vec<usize>> = Vec::new();
        let mut numbers: HashMap<(usize, usize), u64> = HashMap::new();
        let mut values: HashMap<(Cell, Option<Vec<Why>>), u64> = HashMap::new();
        let mut whys: HashMap<u64, (Cell, Vec<Why>)> = HashMap::new();
        for source in &self.sources {
            let row: Vec<u64> = self
                .destinations
                .iter()
                .map(|to| self.number(*source, *to, why, &mut numbers, &mut values, &mut whys))
                .collect();
            let next = joined.len();
            let block = *rows.entry(row).or_insert(next);
            if block == next {
                joined.push(Vec::new());
            }
            joined[block].push(*source);
        }
        let mut rows: Vec<(Vec<u64>, usize)> = rows.into_iter().collect();
        rows.sort_by_key(|(_, block)| *block);
        let blocks = rows.into_iter().zip(joined);
        blocks.map(|((row, _), sources)| self.block(sources, &row, &whys)).collect()
    }

    /// The number of what is shown of a pair; 0 if nothing is. A pod has a number with itself, as with another pod of
    /// its group: so rows of one group are equal.
    fn number(
        &self,
        from: usize,
        to: usize,
        why: bool,
        numbers: &mut HashMap<(usize, usize), u64>,
        values: &mut HashMap<(Cell, Option<Vec<Why>>), u64>,
        whys: &mut HashMap<u64, (Cell, Vec<Why>)>,
    ) -> u64 {
        let groups = (self.matrix.group(from), self.matrix.group(to));
        if !self.filter.namespaces.is_empty()
            && !self.is_in_namespace(from)
            && !self.is_in_namespace(to)
        {
            return 0;
        }
        if let Some(number) = numbers.get(&groups) {
            return *number;
        }
        let number = self.matrix.between(groups.0, groups.1).map_or(0, |cell| {
            let reasons = why.then(|| self.whys(groups, cell));
            let next = values.len() as u64 + 1;
            let number = *values.entry((cell, reasons.clone())).or_insert(next);
            whys.entry(number).or_insert_with(|| (cell, reasons.unwrap_or_default()));
            number
        });
        numbers.insert(groups, number);
        number
    }

    fn whys(&self, (from, to): (usize, usize), cell: Cell) -> Vec<Why> {
        let families = Family::ALL.into_iter().zip([cell.v4, cell.v6]);
        let families = families.filter_map(|(family, number)| number.map(|_| family));
        let mut whys: Vec<Why> =
            families.filter_map(|family| self.matrix.why_between(from, to, family)).collect();
        whys.dedup();
        whys
    }

    fn block(
        &self,
        sources: Vec<usize>,
        row: &[u64],
        shown: &HashMap<u64, (Cell, Vec<Why>)>,
    ) -> Block {
        let mut by_number: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        let mut order = Vec::new();
        for (destination, number) in self.destinations.iter().zip(row) {
            let exists = sources.iter().any(|from| self.cell(*from, *destination).is_some());
            if *number == 0 || !exists {
                continue;
            }
            let destinations = by_number.entry(*number).or_default();
            if destinations.is_empty() {
                order.push(*number);
            }
            destinations.push(*destination);
        }
        let (mut lines, mut none) = (Vec::new(), Vec::new());
        for number in order {
            let Some((cell, why)) = shown.get(&number) else { continue };
            let destinations = by_number.remove(&number).unwrap_or_default();
            let line = Line { cell: *cell, why: why.clone(), destinations };
            if self.matrix.is_none(*cell) { none.push(line) } else { lines.push(line) }
        }
        Block { sources, lines, none }
    }
}

/// Parties as a short list of names: `NAMESPACE/*` stands for all that the matrix has in a namespace, if these are
/// several. `all` are the parties that may be named.
pub fn fold(matrix: &Matrix, parties: &[usize], all: &[usize]) -> Vec<String> {
    let mut wanted: BTreeMap<&str, usize> = BTreeMap::new();
    for party in all.iter().map(|party| &matrix.parties[*party]).filter(|party| party.is_pods()) {
        *wanted.entry(party.namespace()).or_default() += 1;
    }
    let mut here: BTreeMap<&str, usize> = BTreeMap::new();
    for party in parties.iter().map(|party| &matrix.parties[*party]).filter(|it| it.is_pods()) {
        *here.entry(party.namespace()).or_default() += 1;
    }
    let is_whole = |namespace: &str| {
        let count = here.get(namespace).copied().unwrap_or_default();
        count > 1 && wanted.get(namespace) == Some(&count)
    };
    let whole = here.keys().filter(|namespace| is_whole(namespace)).count();
    let everything = whole > 1 && whole == wanted.len();
    let mut names: Vec<String> = if everything { vec!["every pod".to_owned()] } else { Vec::new() };
    let mut last = None;
    for party in parties.iter().map(|party| &matrix.parties[*party]) {
        if !party.is_pods() || !is_whole(party.namespace()) {
            names.push(party.to_string());
        } else if !everything && last != Some(party.namespace()) {
            names.push(format!("{}/*", party.namespace()));
            last = Some(party.namespace());
        }
    }
    names
}

/// Whether a name fits a pattern, in which `*` stands for any text and `?` for one character.
pub(super) fn fits(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut at, mut from) = (0, 0);
    // Where the last star was, and up to where it has taken the name.
    let mut star: Option<(usize, usize)> = None;
    while from < name.len() {
        match pattern.get(at) {
            Some('*') => {
                star = Some((at, from));
                at += 1;
            }
            Some(wanted) if *wanted == '?' || *wanted == name[from] => {
                at += 1;
                from += 1;
            }
            _ => {
                let Some((star_at, taken)) = star else { return false };
                star = Some((star_at, taken + 1));
                (at, from) = (star_at + 1, taken + 1);
            }
        }
    }
    pattern[at..].iter().all(|rest| *rest == '*')
}
