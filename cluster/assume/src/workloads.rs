//! Makes the pods that the controllers of workloads would make.
//!
//! Labels, service account, ports and host network come from the template, and the controller adds labels
//! ([`Workload::labels`]). The name of a pod is the workload's name with a number. The hash in the name of a
//! Deployment's pod, and the label `pod-template-hash`, are known only in a cluster.
//!
//! Source: Kubernetes documentation, "Workloads".

use std::collections::{BTreeMap, BTreeSet};

use manx_objects::object::{Controller, Kind, Object, ObjectKey, Owner, Pod, Workload};

use crate::{Completion, Options, REPLICAS};

/// Makes the pods of all workloads except `DaemonSets`.
pub(crate) fn make_pods(completion: &mut Completion<'_>, options: Options) {
    let (mut workloads, mut pods) = (0, 0);
    for (key, workload) in without_pods(completion) {
        let Kind::Workload(controller) = key.kind else { continue };
        let count = match (workload.replicas, options.replicas) {
            _ if controller == Controller::DaemonSet => continue,
            (Some(0), _) => 0,
            (_, Some(count)) => count,
            // A workload that requests no number of pods has one pod, unless an autoscaler changes this.
            (Some(wanted), None) => wanted.min(REPLICAS),
            (None, None) if matches!(controller, Controller::Job | Controller::CronJob) => 1,
            (None, None) => REPLICAS,
        };
        let first = workload.numbers.map_or(1, |numbers| numbers.first);
        for number in first..first.saturating_add(count) {
            let name = format!("{}-{number}", key.as_owner().name);
            make_pod(completion, &key, &workload, name, number);
        }
        workloads += u32::from(count > 0);
        pods += count;
    }
    if pods > 0 {
        let most = match options.replicas {
            Some(replicas) => format!("{replicas} each"),
            None => format!("as many as it wants, {REPLICAS} at most; --replicas N makes N"),
        };
        completion.note(format!("{pods} pods of {workloads} workloads without pods: {most}"));
    }
}

/// Makes a pod of each `DaemonSet` on each node that its node selector matches.
pub(crate) fn make_daemon_pods(completion: &mut Completion<'_>) {
    let nodes: Vec<_> =
        completion.nodes().map(|(key, node)| (key.name.clone(), node.labels.clone())).collect();
    let mut sets = 0;
    let mut pods = 0;
    for (key, workload) in without_pods(completion) {
        if key.kind != Kind::Workload(Controller::DaemonSet) {
            continue;
        }
        let selector = &workload.template.node_selector;
        let selected = nodes.iter().filter(|(_, labels)| {
            selector.iter().all(|(label, value)| labels.get(label) == Some(value))
        });
        let before = pods;
        for (number, (node, _)) in (0_u32..).zip(selected) {
            let mut workload = workload.clone();
            workload.template.node_name = Some(node.clone());
            let name = format!("{}-{node}", key.name);
            make_pod(completion, &key, &workload, name, number);
            pods += 1;
        }
        sets += u32::from(pods > before);
    }
    if pods > 0 {
        completion.note(format!("{pods} pods of {sets} DaemonSets without pods: one on each node"));
    }
}

fn make_pod(
    completion: &mut Completion<'_>,
    key: &ObjectKey,
    workload: &Workload,
    name: String,
    number: u32,
) {
    let mut pod = Pod { owner: Some(key.as_owner()), ..workload.template.clone() };
    for (label, value) in workload.labels(key, &name, number) {
        pod.labels.insert(label.to_owned(), value);
    }
    let mut pod_key = ObjectKey { kind: Kind::Pod, namespace: key.namespace.clone(), name };
    while completion.contents.objects.contains_key(&pod_key) {
        pod_key.name.push_str("-x");
    }
    completion.add(pod_key, Object::Pod(Box::new(pod)));
}

/// Returns the workloads that should run and have no pods in the input. If a workload has pods, the workloads that own
/// it have pods, too.
fn without_pods(completion: &Completion<'_>) -> Vec<(ObjectKey, Workload)> {
    let all: BTreeMap<&ObjectKey, &Workload> = completion
        .contents
        .all_valid()
        .filter_map(|(key, object)| match object {
            Object::Workload(workload) => Some((key, &**workload)),
            _ => None,
        })
        .collect();
    let mut having = BTreeSet::new();
    for (key, object) in completion.contents.all_valid() {
        let Object::Pod(pod) = object else { continue };
        let mut next =
            pod.owner.as_ref().and_then(|owner| controlled_by(&key.namespace, owner, &all));
        // The loop follows the owners. It ends even if they form a cycle.
        while let Some(key) = next.filter(|key| having.insert(*key)) {
            let owner = all[key].owner.as_ref();
            next = owner.and_then(|owner| controlled_by(&key.namespace, owner, &all));
        }
    }
    let controlled = |key: &ObjectKey, workload: &Workload| {
        let owner = workload.owner.as_ref();
        owner.is_some_and(|owner| controlled_by(&key.namespace, owner, &all).is_some())
    };
    all.iter()
        .filter(|(key, workload)| {
            !workload.idle
                && !having.contains(*key)
                && !controlled(key, workload)
                && !is_other_with_pods(completion, key, workload)
        })
        .map(|(key, workload)| ((*key).clone(), (*workload).clone()))
        .collect()
}

/// Returns whether the input may contain a pod of this workload, whose kind Manx does not read. The objects between
/// such a workload and its pods are not known. So a pod with the template's labels counts as one of its pods.
fn is_other_with_pods(completion: &Completion<'_>, key: &ObjectKey, workload: &Workload) -> bool {
    let has = |pod: &Pod| {
        let mut labels = workload.template.labels.iter();
        labels.all(|(label, value)| pod.labels.get(label).is_some_and(|it| it == value))
    };
    let mut pods = completion.contents.of_kind_in(Kind::Pod, &key.namespace);
    key.kind == Kind::Workload(Controller::Other)
        && pods
            .any(|(_, stored)| matches!(stored.state.valid(), Some(Object::Pod(pod)) if has(pod)))
}

/// Returns the workload that an owner reference names. The `ReplicaSet` of a Deployment or the Job of a `CronJob` may
/// not be in the input. Then the owner follows from the name of the `ReplicaSet` or Job: it is the owner's name, a
/// dash, and a hash or a time.
fn controlled_by<'a>(
    namespace: &str,
    owner: &Owner,
    all: &BTreeMap<&'a ObjectKey, &Workload>,
) -> Option<&'a ObjectKey> {
    let find = |kind: &str, name: &str| {
        let kind = Kind::ALL.into_iter().find(|known| known.name() == kind)?;
        all.get_key_value(&ObjectKey::new(kind, namespace, name)).map(|(key, _)| *key)
    };
    find(&owner.kind, &owner.name).or_else(|| {
        let (stem, _) = owner.name.rsplit_once('-')?;
        match owner.kind.as_str() {
            "ReplicaSet" => find("Deployment", stem),
            "Job" => find("CronJob", stem),
            _ => None,
        }
    })
}
