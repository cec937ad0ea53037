//! A cache of encoded attributes, because many peers get the same ones.

use std::collections::HashMap;
use std::sync::Arc;

use manx_bgp::path::Attributes;

use super::attributes;

/// The most cached attributes, and the most bytes of their encodings.
const MOST: usize = 16 * 1024;
const MOST_BYTES: usize = 8 << 20;

/// The cached encodings. The key is the attributes' address in memory, and whether autonomous systems have four octets. The
/// cache keeps the attributes alive, so no other attributes can get the same address.
#[derive(Debug, Default)]
pub(crate) struct Written {
    all: HashMap<(usize, bool), (Arc<Attributes>, Bytes)>,
    /// The total length of the encodings, in bytes.
    bytes: usize,
}

/// Encoded attributes. `None` if they must not be sent.
type Bytes = Option<Arc<[u8]>>;

impl Written {
    /// Returns encoded attributes, from the cache if possible.
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
