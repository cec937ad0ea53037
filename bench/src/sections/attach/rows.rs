//! The row: the number of pods, and the measured quantities.

/// The row's name on the command line.
pub(super) const NAME: &str = "attach";
/// The number of pods: about as many as a node has (Kubernetes, "Considerations for large clusters").
pub(super) const PODS: u8 = 100;
/// The heading of its figures.
pub(super) const HEAD: &str =
    "Attaching 100 pods to one agent at once, beside one after the other, while a policy changes";
/// Its figures, in milliseconds.
pub(super) const FIGURES: [&str; 3] = [
    "until all are attached and their policy is in force",
    "longest time between two publications of tables",
    "longest time between two answers of status",
];
