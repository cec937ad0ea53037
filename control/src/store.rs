//! The directory datastore.
