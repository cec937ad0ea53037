//! The records as Calico's objects at a server (`IPAMBlock`, `BlockAffinity`, `IPAMHandle`), and the cluster's settings
//! of IPAM.
//!
//! `names` defines the names and labels of objects, `fields` writes and reads their fields, and `users` reads pods and
//! nodes.
//!
//! A plain delete of Kubernetes would also delete a version that the caller has not read. So a record is deleted in two
//! steps, as in Calico: a compare-and-swap marks it as `deleted`, and then the object is removed. A reader that finds a
//! mark treats the record as deleted, and completes the removal.
//!
//! Source: Calico's design note "IPAM datastore".

mod fields;
mod names;
#[cfg(test)]
mod tests;
mod users;

use ipnet::IpNet;
use manx_datastore::{Revision, ServedKey, ServedKind, WriteError, Writes};
use manx_objects::object::Kind;
use serde_json::{Value, json};

pub use self::fields::{Version, moment};
use self::fields::{mark_deleted, read, write};
use self::names::{labels_of, name, selector_of};
use crate::affinity::{Affinity, Owner};
use crate::assign::TRIES;
use crate::config::{Config, ConfigChange};
use crate::store::{Key, Record, Store, StoreError, Which};

/// See the module.
#[derive(Debug)]
pub struct Objects<W> {
    writes: W,
}

/// An object as it was last read or written.
#[derive(Debug, Clone)]
pub struct Known {
    revision: Revision,
    /// The whole object. Fields that this crate does not know are written back unchanged.
    object: Value,
}

impl Known {
    /// Returns the version of the object at the server.
    pub const fn revision(&self) -> &Revision {
        &self.revision
    }
}

impl<W: Writes + Sync> Objects<W> {
    pub const fn new(writes: W) -> Self {
        Self { writes }
    }

    /// Returns the client of the server.
    pub const fn writes(&self) -> &W {
        &self.writes
    }

    async fn version(&self, kind: ServedKind) -> Result<Version, StoreError> {
        Ok(Version::of(self.writes.api_version(kind).await.map_err(error)?))
    }

    /// Returns the record of an object. If the object is marked as deleted, removes it and returns `None`.
    async fn record(
        &self,
        key: ServedKey,
        object: Value,
        revision: Revision,
    ) -> Result<Option<(Record, Known)>, StoreError> {
        match read(key.kind, &object) {
            Ok(Some(record)) => Ok(Some((record, Known { revision, object }))),
            Ok(None) => {
                // Reading succeeds even if this process may not delete the object. The next process that may do so
                // removes it.
                let _ = self.remove(&key, &revision).await;
                Ok(None)
            }
            Err(reason) => Err(StoreError::Damaged { record: key.to_string(), reason }),
        }
    }

