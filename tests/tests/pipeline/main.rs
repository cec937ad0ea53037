//! Packets through two nodes' workers.

mod buffers;
mod closed;
mod errors;
mod flows;
mod fragments;
mod hops;
mod offload;
mod oracle;
