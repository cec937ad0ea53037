//! Sums of long stretches of bytes (RFC 1071), and the pseudo-header's.

/// A ones' complement sum, not folded yet, of 16-bit words in the machine's byte order: RFC 1071, section 2(B) shows that
/// the order of bytes matters only at the end.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sum(u64);

impl Sum {
    /// Adds bytes that start at an even distance from the first byte summed; an odd last byte is padded with zero.
    ///
    /// Eight lanes of 64-bit accumulators take 32-bit words: no carry is lost before 2^32 words, and the compiler makes
    /// vector code of it.
    #[inline]
    #[must_use]
    pub(super) fn add(self, bytes: &[u8]) -> Self {
        let mut lanes = [0u64; 8];
        let (chunks, rest) = bytes.as_chunks::<32>();
        for chunk in chunks {
            let (words, _) = chunk.as_chunks::<4>();
            for (lane, word) in lanes.iter_mut().zip(words) {
                *lane += u64::from(u32::from_ne_bytes(*word));
            }
        }
        let (words, rest) = rest.as_chunks::<2>();
        let mut sum = self.0 + lanes.iter().sum::<u64>();
        for word in words {
            sum += u64::from(u16::from_ne_bytes(*word));
        }
        if let [last] = rest {
            sum += u64::from(u16::from_ne_bytes([*last, 0]));
        }
        Self(sum)
    }

    /// Adds a value of the network's 16 bits.
    #[inline]
    #[must_use]
    pub(super) fn add_word(self, word: u16) -> Self {
        Self(self.0 + u64::from(word.to_be()))
    }

    /// The pseudo-header (RFC 9293, section 3.1; RFC 8200, section 8.1) for `len` bytes of `protocol`: `addresses` are
    /// the source's and the destination's, one after the other.
    #[inline]
    pub(super) fn pseudo_header(addresses: &[u8], protocol: u8, len: usize) -> Self {
        let len = len as u32;
        Self::default()
            .add(addresses)
            .add_word(u16::from(protocol))
            .add_word((len >> 16) as u16)
            .add_word(len as u16)
    }

    /// Folded to 16 bits, as two bytes to store; not complemented.
    #[inline]
    pub(super) fn folded(self) -> [u8; 2] {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        (sum as u16).to_ne_bytes()
    }

    /// The checksum to store: the complement.
    #[inline]
    pub(super) fn checksum(self) -> [u8; 2] {
        let [a, b] = self.folded();
        [!a, !b]
    }

    /// Whether a sum that includes its checksum is right.
    #[inline]
    pub(super) fn is_valid(self) -> bool {
        self.folded() == [0xff; 2]
    }
}
