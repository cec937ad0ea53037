//! The linear reference: a slow and obvious judge of the model, for tests and measurements only.

mod boundaries;
mod judge;
mod linear;

use std::collections::BTreeSet;

use crate::check::{Counterexample, Depth, Proof, prove_by};
use crate::image::Image;
use crate::model::Model;
use crate::resolve::LocalName;

pub use judge::ReferenceEnd;
pub use linear::{Packet, Policies, Reference, Signature};

/// Compares `image` with the reference in every cell.
pub fn prove(
    model: &Model,
    local: &BTreeSet<LocalName>,
    image: &Image,
) -> Result<Proof, Box<Counterexample>> {
    prove_by(&Reference::new(model), local, image, Depth::Distinct, |_, _| {})
}
