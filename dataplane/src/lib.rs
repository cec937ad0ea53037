//! Packets in, packets out.
//!
//! The worker of one core takes a batch of packets from each of its ports, gives every packet one fate, and sends
//! what goes on. It decides by one immutable value that control publishes whole. The rooms, from the ground up:
//!
//! 1. [`sys`]: system calls, cycle counter and raw memory, with all the unsafe code of the crate. It does not know
//!    the use of a descriptor or an array.
//! 2. [`checksum`], [`wire`], [`drop_reason`], [`hash_seed`]: ones' complement sums; header views, one protocol a file,
//!    which judge structure only; every reason why a packet is dropped; what keys the hashes, so that no sender can
//!    choose what collides.
//! 3. [`packet`]: a buffer, the packet's place in it, its offload metadata, and the capabilities of a device.
//!    Checksums are adjusted, never recomputed on the way, because that would hide corruption.
//! 4. [`mod@parse`]: a packet's headers, found once. A packet that two receivers could read in two ways is refused.
//! 5. [`encapsulation`], [`fragment`], [`offload`], [`icmp`]: packets made of packets: IPIP and VXLAN on and off,
//!    fragments, segments and super-packets, errors for the sender. Policy plays no part in them.
//! 6. [`port`]: sources and sinks of packets, behind one trait. Framing, ARP, virtio headers and devices
//!    end here; no port decides about an IP packet.
//! 7. [`flow`]: cached decisions, one for each connection, in a table of fixed size. It neither classifies nor routes,
//!    and knows the time only as a parameter.
//! 8. [`tables`], [`policy`], [`rewrite`], [`decide`]: the tables that control has published; policy's verdict on two
//!    ends; the changes to a packet; the decision: source check, flow or policy, route, hop limit, size. The decision
//!    uses no device, clock or buffer: it returns a [`fate`].
//! 9. [`counters`], [`report`], [`port_table`]: a worker's counters, and its reports to control; its attached ports,
//!    which of them are readable, and which is next.
//! 10. [`pipeline`]: a batch through 4 to 8, pass by pass: input (tunnels, headers, keys), fast path, slow path,
//!     handoff to the worker that has a packet's flow, output.
//! 11. [`worker`]: the turn loop over ready ports, which share the worker's time equally, and the commands by which
//!     control speaks with it. Only readers of its counters see what a worker changes; with the other workers of its
//!     node it shares mailboxes and the [`Shards`](flow::Shards), which say which worker has a flow.
//!
//! Every packet is forwarded, or dropped for one [`DropReason`](drop_reason::DropReason); a packet with anything
//! unknown, unparsed or missing is dropped. A packet of an established flow costs no allocation, no lock, and no system
//! call but those of its ports.
//!
//! There is no tokio here, no serde, no Kubernetes, and no decision that control has not published.
//!
//! **Not supported**: address translation, IPv6 in tunnels, `AF_XDP`, uplinks that the kernel does not share (the
//! module `decide::untracked` names what is prepared for these), reassembly (a later fragment gets the decision of the
//! first one, or is dropped), IPv6 jumbograms, and TCP sequence numbers: a flow is followed by its flags.

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
