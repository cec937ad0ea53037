//! Felix' configuration for hosts, and the invalid host endpoints.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::crossing::Crossing;
use super::direction::Direction;
use super::matching::in_net;
use super::packet::Packet;
use manx_objects::contents::Stored;
use manx_objects::object::calico::{EndpointToHost, Failsafe, FelixConfiguration};
use manx_objects::object::{Kind, Object, ObjectKey};

/// Calico's default failsafe ports: inbound and outbound. Source: Felix' configuration, `FailsafeInboundHostPorts`.
const FAILSAFE: [&[(u8, u16)]; 2] = [
    &[
        (6, 22),
        (6, 179),
        (6, 2379),
        (6, 2380),
        (6, 5473),
        (6, 6443),
        (6, 6666),
        (6, 6667),
        (17, 68),
    ],
    &[
        (6, 179),
        (6, 2379),
        (6, 2380),
        (6, 5473),
        (6, 6443),
        (6, 6666),
        (6, 6667),
        (17, 53),
        (17, 67),
    ],
];

/// Felix' configuration for hosts, and the invalid host endpoints.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    /// The configurations by name: `default`, and `node.<name>`, which takes precedence for each field.
    configurations: BTreeMap<String, FelixConfiguration>,
    /// The names of the invalid configurations.
    broken_configurations: Vec<String>,
    pub(super) broken_endpoints: Vec<String>,
}

impl Hosts {
    pub(super) fn new(objects: &BTreeMap<ObjectKey, Stored>) -> Self {
        let mut hosts = Self::default();
        for (key, stored) in objects {
            match (stored.state.valid(), key.kind) {
                (Some(Object::FelixConfiguration(wire)), _) => {
                    hosts.configurations.insert(key.name.clone(), (**wire).clone());
                }
                (None, Kind::FelixConfiguration) => {
                    hosts.broken_configurations.push(key.name.clone());
                }
                (None, Kind::HostEndpoint) => hosts.broken_endpoints.push(key.name.clone()),
                (Some(_) | None, _) => {}
            }
        }
        hosts
    }

    /// Returns a setting of the node's own configuration, or of the default one if the node's own does not set it.
    fn setting<T>(
        &self,
        node: &str,
        field: impl Fn(&FelixConfiguration) -> Option<T>,
    ) -> Option<T> {
        [format!("node.{node}"), "default".to_owned()]
            .iter()
            .find_map(|name| self.configurations.get(name).and_then(&field))
    }

    /// Returns whether a node accepts its own pods' packets. It accepts them, unless the configuration says otherwise
    /// or is invalid.
    pub(super) fn accepts_pods(&self, node: &str) -> bool {
        let broken = |name: &String| name == "default" || name.strip_prefix("node.") == Some(node);
        if self.broken_configurations.iter().any(broken) {
            return false;
        }
        self.setting(node, |felix| felix.endpoint_to_host) != Some(EndpointToHost::Drop)
    }

    /// Returns the failsafe ports of a node.
    pub(super) fn failsafe(&self, node: &str, direction: Direction) -> Vec<Failsafe> {
        let (listed, ours) = match direction {
            Direction::Ingress => {
                (self.setting(node, |felix| felix.failsafe_inbound.clone()), FAILSAFE[0])
            }
            Direction::Egress => {
                (self.setting(node, |felix| felix.failsafe_outbound.clone()), FAILSAFE[1])
            }
        };
        let ours = ours.iter().map(|(protocol, port)| Failsafe {
            protocol: *protocol,
            port: *port,
            net: None,
        });
        listed.unwrap_or_else(|| ours.collect())
    }

    /// Returns whether the destination port is a failsafe port that is open for this peer. An invalid configuration
    /// closes none of Calico's default failsafe ports.
    pub(super) fn is_failsafe(
        &self,
        crossing: &Crossing<'_>,
        (destination, packet): (IpAddr, Packet),
    ) -> bool {
        let Some((_, port)) = packet.ports() else { return false };
        let peer = match crossing.direction {
            Direction::Ingress => crossing.source,
            Direction::Egress => destination,
        };
        self.failsafe(crossing.node, crossing.direction).iter().any(|safe| {
            safe.protocol == packet.protocol
                && safe.port == port
                && safe.net.is_none_or(|net| in_net(net, peer))
        })
    }
}
