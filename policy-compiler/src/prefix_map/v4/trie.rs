//! The trie: lookups, and stores while other threads look up addresses.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU32, Ordering};

use super::cells::{
    BLOCK, BYTE, Base, COUNT, FEW, FEW_BLOCKS, HALF, HOSTS, HalfPage, KIND, MAX_VALUE, NUMBER, ONE,
    PAGE, Page, TWO,
};
use super::line::{Line, lookup_two_lines, short, used};
use super::packed_hosts::PackedHosts;
use super::pool::BlockPool;

/// The trie for IPv4.
#[derive(Debug)]
pub(crate) struct Trie {
    pub(super) base: Base,
    pub(super) root: Box<[AtomicU32]>,
    pub(super) pages: BlockPool<Page>,
    pub(super) halves: BlockPool<HalfPage>,
    pub(super) lines: BlockPool<Line>,
    pub(super) few: PackedHosts,
}

impl Clone for Trie {
    /// A later store into one of the two tries is not visible in the other. Nothing may be stored while this runs.
    fn clone(&self) -> Self {
        let cell = |cell: &AtomicU32| AtomicU32::new(cell.load(Ordering::Acquire));
        Self {
            base: self.base,
            root: self.root.iter().map(cell).collect(),
            pages: self.pages.clone(),
            halves: self.halves.clone(),
            lines: self.lines.clone(),
            few: self.few.clone(),
        }
    }
}

impl Trie {
    #[inline]
    pub(crate) fn lookup(&self, address: u32) -> u32 {
        let cell = self.above(address);
        if cell & BLOCK == 0 { cell } else { self.in_block(cell, address as u8) }
    }

    /// The cell for the /24 of an address. If the cell for the /16 holds a value, it is that cell.
    #[inline]
    fn above(&self, address: u32) -> u32 {
        let cell = load(self.root.get((address >> 16) as usize), self.base.default);
        if cell & BLOCK == 0 { cell } else { self.in_page(cell, (address >> 8) as u8) }
    }

    #[inline]
    fn in_block(&self, block: u32, key: u8) -> u32 {
        match block & KIND {
            HALF => self.in_half(block, key),
            FEW => self.in_few(block, key),
            _ => self.in_other(block, key),
        }
    }

    #[inline]
    fn in_half(&self, block: u32, key: u8) -> u32 {
        let cell = self.halves.get(block & NUMBER).map(|half| &half.0[usize::from(key)]);
        self.base.long(cell.map_or(0, |cell| cell.load(Ordering::Acquire)))
    }

    #[inline]
    fn in_few(&self, block: u32, key: u8) -> u32 {
        let hosts = (block >> COUNT & 0xf) as usize;
        self.base.long(self.few.lookup((block & BYTE) as usize, hosts, key))
    }

    /// This is not inlined, because that would make the other branches longer.
    #[inline(never)]
    fn in_other(&self, block: u32, key: u8) -> u32 {
        let default = self.base.default;
        let at = block & NUMBER;
        match block & KIND {
            PAGE => self.in_page(block, key),
            ONE => self.lines.get(at).map_or(default, |line| line.lookup_one_line(key)),
            TWO => match [self.lines.get(at), self.lines.get(at + 1)] {
                [Some(one), Some(two)] => lookup_two_lines([one, two], key),
                _ => default,
            },
            HOSTS => self.lines.get(at).map_or(default, |line| line.lookup_hosts(key)),
            _ => default,
        }
    }

    #[inline]
    fn cell(&self, page: u32, key: u8) -> Option<&AtomicU32> {
        self.pages.get(page & NUMBER).map(|page| &page.0[usize::from(key)])
    }

    #[inline]
    fn in_page(&self, page: u32, key: u8) -> u32 {
        load(self.cell(page, key), self.base.default)
    }

    /// Stores the value of a host. Returns `false` and changes nothing if there is no room left or the value is above
    /// [`MAX_VALUE`]. Only one thread at a time may call this, while others may look up addresses.
    pub(crate) fn set(&self, address: u32, value: u32) -> bool {
        if value > MAX_VALUE {
            return false;
        }
        if self.lookup(address) == value {
            return true;
        }
        let Some(root) = self.root.get((address >> 16) as usize) else { return false };
        let [.., middle, key] = address.to_be_bytes();
        let cell = root.load(Ordering::Relaxed);
        let block = if cell & BLOCK == 0 { cell } else { self.in_page(cell, middle) };
        match block & (BLOCK | KIND) {
            kind if kind == BLOCK | PAGE => {
                let cell = self.cell(block, key);
                return cell.inspect(|cell| cell.store(value, Ordering::Release)).is_some();
            }
            kind if kind == BLOCK | HALF => {
                let half = self.halves.get(block & NUMBER);
                if let Some((half, short)) = half.zip(self.base.short(value)) {
                    half.0[usize::from(key)].store(short, Ordering::Release);
                    return true;
                }
            }
            _ => {}
        }
        let mut third = self.cells(address);
        third[usize::from(key)] = value;
        self.set_24(address, &third)
    }

