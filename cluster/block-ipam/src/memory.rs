//! A store in memory, for tests.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use manx_objects::object::PoolUse;

use crate::pool::Pool;
use crate::store::{Key, Record, Store, StoreError, Which};

/// See the module.
#[derive(Debug, Default)]
pub struct Memory(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    records: BTreeMap<Key, (Record, u64)>,
    last: u64,
}

impl State {
    fn put(&mut self, record: Record) -> u64 {
        self.last += 1;
        self.records.insert(record.key(), (record, self.last));
        self.last
    }

    fn is_at(&self, key: &Key, revision: u64) -> bool {
        self.records.get(key).is_some_and(|(_, at)| *at == revision)
    }
}

impl Memory {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns all records.
    pub fn records(&self) -> Vec<Record> {
        self.state().records.values().map(|(record, _)| record.clone()).collect()
    }

    /// Reads one record and its revision.
    pub fn read(&self, key: &Key) -> Option<(Record, u64)> {
        self.state().records.get(key).cloned()
    }

    /// Lists records and their revisions.
    pub fn listed(&self, which: &Which) -> Vec<(Record, u64)> {
        let is_asked = |record: &Record| match (which, record) {
            (Which::Blocks, Record::Block(_))
            | (Which::Affinities, Record::Affinity(_))
            | (Which::Handles, Record::Handle(_)) => true,
            (Which::AffinitiesOf(owner), Record::Affinity(it)) => it.owner == *owner,
            _ => false,
        };
        self.state().records.values().filter(|(record, _)| is_asked(record)).cloned().collect()
    }

    /// Does a write.
    pub fn write(&self, write: &Write) -> Result<u64, StoreError> {
        let mut state = self.state();
        match write {
            Write::Create(record) if state.records.contains_key(&record.key()) => {
                Err(StoreError::Conflict)
            }
            Write::Create(record) => Ok(state.put(record.clone())),
            Write::Swap(revision, record) if state.is_at(&record.key(), *revision) => {
                Ok(state.put(record.clone()))
            }
            Write::Delete(revision, record) if state.is_at(&record.key(), *revision) => {
                state.records.remove(&record.key());
                Ok(*revision)
            }
            Write::Delete(_, record) if !state.records.contains_key(&record.key()) => Ok(0),
            Write::Swap(..) | Write::Delete(..) => Err(StoreError::Conflict),
        }
    }
}

/// A write of one record.
#[derive(Debug, Clone)]
pub enum Write {
    Create(Record),
    Swap(u64, Record),
    Delete(u64, Record),
}

impl Store for Memory {
    type Revision = u64;

    async fn get(&self, key: &Key) -> Result<Option<(Record, u64)>, StoreError> {
        Ok(self.read(key))
    }

    async fn list(&self, which: &Which) -> Result<Vec<(Record, u64)>, StoreError> {
        Ok(self.listed(which))
    }

    async fn create(&self, record: Record) -> Result<u64, StoreError> {
        self.write(&Write::Create(record))
    }

    async fn swap(&self, revision: &u64, record: Record) -> Result<u64, StoreError> {
        self.write(&Write::Swap(*revision, record))
    }

    async fn delete(&self, revision: &u64, record: Record) -> Result<(), StoreError> {
        self.write(&Write::Delete(*revision, record)).map(drop)
    }
}

/// Returns a pool for the workloads and tunnels of all nodes.
///
/// # Panics
/// Panics if the text is not a net.
#[expect(clippy::unwrap_used, reason = "for tests")]
pub fn pool(cidr: &str, block_size: u8) -> Pool {
    Pool {
        name: format!("pool-{cidr}"),
        cidr: cidr.parse().unwrap(),
        block_size,
        is_disabled: false,
        is_manual: false,
        nodes: None,
        namespaces: None,
        uses: vec![PoolUse::Workload, PoolUse::Tunnel],
    }
}
