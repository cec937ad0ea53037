//! The semantics of policy, line by line: what rows, rules one by one and the reference all say.

mod endpoints;
mod hosts;
mod order;
mod rules;
