//! The decision for one packet.
