//! Packets through two nodes' workers.

mod buffers;
mod change;
mod closed;
mod connections;
mod errors;
mod flows;
mod fragments;
mod hops;
mod hosts;
mod offload;
mod oracle;
