//! Medians, spread and ratios.

use serde::Serialize;

/// What a row of measurements says.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Summary {
    /// The lowest.
    pub lowest: f64,
    /// The middle one, or the mean of the two in the middle.
    pub median: f64,
    /// The highest.
    pub highest: f64,
}

impl Summary {
    /// Of these values; `None` of none.
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (lowest, highest) = (*sorted.first()?, *sorted.last()?);
        let half = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[half]
        } else {
            f64::midpoint(sorted[half - 1], sorted[half])
        };
        Some(Self { lowest, median, highest })
    }

    /// Each divided by this.
    #[must_use]
    pub fn over(self, divisor: f64) -> Self {
        Self {
            lowest: self.lowest / divisor,
            median: self.median / divisor,
            highest: self.highest / divisor,
        }
    }

    /// The median, in three digits.
    pub fn median_only(&self) -> String {
        let decimals = self.decimals();
        format!("{:.decimals$}", self.median)
    }

    fn decimals(&self) -> usize {
        match self.median.abs() {
            small if small < 10.0 => 2,
            middle if middle < 100.0 => 1,
            _ => 0,
        }
    }

    /// `median (lowest-highest)`, as precise as three digits of the median are.
    pub fn show(&self) -> String {
        let decimals = self.decimals();
        format!(
            "{:.decimals$} ({:.decimals$}-{:.decimals$})",
            self.median, self.lowest, self.highest
        )
    }
}

/// The value that so many of a hundred lie below; `None` of none.
pub fn percentile(values: &[f64], of_100: u8) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    sorted.get(last * usize::from(of_100.min(100)) / 100).copied()
}

/// One measurement of each side, taken right after each other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pair {
    /// Of what Manx is compared with.
    pub beside: f64,
    /// Manx's.
    pub manx: f64,
}

impl Pair {
    /// Manx's over the other. The machine's mood of the moment is in both and falls out.
    pub fn ratio(&self) -> f64 {
        self.manx / self.beside
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_in_the_middle_whatever_the_order() {
        let summary = Summary::of(&[9.0, 1.0, 5.0]).unwrap();
        assert_eq!(summary, Summary { lowest: 1.0, median: 5.0, highest: 9.0 });
        assert_eq!(Summary::of(&[4.0, 2.0, 8.0, 1.0]).unwrap().median.to_bits(), 3f64.to_bits());
        assert_eq!(Summary::of(&[]), None);
    }

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let values: Vec<f64> = (0..=100).rev().map(f64::from).collect();
        let of = |of_100| percentile(&values, of_100).map(f64::to_bits);
        assert_eq!(
            [of(0), of(50), of(99), of(100)],
            [0.0, 50.0, 99.0, 100.0].map(|it: f64| Some(it.to_bits()))
        );
        assert_eq!(percentile(&[], 50), None);
    }

    #[test]
    fn a_ratio_is_of_one_pair() {
        assert!((Pair { beside: 8.0, manx: 6.0 }.ratio() - 0.75).abs() < f64::EPSILON);
    }
}
