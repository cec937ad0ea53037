//! Garbage: addresses, blocks, affinities and handles that nobody uses any more, and when they are taken away.
//!
//! A round is a [`Look`] at the store and at the users, a plan by what this look and earlier ones have seen
//! ([`Garbage::plan`], pure), and the [`Step`]s of the plan, one after the other ([`take`]).
//!
//! What is taken, and when:
//! - **Addresses** without a user (a pod, a node's tunnel, a Service): if two looks have found none, at least the grace time apart; after two looks if the node
//!   is gone, because nobody else will release them. All addresses of a handle go in one step, or none. The user is asked
//!   for again right before. An allocation that says too little of its owner stays for ever (see [`users`](crate::users)).
//! - **Addresses that rest**: when their rest has ended. A block that nobody writes would keep them.
//! - **Empty blocks** of a node that exists: if nobody has written them between two looks, at least the grace time apart.
//!   The node keeps one block of each family, so that its next pod needs no claim.
//! - **Blocks and affinities of a node that is gone**: if two looks have missed the node, as soon as the block is empty.
//! - **Handles** without an address: after two looks. A crash leaves them.
//!
//! The laws, for any order of looks and of other writers (`tests.rs`): nothing with a user is taken; all else is taken after
//! enough rounds; a controller that starts anew waits its grace times anew. Each write names what it expects (a sequence
//! number, a handle, a revision), so what changes hands between a look and its step stays.
//!
//! A round is bounded by [`Settings::limit`]; what is left comes in the next one. A step that was planned is forgotten,
//! and needs two looks again if it fails. So steps that always fail do not keep others from their turn.
//!
//! Source: Calico's design note "IPAM garbage collection".

mod step;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;

pub use self::step::{Outcome, take};
use crate::addresses::address;
use crate::affinity::{Affinity, Owner};
use crate::block::{Allocation, Attributes, Block, Rest, first_line};
use crate::handle::Handle;
use crate::records::Records;
use crate::store::{Store, StoreError};
use crate::users::{Users, Validity};

/// The settings of a controller.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// For how long an address has no user, or a block no write, before it is taken.
    pub grace: Duration,
    /// The most steps of a round.
    pub limit: usize,
}

/// The objects of the cluster that say who uses addresses.
pub trait UserSource: Sync {
    /// All users.
    fn all(&self) -> impl Future<Output = Result<Users, StoreError>> + Send;

    /// The pod, the node and the Service that the attributes of an allocation name, as far as they exist now.
    fn named_by(
        &self,
        owner: &Attributes,
    ) -> impl Future<Output = Result<Users, StoreError>> + Send;
}

/// What is there at one time.
#[derive(Debug, Clone, Default)]
pub struct Look {
    pub records: Records,
    pub users: Users,
}

impl Look {
    /// Reads the records, and then the users: a pod is there before it has an address, so the user of an address that was
    /// read is missing only if it is gone.
    pub async fn read<S: Store, U: UserSource>(store: &S, users: &U) -> Result<Self, StoreError> {
        Ok(Self { records: Records::read(store).await?, users: users.all().await? })
    }
}

/// What earlier looks have seen. A new one has seen nothing.
#[derive(Debug, Default)]
pub struct Garbage {
    /// The suspects of the last look, and when each was seen first without a look between that did not see it.
    since: BTreeMap<Suspect, Duration>,
}

/// What a look has found without a user. A change makes another suspect of it, whose time begins anew.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Suspect {
    /// A node that records name, and that does not exist.
    Node(String),
    /// An allocation: its sequence number is another one if the address has changed hands.
    Allocation(IpAddr, u64, Option<String>),
    /// An empty block: its sequence number is another one if it was written.
    Block(IpNet, u64),
    Handle(Handle),
}

/// Addresses of a handle, and what was seen of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leak {
    pub address: IpAddr,
    /// Its block.
    pub block: IpNet,
    pub allocation: Allocation,
}

/// Why addresses are released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// They have had no user for the grace time.
    Unused,
    /// They have no user, and their node is gone.
    NodeGone,
}

/// A part of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Release all addresses of a handle, or one address without a handle.
    Release { leaks: Vec<Leak>, reason: Reason },
    /// Free the addresses of a block that have rested long enough.
    EndRest(IpNet),
    /// Give up an empty block of a node that exists, if it still has this sequence number.
    GiveUpIdle { owner: Owner, cidr: IpNet, sequence: u64 },
    /// Give up an empty block of a node that is gone, or its affinity to a block that is not its own.
    GiveUpOfGone { owner: Owner, cidr: IpNet },
    /// Delete a handle without addresses.
    DeleteHandle(Handle),
}

