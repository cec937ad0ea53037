//! Compares an image with a judge in every cell.
