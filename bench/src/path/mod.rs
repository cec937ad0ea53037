//! Paths: two ends that can reach each other, the program that carries packets between them, and the traffic.
//!
//! - [`ends`]: the trait [`Path`](ends::Path), which is implemented for each way of carrying packets;
//! - [`kernel`] (and [`filter`]): kernel routing and kernel VXLAN devices, with packet filters or without;
//! - [`translating`]: a kernel that translates addresses with nftables, as with kube-proxy;
//! - [`gateway`]: programs that connect a namespace to the outside through their own sockets;
//! - [`bare`]: a forwarder that makes no decision, over the devices and system calls of Manx;
//! - [`switch`]: userspace switches of other projects;
//! - [`agents`]: real node agents of Manx;
//! - [`traffic`] and [`connections`]: TCP streams, a flood of small UDP packets, a UDP ping-pong, and TCP connections.
//!
//! All of them use [`constants`], [`way`] (the ways in which a node translates addresses) and [`links`] (namespaces,
//! veth pairs, addresses and routes).

pub mod agents;
pub mod bare;
pub mod connections;
pub mod constants;
pub mod ends;
pub mod filter;
pub mod gateway;
pub mod kernel;
mod kube_proxy;
pub mod links;
pub mod switch;
pub mod traffic;
pub mod translating;
pub mod way;
