//! What is followed.

use manx_objects::object::Kind;

/// See the module.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Server {
    /// What sentences call it, with its article.
    pub(crate) name: &'static str,
    /// The kinds that are followed.
    pub(crate) kinds: &'static [Kind],
}
