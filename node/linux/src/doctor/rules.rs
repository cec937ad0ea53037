//! Routing rules that name ports.

use super::lack::{Capability, Check, Lack};
use crate::netlink::{self, Action, Family, PORTS_TABLE, PortRange, Rule, Transport};
use crate::netns;

/// A preference for a rule; the rule of the table `local` gets the preference after it.
const BEFORE: u32 = 3;
const MOVED: u32 = 4;

/// Sets a rule that names ports, and moves the rule of the table `local` to a place after it, in the calling process's
/// network namespace. The rules stay: call it in a namespace that ends with the process.
pub(super) fn try_port_rules() -> Check {
    let tried = netns::current().map_err(netlink::Error::from).and_then(|here| {
        netlink::in_netns(&here, async |netlink| {
            for family in Family::ALL {
                // A kernel without IPv6 has no rules of that family.
                if netlink.rules(family).await?.is_empty() {
                    continue;
                }
                let ports = PortRange::new(61000, 65534).map(|range| (Transport::Tcp, range));
                let rule = Rule { ports, ..Rule::new(BEFORE, family, Action::Lookup(PORTS_TABLE)) };
                netlink.add_rule(&Rule::of_local(MOVED, family)).await?;
                netlink.add_rule(&rule).await?;
                netlink.delete_rule(&Rule::of_local(0, family)).await?;
            }
            Ok(())
        })
    });
    match tried {
        Ok(()) => {
            Ok("routing rules with ports can be set before the node's own addresses".to_owned())
        }
        Err(error) => Err(refused(&error)),
    }
}

fn refused(error: &netlink::Error) -> Lack {
    let remedy = match error.errno() {
        Some(libc::EOPNOTSUPP | libc::EAFNOSUPPORT | libc::EINVAL) => {
            "boot a kernel that is built with CONFIG_IP_MULTIPLE_TABLES and CONFIG_IPV6_MULTIPLE_TABLES"
        }
        _ => {
            "run it as root, inside a user namespace (as the rig does), or with CAP_NET_ADMIN; in a container: \
             docker run --cap-add NET_ADMIN"
        }
    };
    Lack {
        capability: Capability::PortRules,
        found: format!("routing rules with ports cannot be set ({error})"),
        cost: "Manx cannot translate services and the way out itself".to_owned(),
        remedy: remedy.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::testing::namespaces_allowed;

    #[test]
    fn rules_are_tried_in_a_namespace_of_their_own() {
        if !namespaces_allowed() {
            return;
        }
        let tried = netns::run_in(netns::create().unwrap(), try_port_rules).unwrap();
        assert!(tried.is_ok(), "{tried:?}");
    }

    #[test]
    fn each_refusal_has_its_sentence() {
        let told = [libc::EOPNOTSUPP, libc::EPERM].map(|errno| {
            let what = "the routing rules cannot be listed".to_owned();
            refused(&netlink::Error::Request { what, source: io::Error::from_raw_os_error(errno) })
                .to_string()
        });
        insta::assert_snapshot!(told.join("\n"), @r"
        routing rules with ports cannot be set (the routing rules cannot be listed: Operation not supported (os error 95)): Manx cannot translate services and the way out itself; boot a kernel that is built with CONFIG_IP_MULTIPLE_TABLES and CONFIG_IPV6_MULTIPLE_TABLES
        routing rules with ports cannot be set (the routing rules cannot be listed: Operation not permitted (os error 1)): Manx cannot translate services and the way out itself; run it as root, inside a user namespace (as the rig does), or with CAP_NET_ADMIN; in a container: docker run --cap-add NET_ADMIN
        ");
    }
}
