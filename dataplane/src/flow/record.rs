//! Flow records: the part of each flow that outlives the process.
//!
//! A table may keep a record of each of its flows in shared memory. Another process holds a descriptor of that memory.
//! The next process reads the records and judges each flow again. So a record holds only the facts that later packets
//! do not show: the connection, the side that opened it, and its progress.
//!
//! ```text
//! file:   header · records of slots 0, 1, ... · second keys of slots 0, 1, ...   (each six words of eight bytes)
//! header: magic and layout · bytes of a record · number of slots · 0 ...
//! record: mark · the key's two words · its three words of IPv6 (IPv4: anything)
//! second key: address of the node of a tunnel (return path 5) · as in a record
//! mark:   0: no flow; else state + 1 · orientation << 8 · return path << 16 · second key << 24 · seen << 32
//! second key in the mark: 0: none; else orientation + 1
//! ```
//! The process may be killed between any two stores. The mark is cleared before the other words change, and set after.
//! So a slot holds either a whole record or none. The second key of a flow with two keys lies in a separate place, so
//! that other flows use no memory for it.

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, Release};

use zerocopy::FromZeros;

use super::key::{FlowKey, Orientation};
use super::second_key::DirectedKey;
use super::state::FlowState;
use crate::sys::memory::ZeroedPages;
use crate::sys::shared_file::SharedFile;
use crate::tables::ReturnPath;

/// The state of a flow that the agent's next process reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowRecord {
    /// The key of the connection.
    pub key: FlowKey,
    /// The orientation of its first packet.
    pub original: Orientation,
    /// The progress of the connection.
    pub state: FlowState,
    /// The time of its last packet, or up to [`MAX_AGE`] before that, in seconds since the machine's start.
    pub seen: u32,
    /// The component that its first packet passed before policy judged it.
    pub return_path: ReturnPath<Ipv4Addr>,
    /// Its key after the translation, if it is translated.
    pub second: Option<DirectedKey>,
}

const WORDS: usize = 6;
const RECORD_BYTES: usize = WORDS * size_of::<u64>();
type Words = [u64; WORDS];

/// "manxflow" and the number of the layout above. A reader with the other byte order sees a different number.
const MAGIC: u64 = 0x6d61_6e78_666c_6f77 ^ LAYOUT;
const LAYOUT: u64 = 2;
/// The beginning of the header.
const HEADER: [u64; 2] = [MAGIC, RECORD_BYTES as u64];

/// The largest number of seconds by which a record may be older than the last packet of its flow: the time in which
/// each entry of a table is aged once.
pub const MAX_AGE: u32 = 30;

/// The number of records that are read at a time.
const CHUNK: usize = 1024;

impl FlowRecord {
    #[inline]
    fn mark(&self) -> u64 {
        (self.state as u64 + 1)
            | (self.original as u64) << 8
            | path_number(self.return_path) << 16
            | self.second.map_or(0, |it| it.original as u64 + 1) << 24
            | u64::from(self.seen) << 32
    }

    /// The record in these words, whose content is not trusted; `second` reads the words of its second key. `None`: no
    /// table can have written these words.
    fn from_words(words: Words, second: impl Fn() -> Option<Words>) -> Option<Self> {
        let mark = words[0];
        let state = *FlowState::ALL.get((mark as u8).checked_sub(1)? as usize)?;
        let second_key = match mark >> 24 & 0xff {
            0 => None,
            orientation => Some((key(second()?)?, self::orientation(orientation - 1)?)),
        };
        let record = Self {
            key: key(words)?,
            original: orientation(mark >> 8 & 0xff)?,
            state,
            seen: (mark >> 32) as u32,
            return_path: path(mark >> 16 & 0xff, || {
                let [node, ..] = second()?;
                Some(Ipv4Addr::from_bits(node.try_into().ok()?))
            })?,
            second: second_key.map(|(key, original)| DirectedKey { key, original }),
        };
        let is_of_one_flow = record.second.is_none_or(|second| {
            second.key != record.key && second.key.protocol() == record.key.protocol()
        });
        let is_written_so =
            is_of_one_flow && state.is_of(record.key.protocol()) && record.mark() == mark;
        is_written_so.then_some(record)
    }
}

fn path_number(path: ReturnPath<Ipv4Addr>) -> u64 {
    match path {
        ReturnPath::None => 0,
        ReturnPath::Service => 1,
        ReturnPath::Node => 2,
        ReturnPath::Forwarded => 3,
        ReturnPath::ManxPorts => 4,
        ReturnPath::Tunnel(_) => 5,
    }
}

