//! Lists that mostly have one entry or none; such lists need no heap memory.

use std::ops::Deref;

/// A list. Equal lists always have the same variant.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum SmallList<T> {
    /// No entry.
    #[default]
    None,
    /// One entry.
    One(T),
    /// More than one entry.
    Many(Vec<T>),
}

impl<T> SmallList<T> {
    /// Adds an entry at the end.
    pub(crate) fn push(&mut self, next: T) {
        *self = match std::mem::take(self) {
            Self::None => Self::One(next),
            Self::One(first) => Self::Many(vec![first, next]),
            Self::Many(mut all) => {
                all.push(next);
                Self::Many(all)
            }
        };
    }
}

impl<T> Deref for SmallList<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::None => &[],
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(all) => all,
        }
    }
}

impl<T> FromIterator<T> for SmallList<T> {
    fn from_iter<I: IntoIterator<Item = T>>(all: I) -> Self {
        let mut all = all.into_iter();
        let Some(first) = all.next() else { return Self::None };
        match all.next() {
            None => Self::One(first),
            Some(second) => Self::Many([first, second].into_iter().chain(all).collect()),
        }
    }
}

impl<'f, T> IntoIterator for &'f SmallList<T> {
    type Item = &'f T;
    type IntoIter = std::slice::Iter<'f, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_hold_what_was_put_in_and_equal_ones_are_equal() {
        for count in 0..5 {
            let all: SmallList<usize> = (0..count).collect();
            assert_eq!(*all, (0..count).collect::<Vec<_>>()[..]);
            let mut other = SmallList::default();
            (0..count).for_each(|one| other.push(one));
            assert_eq!(all, other);
            other.push(count);
            assert_ne!(all, other);
        }
    }
}
