//! Workloads, and the labels and values that their pods may have in addition to those of the template.

use super::controller::{Controller, Given};
use super::kind::{Kind, ObjectKey};
use super::pairs::Pairs;
use super::pod::{Owner, Pod};

/// The maximum number of characters in a label's value. The cluster leaves out a label with a longer value.
const LABEL_VALUE: usize = 63;

/// The numbers of a workload's pods: the ordinals of a `StatefulSet`, or the indexes of a Job with `completionMode:
/// Indexed`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numbers {
    /// The first number: `spec.ordinals.start`, or 0.
    pub first: u32,
    /// The number of pods: `spec.replicas`, or `spec.completions`.
    pub count: Option<u32>,
}

impl Numbers {
    /// Returns whether a pod may have the number. If the number of pods is absent or 0, a pod with any later number may
    /// be made.
    fn may_have(self, number: u32) -> bool {
        let after = number.checked_sub(self.first);
        after.is_some_and(|after| self.count.is_none_or(|count| count == 0 || after < count))
    }
}

/// A workload: an object from which a controller makes pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    /// `metadata.labels` of the workload. Its pods do not get these labels.
    pub labels: Pairs,
    /// The labels and the `spec` of the pods. For a `CronJob` they are those of its jobs' pods.
    pub template: Pod,
    /// `spec.replicas`; for a Job `spec.parallelism`.
    pub replicas: Option<u32>,
    /// The numbers of the workload's pods, if its pods are numbered.
    pub numbers: Option<Numbers>,
    /// Whether the workload runs no pods: it is suspended, it is being deleted, or it is a Job that has ended.
    pub idle: bool,
    /// The object that controls the workload, such as the Deployment of a `ReplicaSet` or the `CronJob` of a Job.
    pub owner: Option<Owner>,
}

impl Workload {
    /// Returns the labels that the controller of the workload `key` gives to a pod in addition to those of the
    /// template. Labels whose values do not follow from manifests are left out.
    pub fn labels(&self, key: &ObjectKey, pod: &str, number: u32) -> Vec<(&'static str, String)> {
        let value = |given| match given {
            Given::PodName => Some(pod.to_owned()),
            Given::Number => self.numbers.map(|_| number.to_string()),
            Given::Name => Some(key.name.clone()),
            Given::Unknown => None,
        };
        let labels = given(key).iter().filter_map(|(label, it)| Some((*label, value(*it)?)));
        labels.filter(|(_, value)| value.len() <= LABEL_VALUE).collect()
    }

    /// Returns whether the controller of the workload `key` may give its pods a label that the template lacks. If
    /// `value` is given, the label must have this value. A label whose value is known only in the cluster may have any
    /// value. An unknown controller may give any label.
    pub fn may_give(&self, key: &ObjectKey, label: &str, value: Option<&str>) -> bool {
        if key.kind == Kind::Workload(Controller::Other) {
            return true;
        }
        let has_number = |text: &str| {
            let number = text.parse().ok().filter(|number: &u32| number.to_string() == text);
            number.is_some_and(|number| self.numbers.is_some_and(|all| all.may_have(number)))
        };
        let may_be = |given| match (given, value) {
            (Given::Number | Given::PodName, None) => self.numbers.is_some(),
            (Given::Number, Some(value)) => has_number(value),
            (Given::PodName, Some(value)) => {
                value.rsplit_once('-').is_some_and(|(name, it)| name == key.name && has_number(it))
            }
            (Given::Name, Some(value)) => value == key.name,
            (Given::Name, None) | (Given::Unknown, _) => true,
        };
        given(key).iter().any(|(it, given)| *it == label && may_be(*given))
    }
}

fn given(key: &ObjectKey) -> &'static [(&'static str, Given)] {
    match key.kind {
        Kind::Workload(controller) => controller.given(),
        _ => &[],
    }
}

/// Returns the first part of the name of a workload of another project's kind: `KIND.GROUP`, or `KIND` without a group.
pub fn kind_and_group(kind: &str, api_version: &str) -> String {
    match api_version.split_once('/') {
        Some((group, _)) => format!("{kind}.{group}"),
        None => kind.to_owned(),
    }
}

