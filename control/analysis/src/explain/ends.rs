//! Ends that stand for several: the endpoints of a service, and patterns.

use std::collections::BTreeSet;
use std::net::IpAddr;

use manx_objects::State;
use manx_objects::contents::Contents;
use manx_objects::object::{Kind, Object, ObjectKey};
use manx_oracle::{Oracle, Party};

use crate::pattern::{fits, is_pattern};

/// What [`Explainer::ends`](super::Explainer::ends).
pub(super) fn ends(
    text: &str,
    contents: &Contents,
    oracle: &Oracle,
) -> Result<Vec<String>, String> {
    if let Some(name) = text.strip_prefix("svc/") {
        return of_service(name, contents, oracle);
    }
    if !is_pattern(text) {
        return Ok(vec![text.to_owned()]);
    }
    let nodes = super::nodes(contents, |_| true).filter_map(|party| match party {
        Party::Node { name, .. } => Some(format!("node/{name}")),
        _ => None,
    });
    let all: BTreeSet<String> = oracle.pods().filter_map(pod).chain(nodes).collect();
    let fitting: Vec<String> = all.iter().filter(|name| fits(text, name)).cloned().collect();
    if fitting.is_empty() {
        let some: Vec<&str> = all.iter().take(3).map(String::as_str).collect();
        return Err(format!("no pod and no node fits {text}; found {}", some.join(", ")));
    }
    Ok(fitting)
}

fn pod(party: Party) -> Option<String> {
    match party {
        Party::Pod { namespace, name, .. } => Some(format!("{namespace}/{name}")),
        Party::Node { .. } | Party::Address(_) => None,
    }
}

/// The endpoints of a service, as its slices have them.
fn of_service(text: &str, contents: &Contents, oracle: &Oracle) -> Result<Vec<String>, String> {
    let Some((namespace, name)) = text.split_once('/') else {
        return Err(format!("svc/{text} is no service: expected svc/NAMESPACE/NAME"));
    };
    let mut addresses: BTreeSet<IpAddr> = BTreeSet::new();
    let key = |kind| ObjectKey { kind, namespace: namespace.to_owned(), name: name.to_owned() };
    let mut is_known = contents.objects.contains_key(&key(Kind::Service));
    for (_, stored) in contents.of_kind_in(Kind::EndpointSlice, namespace) {
        if let State::Valid(object) = &stored.state
            && let Object::EndpointSlice(slice) = &**object
            && slice.service.as_deref() == Some(name)
        {
            is_known = true;
            addresses.extend(&slice.addresses);
        }
    }
    if !is_known {
        return Err(format!(
            "there is no Service or EndpointSlice of {namespace}/{name} in the manifests"
        ));
    }
    let having = oracle.pods().filter(|party| addresses.contains(&party.address()));
    let mut ends: BTreeSet<String> = having.filter_map(pod).collect();
    let of_pods: BTreeSet<IpAddr> = oracle.pods().map(|party| party.address()).collect();
    ends.extend(addresses.difference(&of_pods).map(IpAddr::to_string));
    if ends.is_empty() {
        return Err(format!("the service {namespace}/{name} has no endpoint"));
    }
    Ok(ends.into_iter().collect())
}
