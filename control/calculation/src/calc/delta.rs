//! What a change of the datastore costs: a pod of another node mostly a few stores into the image in use; a policy, a
//! network set or the endpoints of a service that is named new tables; a node or a pool another topology, and mostly a
//! few stores into the routes in use; a pod with an address outside of its node's blocks both. Everything else goes the
//! whole way from the objects on.

use manx_policy_compiler::compile::PodChange;
use manx_policy_compiler::image::Image;
use manx_policy_compiler::model::Model;

use super::Calculation;
use crate::import::{Cluster, Effect};
use manx_objects::contents::{Changes, Contents};

/// What the caller has to do after a delta.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextStep {
    /// Nothing: the cluster and the image in use say what the objects say. How many pods changed in the image.
    Nothing(u64),
    /// The cluster says what the objects say; tables are to be made of it. The topology is as it was.
    Tables,
    /// The cluster says what the objects say. The topology is to be calculated, and then tables if `tables` says so or
    /// [`Calculation::change_routes`] cannot store the change.
    Routes {
        /// How many pods changed in the image.
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
            routes |= matches!(change, Effect::Routes { .. } | Effect::Pod { routes: true, .. });
            match &change {
                Effect::Nothing | Effect::Routes { policy: false } => {}
                Effect::Policy | Effect::Routes { policy: true } => tables = true,
                // Once the image has missed a change it cannot take in another.
                Effect::Pod { .. }
                    if !tables && self.change_in_place(image, &cluster.model, &change) =>
                {
                    pods += 1;
                }
                Effect::Pod { .. } => {
                    self.compiler.invalidate();
                    tables = true;
                }
            }
        }
        match (routes, tables) {
            (true, tables) => NextStep::Routes { pods, tables },
            (false, true) => NextStep::Tables,
            (false, false) => NextStep::Nothing(pods),
        }
    }

    fn change_in_place(&mut self, image: &Image, model: &Model, effect: &Effect) -> bool {
        let Effect::Pod { name, before, after, .. } = effect else { return false };
        let change = PodChange { name, before: before.as_deref(), after: after.as_deref() };
        self.compiler.update(image, model, change)
    }
}

#[cfg(test)]
mod tests;
