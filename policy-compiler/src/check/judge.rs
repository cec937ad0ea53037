//! The interface of a judge that an image is compared with.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use super::witness::{Atoms, Bounds, Witnesses};
use crate::image::Path;
use crate::model::{Decision, Direction, Noted, Reason, RuleName, Transport, Verdict};
use crate::resolve::{LocalName, Stage};

/// Judges packets at local endpoints, and states which facts it uses.
///
/// A proof relies on this law. The judge returns the same results for two ends with equal [keys](Self::Key), for two
/// peers with equal [classes](Self::AddressClass), for two peers in the same [atom](Self::atoms), and for two packets
/// with no [bound](Self::bounds) between them.
pub trait Judge {
    /// An endpoint at a stage and in a direction.
    type LocalEnd;
    /// The facts that the judge uses about a local end at one of its addresses.
    type Key: Ord;
    /// The facts that the judge uses about a peer.
    type AddressClass: Ord;

    /// The local end for this endpoint, stage and direction. It exists even if the judge does not know the endpoint.
    fn local_end(&self, endpoint: &LocalName, stage: Stage, direction: Direction)
    -> Self::LocalEnd;
    /// The addresses of the end. If the end may have any address, the result is `peers`: one example from each group of
    /// addresses that are treated in the same way.
    fn addresses(&self, end: &Self::LocalEnd, peers: &Witnesses) -> BTreeSet<IpAddr>;
    /// The prefixes at which the treatment of peers changes for these ends.
    fn atoms(&self, ends: &[&Self::LocalEnd]) -> Atoms;
    /// The keys at which the treatment of packets changes for this end.
    fn bounds(&self, end: &Self::LocalEnd) -> Bounds;
    /// The facts that the judge uses about the end at the address `local`.
    fn key(&self, end: &Self::LocalEnd, local: IpAddr) -> Self::Key;
    /// The facts that the judge uses about a peer of this end.
    fn address_class(&self, end: &Self::LocalEnd, peer: IpAddr) -> Self::AddressClass;
    /// Judges one packet for each of `transports` between the two ends. Returns the results in the same order.
    fn judge(
        &self,
        end: &Self::LocalEnd,
        local: IpAddr,
        peer: IpAddr,
        transports: &[Transport],
    ) -> Vec<Expected>;
}

/// The result of a judge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expected {
    /// The only correct result: the reason, and all rules that are noted before it.
    Decision(Decision),
    /// Several results are correct: any of some reasons, after the same noted rules.
    Among {
        /// The image must name one of these reasons. There are several if several policies cannot be evaluated and
        /// therefore deny: any of them may be named. An empty list means that tables cannot express the decision, so
        /// the image is wrong in any case.
        reasons: Vec<Reason>,
        /// The enforced rules that are noted before the reason, in order.
        through: Vec<RuleName>,
        /// The actions that staged policies would have taken, in order.
        staged: Vec<Noted>,
    },
}

impl Expected {
    /// The verdict, or `None` if tables cannot express the decision.
    pub fn verdict(&self) -> Option<Verdict> {
        match self {
            Self::Decision(decision) => Some(decision.reason.verdict()),
            Self::Among { reasons, .. } => reasons.first().map(Reason::verdict),
        }
    }

    /// Whether a path agrees with this result. If the chain is evaluated rule by rule (`linear`), only verdict and
    /// reason are compared, because such a chain notes no rules.
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
    /// Writes the reasons, and then the rules that are noted before them.
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
