//! Packets in, packets out.
//!
//! The worker of one core takes a batch of packets from each of its ports, gives every packet one fate and sends what is
//! to go on. It judges by one immutable value that control publishes whole. The layers, in order:
//!
//! 1. [`sys`]: system calls, cycle counter and raw memory, with all the unsafe code of the crate. Refuses to know what a
//!    descriptor is for.
//! 2. [`wire`]: header views, one protocol a file. They judge structure only: no checksum, no policy, no plausibility.
//! 3. [`packet`], [`checksum`]: a buffer, where the packet lies in it, what its device promised about it. Checksums are
//!    adjusted, never recomputed on the way, because that would hide corruption.
//! 4. [`port`]: where packets come from and go to, each behind one trait. Framing, ARP, virtio headers and devices end
//!    here; no port decides about an IP packet.
//! 5. [`mod@parse`]: a packet's headers, found once. Refuses whatever two receivers could read in two ways.
//! 6. [`encapsulation`], [`fragment`], [`offload`], [`icmp`]: packets made of packets: IPIP and VXLAN on and off, fragments,
//!    segments and super-packets, errors for the sender. None of them asks who may speak to whom.
//! 7. [`flow`]: what was decided once for a connection, in a table of fixed size. Refuses to classify, to route, and to
//!    know the time but as a parameter.
//! 8. [`tables`], [`policy`], [`decide`]: what control has published; policy's verdict on two ends; the decision: source
//!    check, flow or judgement, route, hop limit, size. No device, clock or buffer: a [`fate`] comes out.
//! 9. `admit`, `handover`, [`pipeline`]: a batch through 5 to 8, the fates carried out and counted ([`counters`]), packets of
//!    other workers' flows handed over.
//! 10. [`worker`], [`poller`], `fairness`: the turn loop over ready ports, each of which gets an equal share of the worker's
//!     time, and the commands and [`report`]s by which control speaks with it. A worker shares nothing that it changes but its counters, and with other workers of its node whose flow
//!     is whose and mailboxes.
//!
//! Every packet is forwarded, or dropped for one [`DropReason`](fate::DropReason); what is unknown, unparsed or missing
//! is dropped. Established flows cost no allocation, no lock and no system call but their ports' own.
//!
//! There is no tokio here, no serde, no Kubernetes, and no decision that control has not published.
//!
//! **Not supported**: address translation, IPv6 in tunnels, `AF_XDP`, uplinks that the kernel
//! does not share, reassembly (a later fragment follows the first, or is dropped), IPv6 jumbograms, and TCP
//! sequence numbers: a flow is followed by its flags.

pub mod checksum;
pub mod counters;
pub mod decide;
mod denials;
pub mod encapsulation;
mod fairness;
pub mod fate;
pub mod flow;
pub mod fragment;
mod handoff;
pub mod icmp;
mod input;
pub mod offload;
mod outbox;
pub mod packet;
pub mod parse;
pub mod pipeline;
pub mod policy;
pub mod poller;
pub mod port;
mod ports;
mod rate_limit;
pub mod report;
pub mod stage;
pub mod sys;
pub mod tables;
pub mod wire;
pub mod worker;
