//! The request of a Service for addresses, as its object states it.
//!
//! Addresses and pools can be requested with annotations only. `spec.loadBalancerIP` has no effect, as in Calico,
//! because Kubernetes has deprecated it.

use std::net::IpAddr;

use serde_json::Value;

use crate::asked::{self, AskedError};
use crate::handle::Handle;
use crate::pool::Family;

/// `spec.loadBalancerClass` of the Services that name this controller.
pub const CLASS: &str = "calico";

const ADDRESSES: &str = "projectcalico.org/loadBalancerIPs";
const POOLS: [(Family, &str); 2] =
    [(Family::V4, "projectcalico.org/ipv4pools"), (Family::V6, "projectcalico.org/ipv6pools")];
const OBJECT: &str = "the Service";

/// Which Services get addresses: the setting `spec.controllers.loadBalancer.assignIPs` of
/// `KubeControllersConfiguration`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AssignIps {
    /// All Services that name no class or this controller's class.
    #[default]
    AllServices,
    /// Services that name this controller's class or have one of its annotations.
    RequestedServicesOnly,
}

impl AssignIps {
    /// Returns the value in the object.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllServices => "AllServices",
            Self::RequestedServicesOnly => "RequestedServicesOnly",
        }
    }

    /// Reads the object's value.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::AllServices, Self::RequestedServicesOnly].into_iter().find(|it| it.name() == text)
    }
}

/// The part of a Service that this controller uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    pub namespace: String,
    pub name: String,
    /// The handle of its addresses.
    pub handle: String,
    /// `spec.type` is `LoadBalancer`.
    pub is_balanced: bool,
    class: Option<String>,
    /// The families of the Service's cluster IPs, in order.
    families: Vec<Family>,
    /// The annotations, except empty ones.
    addresses: Option<String>,
    pools: [Option<String>; 2],
    /// `status.loadBalancer.ingress`.
    pub ingress: Vec<Value>,
}

/// The request of a Service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wish {
    /// The addresses that the Service must get, at most one of each family. If there are none, the pools provide the
    /// addresses.
    pub addresses: Vec<IpAddr>,
    /// The names or CIDRs of the pools, by family. If there are none, the `Automatic` pools are used.
    pub pools: Vec<(Family, Vec<String>)>,
    /// The families of the Service's cluster IPs.
    pub families: Vec<Family>,
}

impl Service {
    /// Reads an object. Invalid fields count as absent, except annotations: see [`wish`](Self::wish).
    pub fn read(object: &Value) -> Self {
        let (metadata, spec) = (&object["metadata"], &object["spec"]);
        let text = |field: &str| metadata[field].as_str().unwrap_or_default().to_owned();
        let (namespace, name) = (text("namespace"), text("name"));
        let annotation = |name: &str| {
            let found = metadata["annotations"][name].as_str();
            found.filter(|it| !it.trim().is_empty()).map(ToOwned::to_owned)
        };
        let ingress = object["status"]["loadBalancer"]["ingress"].as_array();
        Self {
            handle: Handle::of_service(&namespace, &name, &text("uid")),
            namespace,
            name,
            is_balanced: spec["type"] == "LoadBalancer",
            class: spec["loadBalancerClass"].as_str().map(ToOwned::to_owned),
            families: families(spec),
            addresses: annotation(ADDRESSES),
            pools: POOLS.map(|(_, name)| annotation(name)),
            ingress: ingress.cloned().unwrap_or_default(),
        }
    }

    /// Returns whether the Service requests this controller by name, with its class or with an annotation.
    pub fn names_us(&self) -> bool {
        let is_annotated = self.addresses.is_some() || self.pools.iter().any(Option::is_some);
        self.class.as_deref() == Some(CLASS) || is_annotated
    }

    /// Returns whether this controller assigns addresses to the Service. A Service with another class belongs to
    /// another controller.
    pub fn is_ours(&self, assigns: AssignIps) -> bool {
        let of_others = self.class.as_deref().is_some_and(|class| class != CLASS);
        let is_meant = assigns == AssignIps::AllServices || self.names_us();
        self.is_balanced && !of_others && is_meant
    }

    /// Returns the request of the Service.
    ///
    /// # Errors
    /// Returns an error if an annotation cannot be read.
    pub fn wish(&self) -> Result<Wish, AskedError> {
        let mut wish = Wish { families: self.families.clone(), ..Wish::default() };
        if let Some(text) = &self.addresses {
            wish.addresses = asked::addresses(ADDRESSES, OBJECT, text)?;
        }
        for ((family, name), text) in POOLS.into_iter().zip(&self.pools) {
            let named = text.as_deref().map(|text| asked::pools(name, OBJECT, text)).transpose()?;
            if let Some(named) = named.filter(|named| !named.is_empty()) {
                wish.pools.push((family, named));
            }
        }
        Ok(wish)
    }
}

