//! Workloads: objects from which controllers make pods.
//!
//! Source: Kubernetes API reference, `apps/v1`, `batch/v1`, `ReplicationController`.

use super::cursor::{Cursor, Findings};
use super::metadata::Metadata;
use super::object::{Controller, Numbers, Pod, Workload};
use super::pod;
use super::tree::Value;

/// Reads a workload. Only the pods, their number, and whether any of them run, are read from its
/// `spec`.
pub(super) fn decode(
    root: &Cursor<'_>,
    controller: Controller,
    metadata: Metadata,
    out: &mut Findings,
) -> Option<Workload> {
    root.mapping(out, &["apiVersion", "kind", "metadata", "spec", "status"], &[]);
    let spec = root.required(out, "spec", "a template of pods")?;
    let owned = metadata.owner.is_some();
    let suspended = is_true(&spec, "suspend");
    let ended = controller == Controller::Job
        && root.field("status").is_some_and(|status| status.field("completionTime").is_some());
    let (template, replicas, numbers) = match controller {
        Controller::CronJob => {
            let job = spec.required(out, "jobTemplate", "the jobs' spec")?;
            let job = job.required(out, "spec", "a template of pods")?;
            pods(&job, controller, owned, out)?
        }
        _ => pods(&spec, controller, owned, out)?,
    };
    let idle = suspended || ended || metadata.deleting;
    let Metadata { labels, owner, .. } = metadata;
    Some(Workload { labels, template, replicas, numbers, idle, owner })
}

/// Reads the template, the number of pods, and the numbers of the pods.
fn pods(
    spec: &Cursor<'_>,
    controller: Controller,
    owned: bool,
    out: &mut Findings,
) -> Option<(Pod, Option<u32>, Option<Numbers>)> {
    let template = pod::template(spec, owned, out)?;
    if matches!(controller, Controller::Job | Controller::CronJob) {
        let numbers =
            is_indexed(spec).then(|| Numbers { first: 0, count: count(spec, "completions", out) });
        return Some((template, count(spec, "parallelism", out), numbers));
    }
    let replicas = count(spec, "replicas", out);
    let numbers = (controller == Controller::StatefulSet).then(|| {
        let start = spec.field("ordinals").and_then(|ordinals| count(&ordinals, "start", out));
        Numbers { first: start.unwrap_or(0), count: replicas }
    });
    Some((template, replicas, numbers))
}

fn is_indexed(job: &Cursor<'_>) -> bool {
    let mode = job.field("completionMode").map(|field| &field.node.value);
    matches!(mode, Some(Value::String(mode)) if mode == "Indexed")
}

fn is_true(spec: &Cursor<'_>, key: &str) -> bool {
    spec.field(key).is_some_and(|field| field.node.value == Value::Boolean(true))
}

fn count(spec: &Cursor<'_>, key: &str, out: &mut Findings) -> Option<u32> {
    spec.field(key)?.integer(out, "a whole number, 0 or more", 0..=i128::from(i32::MAX))
}

#[cfg(test)]
mod tests {
    use super::super::object::{Object, Owner, Workload};
    use super::super::tests::{invalid, only};

    fn workload(text: &str) -> Workload {
        let Object::Workload(workload) = only(text) else { panic!("a workload") };
        *workload
    }

    const TEMPLATE: &str = "{metadata: {labels: {app: web}}, spec: {hostNetwork: true, containers: [{name: c, ports: [{containerPort: 80}]}]}}";

    #[test]
    fn each_kind_of_workload_has_a_template() {
        for (kind, version) in [
            ("Deployment", "apps/v1"),
            ("StatefulSet", "apps/v1"),
            ("DaemonSet", "apps/v1"),
            ("ReplicaSet", "apps/v1"),
            ("ReplicationController", "v1"),
            ("Job", "batch/v1"),
        ] {
            let text = format!(
                "{{apiVersion: {version}, kind: {kind}, metadata: {{name: web}}, spec: {{replicas: 3, parallelism: 3, template: {TEMPLATE}}}}}"
            );
            let read = workload(&text);
            assert_eq!(read.template.labels.get("app").unwrap(), "web", "{kind}");
            assert!(read.template.host_network && !read.idle, "{kind}");
            assert_eq!(read.replicas, Some(3), "{kind}");
            assert!(invalid(&text.replace("template:", "templates:")).is_some(), "{kind}");
            assert!(
                invalid(
                    &text
                        .replace("parallelism: 3", "parallelism: -1")
                        .replace("replicas: 3", "replicas: -1")
                )
                .is_some(),
                "{kind}"
            );
        }
        let cron = format!(
            "{{apiVersion: batch/v1, kind: CronJob, metadata: {{name: web}}, spec: {{schedule: x, jobTemplate: {{spec: {{template: {TEMPLATE}}}}}}}}}"
        );
        assert_eq!(workload(&cron).template.containers[0][0].port, 80);
        assert!(workload(&cron.replace("schedule: x", "suspend: true")).idle);
    }

    #[test]
    fn a_job_that_has_ended_is_idle_and_a_controller_is_the_owner() {
        let job = format!(
            "{{apiVersion: batch/v1, kind: Job, metadata: {{name: web, ownerReferences: [{{kind: X, name: x}}, {{kind: CronJob, name: c, controller: true}}]}}, \
             spec: {{template: {TEMPLATE}}}, status: {{completionTime: '2026-01-01T00:00:00Z'}}}}"
        );
        let read = workload(&job);
        assert!(read.idle);
        assert_eq!(read.owner, Some(Owner { kind: "CronJob".to_owned(), name: "c".to_owned() }));
    }
}
