//! Changes of the datastore, each by the cheapest way. A pod of another node mostly takes a few stores into the image
//! in use. A policy, a network set or the endpoints of a service that policies name take new tables. A node or a pool
//! takes another topology, and mostly a few stores into the routes in use. A pod with an address outside of its node's
//! blocks takes both. For every other change all objects are imported.

use manx_policy_compiler::compile::PodChange;
use manx_policy_compiler::image::Image;
use manx_policy_compiler::model::Model;

use super::Calculation;
use crate::import::{ChangedPod, Cluster, Effect};
use manx_objects::contents::{Changes, Contents};

/// The next step of the caller after a delta.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextStep {
    /// Nothing: the cluster and the image in use are up to date. The number of pods that changed in the image.
    Nothing(u64),
    /// The cluster is up to date, and the topology is unchanged. Tables are to be calculated.
    Tables,
    /// The cluster is up to date. The topology is to be calculated, and then tables if `tables` says so or
    /// [`Calculation::change_routes`] cannot store the change.
    Routes {
        /// The number of pods that changed in the image.
        pods: u64,
        /// Tables are to be made in any case.
        tables: bool,
    },
    /// The cluster is to be imported anew.
    Import,
}

impl Calculation {
    /// Applies `changes`, which have led to `contents`, to `cluster` and to `image`, which is in use.
    pub fn apply_delta(
        &mut self,
        image: &Image,
        cluster: &mut Cluster,
        contents: &Contents,
        changes: &Changes,
    ) -> NextStep {
        let Changes::Objects(objects) = changes else { return NextStep::Import };
        let (mut pods, mut tables, mut routes) = (0, false, false);
        for (key, before) in objects {
            let Some(change) = cluster.apply_delta(contents, key, before.as_ref()) else {
                return NextStep::Import;
            };
            match change {
                Effect::Nothing => {}
                Effect::Policy => tables = true,
                Effect::Routes { policy } => (routes, tables) = (true, tables || policy),
                Effect::Pods { pods: changed, routes: with_routes } => {
                    routes |= with_routes;
                    for pod in &changed {
                        let in_place = self.change_pod(image, &cluster.model, pod, !tables);
                        tables |= !in_place;
                        pods += u64::from(in_place);
                    }
                }
            }
        }
        match (routes, tables) {
            (true, tables) => NextStep::Routes { pods, tables },
            (false, true) => NextStep::Tables,
            (false, false) => NextStep::Nothing(pods),
        }
    }

    /// Tells the compiler of a pod's change. Returns whether the image has followed it. Without `in_place` it must not:
    /// it has missed a change before this one, and no packet may be judged by the second without the first.
    fn change_pod(
        &mut self,
        image: &Image,
        model: &Model,
        ChangedPod { name, before, after }: &ChangedPod,
        in_place: bool,
    ) -> bool {
        let change = PodChange { name, before: before.as_deref(), after: after.as_deref() };
        if !in_place {
            self.compiler.defer(model, change);
            return false;
        }
        self.compiler.update(image, model, change)
    }
}

#[cfg(test)]
mod tests;
