//! What has happened at the API server.

use std::time::SystemTime;

use manx_objects::object::{Kind, ObjectKey};

use super::reading::Reading;

/// What has happened.
#[derive(Debug)]
pub(super) enum Event {
    /// These are all objects of a kind.
    Listed {
        /// The kind.
        kind: Kind,
        /// The objects.
        readings: Vec<Reading>,
    },
    /// An object came or changed.
    Changed(Box<Reading>),
    /// An object is gone.
    Gone(ObjectKey),
    /// Objects cannot be followed (`None`: they can again): of one kind, or the server as a whole.
    Fault {
        /// The kind; `None`: all.
        kind: Option<Kind>,
        /// Why, and since when.
        fault: Option<(SystemTime, String)>,
    },
}