impl ObjectKey {
    /// Returns the kind and the name by which the pods of a workload name their owner.
    pub fn as_owner(&self) -> Owner {
        let (kind, name) = match self.name.split_once('/') {
            Some((kind, name)) if self.kind == Kind::Workload(Controller::Other) => {
                (kind.split('.').next().unwrap_or(kind), name)
            }
            _ => (self.kind.name(), self.name.as_str()),
        };
        Owner { kind: kind.to_owned(), name: name.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::contents::Contents;
    use super::super::{Object, ObjectKey};
    use super::Workload;

    fn workload(kind: &str, version: &str, spec: &str) -> (ObjectKey, Workload) {
        let text = format!(
            "{{apiVersion: {version}, kind: {kind}, metadata: {{name: db, namespace: s}}, spec: {{{spec}}}}}"
        );
        let contents = Contents::from_texts([("a.yaml", text.as_str())]);
        let key = contents.objects.keys().next().unwrap().clone();
        let Some(Object::Workload(workload)) = contents.valid(&key) else { panic!("{text}") };
        (key.clone(), (**workload).clone())
    }

    const TEMPLATE: &str =
        "template: {metadata: {labels: {app: db}}, spec: {containers: [{name: c}]}}";

    #[test]
    fn a_stateful_sets_pods_have_their_names_and_numbers() {
        let of = |spec: &str| workload("StatefulSet", "apps/v1", &format!("{spec}, {TEMPLATE}"));
        let (key, set) = of("replicas: 3, ordinals: {start: 5}");
        let name = |text| set.may_give(&key, "statefulset.kubernetes.io/pod-name", Some(text));
        assert!(name("db-5") && name("db-7"));
        for wrong in ["db-4", "db-8", "db-05", "db-+5", "db", "web-5", "db-x", "-5", "db-5-5"] {
            assert!(!name(wrong), "{wrong}");
        }
        let index = |text| set.may_give(&key, "apps.kubernetes.io/pod-index", Some(text));
        assert!(index("6") && !index("0") && !index("8"));
        assert!(set.may_give(&key, "controller-revision-hash", Some("db-5f6d7")));
        assert!(!set.may_give(&key, "pod-template-hash", Some("5f6d7")));
        let labels = set.labels(&key, "db-6", 6);
        let name = ("statefulset.kubernetes.io/pod-name", "db-6".to_owned());
        assert_eq!(labels, [name, ("apps.kubernetes.io/pod-index", "6".to_owned())]);
        // Pods with later numbers may be made.
        for open in ["replicas: 0", "serviceName: db"] {
            let (key, set) = of(open);
            let name = |text| set.may_give(&key, "statefulset.kubernetes.io/pod-name", Some(text));
            assert!(name("db-0") && name("db-9") && !name("web-0"), "{open}");
        }
    }

    #[test]
    fn what_only_a_cluster_knows_may_be_anything_and_is_no_label_of_a_made_pod() {
        for (kind, version, label) in [
            ("Deployment", "apps/v1", "pod-template-hash"),
            ("DaemonSet", "apps/v1", "controller-revision-hash"),
            ("DaemonSet", "apps/v1", "pod-template-generation"),
            ("Job", "batch/v1", "batch.kubernetes.io/controller-uid"),
            ("Job", "batch/v1", "controller-uid"),
        ] {
            let (key, it) = workload(kind, version, TEMPLATE);
            assert!(
                it.may_give(&key, label, Some("x")) && it.may_give(&key, label, None),
                "{kind}"
            );
            assert!(it.labels(&key, "db-1", 1).iter().all(|(given, _)| *given != label), "{kind}");
            assert!(!it.may_give(&key, "tier", None), "{kind}");
        }
    }

    #[test]
    fn jobs_have_their_names_and_indexes_and_those_of_a_cron_job_come_later() {
        let indexed = format!("completionMode: Indexed, completions: 3, {TEMPLATE}");
        let (key, job) = workload("Job", "batch/v1", &indexed);
        for label in ["batch.kubernetes.io/job-name", "job-name"] {
            assert!(job.may_give(&key, label, Some("db")), "{label}");
            assert!(!job.may_give(&key, label, Some("bd")), "{label}");
        }
        let index = "batch.kubernetes.io/job-completion-index";
        assert!(job.may_give(&key, index, Some("2")) && !job.may_give(&key, index, Some("3")));
        assert!(job.labels(&key, "db-1", 1).contains(&(index, "1".to_owned())));
        let (key, plain) = workload("Job", "batch/v1", TEMPLATE);
        assert!(!plain.may_give(&key, index, None) && plain.labels(&key, "db-1", 1).len() == 2);
        let (key, cron) =
            workload("CronJob", "batch/v1", &format!("jobTemplate: {{spec: {{{indexed}}}}}"));
        assert!(cron.may_give(&key, "job-name", Some("db-29000000")));
        assert!(cron.may_give(&key, index, Some("2")) && !cron.may_give(&key, index, Some("3")));
        assert!(cron.labels(&key, "db-1", 1).iter().all(|(label, _)| *label == index));
    }
}
