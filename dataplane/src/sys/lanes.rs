//! Compares eight short numbers at once.

/// Returns two bits for each lane, with the first lane in the lowest bits. Both bits are set if the lane equals
/// `value`.
#[inline]
#[cfg(target_arch = "x86_64")]
pub fn equal(lanes: [u16; 8], value: u16) -> u32 {
    use std::arch::x86_64::{_mm_cmpeq_epi16, _mm_movemask_epi8, _mm_set_epi16, _mm_set1_epi16};
    let [l0, l1, l2, l3, l4, l5, l6, l7] = lanes.map(u16::cast_signed);
    // SAFETY: these read and write registers only, and SSE2 is part of x86-64.
    let bytes = unsafe {
        let lanes = _mm_set_epi16(l7, l6, l5, l4, l3, l2, l1, l0);
        _mm_movemask_epi8(_mm_cmpeq_epi16(lanes, _mm_set1_epi16(value.cast_signed())))
    };
    bytes.cast_unsigned()
}

/// `equal` for other processors, one lane at a time.
#[inline]
#[cfg(not(target_arch = "x86_64"))]
pub fn equal(lanes: [u16; 8], value: u16) -> u32 {
    one_by_one(lanes, value)
}

#[cfg(any(test, not(target_arch = "x86_64")))]
fn one_by_one(lanes: [u16; 8], value: u16) -> u32 {
    (0..).zip(lanes).map(|(at, lane)| if lane == value { 3 << (2 * at) } else { 0 }).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn all_lanes_at_once_are_each_by_itself(lanes: [u16; 8], value: u16, same: [bool; 8]) {
            let mut lanes = lanes;
            for (lane, same) in lanes.iter_mut().zip(same) {
                *lane = if same { value } else { *lane };
            }
            prop_assert_eq!(equal(lanes, value), one_by_one(lanes, value));
        }
    }
}
