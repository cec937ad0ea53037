//! A hash of what an image says, whatever numbers its identities, classes, rows and counters happen to have.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use ahash::AHashMap;

use crate::image::{BY_SOURCE, ChainId, Image, PathId, Span};

fn hash_of(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// The meanings of an image's numbers, by them.
struct Meanings<'a> {
    image: &'a Image,
    classes: Vec<u64>,
    chains: Vec<u64>,
    paths: Vec<u64>,
}

impl<'a> Meanings<'a> {
    fn of(image: &'a Image) -> Self {
        let predicates: Vec<u64> = image.peers.predicates.all.iter().map(hash_of).collect();
        let truth = |truth: &[u32]| -> Vec<u64> {
            let asked = truth.iter().map(|it| *it as usize).filter(|it| image.in_use[*it]);
            let mut said: Vec<u64> = asked.map(|it| predicates[it]).collect();
            said.sort_unstable();
            said
        };
        Self {
            image,
            classes: image.peers.class_truths.iter().map(|it| hash_of(truth(it))).collect(),
            chains: image
                .chains
                .iter()
                .map(|chain| {
                    let local = chain.local.as_ref();
                    hash_of((&chain.list, local.map(|local| local.each_ref().map(|it| truth(it)))))
                })
                .collect(),
            paths: image.paths.iter().map(|path| hash_of((&path.reason, &path.noted))).collect(),
        }
    }

    fn path(&self, path: PathId) -> u64 {
        self.paths.get(path.0 as usize).copied().unwrap_or_default()
    }

    fn intervals(&self, span: Span) -> Vec<(u16, u64)> {
        let meaning = |path: PathId| {
            if path.0 & BY_SOURCE == 0 {
                return self.path(path);
            }
            let span = self.image.by_source.get((path.0 & !BY_SOURCE) as usize);
            let by_source = span.map(|span| self.image.intervals(*span));
            let by_source = by_source.into_iter().flatten();
            hash_of(by_source.map(|(start, path)| (start, self.path(path))).collect::<Vec<_>>())
        };
        self.image.intervals(span).map(|(start, path)| (start, meaning(path))).collect()
    }

    fn row(&self, row: u32) -> u64 {
        let Some(row) = self.image.rows.get(row as usize) else { return 0 };
        let tables = row.tables.map(|span| self.intervals(span));
        hash_of((tables, row.bare.map(|path| self.path(path))))
    }
}

impl Image {
    /// A hash of what the tables say, independent of the numbers that identities and counters happen to have: the same
    /// objects give the same hash, in any order and after any history. It is made when it is asked for.
    pub fn canonical_hash(&self) -> u64 {
        let meanings = Meanings::of(self);
        let mut hasher = DefaultHasher::new();
        // Neighbours of one class are one run.
        let mut used = BTreeMap::new();
        let mut last = None;
        for (first, _, identity) in self.runs() {
            let class = self.class(identity);
            let meaning = class.map(|class| meanings.classes[class]);
            if last != Some((meaning, first.is_ipv4())) {
                (first, meaning).hash(&mut hasher);
                last = Some((meaning, first.is_ipv4()));
            }
            if let Some((class, meaning)) = class.zip(meaning) {
                used.insert(meaning, class);
            }
        }
        let mut rows: AHashMap<u32, u64> = AHashMap::new();
        let mut chains = BTreeMap::new();
        for (chain, meaning) in (0..).map(ChainId).zip(&meanings.chains) {
            chains.entry(*meaning).or_insert_with(|| {
                let cells = used.iter().map(|(meaning, class)| {
                    let row = self.cell(chain, *class).unwrap_or_default();
                    (*meaning, *rows.entry(row).or_insert_with(|| meanings.row(row)))
                });
                cells.collect::<Vec<_>>()
            });
        }
        chains.hash(&mut hasher);
        for (name, local) in &self.endpoints {
            (name, local.revision).hash(&mut hasher);
            for ((stage, direction), chain) in &local.chains {
                let meaning = meanings.chains.get(chain.0 as usize);
                (stage, direction, meaning).hash(&mut hasher);
            }
        }
        hasher.finish()
    }
}
