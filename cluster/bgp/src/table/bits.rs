//! A set of small numbers, stored as one bit for each.

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Bits {
    words: Vec<u64>,
    count: usize,
}

impl Bits {
    pub(super) const fn len(&self) -> usize {
        self.count
    }

    /// Adds a number, and returns whether it is new.
    pub(super) fn insert(&mut self, number: u32) -> bool {
        let (word, bit) = place(number);
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        let is_new = self.words[word] & bit == 0;
        self.words[word] |= bit;
        self.count += usize::from(is_new);
        is_new
    }

    /// Removes a number, and returns whether it was there.
    pub(super) fn remove(&mut self, number: u32) -> bool {
        let (at, bit) = place(number);
        let Some(word) = self.words.get_mut(at) else { return false };
        let was_there = *word & bit != 0;
        *word &= !bit;
        self.count -= usize::from(was_there);
        was_there
    }

    /// All numbers, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> {
        let words = self.words.iter().zip(0u32..);
        words.flat_map(|(word, at)| {
            let set = (0..64).filter(move |bit| word & (1 << bit) != 0);
            set.map(move |bit| at * 64 + bit)
        })
    }
}

const fn place(number: u32) -> (usize, u64) {
    ((number / 64) as usize, 1 << (number % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_and_go() {
        let mut bits = Bits::default();
        for number in [0, 63, 64, 1000] {
            assert!(!bits.remove(number));
            assert!(bits.insert(number) && !bits.insert(number));
        }
        assert!(bits.remove(64));
        assert_eq!(bits.iter().collect::<Vec<_>>(), [0, 63, 1000]);
        assert_eq!(bits.len(), 3);
    }
}