/// The return path that a number stands for. `node` reads the address of the node to which the path's tunnel leads.
fn path(number: u64, node: impl FnOnce() -> Option<Ipv4Addr>) -> Option<ReturnPath<Ipv4Addr>> {
    match number {
        0 => Some(ReturnPath::None),
        1 => Some(ReturnPath::Service),
        2 => Some(ReturnPath::Node),
        3 => Some(ReturnPath::Forwarded),
        4 => Some(ReturnPath::ManxPorts),
        5 => node().map(ReturnPath::Tunnel),
        _ => None,
    }
}

fn orientation(number: u64) -> Option<Orientation> {
    match number {
        0 => Some(Orientation::LowToHigh),
        1 => Some(Orientation::HighToLow),
        _ => None,
    }
}

/// The key in a record's words, if a packet can have this key.
fn key([_, first, second, a, b, c]: Words) -> Option<FlowKey> {
    let short = FlowKey::from_words([first, second], [0; 3]);
    let key = if short.is_v6() { FlowKey::from_words([first, second], [a, b, c]) } else { short };
    key.is_canonical().then_some(key)
}

#[derive(Debug, FromZeros)]
#[repr(transparent)]
struct AtomicWords([AtomicU64; WORDS]);

/// Replaces the content of a slot by a record. `store` writes one word; words from [`WORDS`] on belong to the second
/// key.
#[inline]
fn put(record: &FlowRecord, mut store: impl FnMut(usize, u64)) {
    store(0, 0);
    put_key(&record.key, &mut store);
    if let ReturnPath::Tunnel(node) = record.return_path {
        store(WORDS, node.to_bits().into());
    }
    if let Some(second) = &record.second {
        put_key(&second.key, |word, value| store(WORDS + word, value));
    }
    store(0, record.mark());
}

#[inline]
fn put_key(key: &FlowKey, mut store: impl FnMut(usize, u64)) {
    let ([first, second], v6) = key.words();
    store(1, first);
    store(2, second);
    if key.is_v6() {
        (3..).zip(v6).for_each(|(word, value)| store(word, value));
    }
}

/// The records of a table's flows, by slot.
#[derive(Debug)]
pub(super) struct FlowRecords {
    words: ZeroedPages<AtomicWords>,
    file: Arc<SharedFile>,
}

impl FlowRecords {
    /// Creates an empty set of records with room for `capacity` slots. A record uses memory only after its slot is
    /// first used.
    pub(super) fn new(capacity: usize) -> io::Result<Self> {
        let (words, file) = ZeroedPages::<AtomicWords>::shared(1 + 2 * capacity, "manx-flows")?;
        for (word, value) in words[0].0.iter().zip(HEADER.into_iter().chain([capacity as u64])) {
            word.store(value, Relaxed);
        }
        Ok(Self { words, file: Arc::new(file) })
    }

    /// The file that the next process opens ([`FlowRecordFile::open`]).
    pub(super) fn file(&self) -> Arc<SharedFile> {
        Arc::clone(&self.file)
    }

    #[inline]
    pub(super) fn write(&self, slot: u32, record: &FlowRecord) {
        let AtomicWords(words) = &self.words[1 + slot as usize];
        let AtomicWords(of_second) = &self.words[1 + self.words.len() / 2 + slot as usize];
        // The release ordering makes earlier stores visible before later ones.
        put(record, |word, value| match word.checked_sub(WORDS) {
            None => words[word].store(value, Release),
            Some(word) => of_second[word].store(value, Release),
        });
    }

    /// Like [`FlowRecords::write`] if the key is the same; does nothing if there is no record yet.
    pub(super) fn change(&self, slot: u32, record: &FlowRecord) {
        let mark = &self.words[slot as usize + 1].0[0];
        if mark.load(Relaxed) != 0 {
            mark.store(record.mark(), Release);
        }
    }

    pub(super) fn clear(&self, slot: u32) {
        self.words[slot as usize + 1].0[0].store(0, Release);
    }
}

/// Why a file does not hold usable flow records.
#[derive(Debug, thiserror::Error)]
pub enum NoRecords {
    /// It cannot be read.
    #[error("the flow records cannot be read: {0}")]
    Io(#[from] io::Error),
    /// The file does not begin with the expected words.
    #[error(
        "the flow records begin with {:#x}, {}: expected {:#x}, {} (layout {LAYOUT})",
        .0[0], .0[1], HEADER[0], HEADER[1]
    )]
    Header([u64; 2]),
}

/// The flow records of another process. Their content is not trusted.
#[derive(Debug)]
pub struct FlowRecordFile {
    file: SharedFile,
    /// The number of slots.
    slots: u64,
}

