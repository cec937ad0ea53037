//! The rows: the decisions on all packets between a chain and a class.
//!
//! `chains` finds the distinct chains. `plan` determines which rows a chain needs: one for each set of predicates that
//! its rules distinguish (`partition`). `builder` builds them chain by chain (`chain_rows`). It turns the rules that
//! may match into match sets (`match_set`) and sweeps over these (`row`), or merges earlier results (`first_match`). If
//! many rules may match many peers, it goes from row to row and processes only the differences (`walk`, `clauses`,
//! `painter`), and the work is bounded (`work`). `interner` stores equal rows and lines once; `paths` and `slots`
//! number the decisions. `tables` keeps all of this from image to image.

mod builder;
mod chain_rows;
mod chains;
mod clauses;
mod decide;
mod first_match;
mod interner;
mod match_set;
mod painter;
mod partition;
mod paths;
mod plan;
mod row;
mod slots;
mod tables;
mod until_decided;
mod walk;
mod walk_order;
mod walk_state;
mod work;

pub(crate) use builder::RowBuilder;
pub(crate) use chains::{Chains, LocalPods, NewChain, PodPredicateSets};
pub(crate) use match_set::{EndPorts, PacketTerms, TableMatch, match_set};
pub(crate) use partition::ClassColumns;
pub(crate) use tables::{Cells, RowTables};

#[cfg(test)]
pub(crate) use builder::Thresholds;
