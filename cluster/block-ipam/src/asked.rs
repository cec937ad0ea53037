//! The addresses and pools that a pod requests with annotations of the pod and of its namespace. An annotation of the
//! pod takes precedence over the same annotation of its namespace.
//!
//! Source: Calico's reference, "Configure the Calico CNI plugins", sections on IPAM; its design note "IPAM CNI plugin".

use std::net::IpAddr;

use serde_json::Value;

use crate::pool::Family;

const ADDRESSES: &str = "cni.projectcalico.org/ipAddrs";
const ADDRESSES_WITHOUT_IPAM: &str = "cni.projectcalico.org/ipAddrsNoIpam";
const FAMILIES: &str = "cni.projectcalico.org/ipFamilies";
const POOLS: [(Family, &str); 2] = [
    (Family::V4, "cni.projectcalico.org/ipv4pools"),
    (Family::V6, "cni.projectcalico.org/ipv6pools"),
];

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Asked {
    /// The addresses that the pod must get, at most one of each family. If there are none, the pools provide the
    /// addresses.
    pub addresses: Vec<IpAddr>,
    /// The names or CIDRs of the pools, by family. If there are none, all pools that match are used.
    pub pools: Vec<(Family, Vec<String>)>,
    /// The families of the pod's addresses. If there are none, the pod gets each family for which a pool matches.
    pub families: Vec<Family>,
}

/// An annotation that cannot be followed. The pod or the Service then gets no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AskedError {
    #[error("annotation {name} of {object}: found {found:?}, expected {expected}")]
    Syntax {
        name: &'static str,
        /// The object that has the annotation: the pod, its namespace, or the Service.
        object: &'static str,
        found: String,
        expected: &'static str,
    },
    #[error(
        "annotation {ADDRESSES_WITHOUT_IPAM} of the pod: Manx gives no address past its IPAM, because nobody would know \
         whose it is; use {ADDRESSES}"
    )]
    WithoutIpam,
    #[error(
        "annotation {name} of {object}: {first} and {second} are of one family; name at most one of each"
    )]
    TwoOfFamily { name: &'static str, object: &'static str, first: IpAddr, second: IpAddr },
}

/// Reads the annotations of a pod and of its namespace, from their objects.
pub fn asked(pod: &Value, namespace: &Value) -> Result<Asked, AskedError> {
    let of = |object: &Value, name: &str| {
        let text = object["metadata"]["annotations"][name].as_str();
        text.filter(|it| !it.trim().is_empty()).map(ToOwned::to_owned)
    };
    if of(pod, ADDRESSES_WITHOUT_IPAM).is_some_and(|it| it.trim() != "[]") {
        return Err(AskedError::WithoutIpam);
    }
    let mut asked = Asked::default();
    if let Some(text) = of(pod, ADDRESSES) {
        asked.addresses = addresses(ADDRESSES, "the pod", &text)?;
    }
    for (family, name) in POOLS {
        let own = of(pod, name).map(|text| (text, "the pod"));
        let found = own.or_else(|| Some((of(namespace, name)?, "its namespace")));
        if let Some((text, object)) = found {
            let pools = pools(name, object, &text)?;
            if !pools.is_empty() {
                asked.pools.push((family, pools));
            }
        }
    }
    if let Some(text) = of(pod, FAMILIES) {
        let expected = "a JSON list of IPv4 and IPv6";
        asked.families = list(FAMILIES, "the pod", &text, expected, |it| match it {
            "IPv4" => Some(Family::V4),
            "IPv6" => Some(Family::V6),
            _ => None,
        })?;
    }
    Ok(asked)
}

