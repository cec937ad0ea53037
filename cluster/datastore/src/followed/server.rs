//! The followed server and its kinds.

use manx_objects::object::Kind;

/// See the module.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Server {
    /// The server's name in sentences, with its article.
    pub(crate) name: &'static str,
    pub(crate) kinds: &'static [Kind],
}
