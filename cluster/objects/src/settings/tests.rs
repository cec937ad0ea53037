use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::super::code::Code;
use super::super::object::{Kind, Object};
use super::super::problem::{Problem, Severity};
use super::super::tests::{clean, invalid};
use super::super::{State, read};
use super::*;

/// The fields of `FelixConfiguration` as its custom resource definition of 3.33 lists them, in its order.
const OF_3_33: &str = "
allowIPIPPacketsFromWorkloads allowVXLANPacketsFromWorkloads awsSrcDstCheck bpfAttachType bpfCTLBLogFilter
bpfConnectTimeLoadBalancing bpfConnectTimeLoadBalancingEnabled bpfConntrackLogLevel bpfConntrackMode
bpfConntrackTimeouts bpfDSROptoutCIDRs bpfDataIfacePattern bpfDisableGROForIfaces bpfDisableUnprivileged bpfEnabled
bpfEnforceRPF bpfExcludeCIDRsFromNAT bpfExportBufferSizeMB bpfExtToServiceConnmark bpfExternalServiceMode
bpfForceTrackPacketsFromIfaces bpfHostConntrackBypass bpfHostNetworkedNATWithoutCTLB bpfIPFragTimeout
bpfIPFragmentReassemblyEnabled bpfJITHardening bpfKubeProxyHealthzPort bpfKubeProxyIptablesCleanupEnabled
bpfKubeProxyMinSyncPeriod bpfL3IfacePattern bpfLogFilters bpfLogLevel bpfMaglevMaxEndpointsPerService
bpfMaglevMaxServices bpfMapSizeConntrack bpfMapSizeConntrackCleanupQueue bpfMapSizeConntrackScaling bpfMapSizeIPSets
bpfMapSizeIfState bpfMapSizeNATAffinity bpfMapSizeNATBackend bpfMapSizeNATFrontend bpfMapSizePerCpuConntrack
bpfMapSizeRoute bpfOverlayHostSourceIP bpfPSNATPorts bpfPolicyDebugEnabled bpfProfiling bpfRedirectToPeer cgroupV2Path
chainInsertMode dataplaneDriver dataplaneWatchdogTimeout debugDisableLogDropping debugHost debugMemoryProfilePath
debugPort debugSimulateCalcGraphHangAfter debugSimulateDataplaneApplyDelay debugSimulateDataplaneHangAfter
defaultEndpointToHostAction deviceRouteProtocol deviceRouteSourceAddress deviceRouteSourceAddressIPv6
disableConntrackInvalidCheck endpointReportingDelay endpointReportingEnabled endpointStatusPathPrefix externalNodesList
failsafeInboundHostPorts failsafeOutboundHostPorts featureDetectOverride featureGates floatingIPs
flowLogsCollectorDebugTrace flowLogsFlushInterval flowLogsGoldmaneServer flowLogsLocalReporter
flowLogsPolicyEvaluationMode genericXDPEnabled goGCThreshold goMaxProcs goMemoryLimitMB healthEnabled healthHost
healthPort healthTimeoutOverrides interfaceExclude interfacePrefix interfaceRefreshInterval ipForwarding ipipEnabled
ipipMTU ipsetsRefreshInterval iptablesBackend iptablesFilterAllowAction iptablesFilterDenyAction
iptablesLockProbeInterval iptablesMangleAllowAction iptablesMarkMask iptablesNATOutgoingInterfaceFilter
iptablesPostWriteCheckInterval iptablesRefreshInterval ipv4ElevatedRoutePriority ipv4NormalRoutePriority
ipv6ElevatedRoutePriority ipv6NormalRoutePriority ipv6Support istioAmbientMode istioDSCPMark kubeNodePortRanges
liveMigrationRouteConvergenceTime localSubnetL2Reachability localSubnetL2ReachabilityRefreshInterval logActionRateLimit
logActionRateLimitBurst logDebugFilenameRegex logFilePath logPrefix logSeverityFile logSeverityScreen logSeveritySys
maxIpsetSize metadataAddr metadataPort mtuIfacePattern natOutgoingAddress natOutgoingExclusions natPortRange
netlinkTimeout nftablesFilterAllowAction nftablesFilterDenyAction nftablesMangleAllowAction nftablesMarkMask
nftablesMode nftablesRefreshInterval nodeSelector openstackRegion policySyncPathPrefix programClusterRoutes
prometheusGoMetricsEnabled prometheusMetricsCAFile prometheusMetricsCertFile prometheusMetricsClientAuth
prometheusMetricsEnabled prometheusMetricsHost prometheusMetricsKeyFile prometheusMetricsPort
prometheusProcessMetricsEnabled prometheusWireGuardMetricsEnabled removeExternalRoutes reportingInterval reportingTTL
requireMTUFile routeRefreshInterval routeSource routeSyncDisabled routeTableRange routeTableRanges serviceLoopPrevention
sidecarAccelerationEnabled usageReportingEnabled usageReportingInitialDelay usageReportingInterval
useInternalDataplaneDriver vxlanEnabled vxlanMTU vxlanMTUV6 vxlanPort vxlanVNI windowsManageFirewallRules
wireguardEnabled wireguardEnabledV6 wireguardHostEncryptionEnabled wireguardInterfaceName wireguardInterfaceNameV6
wireguardKeepAlive wireguardListeningPort wireguardListeningPortV6 wireguardMTU wireguardMTUV6
wireguardRoutingRulePriority wireguardThreadingEnabled workloadSourceSpoofing xdpEnabled xdpRefreshInterval
";
/// The fields that 3.30 has but 3.33 does not have.
const OF_3_30: &str = "iptablesLockFilePath iptablesLockTimeout bpfKubeProxyEndpointSlicesEnabled";

