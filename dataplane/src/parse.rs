//! A packet's parsed headers: what the decision needs, found once.
