//! Applies changes of the datastore, each in the cheapest way. A change of a pod on another node usually requires a few
//! stores into the policy image in use. A change of a policy, of a network set, or of the endpoints of a service that
//! policies name requires new tables. A change of a node or a pool requires a new topology, and usually a few stores
//! into the routes in use. A change of a pod whose address is outside its node's blocks requires both: stores into the
//! image and stores into the routes. After every other change, all objects are imported again.

use manx_policy_compiler::compile::PodChange;
use manx_policy_compiler::image::Image;
use manx_policy_compiler::model::Model;

use super::Calculation;
use crate::import::{ChangedPod, Cluster, Effect};
use manx_objects::contents::{Changes, Contents};

/// What the caller must do after a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextStep {
    /// Nothing: the cluster and the image in use are up to date. The value is the number of pods that changed in the
    /// image.
    Nothing(u64),
    /// The cluster is up to date, and the topology is unchanged. The caller must calculate tables.
    Tables,
    /// The cluster is up to date. The caller must calculate the topology. It must then calculate tables if `tables` is
    /// set or if [`Calculation::change_routes`] cannot store the change.
    Routes {
        /// The number of pods that changed in the image.
        pods: u64,
        /// Whether tables must be calculated in any case.
        tables: bool,
    },
    /// The caller must import the cluster again.
    Import,
}

impl Calculation {
    /// Applies `changes` to `cluster` and to `image`. The changes have led to `contents`, and the image is in use.
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

    /// Passes a pod's change to the compiler. Returns whether the image in use now contains the change. If `in_place`
    /// is false, the image lacks an earlier change, so this change is not stored in the image: no packet may be judged
    /// with this change but without the earlier one.
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
