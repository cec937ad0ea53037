//! All records of a store.

use crate::affinity::Affinity;
use crate::block::Block;
use crate::handle::Handle;
use crate::store::{self, Store, StoreError, Which};

/// The records of a store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Records {
    pub blocks: Vec<Block>,
    pub affinities: Vec<Affinity>,
    pub handles: Vec<Handle>,
}

impl Records {
    /// Reads all records.
    pub async fn read<S: Store>(store: &S) -> Result<Self, StoreError> {
        let handles = store::list::<Handle, _>(store, &Which::Handles).await?;
        let affinities = store::list::<Affinity, _>(store, &Which::Affinities).await?;
        let blocks = store::list::<Block, _>(store, &Which::Blocks).await?;
        Ok(Self {
            blocks: blocks.into_iter().map(|it| it.value).collect(),
            affinities: affinities.into_iter().map(|it| it.value).collect(),
            handles: handles.into_iter().map(|it| it.value).collect(),
        })
    }
}
