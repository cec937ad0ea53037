//! Medians, spreads and ratios.

use serde::Serialize;

/// The spread and the median of several measurements.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Summary {
    pub lowest: f64,
    /// The value in the middle, or the mean of the two values in the middle.
    pub median: f64,
    pub highest: f64,
}

impl Summary {
    /// The summary of these values. `None` if there are none.
    pub fn from_values(values: &[f64]) -> Option<Self> {
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

    /// The summary of the values divided by `divisor`.
    #[must_use]
    pub fn divided_by(self, divisor: f64) -> Self {
        Self {
            lowest: self.lowest / divisor,
            median: self.median / divisor,
            highest: self.highest / divisor,
        }
    }

    /// The median with three digits.
    pub fn show_median(&self) -> String {
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

    /// The text `median (lowest-highest)`. All three have as many decimals as the median needs for three digits.
    pub fn show(&self) -> String {
        let decimals = self.decimals();
        format!(
            "{:.decimals$} ({:.decimals$}-{:.decimals$})",
            self.median, self.lowest, self.highest
        )
    }
}

/// A percentile: about `percent` percent of the values are at most this value. `None` if there are no values.
pub fn percentile(values: &[f64], percent: u8) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    sorted.get(last * usize::from(percent.min(100)) / 100).copied()
}

/// Two measurements, one of Manx and one of the program that it is compared with. They are made directly one after the
/// other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pair {
    /// The figure of the program that Manx is compared with.
    pub beside: f64,
    /// The figure of Manx.
    pub manx: f64,
}

impl Pair {
    /// The figure of Manx divided by the other figure. Other load on the machine affects both figures, so it mostly
    /// cancels out.
    pub fn ratio(&self) -> f64 {
        self.manx / self.beside
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_in_the_middle_whatever_the_order() {
        let summary = Summary::from_values(&[9.0, 1.0, 5.0]).unwrap();
        assert_eq!(summary, Summary { lowest: 1.0, median: 5.0, highest: 9.0 });
        assert_eq!(
            Summary::from_values(&[4.0, 2.0, 8.0, 1.0]).unwrap().median.to_bits(),
            3f64.to_bits()
        );
        assert_eq!(Summary::from_values(&[]), None);
    }

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let values: Vec<f64> = (0..=100).rev().map(f64::from).collect();
        let bits = |percent| percentile(&values, percent).map(f64::to_bits);
        assert_eq!(
            [bits(0), bits(50), bits(99), bits(100)],
            [0.0, 50.0, 99.0, 100.0].map(|it: f64| Some(it.to_bits()))
        );
        assert_eq!(percentile(&[], 50), None);
    }

    #[test]
    fn a_ratio_is_of_one_pair() {
        assert!((Pair { beside: 8.0, manx: 6.0 }.ratio() - 0.75).abs() < f64::EPSILON);
    }
}
