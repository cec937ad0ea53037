//! prefix_map