    /// Executes the second step of a deletion. Another process may already have done so.
    async fn remove(&self, key: &ServedKey, revision: &Revision) -> Result<(), StoreError> {
        match self.writes.delete(key, revision).await.map_err(error) {
            Err(StoreError::Conflict) | Ok(()) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn put(
        &self,
        key: &ServedKey,
        known: &Known,
        object: Value,
    ) -> Result<Known, StoreError> {
        let put = self.writes.compare_and_swap(key, &known.revision, object.clone());
        Ok(Known { revision: put.await.map_err(error)?, object })
    }

    /// Reads any other object of the server.
    pub async fn object(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Value>, StoreError> {
        let found = self.writes.get(&ServedKey::new(kind, namespace, name)).await;
        Ok(found.map_err(error)?.map(|(object, _)| object))
    }

    /// Reads the cluster's settings. Returns the default ones if there is no such object.
    ///
    /// # Errors
    /// Returns an error if they cannot be read or contradict each other.
    pub async fn config(&self) -> Result<Config, StoreError> {
        let key = ServedKey::new(ServedKind::IpamConfig, "", "default");
        let found = match self.writes.get(&key).await {
            Ok(found) => found,
            Err(WriteError::NotServed(_)) => None,
            Err(other) => return Err(error(other)),
        };
        let Some((object, _)) = found else { return Ok(Config::default()) };
        let damaged = |reason| StoreError::Damaged { record: key.to_string(), reason };
        let config = fields::config(&object["spec"]).map_err(damaged)?;
        config.checked().map_err(|contradiction| damaged(contradiction.to_string()))
    }

    /// Changes the cluster's settings, and creates their object if there is none. Returns the new settings.
    ///
    /// # Errors
    /// Returns an error if they would contradict each other, or cannot be read or written.
    pub async fn configure(&self, change: ConfigChange) -> Result<Config, StoreError> {
        let key = ServedKey::new(ServedKind::IpamConfig, "", "default");
        for _ in 0..TRIES {
            let found = self.writes.get(&key).await.map_err(error)?;
            let (mut object, revision) = match found {
                Some((object, revision)) => (object, Some(revision)),
                None => (json!({ "spec": fields::write_config(&Config::default()) }), None),
            };
            let ConfigChange { strict_affinity, max_blocks } = change;
            if let Some(strict) = strict_affinity {
                object["spec"]["strictAffinity"] = strict.into();
            }
            if let Some(most) = max_blocks {
                object["spec"]["maxBlocksPerHost"] = most.into();
            }
            let config = fields::config(&object["spec"])
                .map_err(|reason| StoreError::Damaged { record: key.to_string(), reason })?;
            let config = config.checked().map_err(|it| StoreError::Refused(it.to_string()))?;
            let written = match revision {
                Some(revision) => self.writes.compare_and_swap(&key, &revision, object).await,
                None => self.writes.create(&key, object).await,
            };
            match written.map_err(error) {
                Ok(_) => return Ok(config),
                Err(StoreError::Conflict) => {}
                Err(error) => return Err(error),
            }
        }
        Err(StoreError::Conflict)
    }

    /// Reads the nets whose addresses are assigned only if a request names them (`IPReservation`).
    ///
    /// # Errors
    /// Returns an error if they cannot be read. No address must be assigned then.
    pub async fn reserved(&self) -> Result<Vec<IpNet>, StoreError> {
        let all = match self.writes.list(ServedKind::IpReservation, "").await {
            Ok(all) => all,
            Err(WriteError::NotServed(_)) => Vec::new(),
            Err(other) => return Err(error(other)),
        };
        let mut nets = Vec::new();
        for (key, object, _) in all {
            let read = fields::reserved(&object["spec"]);
            let damaged = |reason| StoreError::Damaged { record: key.to_string(), reason };
            nets.extend(read.map_err(damaged)?);
        }
        Ok(nets)
    }

    /// Adds labels to the affinities of an owner that versions of Calico before 3.31 have written without labels.
    /// [`Which::AffinitiesOf`] finds affinities by these labels.
    pub async fn label_affinities(&self, owner: &Owner) -> Result<(), StoreError> {
        for (record, known) in self.list(&Which::Affinities).await? {
            let Record::Affinity(Affinity { owner: of, cidr, .. }) = &record else { continue };
            let labels = labels_of(of, *cidr);
            let has = |(key, value): &(&str, String)| {
                known.object["metadata"]["labels"][*key] == value.as_str()
            };
            if of != owner || labels.iter().all(has) {
                continue;
            }
            match self.swap(&known, record).await {
                Ok(_) | Err(StoreError::Conflict) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl<W: Writes + Sync> Store for Objects<W> {
    type Revision = Known;

    async fn get(&self, key: &Key) -> Result<Option<(Record, Known)>, StoreError> {
        let key = served(key);
        match self.writes.get(&key).await.map_err(error)? {
            Some((object, revision)) => self.record(key, object, revision).await,
            None => Ok(None),
        }
    }

    async fn list(&self, which: &Which) -> Result<Vec<(Record, Known)>, StoreError> {
        let (kind, selector) = match which {
            Which::Blocks => (ServedKind::IpamBlock, String::new()),
            Which::Handles => (ServedKind::IpamHandle, String::new()),
            Which::Affinities => (Kind::BlockAffinity.into(), String::new()),
            Which::AffinitiesOf(owner) => (Kind::BlockAffinity.into(), selector_of(owner)),
        };
        let is_asked = |record: &Record| match (which, record) {
            (Which::AffinitiesOf(owner), Record::Affinity(affinity)) => affinity.owner == *owner,
            _ => true,
        };
        let all = self.writes.list(kind, &selector).await.map_err(error)?;
        let mut records = Vec::with_capacity(all.len());
        for (key, object, revision) in all {
            let found = self.record(key, object, revision).await?;
            records.extend(found.filter(|(record, _)| is_asked(record)));
        }
        Ok(records)
    }

    async fn create(&self, record: Record) -> Result<Known, StoreError> {
        let key = served(&record.key());
        let object = write(&record, self.version(key.kind).await?, json!({}));
        let revision = self.writes.create(&key, object.clone()).await.map_err(error)?;
        Ok(Known { revision, object })
    }

    async fn swap(&self, known: &Known, record: Record) -> Result<Known, StoreError> {
        let key = served(&record.key());
        let object = write(&record, self.version(key.kind).await?, known.object.clone());
        self.put(&key, known, object).await
    }

    async fn delete(&self, known: &Known, record: Record) -> Result<(), StoreError> {
        let key = served(&record.key());
        let version = self.version(key.kind).await?;
        let marked = mark_deleted(version, key.kind, known.object.clone());
        let marked = match self.writes.compare_and_swap(&key, &known.revision, marked).await {
            Err(WriteError::Gone) => return Ok(()),
            marked => marked.map_err(error)?,
        };
        // From now on the record counts as deleted, even if the object cannot be removed.
        match self.remove(&key, &marked).await {
            Ok(()) | Err(StoreError::Unreachable(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn served(key: &Key) -> ServedKey {
    let kind = match key {
        Key::Block(_) => ServedKind::IpamBlock,
        Key::Affinity(..) => Kind::BlockAffinity.into(),
        Key::Handle(_) => ServedKind::IpamHandle,
    };
    ServedKey::new(kind, "", &name(key))
}

impl From<WriteError> for StoreError {
    fn from(failed: WriteError) -> Self {
        error(failed)
    }
}

fn error(error: WriteError) -> StoreError {
    match error {
        WriteError::Conflict | WriteError::Gone => StoreError::Conflict,
        WriteError::Unreachable(reason) => StoreError::Unreachable(reason),
        WriteError::NotServed(kind) => StoreError::Refused(format!(
            "the server serves no {kind}: install the CustomResourceDefinitions of deploy/manx.yaml, or Calico's"
        )),
        WriteError::Refused(reason) => StoreError::Refused(reason),
    }
}
