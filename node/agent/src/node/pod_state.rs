//! The state of a pod that has an address, a device or a waiting request on this node.
//!
//! A pod is in one [`State`]. It has at most one piece of work at a time (for addresses or its device), and most states are
//! named after that work. In a state of rest ([`State::Nothing`], [`State::Apart`], [`State::Attached`]) there is no work,
//! and a request can begin. [`Pods`](super::pod_walk::Pods) has the transitions.

use manx_dataplane::tables::PortId;

use super::pod_request::{AttachRequest, Caller, PendingReply};
use manx_api::{Attach, AttachmentId, Reply};
use manx_calculation::calc::LocalPod;
use manx_devices::pod_device::PodDevice;
use manx_ipam::host_local::Reservation;

/// See the module.
pub(super) enum State {
    /// The pod has nothing on the node.
    Nothing,
    /// The pod has no device here, but may have addresses.
    Apart(Apart),
    /// Attachments wait for the pod's object, without which it would have no policy. The value is the pod's former
    /// state; `None` means that the pod had nothing.
    Expected(Option<Apart>),
    /// Addresses are being reserved for the pod.
    Reserving(Box<Reserving>),
    /// Its device is being made.
    Making(Box<Making>),
    /// It has a port, and the tables contain it.
    Attached(AttachedPod),
    /// The pod has a port, and the tables contain it. Its lease and its device are getting another attachment id.
    Renewing(AttachedPod, Box<Renewing>),
    /// The pod will be detached when new tables no longer contain it.
    Leaving(AttachedPod, AfterRemoval),
    /// Workers close the queues of the pod's device, and the device is being removed.
    Removing(AfterRemoval),
    /// Its addresses are being released.
    Releasing(Releasing),
}

/// The reason why a pod has no device here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Apart {
    /// Its device is gone.
    Lost,
    /// The pod has addresses from the last agent, which left no device for it.
    Left,
    /// The device that the last agent left does not match this agent's data. The pod keeps its addresses.
    Refused(String),
    /// The last agent left a device for the pod, but the pod has no lease.
    Unleased(Unleased),
    /// Its addresses could not be released.
    Stuck(String),
}

/// A pod without a lease, whose device from the last agent was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unleased {
    pub(super) reason: String,
    /// The attachment's id, by which the runtime may still detach it.
    pub(super) id: Option<AttachmentId>,
}

/// An attachment whose addresses are being reserved.
pub(super) struct Reserving {
    pub(super) request: AttachRequest,
    pub(super) caller: Caller,
    /// The state to which the pod returns if it gets no addresses. `None`: the pod had nothing.
    pub(super) before: Option<Apart>,
}

/// An attachment with addresses, whose device is being made.
pub(super) struct Making {
    pub(super) attach: Attach,
    pub(super) reservation: Reservation,
    /// The caller. `None`: the caller makes the device, and a new channel comes with the handover.
    pub(super) caller: Option<Caller>,
}

/// A repeated attachment of an attached pod.
pub(super) struct Renewing {
    /// The request, with the new attachment id.
    pub(super) request: AttachRequest,
    pub(super) caller: Caller,
    /// The reply, which describes the existing attachment.
    pub(super) found: Reply,
    /// The detachment that follows, if the port was lost meanwhile.
    pub(super) then: Option<AfterRemoval>,
}

/// A release of addresses.
pub(super) struct Releasing {
    /// The reply for the caller that waits for the release, if one waits.
    pub(super) reply: Option<PendingReply>,
}

/// A pod with a device and a port.
pub(crate) struct AttachedPod {
    pub(super) device: PodDevice,
    pub(super) local: LocalPod,
}

/// The rest of a detachment, after the pod's device was removed.
pub(super) struct AfterRemoval {
    /// The addresses to release. `None` if the pod keeps them.
    pub(super) to_release: Option<ToRelease>,
    pub(super) reply: Option<PendingReply>,
}

/// The addresses of a pod, to be released.
pub(super) enum ToRelease {
    /// The pod's lease, because the pod is detached.
    Lease,
    /// The reservation of an attachment that has failed.
    Reservation(Reservation),
}

impl AttachedPod {
    pub(super) fn has_port(&self, port: PortId) -> bool {
        self.local.port == port || self.local.host.as_ref().is_some_and(|it| it.port == port)
    }
}

impl State {
    /// The state of rest to which a pod returns: apart, or nothing.
    pub(super) fn at_rest(before: Option<Apart>) -> Self {
        before.map_or(Self::Nothing, Self::Apart)
    }

    /// Whether there is no work for the pod.
    pub(super) const fn is_rest(&self) -> bool {
        matches!(self, Self::Nothing | Self::Apart(_) | Self::Attached(_))
    }

    /// The pod, if the tables contain it.
    pub(super) const fn attached(&self) -> Option<&AttachedPod> {
        match self {
            Self::Attached(pod) | Self::Renewing(pod, _) => Some(pod),
            _ => None,
        }
    }

    /// The reason why the pod has no device here. While its next attachment waits for the object or for addresses, the
    /// pod keeps the reason from before.
    fn apart(&self) -> Option<&Apart> {
        match self {
            Self::Apart(apart) | Self::Expected(Some(apart)) => Some(apart),
            Self::Reserving(reserving) => reserving.before.as_ref(),
            _ => None,
        }
    }

    /// The reason why the pod's device from the last agent was refused, if no device was made since then.
    pub(super) fn refused(&self) -> Option<&str> {
        match self.apart()? {
            Apart::Refused(reason) | Apart::Unleased(Unleased { reason, .. }) => Some(reason),
            Apart::Lost | Apart::Left | Apart::Stuck(_) => None,
        }
    }

    /// The attachment id of a refused device, if the pod has no lease.
    pub(super) fn unleased(&self) -> Option<&AttachmentId> {
        match self.apart()? {
            Apart::Unleased(Unleased { id, .. }) => id.as_ref(),
            Apart::Lost | Apart::Left | Apart::Refused(_) | Apart::Stuck(_) => None,
        }
    }

    /// Describes the state for people. `None`: the pod is simply attached.
    pub(super) fn describe(&self) -> Option<String> {
        let text = match self {
            Self::Nothing => "nothing of it is here: its requests are next",
            Self::Attached(_) => return None,
            Self::Expected(_) => "waits for its object",
            Self::Reserving(_) => "addresses are being reserved",
            Self::Making(making) if making.caller.is_some() => "the agent makes its device",
            Self::Making(_) => "the caller makes its device",
            Self::Renewing(..) => "attached; it is being kept under a new name",
            Self::Leaving(..) => "is being removed: tables still name it",
            Self::Removing(_) => "is being removed: its queues are closed and its device goes",
            Self::Releasing(_) => "its addresses are being released",
            Self::Apart(Apart::Lost) => "its device is gone; its addresses stay its own",
            Self::Apart(Apart::Left) => {
                "has addresses of the last agent, which left no device for it"
            }
            Self::Apart(Apart::Refused(reason) | Apart::Unleased(Unleased { reason, .. })) => {
                return Some(format!("was not taken over from the last agent: {reason}"));
            }
            Self::Apart(Apart::Stuck(reason)) => {
                return Some(format!("its addresses could not be released: {reason}"));
            }
        };
        Some(text.to_owned())
    }
}
