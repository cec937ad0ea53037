//! The numbers by which the dataplane identifies a Service's port and a namespace.
//!
//! They are hashes of names. They are the same on every node, after a restart and in every version. Finding a name with
//! the number of another one would take 2^64 attempts, so authors of objects cannot do it.

use manx_objects::object::ServicePort;
use manx_policy_compiler::model::ObjectName;
use sha1::{Digest, Sha1};

/// Returns the number of a Service's port.
pub(super) fn of_port(service: &ObjectName, port: &ServicePort) -> u64 {
    let name = port.name.as_deref().unwrap_or_default();
    // A namespace and the name of a Service contain no slash, so the joined text is unique.
    number(&format!("{}/{}/{name}", service.namespace, service.name))
}

/// Returns the number of a namespace.
pub(super) fn of_namespace(namespace: &str) -> u64 {
    number(namespace)
}

/// Returns the first eight bytes of the hash as a number.
fn number(name: &str) -> u64 {
    let hash = Sha1::digest(name);
    hash.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_a_services_port_is_the_same_for_ever() {
        let port = |name: Option<&str>| ServicePort {
            name: name.map(str::to_owned),
            protocol: None,
            port: 80,
            target: None,
            node_port: None,
        };
        let web = ObjectName::new("a", "web");
        assert_eq!(of_port(&web, &port(None)), 0x4bc0_5c94_42da_cd97);
        let others = [
            of_port(&web, &port(Some("http"))),
            of_port(&ObjectName::new("b", "web"), &port(None)),
            of_port(&ObjectName::new("a", "we"), &port(Some("b"))),
        ];
        assert!(others.iter().all(|it| *it != of_port(&web, &port(None))), "{others:?}");
    }

    #[test]
    fn the_number_of_a_namespace_is_the_same_for_ever() {
        assert_eq!(of_namespace("abc"), 0xa999_3e36_4706_816a, "FIPS 180-4, SHA-1 of \"abc\"");
        assert_ne!(of_namespace("abd"), of_namespace("abc"));
    }
}
