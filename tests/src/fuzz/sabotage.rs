//! Deliberate faults, which a run must find.

use std::str::FromStr;

use fastrand::Rng;
use manx_dataplane::port::memory::Frame;

/// A deliberate fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
    /// One policy is missing in the input of the tables.
    Policy,
    /// Tables are not published when a policy is added or removed.
    Stale,
    /// The workers' clock stands still.
    Clock,
    /// Some packets count as having come from another port, as if sources were not checked.
    Source,
    /// A bit of some packets is changed on their way out.
    Bit,
    /// The next agent gets no records of flows.
    Forget,
    /// Some packets are lost on their way out.
    Loss,
    /// Some packets come out twice.
    Twice,
    /// The nodes treat some backends' addresses as gone, so that connections get other backends.
    Backend,
    /// Services' answers keep the backend's address.
    Reply,
    /// Some pods' packets leave for the world with the pods' own addresses.
    Masquerade,
    /// Connections to the world share a port.
    Port,
    /// Outside clients get backends of other nodes, although they should get only backends of their
    /// node.
    Local,
    /// One node chooses other backends than the other one, for frontends where a router may choose
    /// the node.
    Choice,
    /// Connections to the world are refused a port that they should get.
    Full,
}

impl Sabotage {
    pub const ALL: [(Self, &'static str); 15] = [
        (Self::Policy, "policy"),
        (Self::Stale, "stale"),
        (Self::Clock, "clock"),
        (Self::Source, "source"),
        (Self::Bit, "bit"),
        (Self::Forget, "forget"),
        (Self::Loss, "loss"),
        (Self::Twice, "twice"),
        (Self::Backend, "backend"),
        (Self::Reply, "reply"),
        (Self::Masquerade, "masquerade"),
        (Self::Port, "port"),
        (Self::Local, "local"),
        (Self::Choice, "choice"),
        (Self::Full, "full"),
    ];

    /// Whether only worlds whose nodes translate show the fault.
    pub fn is_of_translation(self) -> bool {
        matches!(self, Self::Backend | Self::Reply) || self.is_of_ports()
    }

    /// Whether only worlds whose nodes have ports of services and a way out show the fault.
    pub fn is_of_ports(self) -> bool {
        matches!(self, Self::Masquerade | Self::Port | Self::Local | Self::Choice | Self::Full)
    }

    /// Applies the fault to a packet on its way out. Returns the number of times that it comes out.
    pub fn tamper(self, chance: &mut Rng, frame: &mut Frame) -> usize {
        if chance.u8(..) > 0 {
            return 1;
        }
        match self {
            Self::Bit => {
                let at = chance.usize(..frame.bytes.len());
                frame.bytes[at] ^= 1 << chance.u8(..8);
                1
            }
            Self::Loss => 0,
            Self::Twice => 2,
            Self::Policy
            | Self::Stale
            | Self::Clock
            | Self::Source
            | Self::Forget
            | Self::Backend
            | Self::Reply
            | Self::Masquerade
            | Self::Port
            | Self::Local
            | Self::Choice
            | Self::Full => 1,
        }
    }
}

impl FromStr for Sabotage {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|(_, named)| *named == name);
        let known: Vec<&str> = Self::ALL.map(|(_, named)| named).to_vec();
        found
            .map(|(sabotage, _)| sabotage)
            .ok_or_else(|| format!("no sabotage {name:?}: expected one of {}", known.join(", ")))
    }
}
