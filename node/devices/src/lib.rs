//! Devices of pods: an interface in the pod's namespace, whose queues the agent has.
//!
//! The layers, in order:
//! - [`device`]: makes a device in a namespace that the caller names.
//! - [`pod_device`]: a pod's device with its addresses and routes; its removal; the queues of a device that another
//!   process made.
//! - [`shelter`]: the namespace for the host ends of veths that another plugin has made.
//! - [`holder`]: a process that keeps the queues while there is no agent.
//!
//! The agent makes veths, and all devices for callers that cannot make them. The CNI plugin makes TUN and TAP devices
//! and hands their queues over, so the agent need not enter a pod's namespace.

pub mod device;
pub mod holder;
pub mod pod_device;
pub mod shelter;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

#[cfg(test)]
mod tests;
