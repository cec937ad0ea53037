//! The fields of Calico's BGP kinds.

use super::super::code::Code::SettingWithoutEffect;
use super::effect::Effect::{Heeded, NotDone as Warned, Quiet};
use super::effect::Unless::Empty;
use super::effect::{NotDone, Row};

const SPEAKS: &str = "where agents speak BGP";

pub(super) const CONFIGURATION: &[Row] = &[
    (
        &[
            "asNumber",
            "bindMode",
            "communities",
            "ipv4NormalRoutePriority",
            "ipv6NormalRoutePriority",
            "listenPort",
            "nodeMeshMaxRestartTime",
            "nodeMeshPassword",
            "nodeToNodeMeshEnabled",
            "prefixAdvertisements",
            "serviceClusterIPs",
            "serviceExternalIPs",
            "serviceLoadBalancerAggregation",
            "serviceLoadBalancerIPs",
        ],
        Heeded(
            "where agents speak BGP; of a node's own configuration only `listenPort` and `prefixAdvertisements`",
        ),
    ),
    (&["ignoredInterfaces"], Quiet("Manx announces no route because an interface has it")),
    (&["logSeverityScreen"], Quiet("agents log by their own settings")),
    (&["programClusterRoutes"], Quiet("an agent alone makes the routes to pods")),
    (
        &["localWorkloadPeeringIPV4", "localWorkloadPeeringIPV6"],
        Warned(NotDone {
            code: SettingWithoutEffect,
            unless: Empty,
            message: "has no effect: an agent is no BGP peer of its pods",
            help: "have such pods peer with a route reflector or a router",
        }),
    ),
];

pub(super) const PEER: &[Row] = &[
    (
        &[
            "asNumber",
            "filters",
            "keepOriginalNextHop",
            "localASNumber",
            "maxRestartTime",
            "nextHopMode",
            "node",
            "nodeSelector",
            "numAllowedLocalASNumbers",
            "password",
            "peerIP",
            "peerSelector",
            "reachableBy",
            "reversePeering",
            "sourceAddress",
            "ttlSecurity",
        ],
        Heeded(SPEAKS),
    ),
    (
        &["keepaliveTime"],
        Warned(NotDone {
            code: SettingWithoutEffect,
            unless: Empty,
            message: "has no effect: a session is kept alive three times in its hold time",
            help: "remove it, or have the peer ask for a shorter hold time",
        }),
    ),
    (
        &["localWorkloadSelector"],
        Warned(NotDone {
            code: SettingWithoutEffect,
            unless: Empty,
            message: "has no effect: an agent is no BGP peer of its pods, so nobody is a peer by this object",
            help: "have such pods peer with a route reflector or a router",
        }),
    ),
];

pub(super) const FILTER: &[Row] =
    &[(&["exportV4", "exportV6", "importV4", "importV6"], Heeded(SPEAKS))];
