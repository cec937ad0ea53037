//! The decoder of each kind.

use super::cursor::{Cursor, Findings};
use super::invalid::Invalid;
use super::metadata::Metadata;
use super::object::{Kind, Object, Subject};
use super::{calico, cluster, endpoint_slice, endpoints, namespace, network_policy, node, pod};
use super::{service, workload};

/// Decodes as much of the object as can be read. If the object is invalid, returns its known parts.
pub(super) fn decode(
    root: &Cursor<'_>,
    kind: Kind,
    name: &str,
    metadata: Metadata,
    out: &mut Findings,
) -> (Option<Object>, Invalid) {
    let object = match kind {
        Kind::Namespace => Some(Object::Namespace(namespace::namespace(root, name, metadata, out))),
        Kind::Node => Some(Object::Node(Box::new(node::node(root, &metadata, out)))),
        Kind::Pod => return decode_pod(root, metadata, out),
        Kind::ServiceAccount => {
            Some(Object::ServiceAccount(service::service_account(root, metadata, out)))
        }
        Kind::Service => Some(Object::Service(Box::new(service::service(root, metadata, out)))),
        Kind::Endpoints => {
            Some(Object::Endpoints(Box::new(endpoints::decode(root, name, &metadata, out))))
        }
        Kind::EndpointSlice => {
            Some(Object::EndpointSlice(Box::new(endpoint_slice::decode(root, &metadata, out))))
        }
        Kind::ServiceCidr => Some(Object::ServiceCidr(service::service_cidr(root, out))),
        Kind::Workload(controller) => workload::decode(root, controller, metadata, out)
            .map(|workload| Object::Workload(Box::new(workload))),
        Kind::IpPool => {
            calico::ip_pool(root, metadata.created, out).map(Box::new).map(Object::IpPool)
        }
        Kind::BlockAffinity => {
            calico::block_affinity(root, out).map(Box::new).map(Object::BlockAffinity)
        }
        Kind::NetworkPolicy
        | Kind::StagedKubernetesNetworkPolicy
        | Kind::ClusterNetworkPolicy
        | Kind::AdminNetworkPolicy
        | Kind::BaselineAdminNetworkPolicy
        | Kind::CalicoNetworkPolicy
        | Kind::GlobalNetworkPolicy
        | Kind::StagedNetworkPolicy
        | Kind::StagedGlobalNetworkPolicy => return decode_policy(root, kind, out),
        Kind::Tier => Some(Object::Tier(calico::tier(root, name, out))),
        Kind::NetworkSet | Kind::GlobalNetworkSet => {
            return decode_network_set(root, metadata, out);
        }
        Kind::HostEndpoint => calico::host_endpoint(root, metadata, out)
            .map(|endpoint| Object::HostEndpoint(Box::new(endpoint))),
        Kind::Profile => Some(Object::Profile(Box::new(calico::profile(root, out)))),
        Kind::FelixConfiguration => {
            let felix = calico::felix_configuration(root, name, out);
            Some(Object::FelixConfiguration(Box::new(felix)))
        }
        Kind::BgpConfiguration => {
            calico::bgp_configuration(root, name, out).map(Box::new).map(Object::BgpConfiguration)
        }
        Kind::BgpPeer => calico::bgp_peer(root, out).map(Box::new).map(Object::BgpPeer),
        Kind::BgpFilter => calico::bgp_filter(root, out).map(Box::new).map(Object::BgpFilter),
    };
    (object, Invalid::default())
}

/// Decodes a pod, and the parts that are known even if the pod is invalid.
fn decode_pod(
    root: &Cursor<'_>,
    metadata: Metadata,
    out: &mut Findings,
) -> (Option<Object>, Invalid) {
    let pod = pod::decode(root, metadata, out);
    let invalid = Invalid::of_pod(&pod);
    (Some(Object::Pod(Box::new(pod))), invalid)
}

/// Decodes a policy, and the subject that is known even if the policy is invalid. A policy that is neither a
/// NetworkPolicy of Kubernetes nor a cluster-wide policy of Kubernetes is decoded as a policy of Calico.
fn decode_policy(root: &Cursor<'_>, kind: Kind, out: &mut Findings) -> (Option<Object>, Invalid) {
    let (policy, subject) = match kind {
        Kind::NetworkPolicy | Kind::StagedKubernetesNetworkPolicy => {
            let (wire, selector) = network_policy::decode(root, kind.staged(), out);
            (Object::NetworkPolicy(Box::new(wire)), selector.map(Subject::Kubernetes))
        }
        Kind::ClusterNetworkPolicy
        | Kind::AdminNetworkPolicy
        | Kind::BaselineAdminNetworkPolicy => {
            let (wire, pods) = cluster::decode(root, kind, out);
            (Object::ClusterNetworkPolicy(Box::new(wire)), pods.map(Subject::Cluster))
        }
        _ => {
            let (wire, subject) = calico::decode(root, kind, out);
            (Object::CalicoPolicy(Box::new(wire)), subject.map(Subject::Calico))
        }
    };
    (Some(policy), Invalid { subject, ..Invalid::default() })
}

/// Decodes a network set, and the labels that are known even if the set is invalid.
fn decode_network_set(
    root: &Cursor<'_>,
    metadata: Metadata,
    out: &mut Findings,
) -> (Option<Object>, Invalid) {
    let labels = metadata.labels_readable.then(|| metadata.labels.clone());
    let set = calico::network_set(root, metadata, out);
    (Some(Object::NetworkSet(Box::new(set))), Invalid { labels, ..Invalid::default() })
}
