//! Packets in, packets out.
//!
//! The worker of one core takes a batch of packets from each of its ports, gives every packet one fate, and sends the
//! packets that are forwarded. It decides by one set of tables, which the control loop publishes as a whole. The
//! layers, from the bottom up:
//!
//! 1. [`sys`]: system calls, cycle counter and raw memory, with all the unsafe code of the crate. It does not know what
//!    a descriptor or an array is used for.
//! 2. [`checksum`], [`wire`], [`drop_reason`], [`hash_seed`]: ones' complement sums; header views, one protocol per
//!    file, which check structure only; every reason why a packet is dropped; the seeds of the hashes, so that no
//!    sender can choose keys that collide.
//! 3. [`packet`]: a buffer, the packet's place in it, its offload metadata, and the capabilities of a device. Checksums
//!    of forwarded packets are adjusted, never recomputed, because recomputing would hide corruption.
//! 4. [`mod@parse`]: a packet's headers, located once. A packet that two receivers could read in different ways is
//!    refused.
//! 5. [`encapsulation`], [`fragment`], [`offload`], [`icmp`]: packets made from packets. These are IPIP and VXLAN
//!    encapsulation, fragments, segments and super-packets, and errors for the sender. Policy plays no part in them.
//! 6. [`port`]: sources and sinks of packets, behind one trait. Framing, ARP, virtio headers and devices are handled
//!    here and nowhere above; a port decides nothing about an IP packet.
//! 7. [`flow`]: cached decisions, one for each connection, in a table of fixed size. It neither classifies nor routes,
//!    and gets the time as a parameter.
//! 8. [`tables`], [`policy`], [`rewrite`], [`decide`]: the tables that the control loop has published; the verdict of
//!    policy on two ends; the changes to a packet; and the decision. The decision covers source check, flow or policy,
//!    route, hop limit and size. The decision uses no device, clock or buffer: it returns a [`fate`].
//! 9. [`counters`], [`report`], [`port_table`]: a worker's counters, and its reports to the control loop; its attached
//!    ports, which of them are readable, and which is served next.
//! 10. [`pipeline`]: takes a batch through layers 4 to 8, pass by pass: input (tunnels, headers, keys), fast path, slow
//!     path, handoff to the worker that has a packet's flow, output.
//! 11. [`worker`]: the turn loop over ready ports, which share the worker's time equally, and the commands that the
//!     control loop sends to the worker. Other threads can read a worker's counters, and nothing else of its state. The
//!     workers of a node share mailboxes and the [`Shards`](flow::Shards), which determine which worker has a flow.
//!
//! Every packet is either forwarded or dropped for one [`DropReason`](drop_reason::DropReason). A packet with anything
//! unknown, unparsed or missing is dropped. A packet of an established flow costs no allocation, no lock, and no system
//! call except those of its ports.
//!
//! The crate uses neither tokio nor serde, knows nothing of Kubernetes, and decides only by what the control loop has
//! published.
//!
//! **Not supported**: address translation other than for services and masquerading; IPv6 in tunnels; `AF_XDP`; uplinks
//! that the kernel does not share (the module `decide::untracked` lists what exists for these); IPv6 jumbograms.
//! Reassembly is not supported: a later fragment gets the decision of the first one, or is dropped. TCP sequence
//! numbers are not checked: a flow's state follows the flags alone.

#![warn(missing_docs)]

pub mod checksum;
pub mod counters;
pub mod decide;
pub mod drop_reason;
pub mod encapsulation;
pub mod fate;
pub mod flow;
pub mod fragment;
pub mod hash_seed;
pub mod icmp;
pub mod offload;
pub mod packet;
pub mod parse;
pub mod pipeline;
pub mod policy;
pub mod port;
pub mod port_table;
pub mod report;
pub mod reset;
pub mod rewrite;
pub mod services;
pub mod stage;
mod stopwatch;
pub mod sys;
pub mod tables;
pub mod wire;
pub mod worker;
