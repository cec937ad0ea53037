//! The fields of Calico's other kinds, and Calico's annotations.

use super::super::code::Code::{HostPolicyNotEnforced, ProtectionNotDone, SettingWithoutEffect};
use super::effect::Effect::{Heeded, NotDone as Warned, Quiet};
use super::effect::Unless::{Boolean, Empty, Texts};
use super::effect::{NotDone, Row};

pub(super) const IP_POOL: &[Row] = &[
    (&["cidr", "ipipMode"], Heeded("")),
    (
        &["vxlanMode"],
        Heeded(
            "for IPv4; for IPv6 it is warned of as [`no-vxlan-of-ipv6`](check.md#no-vxlan-of-ipv6)",
        ),
    ),
    (
        &["natOutgoing"],
        Heeded("with `--services manx`; an agent without it has a warning in `manx status`"),
    ),
    (
        &["disabled"],
        Warned(NotDone {
            code: SettingWithoutEffect,
            unless: Boolean(false),
            message: "has no effect without --ipam calico: pods get addresses from their node's podCIDRs, in this pool or not",
            help: "give the nodes podCIDRs outside of the pool",
        }),
    ),
    (
        &["assignmentMode"],
        Warned(NotDone {
            code: SettingWithoutEffect,
            unless: Texts(&["Automatic"]),
            message: "has no effect without --ipam calico: pods get addresses from their node's podCIDRs, in this pool or not",
            help: "give the nodes podCIDRs outside of the pool",
        }),
    ),
    (
        &["nodeSelector", "namespaceSelector"],
        Warned(NotDone {
            code: SettingWithoutEffect,
            unless: Texts(&["all()"]),
            message: "has no effect without --ipam calico: a pod's address comes from its node's podCIDRs, so nobody outside of the cluster can tell by it what is selected here",
            help: "have firewalls outside of the cluster ask for nodes' podCIDRs, or let policy decide",
        }),
    ),
    (
        &["allowedUses"],
        Heeded(
            "`Workload` and `Tunnel` with `--ipam calico`; `LoadBalancer` by [`manx controllers`](controllers.md#services-of-type-loadbalancer)",
        ),
    ),
    (&["blockSize"], Quiet("without `--ipam calico` podCIDRs are the blocks")),
    (&["disableBGPExport"], Heeded("where agents speak BGP")),
    (&["ipip", "nat-outgoing"], Heeded("refused unless false: they are of Calico's first API")),
];

pub(super) const BLOCK_AFFINITY: &[Row] = &[(
    &["cidr", "deleted", "node", "state", "type"],
    Heeded("with `--ipam calico`; an agent without it takes nodes' blocks from their podCIDRs"),
)];

pub(super) const POLICY: &[Row] = &[
    (
        &["egress", "ingress", "order", "selector", "serviceAccountSelector", "tier", "types"],
        Heeded(
            "a rule with `http` cannot be decided, and is warned of as [`unsupported-rule`](check.md#unsupported-rule)",
        ),
    ),
    (&["performanceHints"], Quiet("how early Felix gets ready for a policy")),
];

pub(super) const GLOBAL: &[Row] = &[
    (&["namespaceSelector"], Heeded("")),
    (
        &["applyOnForward"],
        Heeded("for forwarded traffic; each HostEndpoint has a warning of what is not enforced"),
    ),
];

pub(super) const EARLY: &[Row] = &[(
    &["doNotTrack", "preDNAT"],
    Warned(NotDone {
        code: HostPolicyNotEnforced,
        unless: Boolean(false),
        message: "is NOT ENFORCED: no node judges packets before connection tracking or before translation, so this policy decides nothing",
        help: "write it with applyOnForward alone for what nodes forward, or as policy of the pods that it is to protect",
    }),
)];

pub(super) const STAGED: &[Row] = &[(&["stagedAction"], Heeded(""))];

pub(super) const STAGED_EARLY: &[Row] =
    &[(&["doNotTrack", "preDNAT"], Heeded("a staged policy enforces nothing"))];

pub(super) const TIER: &[Row] = &[(&["defaultAction", "order"], Heeded(""))];

pub(super) const NETWORK_SET: &[Row] = &[(&["nets"], Heeded(""))];

pub(super) const HOST_ENDPOINT: &[Row] = &[(
    &["expectedIPs", "interfaceName", "node", "ports", "profiles"],
    Heeded(
        "for forwarded traffic; for all else it is warned of as [`host-policy-not-enforced`](check.md#host-policy-not-enforced)",
    ),
)];

pub(super) const PROFILE: &[Row] = &[(&["egress", "ingress", "labelsToApply"], Heeded(""))];

/// The annotations that name the pools for pods' addresses.
pub(super) const ADDRESSES: &[Row] = &[(
    &["cni.projectcalico.org/ipv4pools", "cni.projectcalico.org/ipv6pools"],
    Warned(NotDone {
        code: SettingWithoutEffect,
        unless: Empty,
        message: "has no effect without --ipam calico: a pod's address comes from its node's podCIDRs",
        help: "put the pod on nodes whose podCIDRs lie in the pool",
    }),
)];

