//! Cluster IPs of Services that are not applied yet. The manifests leave them out, because the API server assigns them.

use std::net::IpAddr;

use manx_objects::contents::Contents;
use manx_objects::object::{Kind, Object, ObjectKey, ServiceType};
use serde_json::json;

use crate::space::{Space, User};
use crate::{Assumed, Completion, list};

/// Gives cluster IPs to Services that have none in the manifests and would get some in a cluster. Each Service gets one
/// address of each family in use. The addresses come from the cluster's `ServiceCIDRs` or else from a range that the
/// input does not name. If there is no such range, the Service gets none.
///
/// [`complete`](crate::complete) does not call this function, because policy needs the endpoints of Services, not their
/// cluster IPs.
pub fn give_cluster_ips(contents: &mut Contents, assumed: &mut Assumed) {
    let services = contents.of_kind(Kind::Service);
    let lacking = services.filter(|(_, stored)| match stored.state.valid() {
        Some(Object::Service(service)) => {
            service.cluster_ips.is_empty()
                && !service.headless
                && service.service_type != Some(ServiceType::ExternalName)
        }
        _ => false,
    });
    let lacking: Vec<ObjectKey> = lacking.map(|(key, _)| key.clone()).collect();
    if lacking.is_empty() {
        return;
    }
    let space = Space::of(contents);
    let mut completion = Completion { contents, space, assumed: std::mem::take(assumed) };
    let mut free: Vec<_> =
        completion.families().into_iter().map(|v4| Free::new(&mut completion, v4)).collect();
    let mut named = Vec::new();
    for key in lacking {
        let given = free.iter_mut().filter_map(|it| it.next(&mut completion.space));
        let given: Vec<IpAddr> = given.collect();
        let Some(first) = given.first() else { continue };
        named.push(format!("{}/{} {first}", key.namespace, key.name));
        let fields = json!({ "spec": { "clusterIP": first, "clusterIPs": given } });
        completion.amend(&key, fields, |object| {
            if let Object::Service(service) = object {
                service.cluster_ips.extend(&given);
                service.addresses.extend(&given);
            }
        });
        completion.assumed.cluster_ips.insert(key, given);
    }
    if !named.is_empty() {
        let named = list(named.iter().map(String::as_str));
        completion.note(format!("no clusterIP: {named}"));
    }
    *assumed = completion.assumed;
}

/// The addresses of one family that Services may get, in order.
struct Free(Box<dyn Iterator<Item = IpAddr>>);

impl Free {
    fn new(completion: &mut Completion<'_>, v4: bool) -> Self {
        let ranges = completion.contents.all_valid().filter_map(|(_, object)| match object {
            Object::ServiceCidr(ranges) => Some(ranges.cidrs.clone()),
            _ => None,
        });
        let of_family = ranges.flatten().filter(|it| it.addr().is_ipv4() == v4);
        let mut ranges: Vec<_> = of_family.collect();
        if ranges.is_empty() {
            ranges.extend(completion.take_range(User::Services, v4));
        }
        // The first address of a range is left out, because the API server takes it for its own Service.
        let of_range =
            |range: ipnet::IpNet| range.hosts().filter(move |it| *it != range.network()).skip(1);
        Self(Box::new(ranges.into_iter().flat_map(of_range)))
    }

    fn next(&mut self, space: &mut Space) -> Option<IpAddr> {
        self.0.find(|address| space.take(*address))
    }
}
