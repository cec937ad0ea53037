//! The events of a server.

use std::time::SystemTime;

use manx_objects::object::{Kind, ObjectKey};

use super::reading::Reading;

#[derive(Debug)]
pub(crate) enum Event {
    /// These are all objects of a kind.
    Listed { kind: Kind, readings: Vec<Reading> },
    /// An object was added or changed.
    Changed(Box<Reading>),
    /// An object is gone.
    Gone(ObjectKey),
    /// Objects cannot be followed (`None`: they can again): of one kind, or the server as a whole.
    Fault {
        /// The kind; `None`: all.
        kind: Option<Kind>,
        /// Why, and since when.
        fault: Option<(SystemTime, Reason)>,
    },
}

/// The reason why objects cannot be followed.
#[derive(Debug, Clone)]
pub(crate) struct Reason {
    /// In full.
    pub(crate) text: String,
    /// The part of the text that is the same for all kinds with this cause.
    pub(crate) cause: String,
}

/// A reason that names no kind.
impl From<String> for Reason {
    fn from(text: String) -> Self {
        Self { cause: text.clone(), text }
    }
}
