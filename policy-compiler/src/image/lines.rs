//! Rows in the form that lookups read: targets lead from one cache line to the next until a path is reached.
//!
//! For each table of protocols, a row has a target: a path, or a line that divides keys or source ports. A line has up
//! to ten intervals, a leaf up to seventeen, and a tree of lines and leaves any number.
//!
//! A packet without a key gets a separate key, [`NO_KEY`], which comes after all others.

use super::leaf::Leaf;
use super::line::{Line, NEVER};
use super::packet_key::{OTHERS, PacketKey, key_of, table};
use super::target::{NO_KEY, NUMBER, Target};
use crate::common::PathId;
use crate::model::Transport;

/// A row: the target of each table.
pub(crate) type Row = [Target; TABLES];

/// The number of tables.
pub(crate) const TABLES: usize = OTHERS + 1;

/// The largest number of steps of a lookup after the row: five levels of lines divide the keys, five more divide the
/// source ports, and there is one more if a leaf was replaced by a tree.
pub(crate) const STEPS: usize = 11;

/// All rows.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lines {
    /// The targets, by table and then by row. Most packets are of one protocol, so most lookups read the same table,
    /// which stays in the CPU's cache.
    pub(crate) rows: [Vec<Target>; TABLES],
    pub(crate) all: Vec<Line>,
    pub(crate) leaves: Vec<Leaf>,
}

impl Lines {
    /// The number of rows.
    pub(crate) fn len(&self) -> usize {
        self.rows[0].len()
    }

    /// Adds a row and returns its number.
    pub(crate) fn push(&mut self, row: Row) -> u32 {
        for (all, place) in self.rows.iter_mut().zip(row) {
            all.push(place);
        }
        self.len() as u32 - 1
    }

    /// The row of this number, if there is one.
    pub(crate) fn row(&self, row: u32) -> Option<Row> {
        let mut places = Row::default();
        for (place, all) in places.iter_mut().zip(&self.rows) {
            *place = *all.get(row as usize)?;
        }
        Some(places)
    }

    /// The first target of a row.
    #[inline]
    pub(crate) fn first(&self, row: u32, table: u8) -> Option<Target> {
        self.rows.get(usize::from(table))?.get(row as usize).copied()
    }

    /// The next target for a packet: the one to which this line or leaf leads.
    #[inline]
    pub(crate) fn next(&self, line: Target, packet: PacketKey) -> Option<Target> {
        if line.is_leaf() {
            return self.in_leaf(line, packet).map(Target::path);
        }
        Some(self.all.get((line.0 & NUMBER) as usize)?.lookup(packet.key(line)))
    }

    /// The path to which a leaf leads a packet.
    #[inline]
    fn in_leaf(&self, leaf: Target, packet: PacketKey) -> Option<PathId> {
        // A packet without a key gets the path of key 0.
        Some(self.leaves.get((leaf.0 & NUMBER) as usize)?.lookup(packet.key(leaf) as u16))
    }

    /// The path to which a target leads a packet. `None` if the target refers to a line that does not exist.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the packet's key is not computed again")]
    pub(crate) fn follow(&self, place: Target, transport: Transport) -> Option<PathId> {
        // If the target is already a path, the packet's transport is not read. Otherwise one leaf usually leads to the
        // path.
        if !place.is_line() {
            return place.as_path();
        }
        match place.as_leaf_by_key() {
            Some(leaf) => {
                let leaf = self.leaves.get(leaf as usize)?;
                // A packet without a key gets the path of key 0.
                Some(leaf.lookup(key_of(table(transport.protocol), transport) as u16))
            }
            None => self.follow_far(place, transport),
        }
    }

    /// Like [`follow`](Self::follow), for a packet key that was prepared for several targets.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as `follow`")]
    pub(crate) fn follow_prepared(&self, place: Target, packet: PacketKey) -> Option<PathId> {
        match place.as_leaf_by_key() {
            Some(leaf) => {
                Some(self.leaves.get(leaf as usize)?.lookup(packet.key_and_source as u16))
            }
            None if place.is_line() => self.follow_lines(place, packet),
            None => place.as_path(),
        }
    }

    /// The rest of [`follow`](Self::follow), if the target is not a leaf by key.
    #[inline(never)]
    fn follow_far(&self, place: Target, transport: Transport) -> Option<PathId> {
        self.follow_lines(place, transport.into())
    }

    /// Like [`follow`](Self::follow), for a packet key.
    #[inline(never)]
    pub(crate) fn follow_lines(&self, mut place: Target, packet: PacketKey) -> Option<PathId> {
        for _ in 0..STEPS {
            if !place.is_line() {
                break;
            }
            if place.is_leaf() {
                return self.in_leaf(place, packet);
            }
            place = self.next(place, packet)?;
        }
        place.as_path()
    }

    /// Adds the bounds of a table of a row to `bounds`: the keys (`bounds[0]`) and the source ports (`bounds[1]`) at
    /// which an interval begins, including 0, in no particular order.
    pub(crate) fn bounds(&self, row: u32, table: usize, bounds: &mut [Vec<u32>; 2]) {
        for bounds in bounds.iter_mut() {
            bounds.push(0);
        }
        let first = self.rows.get(table).and_then(|all| all.get(row as usize));
        let mut open: Vec<(Target, usize)> = first.map(|place| (*place, 0)).into_iter().collect();
        while let Some((place, depth)) = open.pop() {
            let Some(number) = place.as_line().filter(|_| depth < STEPS) else { continue };
            let bounds = &mut bounds[usize::from(place.is_by_source())];
            if place.is_leaf() {
                let leaf = self.leaves.get(number as usize);
                bounds.extend(leaf.into_iter().flat_map(Leaf::starts));
                // A packet without a key may have another path than the highest keys.
                bounds.push(NO_KEY);
                continue;
            }
            let Some(line) = self.all.get(number as usize) else { continue };
            bounds.extend(line.starts().filter(|start| *start < NEVER));
            let mut last = None;
            let leads = line.to.iter().filter(|to| last.replace(**to) != Some(**to));
            open.extend(leads.map(|to| (*to, depth + 1)));
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.rows.iter().map(|all| size_of_val(&**all)).sum::<usize>()
            + size_of_val(&*self.all)
            + size_of_val(&*self.leaves)
    }
}
