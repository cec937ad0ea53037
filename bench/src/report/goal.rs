//! The goal of a figure or a ratio.

use std::fmt;

use serde::Serialize;

/// A limit, and which side of it is better.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Goal {
    /// A larger value is better.
    AtLeast(f64),
    /// A smaller value is better.
    AtMost(f64),
}

impl Goal {
    pub const fn limit(self) -> f64 {
        match self {
            Self::AtLeast(limit) | Self::AtMost(limit) => limit,
        }
    }

    /// The goal for a figure that was divided by the limit of this goal.
    #[must_use]
    pub const fn of_share(self) -> Self {
        match self {
            Self::AtLeast(_) => Self::AtLeast(1.0),
            Self::AtMost(_) => Self::AtMost(1.0),
        }
    }

    /// Whether a value meets the goal.
    pub fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtLeast(limit) => value >= limit,
            Self::AtMost(limit) => value <= limit,
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(limit) => write!(f, ">= {limit}"),
            Self::AtMost(limit) => write!(f, "<= {limit}"),
        }
    }
}
