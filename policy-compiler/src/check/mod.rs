//! Checks an image: a slow and obvious judge, and the proof that an image decides as a judge does in every cell.

mod by_reference;
mod judge;
mod proof;
mod reference;
mod witness;

pub use by_reference::ReferenceEnd;
pub use judge::{Expected, Judge};
pub use proof::{Counterexample, Depth, Proof, prove, prove_by};
pub use reference::{Packet, Policies, Reference, Signature};
pub use witness::{Atoms, Bounds, Witnesses};
