//! Controllers of workloads, and the labels that they give to pods in addition to those of the template. Only this
//! module defines these labels.
//!
//! Source: Kubernetes documentation, "Well-Known Labels, Annotations and Taints".

/// A controller of workloads, named after the kind of object that it controls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Controller {
    /// `apps/v1` Deployment.
    Deployment,
    /// `apps/v1` `StatefulSet`.
    StatefulSet,
    /// `apps/v1` `DaemonSet`.
    DaemonSet,
    /// `apps/v1` `ReplicaSet`.
    ReplicaSet,
    /// `v1` `ReplicationController`.
    ReplicationController,
    /// `batch/v1` Job.
    Job,
    /// `batch/v1` `CronJob`.
    CronJob,
    /// A controller of a kind that Manx does not read; the objects of this kind have a template of pods. The names of
    /// these objects have the form `KIND/NAME`.
    Other,
}

/// The value that a controller writes into a label of its pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Given {
    PodName,
    /// The number of the pod within its workload.
    Number,
    /// The workload's name.
    Name,
    /// A value that is known only in the cluster: a hash, a uid, the name of a later object.
    Unknown,
}

impl Controller {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Deployment => "Deployment",
            Self::StatefulSet => "StatefulSet",
            Self::DaemonSet => "DaemonSet",
            Self::ReplicaSet => "ReplicaSet",
            Self::ReplicationController => "ReplicationController",
            Self::Job => "Job",
            Self::CronJob => "CronJob",
            Self::Other => "Workload",
        }
    }

    pub(super) const fn api_versions(self) -> &'static [&'static str] {
        match self {
            Self::Deployment | Self::StatefulSet | Self::DaemonSet | Self::ReplicaSet => {
                &["apps/v1"]
            }
            Self::ReplicationController => &["v1"],
            Self::Job | Self::CronJob => &["batch/v1"],
            Self::Other => &["(not read)"],
        }
    }

    /// Returns the labels that pods get in addition to those of the template. A label with the pod's number is given
    /// only if the pods have [`Numbers`].
    pub(super) const fn given(self) -> &'static [(&'static str, Given)] {
        match self {
            Self::Deployment => &[("pod-template-hash", Given::Unknown)],
            Self::StatefulSet => &[
                ("statefulset.kubernetes.io/pod-name", Given::PodName),
                ("apps.kubernetes.io/pod-index", Given::Number),
                ("controller-revision-hash", Given::Unknown),
            ],
            Self::DaemonSet => &[
                ("controller-revision-hash", Given::Unknown),
                ("pod-template-generation", Given::Unknown),
            ],
            Self::Job => &[
                ("batch.kubernetes.io/job-name", Given::Name),
                ("job-name", Given::Name),
                ("batch.kubernetes.io/job-completion-index", Given::Number),
                ("batch.kubernetes.io/controller-uid", Given::Unknown),
                ("controller-uid", Given::Unknown),
            ],
            // The jobs of a `CronJob` have their own names, which are not known here.
            Self::CronJob => &[
                ("batch.kubernetes.io/job-name", Given::Unknown),
                ("job-name", Given::Unknown),
                ("batch.kubernetes.io/job-completion-index", Given::Number),
                ("batch.kubernetes.io/controller-uid", Given::Unknown),
                ("controller-uid", Given::Unknown),
            ],
            Self::ReplicaSet | Self::ReplicationController | Self::Other => &[],
        }
    }
}
