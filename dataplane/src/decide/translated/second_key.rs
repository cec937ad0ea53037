//! The second key of a new flow. It distinguishes the flow's replies from those of all other flows.

use super::source::SourceBehind;
use crate::decide::state::DecisionState;
use crate::flow::{
    DirectedKey, EndReason, Found, KeyOwner, KeyTaken, Owner, ReservedKey, WorkerId,
};
use crate::wire::address::Address;

/// The number of ports that are tried for a flow before the search for a free one ends.
const PORT_TRIES: usize = 32;

/// The seconds of silence after which a flow of a protocol without connections may lose its port. Replies that were on
/// their way have arrived by then. (While ports are free, the flow keeps its port for minutes, as RFC 4787, section
/// 4.3, requires.)
const QUIET: u32 = 5;

/// The first and the last of the ports that may replace a client's port.
const CLIENT_PORTS: (u16, u16) = (1024, u16::MAX);

/// A flow that needs a second key: its first key, its source and destination after the translation, and its owner.
pub(super) struct Wanted<'a> {
    pub(super) first: &'a DirectedKey,
    pub(super) source: SourceBehind,
    pub(super) destination: (Address, u16),
    pub(super) owner: Owner,
}

/// The error that all keys that were tried are taken.
pub(super) struct NoKey {
    /// The other worker that has the largest number of these keys, if other workers have any. That worker can free one.
    pub(super) most: Option<WorkerId>,
    /// The number of flows of this worker that have any of these keys.
    pub(super) holders: u8,
    /// The owner that has the largest number of these flows, and that number.
    pub(super) owner: Option<(Owner, u8)>,
}

/// Reserves a second key. The key has the client's own port, or another port if another flow or worker already has that
/// key. If the node's address replaces the source, the port is chosen at random. If all such ports that were tried are
/// taken, a connection that is over loses its port. If none is over, the owner of the largest number of them loses one
/// to an owner that has fewer. So no pod can keep the ports to a destination from other pods, except a pod that sends
/// from all of them without a pause ([`QUIET`]).
///
/// The other side may not know that a flow has lost its port. With TCP, it learns this before the next flow can
/// exchange data with it ([`FlowState::SynSentOutward`](crate::flow::FlowState::SynSentOutward)). Other protocols have
/// no such exchange, so a flow must have been quiet.
pub(super) fn reserve_second_key(
    state: &mut DecisionState,
    found: Found,
    wanted: &Wanted<'_>,
    now: u32,
) -> Result<ReservedKey, NoKey> {
    let Wanted { first, source, destination, .. } = *wanted;
    let (_, own) = first.key.source(first.original);
    let port = match source {
        SourceBehind::Client | SourceBehind::Address(_) => own,
        SourceBehind::Node(_, ports) => random_port(state, ports),
    };
    let second = source.second_key(first, port, destination);
    match state.flows.reserve_second_key(second, found, now) {
        Ok(reserved) => Ok(reserved),
        Err(why) => reserve_another_key(state, found, wanted, (second, why), now),
    }
}

/// Like [`reserve_second_key`], if the first key that was tried is taken.
#[inline(never)]
fn reserve_another_key(
    state: &mut DecisionState,
    found: Found,
    wanted: &Wanted<'_>,
    refused: (DirectedKey, KeyTaken),
    now: u32,
) -> Result<ReservedKey, NoKey> {
    let Wanted { first, source, destination, owner } = *wanted;
    let ports = match source {
        SourceBehind::Client | SourceBehind::Address(_) => CLIENT_PORTS,
        SourceBehind::Node(_, ports) => ports,
    };
    let (mut taken, mut count) = ([None; PORT_TRIES], 0);
    let mut elsewhere = [None; PORT_TRIES];
    let (mut second, mut why) = refused;
    for tries in 1.. {
        let holder = match why {
            KeyTaken::Flow => state.flows.key_owner(&second.key),
            KeyTaken::Worker(worker) => {
                elsewhere[tries - 1] = Some(worker);
                None
            }
        };
        let is_new = |it: &KeyOwner| {
            let mut known = taken.iter().flatten();
            known.all(|(_, other): &(_, KeyOwner)| other.found != it.found)
        };
        if let Some(holder) = holder.filter(is_new) {
            taken[count] = Some((second, holder));
            count += 1;
        }
        if tries == PORT_TRIES {
            break;
        }
        second = source.second_key(first, random_port(state, ports), destination);
        why = match state.flows.reserve_second_key(second, found, now) {
            Ok(reserved) => return Ok(reserved),
            Err(why) => why,
        };
    }
    let no_key = || NoKey {
        most: most_frequent(&elsewhere),
        holders: count as u8,
        owner: most_holding(&taken),
    };
    if !matches!(source, SourceBehind::Node(..)) {
        return Err(no_key());
    }
    let over = longest_over(&taken, owner, now);
    let (second, victim) = over.or_else(|| most_wasteful(&taken, owner, now)).ok_or_else(no_key)?;
    let is_over = victim.state.over_after().is_some() && over.is_some();
    let reason = if is_over { EndReason::Replaced } else { EndReason::Evicted };
    state.flows.remove_found(victim.found, now, reason);
    state.evictions += u64::from(!is_over);
    debug_assert_ne!(victim.found, found, "a flow's own second key is not taken");
    state.flows.reserve_second_key(second, found, now).map_err(|_| no_key())
}

