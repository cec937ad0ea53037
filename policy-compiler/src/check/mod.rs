//! Checks an image: the proof that an image decides as a judge does in every cell.

mod judge;
mod proof;
mod witness;

pub use judge::{Expected, Judge};
pub use proof::{Counterexample, Depth, Proof, prove_by};
pub use witness::{Atoms, Bounds, Witnesses};
