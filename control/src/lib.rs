//! The control side of Manx.
pub mod agent;
pub mod api;
pub mod calc;
pub mod cli;
pub mod client;
pub mod doctor;
pub mod import;
pub mod interfaces;
pub mod ipam;
pub mod manifest;
pub mod netlink;
pub mod netns;
pub mod oracle;
pub mod references;
pub mod rig;
pub mod store;
pub mod topology;
