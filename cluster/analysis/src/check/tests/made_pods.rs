//! The problems of selectors for pods of controllers, and of services whose endpoints are written
//! by hand.

use super::{global, told};

const WORKLOADS: &str = "
{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: db, namespace: s}, spec: {replicas: 3, template: {metadata: {labels: {app: db}}, spec: {containers: [{name: c, ports: [{name: sql, containerPort: 5432}]}]}}}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: s}, spec: {template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c}]}}}}
---
{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: logs, namespace: s}, spec: {template: {metadata: {labels: {app: logs}}, spec: {containers: [{name: c}]}}}}
---
{apiVersion: batch/v1, kind: Job, metadata: {name: load, namespace: s}, spec: {completionMode: Indexed, completions: 2, template: {metadata: {labels: {app: load}}, spec: {containers: [{name: c}]}}}}
";

/// Returns a policy in namespace `s` for pods with these labels.
fn policy(labels: &str) -> String {
    format!(
        "---\n{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: p, namespace: s}}, spec: {{podSelector: {{matchLabels: {{{labels}}}}}, \
         ingress: [{{from: [{{podSelector: {{matchLabels: {{{labels}}}}}}}]}}]}}}}\n"
    )
}

#[test]
fn labels_that_controllers_give_to_their_pods_are_known() {
    for labels in [
        "statefulset.kubernetes.io/pod-name: db-0",
        "statefulset.kubernetes.io/pod-name: db-2, app: db",
        "apps.kubernetes.io/pod-index: '2'",
        "batch.kubernetes.io/job-name: load",
        "job-name: load",
        "batch.kubernetes.io/job-completion-index: '1'",
        // The values of these labels cannot be known.
        "controller-revision-hash: db-5f6d7",
        "pod-template-hash: 5f6d7",
        "pod-template-generation: '3'",
        "batch.kubernetes.io/controller-uid: 9b1c",
        "controller-uid: 9b1c",
        "app: web, pod-template-hash: 5f6d7",
    ] {
        assert_eq!(told(&format!("{WORKLOADS}{}", policy(labels))), "", "{labels}");
    }
    for labels in [
        "statefulset.kubernetes.io/pod-name: db-3",
        "statefulset.kubernetes.io/pod-name: bd-0",
        "statefulset.kubernetes.io/pod-name: db-0, app: web",
        "apps.kubernetes.io/pod-index: '3'",
        "job-name: laod",
        "batch.kubernetes.io/job-completion-index: '2'",
        // Another controller gives this label to its pods.
        "app: db, pod-template-hash: 5f6d7",
        "app: wbe, pod-template-hash: 5f6d7",
        "tier: back",
    ] {
        let told = told(&format!("{WORKLOADS}{}", policy(labels)));
        assert!(told.starts_with("selector-matches-nothing"), "{labels}: {told}");
    }
    let hash = "selector: has(pod-template-hash) && app == 'web'";
    assert_eq!(told(&format!("{WORKLOADS}{}", global(hash))), "");
}

#[test]
fn a_port_is_looked_for_at_the_pods_that_a_controllers_label_may_mean() {
    let of = |labels: &str, port: &str| {
        let policy = policy(labels)
            .replace("ingress: [{", &format!("ingress: [{{ports: [{{port: {port}}}], "));
        told(&format!("{WORKLOADS}{policy}"))
    };
    assert_eq!(of("controller-revision-hash: x, app: db", "sql"), "");
    assert!(of("controller-revision-hash: x, app: db", "slq").starts_with("no-such-port"));
}

#[test]
fn a_workload_of_a_kind_that_is_not_read_is_in_its_namespace_and_may_have_any_further_label() {
    for (version, kind) in [
        ("argoproj.io/v1alpha1", "Rollout"),
        ("apps.openshift.io/v1", "DeploymentConfig"),
        ("v1", "DeploymentConfig"),
        ("serving.knative.dev/v1", "Service"),
        ("kubevirt.io/v1", "VirtualMachine"),
    ] {
        let pods = if kind == "VirtualMachine" { "domain: {}" } else { "containers: [{image: x}]" };
        let of = |labels: &str| {
            told(&format!(
                "{{apiVersion: {version}, kind: {kind}, metadata: {{name: web, namespace: s}}, spec: {{template: {{metadata: {{labels: {{app: web}}}}, spec: {{{pods}}}}}}}}}\n\
                 ---\n{{apiVersion: v1, kind: Pod, metadata: {{name: a, namespace: far}}}}\n{}",
                policy(labels)
            ))
        };
        assert_eq!(of("app: web"), "", "{kind}");
        assert_eq!(of("serving.knative.dev/service: web"), "", "{kind}");
        assert!(of("app: wbe").starts_with("selector-matches-nothing"), "{kind}");
    }
}

#[test]
fn a_label_that_a_pod_may_have_keeps_it_out_of_no_rule() {
    let rollout = "
{apiVersion: argoproj.io/v1alpha1, kind: Rollout, metadata: {name: web, namespace: s}, spec: {template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c, ports: [{name: http, containerPort: 80}]}]}}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: s}, spec: {containers: [{name: c, ports: [{name: pg, containerPort: 5432}]}]}}
";
    let of = |port: &str| {
        let rule = format!(
            "{{action: Allow, protocol: TCP, destination: {{notSelector: has(quarantine), ports: [{port}]}}}}"
        );
        told(&format!("{rollout}{}", global(&format!("selector: all(), ingress: [{rule}]"))))
    };
    assert_eq!(of("http"), "");
    assert!(of("htpp").starts_with("no-such-port"));
}

#[test]
fn a_service_with_endpoints_that_are_copied_has_endpoints() {
    let rule = "selector: all(), egress: [{action: Allow, destination: {services: {name: db, namespace: s}}}]";
    let of = |service: &str, endpoints: &str| {
        told(&format!(
            "{{apiVersion: v1, kind: Service, metadata: {{name: {service}, namespace: s}}, spec: {{ports: [{{port: 80}}]}}}}\n\
             ---\n{{apiVersion: v1, kind: Endpoints, metadata: {{name: db, namespace: s{endpoints}}}, subsets: [{{addresses: [{{ip: 192.0.2.7}}]}}]}}\n{}",
            global(rule)
        ))
    };
    assert_eq!(of("db", ""), "");
    assert!(of("web", "").starts_with("no-such-service"));
    let skipped = ", labels: {endpointslice.kubernetes.io/skip-mirror: 'true'}";
    assert!(of("db", skipped).starts_with("no-such-service"));
}