fn most_frequent(workers: &[Option<WorkerId>]) -> Option<WorkerId> {
    let all = || workers.iter().flatten();
    all().max_by_key(|worker| all().filter(|it| it == worker).count()).copied()
}

/// The owner that has the largest number of the keys that were found taken, and that number.
fn most_holding(taken: &[Option<(DirectedKey, KeyOwner)>]) -> Option<(Owner, u8)> {
    let all = || taken.iter().flatten().map(|(_, it)| it.owner);
    let counted = all().map(|owner| (owner, all().filter(|it| *it == owner).count() as u8));
    counted.max_by_key(|(_, count)| *count)
}

/// A random port between the first and the last, inclusive.
fn random_port(state: &mut DecisionState, (least, last): (u16, u16)) -> u16 {
    let ports = u32::from(last.saturating_sub(least)) + 1;
    least + (state.chance() % ports) as u16
}

/// Chooses, among the keys that were found taken, one of a connection that is over. It prefers the owner's own
/// connections, then the one that has been silent longest. A quiet flow of a protocol without connections counts as
/// over if it is the owner's own.
///
/// The peer of the old connection may still be in TIME-WAIT. Such a peer accepts a SYN with a later timestamp or
/// sequence number (RFC 9293, section 3.6.1; RFC 6191). Linux takes the timestamps of all connections between two
/// addresses from one clock, so the owner's own connections come first. A peer that does not accept the SYN, or still
/// waits for the acknowledgment of its last FIN, answers with an ACK. The pod resets that, which ends the old
/// connection (RFC 9293, section 3.10.7.3), and sends its next SYN a second later.
fn longest_over(
    taken: &[Option<(DirectedKey, KeyOwner)>],
    owner: Owner,
    now: u32,
) -> Option<(DirectedKey, KeyOwner)> {
    let silence = |it: &KeyOwner| now.saturating_sub(it.last_seen);
    let is_over = |it: &KeyOwner| match it.state.over_after() {
        Some(least) => silence(it) >= least,
        None => it.owner == owner && !it.state.is_tcp() && silence(it) >= QUIET,
    };
    let over = taken.iter().flatten().filter(|(_, it)| is_over(it));
    over.max_by_key(|(_, it)| (it.owner == owner, silence(it))).copied()
}

/// Chooses, among the keys that were found taken, one of the owner that has the largest number of them. It prefers a
/// flow that is not established. Flows of protocols other than TCP are chosen only if they are quiet. `None`: no flow
/// may be chosen, or `owner` would then have as many as that owner.
fn most_wasteful(
    taken: &[Option<(DirectedKey, KeyOwner)>],
    owner: Owner,
    now: u32,
) -> Option<(DirectedKey, KeyOwner)> {
    let all = || taken.iter().flatten();
    let count = |owner: Owner| all().filter(|(_, it)| it.owner == owner).count();
    let rank = |(_, it): &&(DirectedKey, KeyOwner)| (count(it.owner), !it.state.is_established());
    let may_end = |(_, it): &&(DirectedKey, KeyOwner)| {
        it.state.is_tcp() || now.saturating_sub(it.last_seen) >= QUIET
    };
    let found = all().filter(may_end).max_by_key(rank)?;
    (count(found.1.owner) > count(owner) + 1).then_some(*found)
}