    /// Stores the values of all hosts in the /24 of an address with one store: a lookup sees all old values or all new
    /// ones. Returns `false` and changes nothing if there is no room left or a value is above [`MAX_VALUE`]. Only one
    /// thread at a time may call this, while others may look up addresses.
    pub(crate) fn set_24(&self, address: u32, values: &[u32; 256]) -> bool {
        if values.iter().any(|value| *value > MAX_VALUE) {
            return false;
        }
        let Some(root) = self.root.get((address >> 16) as usize) else { return false };
        let is_one = values.iter().all(|value| *value == values[0]);
        let third = if is_one { Some(values[0]) } else { self.write(values) };
        let Some(third) = third else { return false };
        let middle = (address >> 8) as u8;
        let cell = root.load(Ordering::Relaxed);
        if cell & BLOCK != 0 {
            let second = self.cell(cell, middle);
            return second.inspect(|second| second.store(third, Ordering::Release)).is_some();
        }
        let mut second = [cell; 256];
        second[usize::from(middle)] = third;
        let Some(page) = self.write_page(&second) else { return false };
        root.store(page, Ordering::Release);
        true
    }

    /// Stores one value for every address of a prefix, whose host bits are ignored. Returns `false` and changes nothing
    /// if there is no room left, the value is above [`MAX_VALUE`], or the length is above 32.
    pub(crate) fn set_prefix(&mut self, address: u32, length: u8, value: u32) -> bool {
        if value > MAX_VALUE || length > 32 {
            return false;
        }
        let at = (address >> 16) as usize;
        if length <= 16 {
            let all = self.root.get_mut(at..).and_then(|it| it.get_mut(..1 << (16 - length)));
            return all.map(|all| all.iter_mut().for_each(|it| *it.get_mut() = value)).is_some();
        }
        let Some(root) = self.root.get(at).map(|cell| cell.load(Ordering::Relaxed)) else {
            return false;
        };
        let page = if root & BLOCK == 0 { self.write_page(&[root; 256]) } else { Some(root) };
        let Some(page) = page else { return false };
        let middle = address >> 8 & 0xff;
        let (range, value) = if length <= 24 {
            (middle..middle + (1 << (24 - length)), value)
        } else {
            let mut third = self.cells(address);
            third[(address & 0xff) as usize..][..1 << (32 - length)].fill(value);
            let Some(block) = self.write(&third) else { return false };
            (middle..middle + 1, block)
        };
        for middle in range {
            let Some(cell) = self.cell(page, middle as u8) else { return false };
            cell.store(value, Ordering::Release);
        }
        self.root.get(at).inspect(|cell| cell.store(page, Ordering::Release)).is_some()
    }

    /// The values of the /24 of an address.
    fn cells(&self, address: u32) -> [u32; 256] {
        let mut cells = [0; 256];
        for (cell, low) in cells.iter_mut().zip(0..) {
            *cell = self.lookup(address & !0xff | low);
        }
        cells
    }

    /// Writes a block for a /24 with these values into spare room. Returns `None` if there is no room.
    fn write(&self, cells: &[u32; 256]) -> Option<u32> {
        let half = || {
            let number = self.halves.push_all(&[self.base.all_short(cells)?])?;
            Some(BLOCK | HALF | number)
        };
        let short = || {
            let (kind, lines) = short(cells)?;
            Some(BLOCK | kind | self.lines.push_all(used(kind, &lines))?)
        };
        let few = self.halves.len() < FEW_BLOCKS as u32;
        let block = if few { half().or_else(short) } else { short().or_else(half) };
        block.or_else(|| self.write_page(cells))
    }

    fn write_page(&self, cells: &[u32; 256]) -> Option<u32> {
        Some(BLOCK | PAGE | self.pages.push_all(&[*cells])?)
    }

    /// Every address, as runs of equal values.
    pub(crate) fn runs(&self) -> Vec<(IpAddr, IpAddr, u32)> {
        let mut starts: Vec<(u32, u32)> = Vec::new();
        let mut add = |first: u32, value: u32| {
            if starts.last().is_none_or(|(_, last)| *last != value) {
                starts.push((first, value));
            }
        };
        for (cell, high) in self.root.iter().zip(0u32..) {
            let cell = cell.load(Ordering::Acquire);
            if cell & BLOCK == 0 {
                add(high << 16, cell);
                continue;
            }
            for middle in 0..=u8::MAX {
                let first = high << 16 | u32::from(middle) << 8;
                let cell = self.in_page(cell, middle);
                if cell & BLOCK == 0 {
                    add(first, cell);
                } else {
                    let cells = self.cells(first);
                    let all = cells.iter().zip(first..=first | 0xff);
                    all.for_each(|(value, first)| add(first, *value));
                }
            }
        }
        let ends = starts.iter().skip(1).map(|(first, _)| first - 1).chain([u32::MAX]);
        let address = |bits| IpAddr::V4(Ipv4Addr::from_bits(bits));
        starts
            .iter()
            .zip(ends)
            .map(|((first, value), last)| (address(*first), address(last), *value))
            .collect()
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.root)
            + self.pages.bytes()
            + self.halves.bytes()
            + self.lines.bytes()
            + self.few.bytes()
    }
}

#[inline]
fn load(cell: Option<&AtomicU32>, default: u32) -> u32 {
    cell.map_or(default, |cell| cell.load(Ordering::Acquire))
}
