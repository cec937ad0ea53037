//! The interface of a judge that an image is compared with.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use super::witness::{Atoms, Bounds, Witnesses};
use crate::image::Path;
use crate::model::{Decision, Direction, Noted, Reason, RuleName, Transport, Verdict};
use crate::resolve::{LocalName, Stage};

/// Judges packets at local endpoints, and tells what it looks at when it does.
///
/// The law, on which a proof rests: ends of one [`Key`](Self::Key) and peers of one [`AddressClass`](Self::AddressClass) are judged alike,
/// and so are all packets between the [bounds](Self::bounds) and all peers between the [atoms](Self::atoms).
pub trait Judge {
    /// An endpoint at a stage and in a direction.
    type LocalEnd;
    /// What it looks at of an end that uses one of its addresses.
    type Key: Ord;
    /// What it looks at of a peer.
    type AddressClass: Ord;

    /// The end; it may be one that the judge does not know.
    fn local_end(&self, endpoint: &LocalName, stage: Stage, direction: Direction)
    -> Self::LocalEnd;
    /// The addresses of the end; `peers` stand for all addresses, where it may be any.
    fn addresses(&self, end: &Self::LocalEnd, peers: &Witnesses) -> BTreeSet<IpAddr>;
    /// Where peers change for these ends.
    fn atoms(&self, ends: &[&Self::LocalEnd]) -> Atoms;
    /// Where packets change for this end.
    fn bounds(&self, end: &Self::LocalEnd) -> Bounds;
    /// What it looks at of the end.
    fn key(&self, end: &Self::LocalEnd, local: IpAddr) -> Self::Key;
    /// What it looks at of a peer that the end meets.
    fn address_class(&self, end: &Self::LocalEnd, peer: IpAddr) -> Self::AddressClass;
    /// What it says of these packets between the two, one answer each.
    fn judge(
        &self,
        end: &Self::LocalEnd,
        local: IpAddr,
        peer: IpAddr,
        transports: &[Transport],
    ) -> Vec<Expected>;
}

/// What a judge says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expected {
    /// What decides and everything that is met on the way.
    Decision(Decision),
    /// What decides, what is met on the way of what is enforced, and what staged policies would have done.
    Among {
        /// Any of these: of several policies that deny, none of which can be evaluated, nobody says which. None: tables
        /// have no word for it, and are wrong whatever they say.
        reasons: Vec<Reason>,
        /// In order.
        through: Vec<RuleName>,
        /// In order.
        staged: Vec<Noted>,
    },
}

impl Expected {
    /// The verdict; none if tables have no word for what decides.
    pub fn verdict(&self) -> Option<Verdict> {
        match self {
            Self::Decision(decision) => Some(decision.reason.verdict()),
            Self::Among { reasons, .. } => reasons.first().map(Reason::verdict),
        }
    }

    /// Whether a path says the same. Chains that are judged rule by rule do not note what they meet.
    pub(super) fn agrees(&self, path: &Path, linear: bool) -> bool {
        match self {
            Self::Decision(decision) => {
                path.verdict == decision.reason.verdict()
                    && path.decision.reason == decision.reason
                    && (linear || path.decision.noted == decision.noted)
            }
            Self::Among { reasons, through, staged } => {
                let noted = |is_staged: bool| {
                    let all = path.decision.noted.iter();
                    all.filter(move |it| it.policy().kind.staged() == is_staged)
                };
                let met = noted(false).map(Noted::rule).eq(through.iter().map(Some));
                path.verdict == path.decision.reason.verdict()
                    && reasons.contains(&path.decision.reason)
                    && (linear || (met && noted(true).eq(staged)))
            }
        }
    }
}

impl From<Decision> for Expected {
    fn from(decision: Decision) -> Self {
        Self::Decision(decision)
    }
}

impl fmt::Display for Expected {
    /// What decides, and after what.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (reasons, through, noted): (&[Reason], &[RuleName], &[Noted]) = match self {
            Self::Decision(Decision { reason, noted }) => {
                (std::slice::from_ref(reason), &[], noted)
            }
            Self::Among { reasons, through, staged } => (reasons, through, staged),
        };
        let reasons: Vec<String> = reasons.iter().map(Reason::to_string).collect();
        f.write_str(&reasons.join(" or "))?;
        through.iter().try_for_each(|rule| write!(f, ", after {rule}"))?;
        noted.iter().try_for_each(|noted| write!(f, ", after {noted}"))
    }
}