pub(super) const POD: &[Row] = &[
    (
        &[
            "cni.projectcalico.org/podIP",
            "cni.projectcalico.org/podIPs",
            "vpc.amazonaws.com/pod-ips",
        ],
        Heeded("where the pod's status has no addresses"),
    ),
    (&["cni.projectcalico.org/containerID"], Quiet("Calico's plugin writes it for itself")),
    (
        &["cni.projectcalico.org/ipAddrs", "cni.projectcalico.org/ipAddrsNoIpam"],
        Warned(NotDone {
            code: SettingWithoutEffect,
            unless: Empty,
            message: "has no effect without --ipam calico (which refuses ipAddrsNoIpam): the pod gets the next free address of its node's podCIDRs",
            help: "have the runtime ask for the address (runtimeConfig.ips), or reach the pod by a Service",
        }),
    ),
    (
        &["cni.projectcalico.org/floatingIPs"],
        Warned(NotDone {
            code: SettingWithoutEffect,
            unless: Empty,
            message: "has no effect: floating addresses lead nowhere",
            help: "reach the pod by a Service",
        }),
    ),
    (
        &["cni.projectcalico.org/allowedSourcePrefixes"],
        Warned(NotDone {
            code: SettingWithoutEffect,
            unless: Empty,
            message: "has no effect: a pod sends from its own addresses only",
            help: "remove it",
        }),
    ),
    (
        &["cni.projectcalico.org/hwAddr"],
        Warned(NotDone {
            code: SettingWithoutEffect,
            unless: Empty,
            message: "has no effect: the agent chooses hardware addresses",
            help: "remove it",
        }),
    ),
    (
        &["cni.projectcalico.org/"],
        Warned(NotDone {
            code: SettingWithoutEffect,
            unless: Empty,
            message: "is not known to this version of Manx: it may promise what is not done",
            help: "correct its name, or remove it",
        }),
    ),
    (
        &["kubernetes.io/egress-bandwidth", "kubernetes.io/ingress-bandwidth"],
        Warned(NotDone {
            code: ProtectionNotDone,
            unless: Texts(&["0"]),
            message: "is NOT DONE: Manx limits no pod's bandwidth, and its plugin refuses the pod where a runtime passes the limit on",
            help: "remove it, and limit the pod outside of the cluster",
        }),
    ),
];

pub(super) const QOS: &[Row] = &[(
    &["qos.projectcalico.org/"],
    Warned(NotDone {
        code: ProtectionNotDone,
        unless: Empty,
        message: "is NOT DONE: Manx limits neither bandwidth nor packets nor connections, and marks nothing",
        help: "remove it; pods get equal shares of a worker's time",
    }),
)];

pub(super) const SERVICE: &[Row] = &[
    (
        &[
            "projectcalico.org/ipv4pools",
            "projectcalico.org/ipv6pools",
            "projectcalico.org/loadBalancerIPs",
        ],
        Heeded("by [`manx controllers`](controllers.md#services-of-type-loadbalancer)"),
    ),
    (
        &["lb.projectcalico.org/external-traffic-strategy"],
        Heeded(
            "`maglev`, [with `--services manx`](services.md#connections-that-move); not beside `externalTrafficPolicy: Local`, of which `manx status` warns",
        ),
    ),
    (
        &["lb.projectcalico.org/"],
        Warned(NotDone {
            code: SettingWithoutEffect,
            unless: Empty,
            message: "is not known to this version of Manx: it may promise what is not done",
            help: "correct its name, or remove it",
        }),
    ),
];

pub(super) const EGRESS: &[Row] = &[(
    &["egress.projectcalico.org/"],
    Warned(NotDone {
        code: ProtectionNotDone,
        unless: Empty,
        message: "is NOT DONE: what pods send to outside leaves by their own node, and by no egress gateway",
        help: "have firewalls outside of the cluster ask for what leaves the nodes, or deny it by policy",
    }),
)];

/// The kinds of Calico that Manx does not read, each with the consequence.
pub(super) const UNREAD: &[(&str, &str)] = &[
    (
        "CalicoNodeStatus",
        "agents fill in its status at the API server; a directory has no place for it: ask `manx node status` on the node",
    ),
    ("ClusterInformation", "Manx needs none: it waits for no datastoreReady"),
    (
        "IPAMBlock",
        "`--ipam calico` reads and writes it at the API server; without it addresses come from nodes' podCIDRs",
    ),
    (
        "IPAMConfig",
        "`--ipam calico` reads and writes it at the API server; without it addresses come from nodes' podCIDRs",
    ),
    (
        "IPAMConfiguration",
        "`--ipam calico` reads and writes it at the API server; without it addresses come from nodes' podCIDRs",
    ),
    (
        "IPAMHandle",
        "`--ipam calico` reads and writes it at the API server; without it addresses come from nodes' podCIDRs",
    ),
    (
        "IPReservation",
        "`--ipam calico` heeds it at the API server; without it pods may get the reserved addresses, if these are in their nodes' podCIDRs: leave them out of podCIDRs",
    ),
    (
        "KubeControllersConfiguration",
        "`manx controllers` heeds controllers.loadBalancer.assignIPs at the API server. Manx makes no host endpoints by itself (controllers.node.hostEndpoint): write the HostEndpoints",
    ),
];
