//! Super-packets: segmentation and coalescing.