/// Returns the warnings about a text: each field's path with its code.
fn told(text: &str) -> Vec<(String, &'static str)> {
    let problems = read("file.yaml", text).unwrap().problems;
    let one = |problem: Problem| {
        assert_eq!(problem.severity, Severity::Warning, "{problem}");
        assert_eq!(problem.severity, problem.code().severity(), "{problem}");
        assert!(problem.help().is_some(), "{problem}");
        (problem.field.clone(), problem.code().name())
    };
    problems.into_iter().map(one).collect()
}

fn object_of(text: &str) -> Object {
    let manifest = read("file.yaml", text).unwrap();
    let State::Valid(object) = &manifest.entries[0].state else { panic!("{text}") };
    (**object).clone()
}

fn felix(spec: &str) -> String {
    object("FelixConfiguration", "default", spec)
}

fn object(kind: &str, name: &str, spec: &str) -> String {
    format!(
        "{{apiVersion: projectcalico.org/v3, kind: {kind}, metadata: {{name: {name}}}, spec: {spec}}}"
    )
}

#[test]
fn every_field_of_felix_configuration_has_one_row_and_no_row_is_about_another() {
    let rows: Vec<&str> = fields(&[felix::ROWS]).map(|(name, _)| name).collect();
    let distinct: BTreeSet<&str> = rows.iter().copied().collect();
    assert_eq!(rows.len(), distinct.len(), "a field has two rows");
    let facts: BTreeSet<&str> = OF_3_33.split_whitespace().chain(OF_3_30.split(' ')).collect();
    assert!(facts.len() > 180, "{}", facts.len());
    let without: Vec<_> = facts.difference(&distinct).collect();
    let unknown: Vec<_> = distinct.difference(&facts).collect();
    assert!(without.is_empty() && unknown.is_empty(), "{without:?} {unknown:?}");
}

#[test]
fn no_kind_has_a_field_in_two_rows() {
    for (kind, rows) in SPECS.iter().chain(ANNOTATIONS) {
        let names: Vec<&str> = fields(rows).map(|(name, _)| name).collect();
        let distinct: BTreeSet<&str> = names.iter().copied().collect();
        assert_eq!(names.len(), distinct.len(), "{kind}: {names:?}");
    }
}

#[test]
fn sentences_follow_the_fields_name_and_have_no_full_stop() {
    for (kind, rows) in SPECS.iter().chain(ANNOTATIONS) {
        for (name, effect) in fields(rows) {
            let texts = match effect {
                Effect::Heeded(text) | Effect::Quiet(text) => vec![text],
                Effect::NotDone(it) => {
                    let begins = ["is NOT DONE: ", "is NOT ENFORCED: ", "is not done: "];
                    let without = ["has no effect", "is not known to this version of Manx"];
                    let protects = begins.iter().any(|begin| it.message.starts_with(begin));
                    let harmless = it.code == Code::SettingWithoutEffect;
                    assert_ne!(protects, harmless, "{kind} {name}: {}", it.message);
                    assert!(
                        !harmless || without.iter().any(|begin| it.message.starts_with(begin)),
                        "{kind} {name}: {}",
                        it.message
                    );
                    vec![it.message, it.help]
                }
            };
            assert!(texts.iter().all(|text| !text.ends_with('.')), "{kind} {name}");
        }
    }
}

