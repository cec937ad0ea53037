//! The settings of `BGPConfiguration`s, for all nodes and for one.

use std::collections::{BTreeMap, BTreeSet};

use manx_objects::contents::Contents;
use manx_objects::object::bgp::{Advertisement, BgpConfiguration};
use manx_objects::object::{Kind, Object};

use super::PeeringNode;
use crate::export::Priorities;

/// The autonomous system of a cluster whose settings do not contain one.
pub(super) const SYSTEM: u32 = 64512;

/// See the module.
pub(super) struct Settings<'a> {
    pub(super) default: Option<&'a BgpConfiguration>,
    /// The settings of single nodes, by name.
    nodes: BTreeMap<&'a str, &'a BgpConfiguration>,
    /// The names of invalid `BGPConfiguration`s.
    broken: BTreeSet<&'a str>,
}

impl<'a> Settings<'a> {
    pub(super) fn new(contents: &'a Contents) -> Self {
        let mut settings = Self { default: None, nodes: BTreeMap::new(), broken: BTreeSet::new() };
        for (key, stored) in contents.of_kind(Kind::BgpConfiguration) {
            match (stored.state.valid(), key.name.strip_prefix("node.")) {
                (Some(Object::BgpConfiguration(it)), Some(node)) => {
                    settings.nodes.insert(node, &**it);
                }
                (Some(Object::BgpConfiguration(it)), None) if key.name == "default" => {
                    settings.default = Some(&**it);
                }
                (Some(_), _) => {}
                (None, _) => {
                    settings.broken.insert(&key.name);
                }
            }
        }
        settings
    }

    /// Whether invalid settings apply to a node.
    pub(super) fn is_broken_for(&self, node: &str) -> bool {
        let is_its = |name: &&str| *name == "default" || name.strip_prefix("node.") == Some(node);
        self.broken.iter().any(is_its)
    }

    pub(super) fn system(&self) -> u32 {
        self.default.and_then(|it| it.system).unwrap_or(SYSTEM)
    }

    pub(super) fn system_of(&self, node: &PeeringNode<'_>) -> u32 {
        node.node.bgp.system.unwrap_or(self.system())
    }

    /// The port at which a node listens, if the settings have one.
    pub(super) fn port_of(&self, node: &str) -> Option<u16> {
        let own = self.nodes.get(node).and_then(|it| it.listen_port);
        own.or_else(|| self.default.and_then(|it| it.listen_port))
    }

    /// The communities of the routes that a node announces. If the node's own settings have communities, those of the
    /// settings for all nodes do not apply.
    pub(super) fn advertisements_of(&self, node: &str) -> &'a [Advertisement] {
        let own = self.nodes.get(node).copied().filter(|it| !it.advertisements.is_empty());
        own.or(self.default).map(|it| &*it.advertisements).unwrap_or_default()
    }

    pub(super) fn priorities(&self) -> Priorities {
        let normal = Priorities::NORMAL;
        self.default.map_or(normal, |it| Priorities {
            v4: it.normal_priority_v4.unwrap_or(normal.v4),
            v6: it.normal_priority_v6.unwrap_or(normal.v6),
        })
    }
}
