//! Keys that identify a value by its address in memory.

use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::ptr;

/// A pointer that is compared and hashed by its target's address: two equal values at two addresses are two keys. The
/// key holds the pointer, an `Arc` or a reference, so no other value can get the same address while the key exists.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pinned<P>(pub(crate) P);

impl<P: Deref<Target: Sized>> Pinned<P> {
    fn place(&self) -> usize {
        ptr::from_ref(&*self.0).addr()
    }
}

impl<P: Deref<Target: Sized>> PartialEq for Pinned<P> {
    fn eq(&self, other: &Self) -> bool {
        self.place() == other.place()
    }
}

impl<P: Deref<Target: Sized>> Eq for Pinned<P> {}

impl<P: Deref<Target: Sized>> Hash for Pinned<P> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.place().hash(state);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn equal_values_at_two_places_are_two_keys() {
        let one = Arc::new(7);
        assert!(Pinned(Arc::clone(&one)) == Pinned(Arc::clone(&one)));
        assert!(Pinned(one) != Pinned(Arc::new(7)));
    }
}
