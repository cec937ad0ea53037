//! Values that record whether they may have changed.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// A value with a [`Mark`], which is replaced whenever the value may change.
#[derive(Debug, Clone, Default)]
pub struct Tracked<T> {
    value: T,
    mark: Mark,
}

/// Identifies a state of a value. If two marks are equal, the values are equal: one is a clone of the other, and
/// neither has been borrowed for a change since.
#[derive(Debug, Clone, Default)]
pub struct Mark(pub(super) Arc<()>);

impl PartialEq for Mark {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl<T> Tracked<T> {
    /// The current mark.
    pub fn mark(&self) -> Mark {
        self.mark.clone()
    }
}

impl<T> Deref for Tracked<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Tracked<T> {
    fn deref_mut(&mut self) -> &mut T {
        // The mark is replaced only if a reader holds it.
        if Arc::get_mut(&mut self.mark.0).is_none() {
            self.mark = Mark::default();
        }
        &mut self.value
    }
}

impl<T> From<T> for Tracked<T> {
    fn from(value: T) -> Self {
        Self { value, mark: Mark::default() }
    }
}

impl<T: PartialEq> PartialEq for Tracked<T> {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl<T: Eq> Eq for Tracked<T> {}

#[expect(clippy::into_iter_without_iter, reason = "`iter` is the value's own")]
impl<'t, T> IntoIterator for &'t Tracked<T>
where
    &'t T: IntoIterator,
{
    type Item = <&'t T as IntoIterator>::Item;
    type IntoIter = <&'t T as IntoIterator>::IntoIter;

    fn into_iter(self) -> Self::IntoIter {
        (&self.value).into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_stays_until_the_value_is_lent_for_changing() {
        let mut one = Tracked::from(vec![1]);
        let (mark, other) = (one.mark(), one.clone());
        assert_eq!(one.len(), 1);
        assert!(mark == one.mark() && mark == other.mark());
        one.push(2);
        assert!(mark != one.mark() && mark == other.mark());
        assert!(Tracked::from(3).mark() != Tracked::from(3).mark());
        assert_eq!(Tracked::from(3), Tracked::from(3));
    }
}
