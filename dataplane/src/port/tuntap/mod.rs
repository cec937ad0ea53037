//! TUN and TAP devices. The device lies in the network namespace of the pod (or the node), and this program holds its
//! queues.
//!
//! The layers, in order:
//! - [`Queue`]: creates a device, or checks a queue that another process opened.
//! - [`Settings`]: settings that hold for all queues of a device, and the user that may open further ones.
//! - `framing`: the headers in front of a packet: none (TUN, layer 3), or an Ethernet header (TAP).
//! - `port`: reads packets from a queue and writes them.
//!
//! Each packet is one system call with a virtio-net header in front, so that the kernel's TCP and UDP can send and
//! receive super-packets of up to 64 KB. The kernel spreads flows over the queues, and each worker owns one queue.

mod framing;
mod port;
mod queue;
mod settings;

pub use queue::{Kind, Queue};
pub use settings::{Changed, Settings, owner};
