//! The row: the number of pods, and the measured quantities.

/// The name of the row on the command line.
pub(super) const NAME: &str = "attach";
/// The number of pods, which is about that of a node (Kubernetes, "Considerations for large clusters").
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