#[test]
fn each_setting_that_is_not_done_is_told_of_and_each_other_field_is_not() {
    for (kind, rows) in SPECS {
        for (name, effect) in fields(rows) {
            // This value needs an effect in every row, because it is neither a boolean, nor a number, nor a known text.
            let wrong = "[[manx]]";
            let text = object(kind.name(), "default", &format!("{{{name}: {wrong}}}"));
            let problems = read("file.yaml", &text).unwrap().problems;
            let codes: Vec<&str> = problems
                .iter()
                .filter(|problem| problem.severity == Severity::Warning)
                .filter(|problem| problem.field == format!("spec.{name}"))
                .map(|problem| problem.code().name())
                .collect();
            let expected: &[&str] = match effect {
                Effect::NotDone(it) => &[it.code.name()],
                Effect::Heeded(_) | Effect::Quiet(_) => &[],
            };
            assert_eq!(codes, expected, "{kind} {name}");
        }
    }
}

#[test]
fn a_value_that_asks_for_nothing_is_quiet() {
    for (kind, rows) in SPECS {
        for (name, effect) in fields(rows) {
            let Effect::NotDone(NotDone { unless, .. }) = effect else { continue };
            let mut values = ["null", "''", "[]", "{}"].map(str::to_owned).to_vec();
            match unless {
                Unless::Empty => {}
                Unless::Boolean(truth) => values.push(truth.to_string()),
                Unless::Integer(number) => values.push(number.to_string()),
                Unless::Texts(texts) => {
                    for text in texts {
                        values.extend([(*text).to_owned(), text.to_lowercase()]);
                    }
                }
            }
            for value in values {
                let text = object(kind.name(), "default", &format!("{{{name}: {value}}}"));
                let problems = read("file.yaml", &text).unwrap().problems;
                let said = problems.iter().any(|problem| {
                    problem.severity == Severity::Warning && problem.field == format!("spec.{name}")
                });
                assert!(!said, "{kind} {name}: {value}: {problems:?}");
            }
        }
    }
}

#[test]
fn encryption_and_own_rules_that_are_only_promised_are_told_of() {
    let spec = "{wireguardEnabled: true, wireguardEnabledV6: true, wireguardHostEncryptionEnabled: true, wireguardMTU: 1400, \
                bpfEnabled: true, bpfEnforceRPF: Strict, bpfHostNetworkedNATWithoutCTLB: Disabled, chainInsertMode: append, \
                iptablesFilterAllowAction: Return, ipForwarding: Disabled, logSeverityScreen: Debug}";
    let expected = [
        ("wireguardEnabled", "protection-not-done"),
        ("wireguardEnabledV6", "protection-not-done"),
        ("wireguardHostEncryptionEnabled", "protection-not-done"),
        ("bpfEnabled", "setting-without-effect"),
        ("bpfEnforceRPF", "protection-not-done"),
        ("chainInsertMode", "protection-not-done"),
        ("iptablesFilterAllowAction", "protection-not-done"),
        ("ipForwarding", "protection-not-done"),
    ];
    let expected = expected.map(|(name, code)| (format!("spec.{name}"), code));
    assert_eq!(told(&felix(spec)), expected);
    // A text instead of a boolean does not hide the setting.
    assert_eq!(told(&felix("{wireguardEnabled: 'true'}")).len(), 1);
    // A configuration that no node uses is reported, too.
    let general = object("FelixConfiguration", "general", "{wireguardEnabled: true}");
    assert_eq!(told(&general).len(), 2);
}

#[test]
fn what_calicos_installer_writes_is_quiet_but_for_flow_logs() {
    let written = "{bpfConnectTimeLoadBalancing: TCP, bpfHostNetworkedNATWithoutCTLB: Enabled, bpfLogLevel: '', \
                   floatingIPs: Disabled, flowLogsFlushInterval: 15s, \
                   flowLogsGoldmaneServer: 'goldmane.calico-system.svc:7443', healthPort: 9099, logSeverityScreen: Info, \
                   nftablesMode: Disabled, reportingInterval: 0s, vxlanPort: 4789, vxlanVNI: 4096, wireguardEnabled: false}";
    assert_eq!(
        told(&felix(written)),
        [("spec.flowLogsGoldmaneServer".to_owned(), "setting-without-effect")]
    );
    let pool = "{allowedUses: [Workload, Tunnel], assignmentMode: Automatic, blockSize: 26, cidr: 10.0.0.0/16, \
                disableBGPExport: true, ipipMode: Always, natOutgoing: true, nodeSelector: all(), vxlanMode: Never}";
    assert_eq!(told(&object("IPPool", "pods", pool)), []);
}

