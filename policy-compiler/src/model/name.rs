//! Names of objects, policies and rules.

use std::fmt;
use std::sync::Arc;

use super::traffic::Direction;

/// The namespace and name of an object; cluster-wide objects have an empty namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl ObjectName {
    /// The name `namespace/name`.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            f.write_str(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}

/// The kinds of policy, by the API that a policy was written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PolicyKind {
    /// Kubernetes' NetworkPolicy.
    Kubernetes,
    /// Kubernetes' ClusterNetworkPolicy.
    Cluster,
    /// Kubernetes' AdminNetworkPolicy.
    Admin,
    /// Kubernetes' BaselineAdminNetworkPolicy.
    BaselineAdmin,
    /// Calico's NetworkPolicy.
    Calico,
    /// Calico's GlobalNetworkPolicy.
    Global,
    /// A staged Kubernetes NetworkPolicy.
    StagedKubernetes,
    /// A staged NetworkPolicy of Calico's.
    StagedCalico,
    /// A staged GlobalNetworkPolicy.
    StagedGlobal,
}

impl PolicyKind {
    /// The kind as Calico's own keys spell it, which also determines the order of policies.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kubernetes => "KubernetesNetworkPolicy",
            Self::Cluster => "KubernetesClusterNetworkPolicy",
            Self::Admin => "KubernetesAdminNetworkPolicy",
            Self::BaselineAdmin => "KubernetesBaselineAdminNetworkPolicy",
            Self::Calico => "NetworkPolicy",
            Self::Global => "GlobalNetworkPolicy",
            Self::StagedKubernetes => "StagedKubernetesNetworkPolicy",
            Self::StagedCalico => "StagedNetworkPolicy",
            Self::StagedGlobal => "StagedGlobalNetworkPolicy",
        }
    }

    /// The kind as its author writes it. The text distinguishes Calico's NetworkPolicy from
    /// Kubernetes'.
    const fn written(self) -> &'static str {
        match self {
            Self::Kubernetes => "NetworkPolicy",
            Self::Cluster => "ClusterNetworkPolicy",
            Self::Admin => "AdminNetworkPolicy",
            Self::BaselineAdmin => "BaselineAdminNetworkPolicy",
            Self::Calico => "Calico NetworkPolicy",
            Self::Global | Self::StagedKubernetes | Self::StagedCalico | Self::StagedGlobal => {
                self.name()
            }
        }
    }

    /// Whether policies of the kind are evaluated and counted but never enforced.
    pub const fn staged(self) -> bool {
        matches!(self, Self::StagedKubernetes | Self::StagedCalico | Self::StagedGlobal)
    }
}

/// The unique name of a policy.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PolicyName {
    /// The kind.
    pub kind: PolicyKind,
    /// The namespace; empty for a cluster-wide policy.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl PolicyName {
    /// A policy's name.
    pub fn new(kind: PolicyKind, namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { kind, namespace: namespace.into(), name: name.into() }
    }

    /// The tie-breaker between policies of equal order.
    pub fn sort_key(&self) -> String {
        [&self.name, "/", &self.namespace, "/", self.kind.name()].concat()
    }
}

impl fmt::Display for PolicyName {
    /// Writes `namespace/name` for Kubernetes' own NetworkPolicy, and puts the kind in front for
    /// every other.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.kind != PolicyKind::Kubernetes {
            write!(f, "{} ", self.kind.written())?;
        }
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.name)
    }
}

/// Identifies a rule for counters, logs and `explain`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleName {
    /// The policy; all of its rules share it.
    pub policy: Arc<PolicyName>,
    /// The direction.
    pub direction: Direction,
    /// The index in the policy's list of that direction.
    pub index: u32,
}

impl fmt::Display for RuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}[{}]", self.policy, self.direction, self.index)
    }
}
