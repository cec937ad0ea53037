//! Devices of pods: an interface in somebody's namespace, its queues in the hands of the agent.
//!
//! The layers, in order:
//! - [`device`]: a device is made, in a namespace that the caller names.
//! - [`pod_device`]: a pod's device with its addresses and routes; its removal; the queues of one that another process
//!   made.
//! - [`shelter`]: where the host ends of veths lie that another plugin has made.
//! - [`holder`]: a process that keeps the queues while there is no agent.
//!
//! The agent makes veths, and all devices of callers that cannot. The CNI plugin makes TUN and TAP devices and hands
//! their queues over: so the agent need not enter a pod's namespace.

pub mod device;
pub mod holder;
pub mod pod_device;
pub mod shelter;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

#[cfg(test)]
mod tests;