#[test]
fn a_field_that_is_in_no_row_is_told_of_with_the_one_that_is_perhaps_meant() {
    let text = felix("{dnsPolicyMode: Inline, wireguardEnable: true}");
    let problems = read("file.yaml", &text).unwrap().problems;
    let said: Vec<String> = problems.iter().map(Problem::finding).collect();
    assert_eq!(
        said,
        [
            "spec.dnsPolicyMode: unknown field",
            "spec.wireguardEnable: unknown field: perhaps wireguardEnabled is meant"
        ]
    );
    assert!(problems[0].help().unwrap().contains("what it promises is not done"));
}

#[test]
fn a_policy_before_tracking_or_translation_says_itself_that_it_denies_nothing() {
    for field in ["doNotTrack", "preDNAT"] {
        let text = |truth| {
            let spec = format!(
                "{{{field}: {truth}, applyOnForward: true, selector: has(host), ingress: [{{action: Deny}}]}}"
            );
            object("GlobalNetworkPolicy", "early", &spec)
        };
        let expected = [(format!("spec.{field}"), "host-policy-not-enforced")];
        assert_eq!(told(&text(true)), expected);
        assert_eq!(told(&text(false)), []);
    }
}

#[test]
fn annotations_of_pods_templates_and_namespaces_that_are_not_done_are_told_of() {
    let limit = "protection-not-done";
    let without = "setting-without-effect";
    let cases = [
        ("kubernetes.io/ingress-bandwidth", "10M", Some(limit)),
        ("kubernetes.io/egress-bandwidth", "0", None),
        ("qos.projectcalico.org/ingressPacketRate", "100", Some(limit)),
        ("qos.projectcalico.org/a-later-one", "1", Some(limit)),
        ("egress.projectcalico.org/selector", "all()", Some(limit)),
        ("cni.projectcalico.org/ipAddrs", "[]", Some(without)),
        ("cni.projectcalico.org/ipv4pools", "[]", Some(without)),
        ("cni.projectcalico.org/allowedSourcePrefixes", "[]", Some(without)),
        ("cni.projectcalico.org/a-later-one", "1", Some(without)),
        ("cni.projectcalico.org/containerID", "0a", None),
        ("cni.projectcalico.org/podIPs", "10.0.0.1", None),
        ("example.com/ipAddrs", "[]", None),
        ("ipAddrs", "[]", None),
    ];
    for (name, value, code) in cases {
        let metadata = format!("{{name: web, annotations: {{'{name}': '{value}'}}}}");
        let expected = |path: &str| {
            let code = code.map(|code| (format!("{path}metadata.annotations[\"{name}\"]"), code));
            code.into_iter().collect::<Vec<_>>()
        };
        let pod = format!("{{apiVersion: v1, kind: Pod, metadata: {metadata}}}");
        assert_eq!(told(&pod), expected(""), "{name}");
        let Object::Pod(read) = &object_of(&pod) else { panic!("a pod") };
        let rows: Vec<&str> = read.not_done.iter().map(|(row, _)| *row).collect();
        let begins = rows.iter().all(|row| name.starts_with(row));
        assert!(begins && rows.len() == usize::from(code.is_some()), "{name}: {rows:?}");
        let of_namespaces = name.starts_with("egress.") || name.ends_with("ipv4pools");
        let namespace = format!("{{apiVersion: v1, kind: Namespace, metadata: {metadata}}}");
        let of_namespace = if of_namespaces { expected("") } else { Vec::new() };
        assert_eq!(told(&namespace), of_namespace, "{name}");
        let template = format!("{{template: {{metadata: {metadata}, spec: {{}}}}}}");
        let deployment = format!(
            "{{apiVersion: apps/v1, kind: Deployment, metadata: {{name: web}}, spec: {template}}}"
        );
        assert_eq!(told(&deployment), expected("spec.template."), "{name}");
        let owned = deployment.replace("Deployment", "ReplicaSet").replace(
            "metadata: {name: web}, spec",
            "metadata: {name: web, ownerReferences: [{kind: Deployment, name: web, controller: true}]}, spec",
        );
        assert_eq!(told(&owned), [], "{name}");
    }
}

