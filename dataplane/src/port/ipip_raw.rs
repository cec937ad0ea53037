//! ipip_raw
