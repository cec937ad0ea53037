//! The Services and `EndpointSlices`, in JSON as an API server sends them. Each hundredth Service has 505 endpoints, in
//! six slices. Every other Service has five endpoints.

use std::net::Ipv4Addr;

use manx_objects::object::{Kind, ObjectKey};

use crate::sections::change::cluster::{NAMESPACES, PODS, place};
use crate::sections::change::node::key;

/// The range of cluster IPs.
pub(super) const RANGE: &str = "172.30.0.0/16";
/// The number of endpoints of each hundredth Service, and the number of each other Service. The average is ten.
const ENDPOINTS: (usize, usize) = (505, 5);
/// The largest number of endpoints of a slice, which is the default in Kubernetes.
const OF_SLICE: usize = 100;

/// The number of endpoints of a Service.
pub(super) const fn endpoints(service: usize) -> usize {
    if is_large(service) { ENDPOINTS.0 } else { ENDPOINTS.1 }
}

pub(super) const fn is_large(service: usize) -> bool {
    service.is_multiple_of(100)
}

/// The number of slices of a Service.
pub(super) const fn slices(service: usize) -> usize {
    endpoints(service).div_ceil(OF_SLICE)
}

/// The slice that contains an endpoint.
pub(super) const fn slice_of(endpoint: usize) -> usize {
    endpoint / OF_SLICE
}

fn namespace(service: usize) -> usize {
    service % NAMESPACES
}

/// The key of a Service.
pub(super) fn service_key(service: usize) -> ObjectKey {
    key(Kind::Service, namespace(service), format!("svc-{service}"))
}

/// The key of a slice of a Service.
pub(super) fn slice_key(service: usize, slice: usize) -> ObjectKey {
    key(Kind::EndpointSlice, namespace(service), format!("svc-{service}-{slice}"))
}

/// The Service with this number. Each tenth has a second port, for UDP, and each twentieth has a node port.
pub(super) fn service(service: usize) -> String {
    let address = Ipv4Addr::from_bits(0xac1e_0000 + 10 + service as u32);
    let node_port = service.is_multiple_of(20).then(|| 30_000 + service / 20);
    let kind = if node_port.is_some() { "NodePort" } else { "ClusterIP" };
    let node_port = node_port.map(|it| format!(",\"nodePort\":{it}")).unwrap_or_default();
    let second = if service.is_multiple_of(10) {
        ",{\"name\":\"dns\",\"protocol\":\"UDP\",\"port\":53,\"targetPort\":5353}"
    } else {
        ""
    };
    format!(
        "{{\"apiVersion\":\"v1\",\"kind\":\"Service\",\"metadata\":{{\"name\":\"svc-{service}\",\"namespace\":\"ns-{}\",\
         \"uid\":\"00000000-0000-4000-8000-{service:012}\",\"resourceVersion\":\"1\",\
         \"creationTimestamp\":\"2026-01-01T00:00:00Z\",\"labels\":{{\"app\":\"app-{service}\"}}}},\
         \"spec\":{{\"type\":\"{kind}\",\"clusterIP\":\"{address}\",\"clusterIPs\":[\"{address}\"],\"ipFamilies\":[\"IPv4\"],\
         \"ipFamilyPolicy\":\"SingleStack\",\"internalTrafficPolicy\":\"Cluster\",\"sessionAffinity\":\"None\",\
         \"selector\":{{\"app\":\"app-{service}\"}},\"ports\":[\
         {{\"name\":\"http\",\"protocol\":\"TCP\",\"port\":80,\"targetPort\":8080{node_port}}}{second}]}},\
         \"status\":{{\"loadBalancer\":{{}}}}}}",
        namespace(service)
    )
}

/// A slice of a Service. The endpoint `out` of the Service, if given, is not ready.
pub(super) fn slice(service: usize, slice: usize, out: Option<usize>) -> String {
    let namespace = namespace(service);
    let first = slice * OF_SLICE;
    let last = endpoints(service).min(first + OF_SLICE);
    let endpoints: Vec<String> = (first..last)
        .map(|at| {
            let pod = (service * 37 + at) % (NAMESPACES * PODS);
            let (node, address) = place(pod);
            let ready = out != Some(at);
            format!(
                "{{\"addresses\":[\"{address}\"],\"conditions\":{{\"ready\":{ready},\"serving\":{ready},\"terminating\":false}},\
                 \"nodeName\":\"node-{node}\",\"targetRef\":{{\"kind\":\"Pod\",\"namespace\":\"ns-{namespace}\",\
                 \"name\":\"app-{service}-{at}\",\"uid\":\"00000000-0000-4000-8000-{pod:012}\"}},\"zone\":\"zone-{}\"}}",
                node % 3
            )
        })
        .collect();
    let second = if service.is_multiple_of(10) {
        ",{\"name\":\"dns\",\"protocol\":\"UDP\",\"port\":5353}"
    } else {
        ""
    };
    format!(
        "{{\"apiVersion\":\"discovery.k8s.io/v1\",\"kind\":\"EndpointSlice\",\"metadata\":{{\"name\":\"svc-{service}-{slice}\",\
         \"generateName\":\"svc-{service}-\",\"namespace\":\"ns-{namespace}\",\"uid\":\"00000000-0000-4000-9000-{service:012}\",\
         \"resourceVersion\":\"1\",\"generation\":1,\"creationTimestamp\":\"2026-01-01T00:00:00Z\",\
         \"labels\":{{\"app\":\"app-{service}\",\"endpointslice.kubernetes.io/managed-by\":\"endpointslice-controller.k8s.io\",\
         \"kubernetes.io/service-name\":\"svc-{service}\"}},\"ownerReferences\":[{{\"apiVersion\":\"v1\",\"kind\":\"Service\",\
         \"name\":\"svc-{service}\",\"uid\":\"00000000-0000-4000-8000-{service:012}\",\"controller\":true,\
         \"blockOwnerDeletion\":true}}]}},\"addressType\":\"IPv4\",\"endpoints\":[{}],\
         \"ports\":[{{\"name\":\"http\",\"protocol\":\"TCP\",\"port\":8080}}{second}]}}",
        endpoints.join(",")
    )
}