/// What a round does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    pub steps: Vec<Step>,
    /// The number of steps that are left for later rounds.
    pub left: usize,
}

impl Garbage {
    /// Plans a round by a look at the time `at`, of a clock that nobody sets.
    pub fn plan(&mut self, look: &Look, settings: Settings, at: Duration, rest: Rest) -> Plan {
        let mut seen = Seen { before: std::mem::take(&mut self.since), now: BTreeMap::new(), at };
        let gone = seen.gone_nodes(look);
        let mut steps = releases(look, settings, &gone, &mut seen);
        steps.extend(ends_of_rest(look, rest));
        steps.extend(idle_blocks(look, settings, &mut seen));
        steps.extend(blocks_of_gone(look, &gone));
        steps.extend(unused_handles(look, &mut seen));
        let left = steps.len().saturating_sub(settings.limit);
        steps.truncate(settings.limit);
        self.since = seen.now;
        for step in &steps {
            self.forget(step);
        }
        Plan { steps, left }
    }

    fn forget(&mut self, step: &Step) {
        match step {
            Step::Release { leaks, .. } => {
                for leak in leaks {
                    self.since.remove(&leak.suspect());
                }
            }
            Step::GiveUpIdle { cidr, sequence, .. } => {
                self.since.remove(&Suspect::Block(*cidr, *sequence));
            }
            Step::DeleteHandle(handle) => {
                self.since.remove(&Suspect::Handle(handle.clone()));
            }
            Step::EndRest(_) | Step::GiveUpOfGone { .. } => {}
        }
    }
}

/// The suspects of a look, beside those of the one before.
struct Seen {
    before: BTreeMap<Suspect, Duration>,
    now: BTreeMap<Suspect, Duration>,
    at: Duration,
}

impl Seen {
    /// Adds a suspect, and returns for how long it has been one; `None`: this look is the first to see it.
    fn add(&mut self, suspect: Suspect) -> Option<Duration> {
        let since = self.before.get(&suspect).copied();
        self.now.insert(suspect, since.unwrap_or(self.at));
        since.map(|since| self.at.saturating_sub(since))
    }

    /// The nodes that records name, and that two looks have missed.
    fn gone_nodes(&mut self, look: &Look) -> BTreeSet<String> {
        let allocations = look.records.blocks.iter().flat_map(|block| block.allocations.values());
        let of_allocations = allocations.filter_map(|it| it.owner.get("node"));
        let owners = look.records.blocks.iter().filter_map(|block| block.owner.as_ref());
        let owners = owners.chain(look.records.affinities.iter().map(|affinity| &affinity.owner));
        let named = of_allocations.map(String::as_str).chain(owners.filter_map(host));
        let missing: BTreeSet<&str> =
            named.filter(|node| !look.users.nodes.contains_key(*node)).collect();
        let seen_twice = missing
            .into_iter()
            .filter(|node| self.add(Suspect::Node((*node).to_owned())).is_some());
        seen_twice.map(ToOwned::to_owned).collect()
    }
}

fn host(owner: &Owner) -> Option<&str> {
    match owner {
        Owner::Host(name) => Some(name),
        Owner::Virtual(_) => None,
    }
}

impl Leak {
    fn suspect(&self) -> Suspect {
        let Allocation { handle, sequence, .. } = &self.allocation;
        Suspect::Allocation(self.address, *sequence, handle.clone())
    }
}

/// What is released together.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Together<'a> {
    Handle(&'a str),
    /// An address without a handle.
    Address(IpAddr),
}

