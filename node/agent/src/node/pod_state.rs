//! The state of a pod that this node has something of, or that somebody waits for.
//!
//! A pod is in one [`State`]. Work for a pod (addresses, its device) is one piece at a time; its states are named by what
//! is under way. In a rest ([`State::Nothing`], [`State::Apart`], [`State::Attached`]) nothing is, and a request can begin.
//! The ways from one state to another are [`Pods`](super::pod_walk::Pods)'.

use manx_dataplane::tables::PortId;

use super::pod_request::{Answered, AttachRequest, Caller};
use manx_api::{Attach, AttachmentId, Reply};
use manx_calculation::calc::Local;
use manx_devices::pod_device::PodDevice;
use manx_ipam::host_local::Reservation;

/// See the module.
pub(super) enum State {
    /// The node has nothing of it.
    Nothing,
    /// It has no device here, and addresses may be its own.
    Apart(Apart),
    /// Its object has not come. It would have no policy, so nothing would pass. It was apart before, or nothing.
    Expected(Option<Apart>),
    /// Addresses are reserved for it.
    Reserving(Box<Reserving>),
    /// Its device is made.
    Making(Box<Making>),
    /// It has a port, and the tables name it.
    Attached(AttachedPod),
    /// It has a port, and the tables name it; its addresses and its device are kept under another name of a container
    /// runtime's.
    Renewing(AttachedPod, Box<Renewing>),
    /// It is to be detached when new tables do not name it.
    Leaving(AttachedPod, Departure),
    /// Workers close its queues, and its device goes.
    Removing(Departure),
    /// Its addresses are released.
    Releasing(Releasing),
}

/// Why a pod has no device here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Apart {
    /// Its device is gone, and was not made anew.
    Lost,
    /// It has addresses of the last agent, which left no device for it.
    Left,
    /// The device that the last agent left does not fit what this agent knows; its addresses stay its own.
    Refused(String),
    /// The last agent left a device for it, and it has no lease.
    Unleased(Unleased),
    /// Its addresses could not be released, and stay taken.
    Stuck(String),
}

/// A pod without a lease. The last agent left a device for it, which this agent has refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unleased {
    pub(super) reason: String,
    /// What a container runtime calls the attachment; the note of the device says it. The runtime may still detach it.
    pub(super) id: Option<AttachmentId>,
}

/// An attachment whose addresses are reserved.
pub(super) struct Reserving {
    pub(super) request: AttachRequest,
    pub(super) caller: Caller,
    /// What the pod is again if it gets none.
    pub(super) before: Option<Apart>,
}

/// An attachment with addresses, and without a device yet.
pub(super) struct Making {
    pub(super) attach: Attach,
    pub(super) reservation: Reservation,
    /// `None`: it makes the device, and comes again when it hands it over.
    pub(super) caller: Option<Caller>,
}

/// An attachment that was there already.
pub(super) struct Renewing {
    /// The request, whose sandbox is the new name.
    pub(super) attach: Attach,
    pub(super) caller: Caller,
    /// What is there.
    pub(super) found: Reply,
    /// What follows at the end: its port was lost meanwhile.
    pub(super) then: Option<Departure>,
}

/// Addresses that are released.
pub(super) struct Releasing {
    /// The caller that waits for that, if one does.
    pub(super) reply: Option<Answered>,
}

/// A pod with a device and a port.
pub(crate) struct AttachedPod {
    pub(super) device: PodDevice,
    pub(super) local: Local,
}

/// What follows when a pod's device is gone.
pub(super) struct Departure {
    /// `None`: the pod keeps its addresses.
    pub(super) gives_back: Option<GivesBack>,
    pub(super) reply: Option<Answered>,
}

/// What a pod gives back of its addresses: all, in two cases.
pub(super) enum GivesBack {
    /// It is detached.
    Lease,
    /// Its attachment has failed.
    Reservation(Reservation),
}

impl AttachedPod {
    pub(super) fn has_port(&self, port: PortId) -> bool {
        self.local.port == port || self.local.host.as_ref().is_some_and(|it| it.port == port)
    }
}

impl State {
    /// A pod that was apart before, or nothing.
    pub(super) fn at_rest(before: Option<Apart>) -> Self {
        before.map_or(Self::Nothing, Self::Apart)
    }

    /// Whether nothing is under way.
    pub(super) const fn is_rest(&self) -> bool {
        matches!(self, Self::Nothing | Self::Apart(_) | Self::Attached(_))
    }

    /// The pod, if tables name it.
    pub(super) const fn attached(&self) -> Option<&AttachedPod> {
        match self {
            Self::Attached(pod) | Self::Renewing(pod, _) => Some(pod),
            _ => None,
        }
    }

    /// Why it is apart, or was before an attachment that has no addresses yet.
    fn apart(&self) -> Option<&Apart> {
        match self {
            Self::Apart(apart) | Self::Expected(Some(apart)) => Some(apart),
            Self::Reserving(reserving) => reserving.before.as_ref(),
            _ => None,
        }
    }

    /// Why its device was not taken over from the last agent, if that is so and was not settled since.
    pub(super) fn refused(&self) -> Option<&str> {
        match self.apart()? {
            Apart::Refused(reason) | Apart::Unleased(Unleased { reason, .. }) => Some(reason),
            Apart::Lost | Apart::Left | Apart::Stuck(_) => None,
        }
    }

    /// What a container runtime calls the attachment of a pod without a lease.
    pub(super) fn unleased(&self) -> Option<&AttachmentId> {
        match self.apart()? {
            Apart::Unleased(Unleased { id, .. }) => id.as_ref(),
            Apart::Lost | Apart::Left | Apart::Refused(_) | Apart::Stuck(_) => None,
        }
    }

    /// For people. `None`: it is attached, and no more.
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
