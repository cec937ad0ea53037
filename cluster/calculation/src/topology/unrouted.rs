//! Addresses that do not lead to the pods that name them, and why.

use std::collections::BTreeMap;
use std::net::IpAddr;

use manx_objects::few;
use manx_policy_compiler::model::ObjectName;

use super::ReservedFor;
use crate::import::Unheld;

/// Addresses that pods name and that do not lead to them, with the pods.
pub type Unroutables = BTreeMap<(IpAddr, ObjectName), Unrouted>;

/// Why an address does not lead to a pod that names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unrouted {
    /// The pod does not have it.
    Unheld(Unheld),
    /// It is an address of this node.
    IsOfNode(String),
    /// It is needed for this, and so no pod's.
    Reserved(ReservedFor),
    /// It lies in no pool.
    Unpooled,
}

/// One line for each cause, however many addresses it concerns: all pods of a cluster may have the same one.
pub(super) fn lines(unrouted: &Unroutables) -> Vec<String> {
    const SHOWN: usize = 5;
    let mut causes: BTreeMap<(String, &str), Vec<String>> = BTreeMap::new();
    for ((address, pod), why) in unrouted {
        let of_pod = format!("{address} of Pod {pod}");
        let (cause, remedy, of) = match why {
            Unrouted::Unheld(Unheld::Held(other)) => (
                "because other pods have them".to_owned(),
                "give each pod its own",
                format!("{of_pod} (Pod {other} has it)"),
            ),
            Unrouted::Unheld(Unheld::OutOfPlace) => (
                "because only annotations name them, and they lie in no pod CIDR of the pod's node and in no IPPool, or are \
                 a node's"
                    .to_owned(),
                "remove the annotation, which is the CNI plugin's to write",
                of_pod,
            ),
            Unrouted::IsOfNode(node) => (
                format!("because they are addresses of Node {node:?}"),
                "give the pods other ones",
                of_pod,
            ),
            Unrouted::Reserved(what) => {
                (format!("because {what} has them"), "give the pods other ones", of_pod)
            }
            Unrouted::Unpooled => (
                "because they lie in no pod CIDR of the pod's node and in no IPPool, so it is not known whether they are \
                 behind a tunnel"
                    .to_owned(),
                "make an IPPool around them (ipipMode: Never if they are not)",
                of_pod,
            ),
        };
        causes.entry((cause, remedy)).or_default().push(of);
    }
    let line = |((cause, remedy), all): ((String, &str), Vec<String>)| {
        format!("addresses not routed, {cause}: {}; {remedy}", few(all, SHOWN))
    };
    causes.into_iter().map(line).collect()
}