fn releases(
    look: &Look,
    settings: Settings,
    gone: &BTreeSet<String>,
    seen: &mut Seen,
) -> Vec<Step> {
    // `None`: one of the addresses is not to be released now.
    let mut groups = BTreeMap::<Together<'_>, Option<(Vec<Leak>, Reason)>>::new();
    for block in &look.records.blocks {
        for (at, allocation) in &block.allocations {
            if allocation.released_at.is_some() {
                continue;
            }
            let address = address(block.cidr, *at);
            let together = match allocation.handle.as_deref() {
                Some(handle) => Together::Handle(first_line(handle)),
                None => Together::Address(address),
            };
            let leak = Leak { address, block: block.cidr, allocation: allocation.clone() };
            let reason = match look.users.validity(address, allocation) {
                Validity::Valid => None,
                Validity::Unused | Validity::NodeGone => {
                    let node = allocation.owner.get("node");
                    let is_gone = node.is_some_and(|node| gone.contains(node));
                    match seen.add(leak.suspect()) {
                        Some(since) if since >= settings.grace => Some(Reason::Unused),
                        Some(_) if is_gone => Some(Reason::NodeGone),
                        _ => None,
                    }
                }
            };
            let group =
                groups.entry(together).or_insert_with(|| Some((Vec::new(), Reason::Unused)));
            match (reason, group.as_mut()) {
                (Some(reason), Some((leaks, of_all))) => {
                    leaks.push(leak);
                    if reason == Reason::NodeGone {
                        *of_all = reason;
                    }
                }
                _ => *group = None,
            }
        }
    }
    groups.into_values().flatten().map(|(leaks, reason)| Step::Release { leaks, reason }).collect()
}

fn ends_of_rest(look: &Look, rest: Rest) -> impl Iterator<Item = Step> {
    let has_rested = move |block: &&Block| {
        let rests = block.allocations.values().any(|it| it.released_at.is_some());
        rests && (*block).clone().end_rest(rest)
    };
    look.records.blocks.iter().filter(has_rested).map(|block| Step::EndRest(block.cidr))
}

/// The empty blocks of nodes that exist, without one for each node and family that has no other block.
fn idle_blocks(look: &Look, settings: Settings, seen: &mut Seen) -> Vec<Step> {
    let mut of_nodes = BTreeMap::<(&str, bool), Vec<&Block>>::new();
    for block in &look.records.blocks {
        let node = block.owner.as_ref().and_then(host);
        if let Some(node) = node.filter(|node| look.users.nodes.contains_key(*node)) {
            let is_v4 = matches!(block.cidr, IpNet::V4(_));
            of_nodes.entry((node, is_v4)).or_default().push(block);
        }
    }
    let mut steps = Vec::new();
    for ((node, _), blocks) in of_nodes {
        let mut spare = blocks.len() - 1;
        for block in blocks.into_iter().filter(|block| block.is_empty()) {
            let since = seen.add(Suspect::Block(block.cidr, block.sequence));
            if spare > 0 && since.is_some_and(|since| since >= settings.grace) {
                spare -= 1;
                let owner = Owner::Host(node.to_owned());
                let Block { cidr, sequence, .. } = *block;
                steps.push(Step::GiveUpIdle { owner, cidr, sequence });
            }
        }
    }
    steps
}

fn blocks_of_gone(look: &Look, gone: &BTreeSet<String>) -> Vec<Step> {
    let is_gone = |owner: &Owner| host(owner).is_some_and(|node| gone.contains(node));
    let mut empty = BTreeSet::<(&Owner, IpNet)>::new();
    let mut used = BTreeSet::<(&Owner, IpNet)>::new();
    for block in &look.records.blocks {
        if let Some(owner) = block.owner.as_ref().filter(|owner| is_gone(owner)) {
            let list = if block.is_empty() { &mut empty } else { &mut used };
            list.insert((owner, block.cidr));
        }
    }
    // The affinities to blocks that are not their owner's.
    for Affinity { owner, cidr, .. } in
        look.records.affinities.iter().filter(|it| is_gone(&it.owner))
    {
        if !used.contains(&(owner, *cidr)) {
            empty.insert((owner, *cidr));
        }
    }
    let step = |(owner, cidr): (&Owner, IpNet)| Step::GiveUpOfGone { owner: owner.clone(), cidr };
    empty.into_iter().map(step).collect()
}

fn unused_handles(look: &Look, seen: &mut Seen) -> Vec<Step> {
    let allocations = look.records.blocks.iter().flat_map(|block| block.allocations.values());
    let used: BTreeSet<&str> =
        allocations.filter_map(|it| it.handle.as_deref()).map(first_line).collect();
    let unused =
        look.records.handles.iter().filter(|handle| !used.contains(first_line(&handle.id)));
    let seen_twice = unused.filter(|handle| seen.add(Suspect::Handle((*handle).clone())).is_some());
    seen_twice.map(|handle| Step::DeleteHandle(handle.clone())).collect()
}
