//! The part of a matrix that is shown: the parties that match a filter. Equal rows are joined.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ipnet::IpNet;
use manx_policy_compiler::model::Family;

use super::{Cell, Matrix, Whys};
use crate::pattern::{fits, net};

/// The pairs that are shown. An empty list matches every party.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Patterns of sources. A net or an address matches the parties that contain or overlap it.
    pub from: Vec<String>,
    /// Patterns of destinations, in the same form.
    pub to: Vec<String>,
    /// Namespaces. At least one end of a pair is in one of them.
    pub namespaces: Vec<String>,
}

impl Filter {
    /// Returns the nets and addresses among the patterns, for [`Matrix::with_nets`].
    pub fn nets(&self) -> Vec<IpNet> {
        self.from.iter().chain(&self.to).filter_map(|pattern| net(pattern)).collect()
    }
}

/// The part of a matrix that a filter shows: its sources and its destinations.
#[derive(Debug)]
pub struct View<'a> {
    matrix: &'a Matrix,
    filter: &'a Filter,
    /// The sources, as indexes of parties in the matrix.
    pub sources: Vec<usize>,
    pub destinations: Vec<usize>,
}

/// The content of a pair. Pairs with equal contents are shown together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// The services.
    pub cell: Cell,
    /// The reasons at the source and at the destination, for each family of the cell, if they were requested. Each is a
    /// number for [`Whys`]. If both families agree, there is one entry.
    pub why: Vec<[usize; 2]>,
    pub destinations: Vec<usize>,
}

/// Sources whose rows are equal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    pub sources: Vec<usize>,
    /// The row of these sources. Destinations with equal content are in one line. Destinations that the sources do not
    /// reach are in `none`.
    pub lines: Vec<Line>,
    /// The destinations that these sources do not reach, with the reason if it was requested.
    pub none: Vec<Line>,
}

impl<'a> View<'a> {
    /// Returns the part of the matrix that the filter shows.
    pub fn new(matrix: &'a Matrix, filter: &'a Filter) -> Self {
        let shown = |patterns: &[String]| -> Vec<usize> {
            let nets = patterns.iter().filter_map(|pattern| net(pattern));
            let of_nets: BTreeSet<usize> = nets.flat_map(|net| matrix.parties_of(net)).collect();
            let parties = matrix.parties.iter().enumerate();
            let parties = parties.filter(|(index, party)| {
                let names = || party.names();
                patterns.is_empty()
                    || of_nets.contains(index)
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

    /// Returns whether the filter shows every destination of every source.
    pub fn is_whole(&self) -> bool {
        self.filter.namespaces.is_empty() && self.filter.to.is_empty()
    }

    /// Returns the cell of a pair, if the pair exists and the filter shows it.
    pub fn cell(&self, from: usize, to: usize) -> Option<Cell> {
        let shown = self.is_in_namespace(from) || self.is_in_namespace(to);
        shown.then(|| self.matrix.cell(from, to)).flatten()
    }

    /// Returns whether a party is in a namespace that the filter names; if it names none, every party is.
    pub fn is_in_namespace(&self, party: usize) -> bool {
        let (wanted, own) = (&self.filter.namespaces, self.matrix.parties[party].namespace());
        wanted.is_empty() || wanted.iter().any(|wanted| wanted == own)
    }

    /// Returns the rows in the order of their first sources. Equal rows are joined. If `why` is set, sources are joined
    /// only if their reasons are equal, too.
    pub fn blocks(&self, why: bool) -> (Vec<Block>, Whys) {
        let mut rows: HashMap<Vec<usize>, usize> = HashMap::new();
        let mut joined: Vec<(Vec<usize>, Vec<usize>)> = Vec::new();
        let mut of_source: HashMap<(usize, bool), usize> = HashMap::new();
        let mut values = Values::new(why);
        // Parties of one group have equal columns, so each different column is read once.
        let mut columns: HashMap<(usize, bool), usize> = HashMap::new();
        let mut distinct: Vec<usize> = Vec::new();
        let mut column_of: Vec<usize> = Vec::new();
        for to in &self.destinations {
            let next = distinct.len();
            let column = *columns.entry(self.alike(*to)).or_insert(next);
            if column == next {
                distinct.push(*to);
            }
            column_of.push(column);
        }
        for source in &self.sources {
            let known = of_source.get(&self.alike(*source)).copied();
            let block = known.unwrap_or_else(|| {
                let values = &mut values;
                let row = distinct.iter().map(|to| self.number(*source, *to, values));
                let row: Vec<usize> = row.collect();
                let next = joined.len();
                let block = *rows.entry(row.clone()).or_insert(next);
                if block == next {
                    joined.push((Vec::new(), row));
                }
                of_source.insert(self.alike(*source), block);
                block
            });
            joined[block].0.push(*source);
        }
        let whole = |row: Vec<usize>| -> Vec<usize> {
            column_of.iter().map(|column| row[*column]).collect()
        };
        let blocks = joined.into_iter();
        let blocks =
            blocks.map(|(sources, row)| self.block(sources, &whole(row), &values)).collect();
        (blocks, values.whys)
    }

    /// Returns a key of a party: two parties with equal keys have equal rows and equal columns.
    fn alike(&self, party: usize) -> (usize, bool) {
        (self.matrix.group(party), self.is_in_namespace(party))
    }

    /// Returns the number of a pair's content, or 0 if the pair is not shown. The pair of a pod with itself gets the
    /// number of the pod with another pod of its group, so that rows of one group are equal.
    fn number(&self, from: usize, to: usize, values: &mut Values) -> usize {
        let is_shown = self.filter.namespaces.is_empty()
            || self.is_in_namespace(from)
            || self.is_in_namespace(to);
        if !is_shown {
            return 0;
        }
        values.number(self.matrix, self.matrix.group(from), self.matrix.group(to))
    }

    fn block(&self, sources: Vec<usize>, row: &[usize], values: &Values) -> Block {
        let mut by_number: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
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
            let Some((cell, whys)) = values.all.get(number - 1) else { continue };
            let destinations = by_number.remove(&number).unwrap_or_default();
            let line = Line { cell: *cell, why: whys.clone(), destinations };
            if self.matrix.is_none(*cell) { none.push(line) } else { lines.push(line) }
        }
        Block { sources, lines, none }
    }
}

/// The distinct contents of pairs of groups, numbered from 1.
struct Values {
    numbers: HashMap<(Cell, Vec<[usize; 2]>), usize>,
    all: Vec<(Cell, Vec<[usize; 2]>)>,
    /// Whether reasons are shown, too.
    with_why: bool,
    whys: Whys,
}

impl Values {
    fn new(with_why: bool) -> Self {
        Self { numbers: HashMap::new(), all: Vec::new(), with_why, whys: Whys::default() }
    }

    fn number(&mut self, matrix: &Matrix, from: usize, to: usize) -> usize {
        matrix.between(from, to).map_or(0, |cell| {
            let mut whys = Vec::new();
            if self.with_why {
                let families = Family::ALL.into_iter().zip([cell.v4, cell.v6]);
                let families = families.filter_map(|(family, number)| number.map(|_| family));
                whys.extend(families.filter_map(|it| self.whys.numbers(matrix, from, to, it)));
                whys.dedup();
            }
            let next = self.all.len() + 1;
            let number = *self.numbers.entry((cell, whys.clone())).or_insert(next);
            if number == next {
                self.all.push((cell, whys));
            }
            number
        })
    }
}

/// Returns a short list of names for parties. `NAMESPACE/*` stands for all parties of the matrix in a namespace, if
/// there are several. `all` contains all parties that the list could name.
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
