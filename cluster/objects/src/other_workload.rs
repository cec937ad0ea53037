//! Workloads of kinds that Manx does not read, such as Argo's Rollout, `OpenShift`'s `DeploymentConfig` or Knative's
//! Service.
//!
//! An object with `spec.template.metadata` counts as a workload. A template without containers may be for something
//! else (a secret, a node), or for pods of another kind (a virtual machine). Such an object counts as idle: no pod is
//! made from it, and a selector for its labels is not reported.

use super::cursor::{Cursor, Findings};
use super::metadata;
use super::object::{Controller, Kind, ObjectKey, Pairs, Workload, kind_and_group};
use super::pod;
use super::tree::{Node, Value};

/// Returns the workload that a document of an unread kind stands for. The workload's name is `KIND.GROUP/NAME`. No
/// errors are reported, because the fields of the kind are not known.
pub(super) fn decode(
    node: &Node,
    (kind, api_version): (&str, &str),
) -> Option<(ObjectKey, Workload)> {
    let root = Cursor::root(node);
    let spec = root.field("spec")?;
    let template = spec.field("template")?;
    let of_pods = template.field("metadata")?;
    let mut unreadable = Findings::default();
    metadata::of_template(&of_pods, &mut unreadable);
    if unreadable.errors() {
        return None;
    }
    let key = metadata::identity(&root, Kind::Workload(Controller::Other))?;
    let name = format!("{}/{}", kind_and_group(kind, api_version), key.name);
    let key = ObjectKey { name, ..key };
    let mut unsaid = Findings::default();
    let template_of_pods = pod::template(&spec, true, &mut unsaid)?;
    let containers = template.field("spec").and_then(|spec| {
        let containers = spec.field("containers")?;
        Some(matches!(&containers.node.value, Value::Sequence(items) if !items.is_empty()))
    });
    let replicas = spec.field("replicas").and_then(|it| it.integer(&mut unsaid, "", 0..=1 << 30));
    let idle = containers != Some(true);
    let workload = Workload {
        labels: Pairs::default(),
        template: template_of_pods,
        replicas,
        numbers: None,
        idle,
        owner: None,
    };
    Some((key, workload))
}

#[cfg(test)]
mod tests {
    use super::super::contents::Contents;
    use super::super::object::{Object, Workload};
    use super::super::problem::Severity;
    use super::super::read;
    use super::super::tests::problems;

    /// Returns a document of this kind, whose template has these labels.
    fn document(version: &str, kind: &str, labels: &str, pods: &str) -> String {
        format!(
            "{{apiVersion: {version}, kind: {kind}, metadata: {{name: web, namespace: shop}}, \
             spec: {{replicas: 3, strategy: {{canary: {{}}}}, template: {{metadata: {{labels: {{{labels}}}}}, spec: {{{pods}}}}}}}}}\n"
        )
    }

    fn workloads(text: &str) -> Vec<(String, Workload)> {
        let entries = Contents::from_texts([("a.yaml", text)]);
        let of = |key| match entries.valid(key) {
            Some(Object::Workload(workload)) => (key.to_string(), (**workload).clone()),
            other => panic!("{other:?}"),
        };
        entries.objects.keys().map(of).collect()
    }

    const PODS: &str = "containerConcurrency: 5, serviceAccountName: runner, containers: [{image: x, ports: [{name: http, containerPort: 80}]}]";

    #[test]
    fn what_has_a_template_of_pods_is_a_workload_whatever_its_kind_is_called() {
        for (version, kind) in [
            ("argoproj.io/v1alpha1", "Rollout"),
            ("apps.openshift.io/v1", "DeploymentConfig"),
            // Names of kinds that are read, in other groups.
            ("serving.knative.dev/v1", "Service"),
            ("apps.kruise.io/v1beta1", "StatefulSet"),
            ("extensions/v1beta1", "Deployment"),
        ] {
            let text = document(version, kind, "app: web", PODS);
            let [(key, workload)] = &workloads(&text)[..] else { panic!("{text}") };
            let (group, _) = version.split_once('/').unwrap();
            assert_eq!(*key, format!("Workload shop/{kind}.{group}/web"));
            assert_eq!(workload.template.labels.get("app").unwrap(), "web");
            assert_eq!(workload.template.containers[0][0].port, 80);
            assert!(!workload.idle && workload.replicas == Some(3), "{kind}");
            let code = if version.contains('.') {
                "note[kind-of-another-project]"
            } else {
                "warning[unknown-kind]"
            };
            let told = format!(
                "{code}: {kind} ({version}) is not a kind that Manx reads; it is assumed that each of this \
                 file makes the pods of its spec.template\n"
            );
            assert!(problems(&text).starts_with(&told), "{}", problems(&text));
            // The kind is reported only once for each file.
            assert_eq!(read("a.yaml", &format!("{text}---\n{text}")).unwrap().problems.len(), 1);
        }
    }

    #[test]
    fn a_template_without_containers_is_idle_and_one_that_cannot_be_read_is_none() {
        let machine = document("kubevirt.io/v1", "VirtualMachine", "app: web", "domain: {}");
        assert!(workloads(&machine)[0].1.idle);
        assert!(problems(&machine).contains("each of this file is skipped"));
        for text in [
            document("argoproj.io/v1alpha1", "ApplicationSet", "app: '{{name}}'", "project: x"),
            document("argoproj.io/v1alpha1", "Rollout", "app: [web]", PODS),
            document("example.com/v1", "Thing", "a: b", "")
                .replace("metadata: {labels", "data: {labels"),
        ] {
            assert_eq!(workloads(&text), [], "{text}");
            let told = read("a.yaml", &text).unwrap().problems;
            assert!(told.iter().all(|it| it.severity == Severity::Note), "{text}");
        }
    }

    #[test]
    fn one_that_is_defined_twice_is_no_problem_and_a_kind_that_is_misspelled_is_no_other_one() {
        let one = document("argoproj.io/v1alpha1", "Rollout", "app: web", PODS);
        let two = document("argoproj.io/v1alpha1", "Rollout", "app: db", PODS);
        let contents = Contents::from_texts([("a.yaml", one.as_str()), ("b.yaml", two.as_str())]);
        assert_eq!(contents.objects.len(), 1);
        assert!(contents.problems.iter().all(|it| it.severity == Severity::Note));
        let misspelled = problems(&document("apps/v1", "Deploymnt", "app: web", PODS));
        assert!(misspelled.starts_with("error[unexpected-value]: kind: found"), "{misspelled}");
    }
}