/// Reads a list of addresses, with at most one of each family.
pub(crate) fn addresses(
    name: &'static str,
    object: &'static str,
    text: &str,
) -> Result<Vec<IpAddr>, AskedError> {
    let expected = "a JSON list of addresses, as [\"10.65.0.7\"]";
    let all: Vec<IpAddr> = list(name, object, text, expected, |it| it.parse().ok())?;
    for (at, second) in all.iter().enumerate() {
        let first = all[..at].iter().find(|it| it.is_ipv4() == second.is_ipv4());
        if let Some(first) = first {
            return Err(AskedError::TwoOfFamily { name, object, first: *first, second: *second });
        }
    }
    Ok(all)
}

/// Reads a list of pools.
pub(crate) fn pools(
    name: &'static str,
    object: &'static str,
    text: &str,
) -> Result<Vec<String>, AskedError> {
    let expected = "a JSON list of names or CIDRs of IPPools, as [\"default-ipv4-ippool\"]";
    list(name, object, text, expected, |it| Some(it.to_owned()))
}

fn list<T>(
    name: &'static str,
    object: &'static str,
    text: &str,
    expected: &'static str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Vec<T>, AskedError> {
    let parsed: Option<Vec<String>> = serde_json::from_str(text).ok();
    let items = parsed.and_then(|items| items.iter().map(|it| parse(it.trim())).collect());
    let short = || text.chars().take(80).collect();
    items.ok_or_else(|| AskedError::Syntax { name, object, found: short(), expected })
}

#[cfg(test)]
mod tests {
    use manx_datastore::memory::annotated;
    use serde_json::json;

    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "tests read better")]
    fn read(pod: Value, namespace: Value) -> Result<Asked, AskedError> {
        asked(&annotated(&pod, &json!({})), &annotated(&namespace, &json!({})))
    }

    #[test]
    fn a_pods_own_annotation_counts_before_its_namespaces() {
        let asked = read(
            json!({ POOLS[0].1: "[\"a\", \"10.0.0.0/8\"]", ADDRESSES: "[\"10.0.0.7\", \"fd00::7\"]",
                    FAMILIES: "[\"IPv6\"]", POOLS[1].1: "[]" }),
            json!({ POOLS[0].1: "[\"b\"]", POOLS[1].1: "[\"c\"]" }),
        );
        let asked = asked.unwrap();
        assert_eq!(asked.addresses.len(), 2);
        assert_eq!(asked.families, [Family::V6]);
        let pools = [(Family::V4, vec!["a".to_owned(), "10.0.0.0/8".to_owned()])];
        assert_eq!(asked.pools, pools);
        let asked = read(json!({}), json!({ POOLS[1].1: "[\"c\"]" })).unwrap();
        assert_eq!(asked.pools, [(Family::V6, vec!["c".to_owned()])]);
        assert_eq!(read(json!({}), json!({})), Ok(Asked::default()));
    }

    #[test]
    fn what_cannot_be_done_is_said() {
        for (pod, expected) in [
            (
                json!({ ADDRESSES: "10.0.0.7" }),
                "annotation cni.projectcalico.org/ipAddrs of the pod: found \"10.0.0.7\", expected a JSON list of \
              addresses, as [\"10.65.0.7\"]",
            ),
            (
                json!({ ADDRESSES: "[\"10.0.0.7\", \"10.0.0.8\"]" }),
                "annotation cni.projectcalico.org/ipAddrs of the pod: 10.0.0.7 and 10.0.0.8 are of one family; name at \
              most one of each",
            ),
            (
                json!({ FAMILIES: "[\"IPv5\"]" }),
                "annotation cni.projectcalico.org/ipFamilies of the pod: found \"[\\\"IPv5\\\"]\", expected a JSON list \
              of IPv4 and IPv6",
            ),
            (
                json!({ ADDRESSES_WITHOUT_IPAM: "[\"10.0.0.7\"]" }),
                "annotation cni.projectcalico.org/ipAddrsNoIpam of the pod: Manx gives no address past its IPAM, because \
              nobody would know whose it is; use cni.projectcalico.org/ipAddrs",
            ),
        ] {
            assert_eq!(read(pod, json!({})).unwrap_err().to_string(), expected);
        }
    }
}