#[test]
fn calicos_kinds_that_are_not_read_are_told_of_with_what_is_not_done() {
    for (kind, help) in kinds::UNREAD {
        let problems = read("file.yaml", &object(kind, "default", "{}")).unwrap().problems;
        let [problem] = &problems[..] else { panic!("{kind}: {problems:?}") };
        assert_eq!((problem.code(), problem.help()), (Code::UnknownKind, Some(*help)), "{kind}");
        // The table contains no kinds that Manx reads, and does not apply to kinds of other groups.
        assert!(Kind::ALL.iter().all(|read| read.name() != *kind), "{kind}");
        assert_eq!(unread(kind, "example.com/v1"), None);
    }
}

#[test]
fn a_variable_of_felix_is_told_of_as_its_field() {
    for (name, value, begins) in [
        ("FELIX_WIREGUARDENABLED", "true", "is NOT DONE: "),
        ("FELIX_WireguardEnabled", "1", "is NOT DONE: "),
        ("FELIX_CHAININSERTMODE", "append", "is NOT DONE: "),
        ("FELIX_VXLANPORT", "8472", "has no effect: "),
        ("FELIX_DEFAULTENDPOINTTOHOSTACTION", "Drop", "is not heeded as a variable: "),
        ("FELIX_DNSPOLICYMODE", "Inline", "is not known to this version of Manx"),
    ] {
        assert!(of_variable(name, value).is_some_and(|it| it.starts_with(begins)), "{name}");
    }
    for (name, value) in [
        ("FELIX_WIREGUARDENABLED", "False"),
        ("FELIX_WIREGUARDENABLED", ""),
        ("FELIX_VXLANPORT", "4789"),
        ("FELIX_LOGSEVERITYSCREEN", "debug"),
        ("WIREGUARDENABLED", "true"),
    ] {
        assert_eq!(of_variable(name, value), None, "{name}");
    }
}

#[test]
fn a_setting_that_is_not_done_makes_no_object_invalid() {
    clean(&felix("{wireguardEnabled: false}"));
    assert!(invalid(&felix("{wireguardEnabled: true, ipForwarding: Disabled}")).is_none());
    assert!(invalid(&felix("[]")).is_some());
}

/// Returns the tables that the page must contain.
fn tables() -> String {
    let mut page = String::new();
    for (title, table) in [("Fields", SPECS), ("Annotations", ANNOTATIONS)] {
        for (kind, rows) in table {
            let name = match kind {
                Kind::CalicoNetworkPolicy => "NetworkPolicy (Calico's)",
                kind => kind.name(),
            };
            writeln!(page, "## {title} of {name}\n\n| {} | | |", title.to_lowercase()).unwrap();
            writeln!(page, "|---|---|---|").unwrap();
            for (names, effect) in rows.iter().copied().flatten() {
                let shown = |name: &&str| {
                    let all = if name.ends_with('/') { "*" } else { "" };
                    format!("`{name}{all}`")
                };
                let names: Vec<String> = names.iter().map(shown).collect();
                writeln!(page, "| {} | {} |", names.join(", "), row(*effect)).unwrap();
            }
            page.push('\n');
        }
    }
    page
}

fn row(effect: Effect) -> String {
    match effect {
        Effect::Heeded(text) => format!("heeded | {text}"),
        Effect::Quiet(text) => format!("without effect | {text}"),
        Effect::NotDone(NotDone { code, unless, message, help }) => {
            let texts = |texts: &[&str]| {
                let texts: Vec<String> = texts.iter().map(|text| format!("`{text}`")).collect();
                texts.join(" or ")
            };
            let unless = match unless {
                Unless::Empty => String::new(),
                Unless::Boolean(truth) => format!("unless `{truth}`, "),
                Unless::Integer(number) => format!("unless `{number}`, "),
                Unless::Texts(quiet) => format!("unless {}, ", texts(quiet)),
            };
            format!(
                "**warned of** | {unless}[`{code}`](check.md#{code}): {message}. Instead: {help}"
            )
        }
    }
}

#[test]
fn the_page_about_settings_has_these_tables() {
    let page = include_str!("../../../../docs/settings.md");
    let start = page.find("## Fields of ").expect("the first table");
    let end = page.find("# Kinds that Manx does not read").expect("the last table");
    assert!(page[start..end] == tables(), "docs/settings.md is to have:\n{}", tables());
    let mut unread = "| kind | |\n|---|---|\n".to_owned();
    for (kind, help) in kinds::UNREAD {
        writeln!(unread, "| {kind} | {help} |").unwrap();
    }
    assert!(page.contains(&unread), "docs/settings.md is to have:\n{unread}");
}
