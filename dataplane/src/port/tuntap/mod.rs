//! TUN and TAP devices: the device lies in the network namespace of the pod (or the node), this program holds its
//! queues.
//!
//! The layers, in order:
//! - [`Queue`]: makes a device, or recognises a queue that another process opened.
//! - [`Settings`]: settings of all queues of a device, and the user that may open further ones.
//! - `framing`: the headers in front of a packet: none (TUN, layer 3), or an Ethernet header (TAP).
//! - `port`: packets in and out of a queue.
//!
//! Each packet is one system call with a virtio-net header in front, so that the kernel's TCP and UDP send and
//! take super-packets of up to 64 KB. The kernel spreads flows over the queues; each worker owns one.

mod framing;
mod port;
mod queue;
mod settings;

pub use queue::{Kind, Queue};
pub use settings::{Changed, Settings, owner};