impl FlowRecordFile {
    /// Opens the records of this file. Returns an error if the layout is different or the file cannot be read.
    pub fn open(file: SharedFile) -> Result<Self, NoRecords> {
        let mut bytes = [0; RECORD_BYTES];
        file.read_at(&mut bytes, 0)?;
        match words(&bytes) {
            [first, second, slots, ..] if [first, second] == HEADER => Ok(Self { file, slots }),
            [first, second, ..] => Err(NoRecords::Header([first, second])),
        }
    }

    /// The words at a place in the file; the header is at place 0.
    fn words_at(&self, place: u64) -> Option<Words> {
        let mut bytes = [0; RECORD_BYTES];
        let found = self.file.read_at(&mut bytes, place.checked_mul(RECORD_BYTES as u64)?).ok()?;
        (found == RECORD_BYTES).then(|| words(&bytes))
    }

    /// Reads the records of up to `slots` slots. Returns the number of slots that hold something other than a record.
    pub fn read(&self, slots: usize, mut each: impl FnMut(FlowRecord)) -> io::Result<usize> {
        // Slots are used from the first on, so the file has a hole where no slot was used. The hole may begin within
        // the last record, because an IPv4 record does not fill all of its words.
        let end = self.file.first_hole()?.saturating_add(RECORD_BYTES as u64);
        let slots = (slots as u64).min(self.slots);
        let end = end.min(slots.saturating_add(1).saturating_mul(RECORD_BYTES as u64));
        let (mut at, mut spoiled) = (RECORD_BYTES as u64, 0);
        let mut chunk = vec![0; CHUNK * RECORD_BYTES];
        while at < end {
            let found = self.file.read_at(&mut chunk, at)?.min((end - at) as usize);
            let (records, _) = chunk[..found].as_chunks::<RECORD_BYTES>();
            if records.is_empty() {
                break;
            }
            for (bytes, place) in records.iter().zip(at / RECORD_BYTES as u64..) {
                let second = || self.words_at(place.checked_add(self.slots)?);
                match FlowRecord::from_words(words(bytes), second) {
                    Some(record) => each(record),
                    None => spoiled += usize::from(words(bytes)[0] != 0),
                }
            }
            at += (records.len() * RECORD_BYTES) as u64;
        }
        Ok(spoiled)
    }
}

