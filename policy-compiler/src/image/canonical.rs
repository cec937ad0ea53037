//! A hash of the meaning of an image, independent of the numbers of its identities, classes, rows and counters.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use ahash::AHashMap;

use super::packet_key::{OTHERS, PacketKey};
use super::tables::Image;
use crate::common::{ChainId, PathId};

fn hash_of(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Hashes of the meanings of an image's numbers: of its classes, chains and paths, each indexed by the number.
struct Meanings<'a> {
    image: &'a Image,
    classes: Vec<u64>,
    chains: Vec<u64>,
    paths: Vec<u64>,
}

impl<'a> Meanings<'a> {
    fn new(image: &'a Image) -> Self {
        let predicates: Vec<u64> = image.peers.predicates.all.iter().map(hash_of).collect();
        let truth = |truth: &[u32]| -> Vec<u64> {
            let asked = truth.iter().map(|it| *it as usize).filter(|it| image.in_use[*it]);
            let mut said: Vec<u64> = asked.map(|it| predicates[it]).collect();
            said.sort_unstable();
            said
        };
        Self {
            image,
            classes: image.peers.class_predicate_sets.iter().map(|it| hash_of(truth(it))).collect(),
            chains: image
                .chains
                .iter()
                .map(|chain| {
                    let local = chain.local.as_ref();
                    hash_of((&chain.list, local.map(|local| local.each_ref().map(|it| truth(it)))))
                })
                .collect(),
            paths: image
                .paths
                .iter()
                .map(|path| hash_of((&path.decision.reason, &path.decision.noted)))
                .collect(),
        }
    }

    fn path(&self, path: PathId) -> u64 {
        self.paths.get(path.0 as usize).copied().unwrap_or_default()
    }

    /// A hash of one table of a row: of the bounds at which the path changes, and of the path after each bound.
    fn table(&self, row: u32, table: usize) -> u64 {
        let mut bounds = [Vec::new(), Vec::new()];
        self.image.lines.bounds(row, table, &mut bounds);
        for bounds in &mut bounds {
            bounds.sort_unstable();
            bounds.dedup();
        }
        let [keys, sources] = bounds;
        let mut intervals: Vec<(u32, Vec<(u32, u64)>)> = Vec::new();
        for key in keys {
            let mut here: Vec<(u32, u64)> = Vec::new();
            for source in &sources {
                let packet = PacketKey::new(table as u8, key, *source);
                let first = self.image.lines.first(row, packet.table);
                let path = first.and_then(|place| self.image.lines.follow_lines(place, packet));
                let path = path.unwrap_or_default();
                let meaning = self.path(path);
                if here.last().is_none_or(|(_, last)| *last != meaning) {
                    here.push((*source, meaning));
                }
            }
            if intervals.last().is_none_or(|(_, last)| *last != here) {
                intervals.push((key, here));
            }
        }
        hash_of(intervals)
    }

    fn row(&self, row: u32) -> u64 {
        let tables: Vec<u64> = (0..=OTHERS).map(|table| self.table(row, table)).collect();
        hash_of(tables)
    }
}

impl Image {
    /// A hash of what the tables mean. It does not depend on the numbers of identities and counters: the same objects
    /// give the same hash, in any order and after any history. It is computed on each call.
    pub fn canonical_hash(&self) -> u64 {
        let meanings = Meanings::new(self);
        let mut hasher = DefaultHasher::new();
        // Adjacent addresses of one class form one run.
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
