//! Attributes as they are written: many peers are told the same.

use std::collections::HashMap;
use std::sync::Arc;

use manx_bgp::path::Attributes;

use super::attributes;

/// The most attributes that are kept, and the most bytes of what was written.
const MOST: usize = 16 * 1024;
const MOST_BYTES: usize = 8 << 20;

/// The attributes that were written last, by their place in memory and by whether systems have four octets. They are kept
/// with what was written, so that no others come to the same place.
#[derive(Debug, Default)]
pub(crate) struct Written {
    all: HashMap<(usize, bool), (Arc<Attributes>, Bytes)>,
    /// The bytes of all of them.
    bytes: usize,
}

/// Attributes as they stand in messages. `None`: they must not be sent.
type Bytes = Option<Arc<[u8]>>;

impl Written {
    /// The attributes as they stand in messages.
    pub(super) fn attributes(
        &mut self,
        attributes: &Arc<Attributes>,
        is_four_octet: bool,
    ) -> Bytes {
        let key = (Arc::as_ptr(attributes) as usize, is_four_octet);
        if let Some((_, bytes)) = self.all.get(&key) {
            return bytes.clone();
        }
        let mut bytes = Vec::new();
        let encoded = attributes::encode(attributes, is_four_octet, &mut bytes);
        let bytes: Bytes = encoded.ok().map(|()| Arc::from(bytes));
        if self.all.len() >= MOST || self.bytes >= MOST_BYTES {
            *self = Self::default();
        }
        self.bytes += bytes.as_ref().map_or(0, |it| it.len());
        self.all.insert(key, (Arc::clone(attributes), bytes.clone()));
        bytes
    }
}