impl Wish {
    /// Returns the names or CIDRs of the pools for a family, or `None` if the Service names none.
    pub fn pools_of(&self, family: Family) -> Option<&[String]> {
        let found = self.pools.iter().find(|(of, _)| *of == family);
        found.map(|(_, names)| names.as_slice())
    }
}

/// Returns `spec.ipFamilies`, which the API server sets. If they are absent, returns the families of the cluster IPs.
fn families(spec: &Value) -> Vec<Family> {
    let texts = |field: &str| -> Vec<&str> {
        spec[field].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
    };
    let listed = texts("ipFamilies").into_iter().filter_map(|text| match text {
        "IPv4" => Some(Family::V4),
        "IPv6" => Some(Family::V6),
        _ => None,
    });
    let mut families: Vec<Family> = listed.collect();
    if families.is_empty() {
        let one = spec["clusterIP"].as_str().into_iter();
        let all = one.chain(texts("clusterIPs"));
        families.extend(all.filter_map(|it| it.parse().ok()).map(family));
    }
    families.dedup();
    families
}

/// Returns the family of an address.
pub(crate) const fn family(address: IpAddr) -> Family {
    match address {
        IpAddr::V4(_) => Family::V4,
        IpAddr::V6(_) => Family::V6,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_service_is_ours_by_type_class_and_setting() {
        let service = |kind: &str, class: Option<&str>, annotation: Option<&str>| {
            let annotations = annotation.map(|name| json!({ name: "[\"a\"]" }));
            Service::read(&json!({
                "metadata": { "namespace": "shop", "name": "web", "uid": "u", "annotations": annotations },
                "spec": { "type": kind, "loadBalancerClass": class },
            }))
        };
        let pools = Some("projectcalico.org/ipv4pools");
        for (kind, class, annotation, all, requested) in [
            ("LoadBalancer", None, None, true, false),
            ("LoadBalancer", Some("calico"), None, true, true),
            ("LoadBalancer", None, pools, true, true),
            ("LoadBalancer", None, Some(ADDRESSES), true, true),
            ("LoadBalancer", Some("other"), None, false, false),
            ("LoadBalancer", Some("other"), pools, false, false),
            ("ClusterIP", None, pools, false, false),
        ] {
            let service = service(kind, class, annotation);
            let ours = [AssignIps::AllServices, AssignIps::RequestedServicesOnly];
            let ours = ours.map(|assigns| service.is_ours(assigns));
            assert_eq!(ours, [all, requested], "{kind} {class:?} {annotation:?}");
        }
    }

    #[test]
    fn a_handle_has_the_name_that_calico_gives_it() {
        let handle = Handle::of_service("shop", "web", "6f1b9d5c-0d1e-4a6e-9a53-2f1f0a1b2c3d");
        assert_eq!(handle, "lb-GFEj0ZAMJN75CTEjm8WfmCte9MEUEv3HdkPR62q1fs");
        assert!(Handle::is_of_service(&handle));
        assert!(!Handle::is_of_service("k8s-pod-network.lb-1"));
    }

    #[test]
    fn annotations_and_families_are_read() {
        let read = |annotations: Value, spec: Value| {
            let metadata = json!({ "annotations": annotations });
            Service::read(&json!({ "metadata": metadata, "spec": spec })).wish()
        };
        let wish = read(
            json!({ ADDRESSES: "[\"192.0.2.7\", \"fd00::7\"]", POOLS[0].1: "[\"a\"]", POOLS[1].1: "[]" }),
            json!({ "ipFamilies": ["IPv6", "IPv4"] }),
        );
        let wish = wish.unwrap();
        assert_eq!(wish.addresses.len(), 2);
        assert_eq!(wish.pools_of(Family::V4), Some(["a".to_owned()].as_slice()));
        assert_eq!(wish.pools_of(Family::V6), None);
        assert_eq!(wish.families, [Family::V6, Family::V4]);
        let of_cluster_ips =
            read(json!({}), json!({ "clusterIP": "fd00::1", "clusterIPs": ["fd00::1"] }));
        assert_eq!(of_cluster_ips.unwrap().families, [Family::V6]);
        let wrong = read(json!({ ADDRESSES: "192.0.2.7" }), json!({})).unwrap_err().to_string();
        assert_eq!(
            wrong,
            "annotation projectcalico.org/loadBalancerIPs of the Service: found \"192.0.2.7\", expected a JSON list of \
             addresses, as [\"10.65.0.7\"]"
        );
        let twice =
            read(json!({ ADDRESSES: "[\"192.0.2.7\", \"192.0.2.8\"]" }), json!({})).unwrap_err();
        assert_eq!(
            twice.to_string(),
            "annotation projectcalico.org/loadBalancerIPs of the Service: 192.0.2.7 and 192.0.2.8 are of one family; \
             name at most one of each"
        );
    }
}
