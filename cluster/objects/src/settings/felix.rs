//! The fields of `FelixConfiguration`.

use super::super::code::Code::{ProtectionNotDone, SettingWithoutEffect};
use super::effect::Effect::{Heeded, NotDone as Warned, Quiet};
use super::effect::Unless::{Boolean, Empty, Integer, Texts};
use super::effect::{NotDone, Row};

/// All fields of Calico 3.30 to 3.33, including those that only one version has.
pub(super) const ROWS: &[Row] = &[
    (
        &["defaultEndpointToHostAction"],
        Heeded(
            "`Return` counts as `Accept`, and so does none, as in Calico's own installations (Felix by itself would take `Drop`)",
        ),
    ),
    (
        &["failsafeInboundHostPorts", "failsafeOutboundHostPorts"],
        Heeded("where policy for host endpoints is judged"),
    ),
    (
        &["natOutgoingAddress"],
        Heeded(
            "with `--services manx`; an agent whose node lacks the address drops what it would translate, and has a warning in `manx status`",
        ),
    ),
    (
        &["natOutgoingExclusions"],
        Heeded(
            "with `--services manx`, for nodes that are reached without a tunnel; an agent has a warning in `manx status` if there are others",
        ),
    ),
    (
        &["natPortRange"],
        Warned(NotDone {
            code: SettingWithoutEffect,
            unless: Empty,
            message: "has no effect: the ports by which the world sees pods are those of the agents' --egress-ports",
            help: "set MANX_EGRESS_PORTS in the agents' environment",
        }),
    ),
    (
        &["iptablesNATOutgoingInterfaceFilter"],
        Warned(NotDone {
            code: SettingWithoutEffect,
            unless: Empty,
            message: "has no effect: what natOutgoing translates is translated by whichever interface it leaves",
            help: "remove it",
        }),
    ),
    // Settings that protect traffic or hosts.
    (
        &["wireguardEnabled", "wireguardEnabledV6", "wireguardHostEncryptionEnabled"],
        Warned(NotDone {
            code: ProtectionNotDone,
            unless: Boolean(false),
            message: "is NOT DONE: Manx encrypts nothing, so whoever reads the network between the nodes reads what pods send",
            help: "encrypt below Manx (WireGuard or IPsec between the nodes) or above it (TLS in the pods)",
        }),
    ),
    (
        &["chainInsertMode"],
        Warned(NotDone {
            code: ProtectionNotDone,
            unless: Texts(&["Insert"]),
            message: "is NOT DONE: the node's own rules of iptables or nftables see no packet from pod to pod",
            help: "write what these rules protect as policy",
        }),
    ),
    (
        &[
            "iptablesFilterAllowAction",
            "iptablesMangleAllowAction",
            "nftablesFilterAllowAction",
            "nftablesMangleAllowAction",
        ],
        Warned(NotDone {
            code: ProtectionNotDone,
            unless: Texts(&["Accept"]),
            message: "is NOT DONE: what policy allows passes, and the node's own rules of iptables or nftables do not judge it again",
            help: "write what these rules protect as policy",
        }),
    ),
    (
        &["ipForwarding"],
        Warned(NotDone {
            code: ProtectionNotDone,
            unless: Texts(&["Enabled"]),
            message: "is NOT DONE: the agent switches forwarding on, so the node passes on what is not for it",
            help: "run no agent on a node that may not forward",
        }),
    ),
    (
        &["bpfEnforceRPF"],
        Warned(NotDone {
            code: ProtectionNotDone,
            unless: Texts(&["Disabled", "Loose"]),
            message: "is NOT DONE: Manx drops what bears a pod's address and does not come from that pod; by which interface the node gets other sources is not checked",
            help: "set net.ipv4.conf.INTERFACE.rp_filter to 1 on the uplink of each node",
        }),
    ),
    (
        &["policySyncPathPrefix"],
        Warned(NotDone {
            code: ProtectionNotDone,
            unless: Empty,
            message: "is NOT DONE: no proxy in a pod gets policy from Manx, so nothing judges HTTP",
            help: "write the rules with pods, namespaces, nets and ports, or let the proxies have policy of their own",
        }),
    ),
    (
        &["istioAmbientMode"],
        Warned(NotDone {
            code: ProtectionNotDone,
            unless: Texts(&["Disabled"]),
            message: "is NOT DONE: Manx leads nothing to Istio's ztunnel and marks nothing for it",
            help: "check that the mesh encrypts what it should, or use sidecars",
        }),
    ),
    (
        &[
            "prometheusMetricsCAFile",
            "prometheusMetricsCertFile",
            "prometheusMetricsClientAuth",
            "prometheusMetricsKeyFile",
        ],
        Warned(NotDone {
            code: ProtectionNotDone,
            unless: Empty,
            message: "is NOT DONE: metrics are served without TLS and to every client that reaches the address",
            help: "keep them on loopback, behind a proxy that asks for certificates",
        }),
    ),
    // Settings that open ports, change routes or export data.
    (
        &["bpfEnabled"],
        Warned(NotDone {
            code: SettingWithoutEffect,
            unless: Boolean(false),
            message: "has no effect: Manx has a dataplane of its own, which needs no kube-proxy with --services manx; beside kube-proxy, policy does not see clients whom that masquerades",
            help: "run the agents with --services manx (MANX_SERVICES)",
        }),
    ),
    (
        &["bpfExternalServiceMode"],
        Warned(NotDone {
            code: SettingWithoutEffect,
            unless: Texts(&["Tunnel"]),
            message: "has no effect: connections from outside come as kube-proxy leads them",
            help: "say externalTrafficPolicy: Local where the client's address matters",
        }),
    ),
    (
        &["bpfIPFragmentReassemblyEnabled"],
        Warned(NotDone {
            code: SettingWithoutEffect,
            unless: Boolean(true),
            message: "has no effect: fragments pass after their first one, if policy lets that one pass",
            help: "remove it",
        }),
    ),
    (
        &["iptablesFilterDenyAction", "nftablesFilterDenyAction"],
        Warned(NotDone {
            code: SettingWithoutEffect,
            unless: Texts(&["Drop"]),
            message: "has no effect: what policy denies is dropped without an answer",
            help: "remove it",
        }),
    ),
    (
        &["allowIPIPPacketsFromWorkloads", "allowVXLANPacketsFromWorkloads"],
        Warned(NotDone {
            code: SettingWithoutEffect,
            unless: Boolean(false),
            message: "has no effect: what pods send as IPIP or to VXLAN's port is dropped always",
            help: "let pods use another encapsulation, or another port for VXLAN",
        }),
    ),
    (
        &["workloadSourceSpoofing"],
        Warned(NotDone {
            code: SettingWithoutEffect,
            unless: Texts(&["Disabled"]),
            message: "has no effect: a pod sends from its own addresses only",
            help: "remove it",
        }),
    ),
    (
        &["externalNodesList"],
        Warned(NotDone {
            code: SettingWithoutEffect,
            unless: Empty,
            message: "has no effect: tunnel packets are accepted from Nodes of the cluster only",
            help: "remove it",
        }),
    ),
    (
        &["awsSrcDstCheck"],
        Warned(NotDone {
            code: SettingWithoutEffect,
            unless: Texts(&["DoNothing"]),
            message: "has no effect: Manx leaves the EC2 instance's source/destination check as it is",
            help: "set it at EC2; with ipipMode or vxlanMode: Always the check may stay on",
        }),
    ),
    (
        &["floatingIPs"],
        Warned(NotDone {
            code: SettingWithoutEffect,
            unless: Texts(&["Disabled"]),
            message: "has no effect: floating addresses lead nowhere",
            help: "reach the pod by a Service",
        }),
    ),
    (
        &["localSubnetL2Reachability"],
        Warned(NotDone {
            code: SettingWithoutEffect,
            unless: Texts(&["Disabled"]),
            message: "has no effect: no node answers ARP or neighbour solicitations for pods' addresses",
            help: "have the nodes' network route the pods' blocks to their nodes",
        }),
    ),
    (
        &["deviceRouteSourceAddress", "deviceRouteSourceAddressIPv6"],
        Warned(NotDone {
            code: SettingWithoutEffect,
            unless: Empty,
            message: "has no effect: the node's processes speak with pods from the address that its kernel chooses",
            help: "name the node's own addresses in policy",
        }),
    ),
    (
        &["flowLogsGoldmaneServer"],
        Warned(NotDone {
            code: SettingWithoutEffect,
            unless: Empty,
            message: "has no effect: Manx sends no flow logs",
            help: "denials are in the agents' logs, with the rule that decided",
        }),
    ),
    (
        &["flowLogsLocalReporter"],
        Warned(NotDone {
            code: SettingWithoutEffect,
            unless: Texts(&["Disabled"]),
            message: "has no effect: Manx writes no flow logs",
            help: "denials are in the agents' logs, with the rule that decided",
        }),
    ),
    (
        &["prometheusMetricsEnabled"],
        Warned(NotDone {
            code: SettingWithoutEffect,
            unless: Boolean(false),
            message: "has no effect here: the agent's own settings say whether it serves metrics",
            help: "set FELIX_PROMETHEUSMETRICSENABLED in the agents' environment",
        }),
    ),
    (
        &["healthEnabled"],
        Warned(NotDone {
            code: SettingWithoutEffect,
            unless: Boolean(false),
            message: "has no effect here: the agent's own settings say whether it serves its health",
            help: "set FELIX_HEALTHENABLED in the agents' environment",
        }),
    ),
    (
        &["vxlanVNI"],
        Warned(NotDone {
            code: SettingWithoutEffect,
            unless: Integer(4096),
            message: "has no effect: it is always 4096",
            help: "remove it",
        }),
    ),
    (
        &["vxlanPort"],
        Warned(NotDone {
            code: SettingWithoutEffect,
            unless: Integer(4789),
            message: "has no effect: it is always 4789",
            help: "remove it",
        }),
    ),
    (
        &["ipipEnabled", "vxlanEnabled"],
        Warned(NotDone {
            code: SettingWithoutEffect,
            unless: Boolean(true),
            message: "has no effect: only the IPPools say what is encapsulated",
            help: "set ipipMode and vxlanMode of the IPPools",
        }),
    ),
    (
        &["routeSyncDisabled"],
        Warned(NotDone {
            code: SettingWithoutEffect,
            unless: Boolean(false),
            message: "has no effect: the agent makes routes, unless it judges behind another plugin",
            help: "install deploy/policy-only.yaml where Manx is to judge alone",
        }),
    ),
    (
        &["nodeSelector"],
        Warned(NotDone {
            code: SettingWithoutEffect,
            unless: Empty,
            message: "has no effect: it selects no node",
            help: "name the object default for all nodes, or node.NAME for one",
        }),
    ),
    (
        &["featureGates"],
        Warned(NotDone {
            code: SettingWithoutEffect,
            unless: Empty,
            message: "has no effect: Manx has none of Calico's features in preview",
            help: "remove it",
        }),
    ),
    (
        &["interfaceExclude"],
        Warned(NotDone {
            code: SettingWithoutEffect,
            unless: Texts(&["kube-ipvs0"]),
            message: "has no effect: host endpoints govern the interfaces that they name",
            help: "name in each HostEndpoint the interface that it is for",
        }),
    ),
    // Settings that only tune Felix.
    (
        &[
            "bpfAttachType",
            "bpfCTLBLogFilter",
            "bpfConnectTimeLoadBalancing",
            "bpfConnectTimeLoadBalancingEnabled",
            "bpfConntrackLogLevel",
            "bpfConntrackMode",
            "bpfConntrackTimeouts",
            "bpfDSROptoutCIDRs",
            "bpfDataIfacePattern",
            "bpfDisableGROForIfaces",
            "bpfDisableUnprivileged",
            "bpfExcludeCIDRsFromNAT",
            "bpfExportBufferSizeMB",
            "bpfExtToServiceConnmark",
            "bpfForceTrackPacketsFromIfaces",
            "bpfHostConntrackBypass",
            "bpfHostNetworkedNATWithoutCTLB",
            "bpfIPFragTimeout",
            "bpfJITHardening",
            "bpfKubeProxyEndpointSlicesEnabled",
            "bpfKubeProxyHealthzPort",
            "bpfKubeProxyIptablesCleanupEnabled",
            "bpfKubeProxyMinSyncPeriod",
            "bpfL3IfacePattern",
            "bpfLogFilters",
            "bpfLogLevel",
            "bpfMaglevMaxEndpointsPerService",
            "bpfMaglevMaxServices",
            "bpfMapSizeConntrack",
            "bpfMapSizeConntrackCleanupQueue",
            "bpfMapSizeConntrackScaling",
            "bpfMapSizeIPSets",
            "bpfMapSizeIfState",
            "bpfMapSizeNATAffinity",
            "bpfMapSizeNATBackend",
            "bpfMapSizeNATFrontend",
            "bpfMapSizePerCpuConntrack",
            "bpfMapSizeRoute",
            "bpfOverlayHostSourceIP",
            "bpfPSNATPorts",
            "bpfPolicyDebugEnabled",
            "bpfProfiling",
            "bpfRedirectToPeer",
            "cgroupV2Path",
        ],
        Quiet(
            "how Felix's eBPF programs work, of which Manx has none; bpfEnabled: true is warned of once for all",
        ),
    ),
    (
        &["genericXDPEnabled", "sidecarAccelerationEnabled", "xdpEnabled", "xdpRefreshInterval"],
        Quiet("how Felix makes the kernel faster"),
    ),
    (
        &[
            "interfacePrefix",
            "interfaceRefreshInterval",
            "ipsetsRefreshInterval",
            "iptablesBackend",
            "iptablesLockFilePath",
            "iptablesLockProbeInterval",
            "iptablesLockTimeout",
            "iptablesMarkMask",
            "iptablesPostWriteCheckInterval",
            "iptablesRefreshInterval",
            "kubeNodePortRanges",
            "maxIpsetSize",
            "netlinkTimeout",
            "nftablesMarkMask",
            "nftablesMode",
            "nftablesRefreshInterval",
        ],
        Quiet("how Felix writes rules into the kernel, where Manx writes none for policy"),
    ),
    (
        &["disableConntrackInvalidCheck"],
        Quiet(
            "about the kernel's connection tracking; the agent's --tcp-strict says what Manx does with connections met in the middle",
        ),
    ),
    (
        &[
            "deviceRouteProtocol",
            "ipv4ElevatedRoutePriority",
            "ipv4NormalRoutePriority",
            "ipv6ElevatedRoutePriority",
            "ipv6NormalRoutePriority",
            "liveMigrationRouteConvergenceTime",
            "localSubnetL2ReachabilityRefreshInterval",
            "programClusterRoutes",
            "removeExternalRoutes",
            "routeRefreshInterval",
            "routeSource",
            "routeTableRange",
            "routeTableRanges",
        ],
        Quiet(
            "how Felix writes routes; Manx's tables lead packets to pods, whatever else routes there",
        ),
    ),
    (
        &["ipipMTU", "mtuIfacePattern", "requireMTUFile", "vxlanMTU", "vxlanMTUV6"],
        Quiet("pods' MTU follows from the uplink's and the encapsulation"),
    ),
    (
        &["ipv6Support"],
        Quiet("Manx judges both families; a pod without an IPv6 address sends and gets no IPv6"),
    ),
    (
        &["serviceLoopPrevention"],
        Quiet(
            "what nobody translates in the ranges of services of which peers in BGP are told is refused, whatever it says",
        ),
    ),
    (&["istioDSCPMark"], Quiet("counts with istioAmbientMode")),
    (
        &[
            "wireguardInterfaceName",
            "wireguardInterfaceNameV6",
            "wireguardKeepAlive",
            "wireguardListeningPort",
            "wireguardListeningPortV6",
            "wireguardMTU",
            "wireguardMTUV6",
            "wireguardRoutingRulePriority",
            "wireguardThreadingEnabled",
        ],
        Quiet("counts with wireguardEnabled"),
    ),
    (
        &[
            "flowLogsCollectorDebugTrace",
            "flowLogsFlushInterval",
            "flowLogsPolicyEvaluationMode",
            "logActionRateLimit",
            "logActionRateLimitBurst",
            "logDebugFilenameRegex",
            "logFilePath",
            "logPrefix",
            "logSeverityFile",
            "logSeverityScreen",
            "logSeveritySys",
        ],
        Quiet("about Felix's logs; MANX_LOG_FILTER says what an agent logs"),
    ),
    (
        &[
            "healthHost",
            "healthPort",
            "healthTimeoutOverrides",
            "prometheusGoMetricsEnabled",
            "prometheusMetricsHost",
            "prometheusMetricsPort",
            "prometheusProcessMetricsEnabled",
            "prometheusWireGuardMetricsEnabled",
        ],
        Quiet("where and how Felix serves health and metrics; agents have flags and variables"),
    ),
    (
        &[
            "dataplaneDriver",
            "dataplaneWatchdogTimeout",
            "debugDisableLogDropping",
            "debugHost",
            "debugMemoryProfilePath",
            "debugPort",
            "debugSimulateCalcGraphHangAfter",
            "debugSimulateDataplaneApplyDelay",
            "debugSimulateDataplaneHangAfter",
            "endpointReportingDelay",
            "endpointReportingEnabled",
            "endpointStatusPathPrefix",
            "featureDetectOverride",
            "goGCThreshold",
            "goMaxProcs",
            "goMemoryLimitMB",
            "reportingInterval",
            "reportingTTL",
            "usageReportingEnabled",
            "usageReportingInitialDelay",
            "usageReportingInterval",
            "useInternalDataplaneDriver",
        ],
        Quiet("how the program Felix runs and reports; Manx reports its use to nobody"),
    ),
    (
        &["metadataAddr", "metadataPort", "openstackRegion", "windowsManageFirewallRules"],
        Quiet("about OpenStack and Windows, where Manx does not run"),
    ),
];
