//! The semantics of policy, line by line: rows, rules evaluated one by one, and the reference all
//! agree.

mod endpoints;
mod hosts;
mod order;
mod rules;
