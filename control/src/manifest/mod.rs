//! Manifests: text to wire objects, with the position of everything.