fn words(bytes: &[u8; RECORD_BYTES]) -> Words {
    let (all, _) = bytes.as_chunks();
    std::array::from_fn(|at| u64::from_ne_bytes(all[at]))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;

    use proptest::prelude::*;

    use super::*;
    use crate::wire::address::Address;

    /// The words of a record and of its second key.
    fn words_of(record: &FlowRecord) -> [Words; 2] {
        let mut words = [[0; WORDS]; 2];
        put(record, |word, value| words[word / WORDS][word % WORDS] = value);
        words
    }

    fn records() -> impl Strategy<Value = FlowRecord> {
        let end = || (any::<[u8; 16]>(), any::<u16>());
        let parts = (end(), end(), any::<(bool, bool, u8, u32)>());
        let way = (0u64..6, any::<u32>());
        let way = way.prop_map(|(number, node)| path(number, || Some(node.into())).unwrap());
        let states = (0..FlowState::ALL.len(), way);
        (parts, states, prop::option::of(end())).prop_map(
            |((low, high, (is_v4, turned, other, seen)), (state, return_path), backend)| {
                let state = FlowState::ALL[state];
                let v4 = |bytes: [u8; 16]| Address::v4([bytes[0], bytes[1], bytes[2], bytes[3]]);
                let address = |bytes| if is_v4 { v4(bytes) } else { Address::v6(bytes) };
                let protocol = [6, 17, 1, 58, other].into_iter().find(|it| state.is_of(*it));
                let (low, high) = ((address(low.0), low.1), (address(high.0), high.1));
                let (key, _) = FlowKey::new(low.0, high.0, low.1, high.1, protocol.unwrap_or(132));
                let original =
                    [Orientation::LowToHigh, Orientation::HighToLow][usize::from(turned)];
                let second = backend.map(|(backend, port)| {
                    let (key, original) =
                        FlowKey::new(low.0, address(backend), low.1, port, key.protocol());
                    DirectedKey { key, original }
                });
                let second = second.filter(|second| second.key != key);
                FlowRecord { key, original, state, seen, return_path, second }
            },
        )
    }

    fn read(file: &FlowRecordFile, slots: usize) -> (Vec<FlowRecord>, usize) {
        let mut all = Vec::new();
        let spoiled = file.read(slots, |record| all.push(record)).unwrap();
        (all, spoiled)
    }

    fn open(records: &FlowRecords) -> FlowRecordFile {
        let file = records.file().as_fd().try_clone_to_owned().unwrap();
        FlowRecordFile::open(SharedFile::open(file).unwrap()).unwrap()
    }

    proptest! {
        #[test]
        fn a_process_that_is_killed_between_two_stores_leaves_a_whole_record_or_none(
            before in records(), after in records(),
        ) {
            let place = [AtomicWords::new_zeroed(), AtomicWords::new_zeroed()];
            let words = |at: usize| std::array::from_fn(|word| place[at].0[word].load(Relaxed));
            let found = || FlowRecord::from_words(words(0), || Some(words(1)));
            for (old, new) in [(None, before), (Some(before), after)] {
                let mut all = Vec::new();
                put(&new, |word, value| all.push((word, value)));
                for done in 0..=all.len() {
                    let store = |word: usize, value| place[word / WORDS].0[word % WORDS].store(value, Relaxed);
                    if let Some(old) = &old {
                        put(old, store);
                    }
                    for (word, value) in &all[..done] {
                        store(*word, *value);
                    }
                    let expected = match done {
                        0 => old,
                        _ if done == all.len() => Some(new),
                        _ => None,
                    };
                    prop_assert_eq!(found(), expected, "after {} stores", done);
                }
            }
        }

        #[test]
        fn what_is_read_was_written_or_is_none_that_a_table_writes(
            mut all: Vec<[u64; 6]>, records in prop::collection::vec(records(), 0..8), slots in 0..20usize,
        ) {
            let mut seconds = vec![[0; WORDS]; all.len()];
            for record in &records {
                let [words, second] = words_of(record);
                all.push(words);
                seconds.push(second);
            }
            let mut file = tempfile::tempfile().unwrap();
            let header = [HEADER[0], HEADER[1], all.len() as u64, 0, 0, 0];
            for word in std::iter::once(&header).chain(&all).chain(&seconds).flatten() {
                file.write_all(&word.to_ne_bytes()).unwrap();
            }
            file.write_all(b"torn").unwrap();
            let file = FlowRecordFile::open(SharedFile::open(file.into()).unwrap()).unwrap();
            let (found, spoiled) = read(&file, slots);
            prop_assert!(found.len() + spoiled <= slots.min(all.len()));
            for record in &found {
                let len = if record.key.is_v6() { WORDS } else { 3 };
                let is_there = all.iter().any(|words| words[..len] == words_of(record)[0][..len]);
                prop_assert!(is_there, "{:?}", record);
            }
            let (whole, _) = read(&file, usize::MAX);
            prop_assert!(whole.ends_with(&records));
        }
    }

    #[test]
    fn records_are_found_by_slot_and_go_with_their_flows() {
        let key = |port| {
            FlowKey::new(Address::v4([10, 0, 0, 1]), Address::v4([10, 0, 0, 2]), port, 80, 6).0
        };
        let record = |port| FlowRecord {
            key: key(port),
            original: Orientation::LowToHigh,
            state: FlowState::SynSent,
            seen: 7,
            return_path: ReturnPath::None,
            second: None,
        };
        let records = FlowRecords::new(3000).unwrap();
        let file = open(&records);
        assert_eq!(read(&file, 3000), (vec![], 0));
        let established = FlowRecord { state: FlowState::Established, ..record(1) };
        records.change(0, &established);
        assert_eq!(read(&file, 3000), (vec![], 0), "there is no key yet");
        (0..3000).for_each(|slot| records.write(slot, &record(slot as u16)));
        records.change(1, &established);
        records.clear(2);
        let (found, spoiled) = read(&file, 3000);
        let expected: Vec<_> =
            [record(0), established].into_iter().chain((3..3000).map(record)).collect();
        assert!(found == expected && spoiled == 0);
        assert_eq!(read(&file, 10).0, expected[..9]);
        for count in 0..200 {
            let records = FlowRecords::new(3000).unwrap();
            (0..count).for_each(|slot| records.write(slot, &record(slot as u16)));
            assert_eq!(read(&open(&records), 3000).0.len(), count as usize);
        }
    }

    #[test]
    fn another_file_is_refused() {
        let file = |bytes: &[u8]| {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(bytes).unwrap();
            let opened = FlowRecordFile::open(SharedFile::open(file.into()).unwrap());
            opened.map(drop).map_err(|error| error.to_string())
        };
        assert!(
            file(b"").unwrap_err().starts_with("the flow records begin with 0x0, 0: expected 0x")
        );
        let other = file(&[1; RECORD_BYTES]).unwrap_err();
        assert!(other.starts_with(
            "the flow records begin with 0x101010101010101, 72340172838076673: expected 0x"
        ));
        let (pipe, _) = io::pipe().unwrap();
        assert_eq!(SharedFile::open(pipe.into()).unwrap_err().to_string(), "it is not a file");
    }
}
