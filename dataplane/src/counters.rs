//! Counters: written by one worker, read by anybody.
