//! Garbage collection: finds addresses, blocks, affinities and handles without a user, and removes them after some
//! time.
//!
//! A round has three parts:
//! 1. It reads the store and the users. The result is a snapshot ([`Look`]).
//! 2. It makes a plan from this snapshot and from earlier ones ([`Garbage::plan`], pure).
//! 3. It executes the [`Step`]s of the plan, one after the other ([`take`]).
//!
//! These are removed:
//! - **Addresses** without a user (a pod, a node's tunnel, a Service): if the user is missing in all snapshots for the
//!   grace time. If the node does not exist any more, two snapshots are enough, because nothing else will release the
//!   addresses. Either all addresses of a handle are released in one step, or none. Right before the release, the user
//!   is looked up again. An allocation with too little information about its user is never released (see
//!   [`users`](crate::users)).
//! - **Resting addresses**: these are released addresses that must not be assigned again before their cool-down ends.
//!   They become free when it has ended. Without this step they become free only when the block is written.
//! - **Empty blocks** of an existing node: if nothing has written the block for the grace time. The node keeps one
//!   block of each family, so that its next pod does not need a claim.
//! - **Blocks and affinities of a node that does not exist any more**: if the node is missing in two snapshots, as soon
//!   as the block is empty.
//! - **Handles** without an address: after two snapshots. Such handles are the result of a crash.
//!
//! The laws, for any order of snapshots and of other writers (`tests.rs`): nothing with a user is removed; everything
//! else is removed after enough rounds; a restarted controller waits for all grace times again. Each write names what
//! it expects (a sequence number, a handle, a revision). So a record is not removed if it changes after the snapshot.
//!
//! [`Settings::limit`] bounds the steps of a round; the remaining steps follow in the next round. When a step for
//! addresses without a user, a handle or an idle block is planned, the observations that led to it are forgotten. If the
//! step fails, two new snapshots are needed before it is planned again. So such steps do not prevent others if they
//! always fail.
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
    /// The time without a user, or without a write to an empty block, after which a record is removed.
    pub grace: Duration,
    /// The maximum number of steps of a round.
    pub limit: usize,
}

/// The objects of the cluster that determine which addresses have users.
pub trait UserSource: Sync {
    /// Reads all users.
    fn all(&self) -> impl Future<Output = Result<Users, StoreError>> + Send;

    /// Reads the pod, the node and the Service that the attributes of an allocation name, if they exist now.
    fn named_by(
        &self,
        owner: &Attributes,
    ) -> impl Future<Output = Result<Users, StoreError>> + Send;
}

/// A snapshot of the records and of the users.
#[derive(Debug, Clone, Default)]
pub struct Look {
    pub records: Records,
    pub users: Users,
}

impl Look {
    /// Reads the records first, and then the users. A pod exists before it gets an address. So if a record names a user
    /// that is not among the users, that user does not exist any more.
    pub async fn read<S: Store, U: UserSource>(store: &S, users: &U) -> Result<Self, StoreError> {
        Ok(Self { records: Records::read(store).await?, users: users.all().await? })
    }
}

/// The suspects in the last snapshot, except those for which a step was planned. At the start there are none.
#[derive(Debug, Default)]
pub struct Garbage {
    /// For each suspect: the time of the first of the consecutive snapshots that all contain it.
    since: BTreeMap<Suspect, Duration>,
}

/// A record that had no user in a snapshot. If the record changes, it becomes a different suspect, and its time starts
/// again.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Suspect {
    /// A node that does not exist, but that a record names.
    Node(String),
    /// An allocation. If the address gets another user, the sequence number changes.
    Allocation(IpAddr, u64, Option<String>),
    /// An empty block. If the block is written, the sequence number changes.
    Block(IpNet, u64),
    Handle(Handle),
}

/// An address without a user, as the snapshot contains it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leak {
    pub address: IpAddr,
    /// The block of the address.
    pub block: IpNet,
    pub allocation: Allocation,
}

/// The reason why addresses are released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The addresses have had no user for the grace time.
    Unused,
    /// The addresses have no user, and their node does not exist any more.
    NodeGone,
}

/// A step of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Release all addresses of a handle, or one address without a handle.
    Release { leaks: Vec<Leak>, reason: Reason },
    /// Free the addresses of a block that have rested long enough.
    EndRest(IpNet),
    /// Give up an empty block of an existing node, if the block still has this sequence number.
    ReleaseIdleBlock { owner: Owner, cidr: IpNet, sequence: u64 },
    /// Give up an empty block of a node that does not exist any more. If the node has only an affinity and does not own
    /// the block, delete the affinity.
    ReleaseBlockOfGone { owner: Owner, cidr: IpNet },
    /// Delete a handle without addresses.
    DeleteHandle(Handle),
}

/// The steps of a round.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    pub steps: Vec<Step>,
    /// The number of steps that remain for later rounds.
    pub left: usize,
}

impl Garbage {
    /// Plans a round from a snapshot. `at` is the time of the snapshot on a monotonic clock.
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
            Step::ReleaseIdleBlock { cidr, sequence, .. } => {
                self.since.remove(&Suspect::Block(*cidr, *sequence));
            }
            Step::DeleteHandle(handle) => {
                self.since.remove(&Suspect::Handle(handle.clone()));
            }
            Step::EndRest(_) | Step::ReleaseBlockOfGone { .. } => {}
        }
    }
}

/// The suspects in the current snapshot and in the one before it.
struct Seen {
    before: BTreeMap<Suspect, Duration>,
    now: BTreeMap<Suspect, Duration>,
    at: Duration,
}

impl Seen {
    /// Adds a suspect. Returns the time since the first snapshot that contained it, or `None` if this snapshot is the
    /// first.
    fn add(&mut self, suspect: Suspect) -> Option<Duration> {
        let since = self.before.get(&suspect).copied();
        self.now.insert(suspect, since.unwrap_or(self.at));
        since.map(|since| self.at.saturating_sub(since))
    }

    /// Returns the nodes that records name, but that exist neither in this snapshot nor in the one before it.
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

/// Addresses that are released together.
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
    // The value is `None` if one of the addresses must not be released now. Then none of the group is released.
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

/// Returns the steps for empty blocks of existing nodes. One block stays for each node and family.
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
                steps.push(Step::ReleaseIdleBlock { owner, cidr, sequence });
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
    // These affinities include those to blocks that the node does not own.
    for Affinity { owner, cidr, .. } in
        look.records.affinities.iter().filter(|it| is_gone(&it.owner))
    {
        if !used.contains(&(owner, *cidr)) {
            empty.insert((owner, *cidr));
        }
    }
    let step =
        |(owner, cidr): (&Owner, IpNet)| Step::ReleaseBlockOfGone { owner: owner.clone(), cidr };
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
