//! The rig: a whole cluster on one machine.
