//! Packets through two nodes' workers.

mod always;
mod buffers;
mod change;
mod closed;
mod connections;
mod egress;
mod errors;
mod explained;
mod flows;
mod forwarded;
mod fragments;
mod headers;
mod hops;
mod hosts;
mod hosts_oracle;
mod in_place;
mod neighbours;
mod offload;
mod oracle;
mod policy_only;
mod services;
mod states;
mod succession;
mod translated;
mod vxlan;
mod workers;
