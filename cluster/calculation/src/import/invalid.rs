//! The replacement of an invalid policy.

use manx_policy_compiler::model::Policy;

use super::{calico, cluster, kubernetes};
use manx_objects::object::{Kind, ObjectKey, Subject};

/// Returns the replacement of an enforced policy that is invalid. For a NetworkPolicy of Kubernetes the replacement
/// isolates pods; for every other policy it denies.
pub(super) fn policy(key: &ObjectKey, subject: Option<&Subject>) -> Option<Policy> {
    let namespace = key.kind.namespaced().then_some(key.namespace.as_str());
    Some(match (key.kind, subject) {
        (Kind::NetworkPolicy, Some(Subject::Kubernetes(pods))) => {
            kubernetes::isolating(&key.namespace, Some(pods))
        }
        (Kind::NetworkPolicy, _) => kubernetes::isolating(&key.namespace, None),
        (
            Kind::ClusterNetworkPolicy
            | Kind::AdminNetworkPolicy
            | Kind::BaselineAdminNetworkPolicy,
            subject,
        ) => {
            let pods = match subject {
                Some(Subject::Cluster(pods)) => Some(pods),
                _ => None,
            };
            Policy { selector: cluster::subject(pods), ..calico::broken(None, None) }
        }
        (Kind::CalicoNetworkPolicy | Kind::GlobalNetworkPolicy, Some(Subject::Calico(subject))) => {
            calico::broken(Some(subject), namespace)
        }
        (Kind::CalicoNetworkPolicy | Kind::GlobalNetworkPolicy, _) => {
            calico::broken(None, namespace)
        }
        _ => return None,
    })
}
