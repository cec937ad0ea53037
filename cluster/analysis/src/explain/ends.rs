//! Texts that stand for several ends: services, which stand for their endpoints, and patterns.

use std::collections::BTreeSet;
use std::net::IpAddr;

use manx_objects::contents::Contents;
use manx_objects::object::{Kind, Object, ObjectKey};
use manx_oracle::Party;

use super::parties::Parties;
use super::services::{name_of, service_of};
use crate::pattern::{fits, is_pattern};

/// Implements [`Explainer::ends`](super::Explainer::ends).
pub(super) fn ends(
    text: &str,
    contents: &Contents,
    parties: &Parties<'_>,
) -> Result<Vec<String>, String> {
    if let Some(name) = name_of(text) {
        return of_service(name, contents, parties);
    }
    if !is_pattern(text) {
        return Ok(vec![text.to_owned()]);
    }
    let all: BTreeSet<String> = parties.names().collect();
    let fitting: Vec<String> = all.iter().filter(|name| fits(text, name)).cloned().collect();
    if fitting.is_empty() {
        let some: Vec<&str> = all.iter().take(3).map(String::as_str).collect();
        return Err(format!("no pod and no node fits {text}; found {}", some.join(", ")));
    }
    Ok(fitting)
}

/// Returns the endpoints of a service, according to its slices.
fn of_service(
    (namespace, name): (&str, &str),
    contents: &Contents,
    parties: &Parties<'_>,
) -> Result<Vec<String>, String> {
    if let Some((key, service)) = service_of(namespace, name, contents)
        && let Some(external) = &service.external_name
    {
        return Err(only_a_name(&key, external));
    }
    let mut addresses: BTreeSet<IpAddr> = BTreeSet::new();
    let key = |kind| ObjectKey::new(kind, namespace, name);
    let mut is_known = contents.objects.contains_key(&key(Kind::Service));
    for (_, stored) in contents.of_kind_in(Kind::EndpointSlice, namespace) {
        if let Some(Object::EndpointSlice(slice)) = stored.state.valid()
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
    let mut ends = BTreeSet::new();
    for address in addresses {
        let pods = parties.having(address).iter().filter_map(|party| match party {
            Party::Pod { namespace, name, .. } => Some(format!("{namespace}/{name}")),
            Party::Node { .. } | Party::Address(_) => None,
        });
        let mut pods = pods.peekable();
        if pods.peek().is_none() {
            ends.insert(address.to_string());
        }
        ends.extend(pods);
    }
    if ends.is_empty() {
        return Err(format!("the service {namespace}/{name} has no endpoint"));
    }
    Ok(ends.into_iter().collect())
}

/// Returns a text about a service that is only a DNS name.
fn only_a_name(service: &ObjectKey, external: &str) -> String {
    let labels: Vec<&str> = external.trim_end_matches('.').split('.').collect();
    let instead = match labels.as_slice() {
        [name, namespace, "svc", ..] => format!("ask with svc/{namespace}/{name}, which it names"),
        _ => "ask with an address that the name has, and write the rule with an ipBlock".to_owned(),
    };
    format!(
        "{service} is of type ExternalName: DNS answers with the name {external}, and there is no address that policy \
         sees; {instead}"
    )
}
