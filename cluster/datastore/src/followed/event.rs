//! The events of a server.

use std::time::SystemTime;

use manx_objects::object::{Kind, ObjectKey};

use super::reading::Reading;

#[derive(Debug)]
pub(crate) enum Event {
    /// A complete list of the objects of a kind.
    Listed { kind: Kind, readings: Vec<Reading> },
    /// An object was added or changed.
    Changed(Box<Reading>),
    /// An object is gone.
    Gone(ObjectKey),
    /// Objects cannot be followed, or can be followed again.
    Fault {
        /// The kind, or `None` for all kinds.
        kind: Option<Kind>,
        /// Since when and why objects cannot be followed. `None` means that they can be followed
        /// again.
        fault: Option<(SystemTime, Reason)>,
    },
}

/// The reason why objects cannot be followed.
#[derive(Debug, Clone)]
pub(crate) struct Reason {
    /// The full text.
    pub(crate) text: String,
    /// The part of the text that is equal for all kinds with this cause.
    pub(crate) cause: String,
}

/// Makes a reason that contains no kind.
impl From<String> for Reason {
    fn from(text: String) -> Self {
        Self { cause: text.clone(), text }
    }
}
