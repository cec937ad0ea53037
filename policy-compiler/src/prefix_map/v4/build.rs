//! Builds the trie from prefixes.

use std::sync::atomic::AtomicU32;

use super::cells::{
    BLOCK, BYTE, Base, COUNT, FEW, FEW_BLOCKS, HALF, HOSTS, HalfPage, NUMBER, PAGE, ROOT,
};
use super::line::{Hosts, Line, WORDS, short, used};
use super::packed_hosts::PackedHostsBuilder;
use super::pool::{Block, BlockPool};
use super::trie::Trie;

/// With more /24 than this that hold longer prefixes, the blocks do not fit the CPU's cache, so they are stored in the
/// smallest form. This many blocks of one line each take 512 KiB.
const MANY_BLOCKS: usize = 8192;

/// The smallest number of spare pages, half pages and lines.
const SPARE: [usize; 3] = [16, 64, 512];

impl Trie {
    /// `entries` must have no host bits, lengths of at most 32, and values of at most [`MAX_VALUE`](super::MAX_VALUE).
    /// If one prefix has two values, the larger one is stored.
    pub(crate) fn build(default: u32, mut entries: Vec<(u32, u8, u32)>) -> Self {
        if !entries.is_sorted() {
            entries.sort_unstable();
        }
        let lowest = entries.iter().map(|entry| entry.2).filter(|value| *value != default).min();
        let base = Base { default, base: lowest.unwrap_or_default().saturating_sub(1) };
        let in_24 = |entry: &(u32, u8, u32)| entry.0 >> 8;
        let all = || entries.chunk_by(|a, b| in_24(a) == in_24(b));
        let is_short = |entry: &&(u32, u8, u32)| entry.1 <= 24;
        let mut root = vec![default; ROOT];
        let of_24 = all().take(MANY_BLOCKS + 1).count();
        let few = if of_24 > MANY_BLOCKS { entries.len() } else { 0 };
        let mut blocks = Blocks::new(base, of_24, PackedHostsBuilder::with_room(few));
        let mut short: Vec<_> = entries.iter().filter(is_short).collect();
        short.sort_by_key(|entry| entry.1);
        for (address, length, value) in short {
            let at = (address >> 16) as usize;
            if *length <= 16 {
                root[at..][..1 << (16 - length)].fill(*value);
                continue;
            }
            let page = blocks.second(&mut root[at]);
            page[(address >> 8 & 0xff) as usize..][..1 << (24 - length)].fill(*value);
        }
        for block in all() {
            // Prefixes of at most 24 bits that begin in this /24 come first, and are skipped.
            let block = &block[block.iter().take_while(is_short).count()..];
            let Some((address, ..)) = block.first() else { continue };
            let middle = (address >> 8 & 0xff) as usize;
            let around = blocks.second(&mut root[(address >> 16) as usize])[middle];
            let block = blocks.add(around, block);
            blocks.second(&mut root[(address >> 16) as usize])[middle] = block;
        }
        let Blocks { pages, halves, lines, few, .. } = blocks;
        let pages = pages.iter().map(filled).collect();
        let few = few.done();
        // When a /24 with packed hosts changes, its new block is a line. So there are spare lines in proportion to
        // packed hosts.
        let spare_lines = SPARE[2].max(few.bytes() / size_of::<Line>() / 8);
        Self {
            base,
            root: root.into_iter().map(AtomicU32::new).collect(),
            pages: BlockPool::new(pages, SPARE[0]),
            halves: BlockPool::new(halves, SPARE[1]),
            lines: BlockPool::new(lines, spare_lines),
            few,
        }
    }
}

fn filled<B: Block>(cells: &B::Cells) -> B {
    let block = B::default();
    block.store(cells);
    block
}

struct Blocks {
    base: Base,
    /// The number of /24 in which an entry begins, counted up to [`MANY_BLOCKS`] + 1. At most this many /24 need a
    /// block.
    of_24: usize,
    pages: Vec<[u32; 256]>,
    halves: Vec<HalfPage>,
    lines: Vec<Line>,
    few: PackedHostsBuilder,
}

impl Blocks {
    fn new(base: Base, of_24: usize, few: PackedHostsBuilder) -> Self {
        Self { base, of_24, pages: Vec::new(), halves: Vec::new(), lines: Vec::new(), few }
    }

    /// The page to which a cell of the root refers. If the cell holds a value, this creates a page in which every cell
    /// has that value.
    fn second(&mut self, cell: &mut u32) -> &mut [u32; 256] {
        if *cell & BLOCK == 0 {
            self.pages.push([*cell; 256]);
            *cell = BLOCK | PAGE | (self.pages.len() as u32 - 1);
        }
        &mut self.pages[(*cell & NUMBER) as usize]
    }

    /// Adds a block for a /24, and returns the reference to it. The entries are in ascending order. Addresses in no
    /// entry have the value `others`.
    fn add(&mut self, others: u32, entries: &[(u32, u8, u32)]) -> u32 {
        let many = self.of_24 > MANY_BLOCKS;
        if let Some(hosts) = Hosts::from_entries(others, entries).filter(|_| many) {
            return self.add_hosts(&hosts);
        }
        let mut cells = [others; 256];
        for length in 25..=32u8 {
            for (address, _, value) in entries.iter().filter(|entry| entry.1 == length) {
                cells[(address & 0xff) as usize..][..1 << (32 - length)].fill(*value);
            }
        }
        let half = self.base.all_short(&cells);
        let short = || short(&cells);
        if let Some(half) = half.filter(|_| self.of_24 <= FEW_BLOCKS || short().is_none()) {
            self.halves.push(filled(&half));
            return BLOCK | HALF | (self.halves.len() as u32 - 1);
        }
        if let Some((kind, lines)) = short() {
            return self.add_lines(kind, used(kind, &lines));
        }
        self.pages.push(cells);
        BLOCK | PAGE | (self.pages.len() as u32 - 1)
    }

    fn add_hosts(&mut self, hosts: &Hosts) -> u32 {
        let has_number = self.few.next() <= BYTE as usize;
        let Some((keys, values)) = hosts.pack(self.base).filter(|_| has_number) else {
            return self.add_lines(HOSTS, &[hosts.line()]);
        };
        let first = self.few.add(keys, &values[..=keys.len()]);
        BLOCK | FEW | (keys.len() as u32) << COUNT | first as u32
    }

    fn add_lines(&mut self, kind: u32, lines: &[[u32; WORDS]]) -> u32 {
        let first = self.lines.len() as u32;
        self.lines.extend(lines.iter().map(filled::<Line>));
        BLOCK | kind | first
    }
}
