//! The kinds of object that are read and written individually, and the key of such an object.
//!
//! These are the kinds that `manx-objects` reads, the kinds of Calico's IPAM and of its controllers, the kinds that
//! describe a Calico cluster, Leases, and Events. The kinds other than those of `manx-objects` are records: no source
//! follows them, and no policy depends on them.

use std::fmt;

use manx_objects::object::{Kind, ObjectKey};

/// A kind of object that a server may serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServedKind {
    /// A kind that `manx-objects` reads.
    Read(Kind),
    /// Calico's `IPAMBlock`: the addresses of one block, and their allocations.
    IpamBlock,
    /// Calico's `IPAMHandle`: the blocks in which a handle has addresses.
    IpamHandle,
    /// Calico's settings of IPAM; the only object is `default`. The kind is `IPAMConfig` in `crd.projectcalico.org/v1`,
    /// and `IPAMConfiguration` in `projectcalico.org/v3`.
    IpamConfig,
    /// Calico's `IPReservation`: addresses that are not assigned automatically.
    IpReservation,
    /// Calico's `ClusterInformation`: the cluster's identity, and whether its datastore is locked. The only object is
    /// `default`.
    ClusterInformation,
    /// Calico's settings of its controllers. The only object is `default`.
    KubeControllersConfiguration,
    /// Calico's `CalicoNodeStatus`: a request for the status of a node.
    NodeStatus,
    /// Kubernetes' `Lease`: which of several processes leads.
    Lease,
    /// Kubernetes' `Event`: a text about an object, for people.
    Event,
}

impl ServedKind {
    /// The kinds of Calico's IPAM.
    pub const IPAM: [Self; 4] =
        [Self::IpamBlock, Self::IpamHandle, Self::IpamConfig, Self::IpReservation];

    /// Returns the name of the kind in an API version.
    pub fn name_in(self, api_version: &str) -> &'static str {
        match self {
            Self::Read(kind) => kind.name(),
            Self::IpamBlock => "IPAMBlock",
            Self::IpamHandle => "IPAMHandle",
            Self::IpamConfig if api_version.starts_with("projectcalico.org/") => {
                "IPAMConfiguration"
            }
            Self::IpamConfig => "IPAMConfig",
            Self::IpReservation => "IPReservation",
            Self::ClusterInformation => "ClusterInformation",
            Self::KubeControllersConfiguration => "KubeControllersConfiguration",
            Self::NodeStatus => "CalicoNodeStatus",
            Self::Lease => "Lease",
            Self::Event => "Event",
        }
    }

    /// Returns the API versions of the kind that are used.
    pub const fn api_versions(self) -> &'static [&'static str] {
        match self {
            Self::Read(kind) => kind.api_versions(),
            // All of Calico's kinds have the same two versions.
            Self::IpamBlock
            | Self::IpamHandle
            | Self::IpamConfig
            | Self::IpReservation
            | Self::ClusterInformation
            | Self::KubeControllersConfiguration
            | Self::NodeStatus => Kind::IpPool.api_versions(),
            Self::Lease => &["coordination.k8s.io/v1"],
            Self::Event => &["events.k8s.io/v1"],
        }
    }
}

impl From<Kind> for ServedKind {
    fn from(kind: Kind) -> Self {
        Self::Read(kind)
    }
}

/// Writes the kind's name in its first API version.
impl fmt::Display for ServedKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name_in(self.api_versions().first().copied().unwrap_or_default()))
    }
}

/// The unique key of an object at a server.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServedKey {
    pub kind: ServedKind,
    /// The namespace; empty for kinds that have none.
    pub namespace: String,
    /// The name by which the server knows the object.
    pub name: String,
}

impl ServedKey {
    /// Builds the key. `namespace` must be empty for a kind that has none.
    pub fn new(kind: impl Into<ServedKind>, namespace: &str, name: &str) -> Self {
        Self { kind: kind.into(), namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

impl From<ObjectKey> for ServedKey {
    fn from(ObjectKey { kind, namespace, name }: ObjectKey) -> Self {
        Self { kind: kind.into(), namespace, name }
    }
}

impl fmt::Display for ServedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, namespace, name } = self;
        if namespace.is_empty() {
            write!(f, "{kind} {name}")
        } else {
            write!(f, "{kind} {namespace}/{name}")
        }
    }
}
