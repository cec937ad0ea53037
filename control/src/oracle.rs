//! The independent oracle: judges the objects themselves.
