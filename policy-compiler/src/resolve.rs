//! Which policies speak for a local endpoint, and what they ask of a peer.
//!
//! A *chain* is everything about the local end that decides: the direction, the ordered list of policies that select the
//! endpoint, and the numbers it gives the port names that their ingress rules use. Endpoints that agree in all of that
//! share one chain; two pods with one list of policies and `http` = 80 and 8080 do not.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

use ahash::AHashMap;

use crate::model::{
    Direction, Endpoint, IpBlock, LabelSelector, Model, ObjectName, Peer, PolicyState, PortMatch,
    Protocol, Reason, Rule, RuleName, Service,
};

/// The port numbers that an endpoint gives to names, for each name and protocol that rules use (empty: it has none).
pub type LocalPorts = BTreeMap<(String, Protocol), BTreeSet<u16>>;

/// The local end's side of a decision.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Chain {
    /// The direction.
    pub direction: Direction,
    /// The policies that select the endpoint and speak of this direction, in order of (namespace, name): Kubernetes
    /// policies all have one order, ties go by name.
    pub policies: Vec<ObjectName>,
    /// The endpoint's own numbers for the names in these policies' ingress rules; empty for egress.
    pub local_ports: LocalPorts,
}

impl Chain {
    /// What decides when no rule allows.
    pub fn default_reason(&self) -> Reason {
        match self.policies.first() {
            None => Reason::NotIsolated(self.direction),
            Some(first) => Reason::Isolated(self.direction, first.clone()),
        }
    }
}

/// Which namespaces a pod must be in.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Namespaces {
    /// This one.
    Named(String),
    /// Those whose labels match.
    Selected(LabelSelector),
}

/// Something that is true or false of a peer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Predicate {
    /// It is a pod of certain namespaces with certain labels.
    Pods {
        /// The namespaces.
        namespaces: Namespaces,
        /// The labels.
        pods: LabelSelector,
    },
    /// Its address is in a block.
    Block(IpBlock),
    /// It is a pod that gives a port name this number.
    NamesPort {
        /// The name.
        name: String,
        /// The protocol.
        protocol: Protocol,
        /// The number.
        port: u16,
    },
}

impl fmt::Display for Predicate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pods { namespaces: Namespaces::Named(namespace), pods } => {
                write!(f, "pods {pods} in namespace {namespace}")
            }
            Self::Pods { namespaces: Namespaces::Selected(selector), pods } => {
                write!(f, "pods {pods} in namespaces {selector}")
            }
            Self::Block(block) => block.fmt(f),
            Self::NamesPort { name, protocol, port } => {
                write!(f, "pods whose {name} is {protocol} {port}")
            }
        }
    }
}

/// Index of a predicate in [`Resolved::predicates`].
pub type PredicateId = u32;

/// The ports of one service of a rule, as far as the local end settles them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Ports {
    /// Every packet of the protocol.
    All,
    /// Both ends included.
    Range(u16, u16),
    /// Exactly these: a name that the local endpoint has resolved. May be empty.
    Numbers(BTreeSet<u16>),
    /// The numbers that the peer gives this name.
    OfPeer(String),
}

/// A rule with its peers as predicates.
#[derive(Debug, Clone)]
pub struct ResolvedRule {
    /// Where it comes from.
    pub name: RuleName,
    /// Any of these; `None` is everybody.
    pub peers: Option<Vec<PredicateId>>,
    /// Any of these; `None` is every packet.
    pub services: Option<Vec<(Protocol, Ports)>>,
}

/// A chain and its rules in order.
#[derive(Debug, Clone)]
pub struct ResolvedChain {
    /// What the chain is.
    pub chain: Chain,
    /// All rules of its policies for its direction.
    pub rules: Vec<ResolvedRule>,
    /// A hash of all that the chain means: the same for the same policies and local ports, in any process that was built
    /// alike, and different (up to 64 bits) for others.
    pub revision: u64,
}

/// What a set of local endpoints needs of the policies.
#[derive(Debug, Clone, Default)]
pub struct Resolved {
    /// For each local endpoint that the model has, its chains' indexes by direction.
    pub endpoints: BTreeMap<ObjectName, [usize; 2]>,
    /// The distinct chains, in order of first use.
    pub chains: Vec<ResolvedChain>,
    /// The distinct predicates over peers, in order of first use.
    pub predicates: Vec<Predicate>,
    /// The port names that egress rules leave to the peer.
    pub peer_ports: BTreeSet<(String, Protocol)>,
}

/// Resolves the policies of `local`; names that the model does not have are left out, so that nothing passes for them.
pub fn resolve(model: &Model, local: &BTreeSet<ObjectName>) -> Resolved {
    let mut resolver = Resolver::new(model);
    for name in local {
        if let Some(endpoint) = model.endpoints.get(name) {
            let chains = Direction::ALL.map(|direction| resolver.chain(name, endpoint, direction));
            resolver.resolved.endpoints.insert(name.clone(), chains);
        }
    }
    resolver.resolved
}

struct Resolver<'m> {
    model: &'m Model,
    chains: AHashMap<Chain, usize>,
    predicates: AHashMap<Predicate, PredicateId>,
    resolved: Resolved,
}

impl<'m> Resolver<'m> {
    fn new(model: &'m Model) -> Self {
        Self {
            model,
            chains: AHashMap::new(),
            predicates: AHashMap::new(),
            resolved: Resolved::default(),
        }
    }

    fn chain(&mut self, name: &ObjectName, endpoint: &Endpoint, direction: Direction) -> usize {
        let selecting: Vec<(&ObjectName, &PolicyState)> = self
            .model
            .policies_in(&name.namespace)
            .filter(|(_, policy)| {
                policy.rules(direction).is_some() && policy.selector().matches(&endpoint.labels)
            })
            .collect();
        let chain = Chain {
            direction,
            policies: selecting.iter().map(|(name, _)| (*name).clone()).collect(),
            local_ports: local_ports(endpoint, direction, &selecting),
        };
        if let Some(index) = self.chains.get(&chain) {
            return *index;
        }
        let mut rules = Vec::new();
        for (policy, state) in &selecting {
            for (index, rule) in state.rules(direction).into_iter().flatten().enumerate() {
                rules.push(self.rule(&chain, policy, index as u32, rule));
            }
        }
        let index = self.resolved.chains.len();
        let revision = revision(&chain, &selecting);
        self.chains.insert(chain.clone(), index);
        self.resolved.chains.push(ResolvedChain { chain, rules, revision });
        index
    }

    fn rule(
        &mut self,
        chain: &Chain,
        policy: &ObjectName,
        index: u32,
        rule: &Rule,
    ) -> ResolvedRule {
        let direction = chain.direction;
        let peers = rule.peers.as_ref().map(|peers| {
            peers.iter().map(|peer| self.predicate(peer, &policy.namespace)).collect()
        });
        let services = rule.services.as_ref().map(|services| {
            services.iter().map(|service| (service.protocol, self.ports(chain, service))).collect()
        });
        ResolvedRule {
            name: RuleName { policy: policy.clone(), direction, index },
            peers,
            services,
        }
    }

    fn ports(&mut self, chain: &Chain, service: &Service) -> Ports {
        match &service.port {
            PortMatch::All => Ports::All,
            PortMatch::Range { first, last } => Ports::Range(*first, *last),
            PortMatch::Named(name) => {
                let key = (name.clone(), service.protocol);
                match chain.direction {
                    Direction::Ingress => {
                        Ports::Numbers(chain.local_ports.get(&key).cloned().unwrap_or_default())
                    }
                    Direction::Egress => {
                        self.resolved.peer_ports.insert(key);
                        Ports::OfPeer(name.clone())
                    }
                }
            }
        }
    }

    fn predicate(&mut self, peer: &Peer, namespace: &str) -> PredicateId {
        let predicate = match peer {
            Peer::PodsHere(pods) => Predicate::Pods {
                namespaces: Namespaces::Named(namespace.to_owned()),
                pods: pods.clone(),
            },
            Peer::PodsIn { namespaces, pods } => Predicate::Pods {
                namespaces: Namespaces::Selected(namespaces.clone()),
                pods: pods.clone(),
            },
            Peer::Block(block) => Predicate::Block(block.clone()),
        };
        let all = &mut self.resolved.predicates;
        *self.predicates.entry(predicate).or_insert_with_key(|predicate| {
            all.push(predicate.clone());
            all.len() as u32 - 1
        })
    }
}

fn local_ports(
    endpoint: &Endpoint,
    direction: Direction,
    policies: &[(&ObjectName, &PolicyState)],
) -> LocalPorts {
    let mut ports = LocalPorts::new();
    if direction == Direction::Egress {
        return ports;
    }
    let rules =
        policies.iter().flat_map(|(_, policy)| policy.rules(direction).into_iter().flatten());
    for service in rules.flat_map(|rule| rule.services.iter().flatten()) {
        if let PortMatch::Named(name) = &service.port {
            ports
                .entry((name.clone(), service.protocol))
                .or_insert_with(|| endpoint.ports_named(name, service.protocol).collect());
        }
    }
    ports
}

/// Hashes with constant keys (`SipHash` with zeroes), because the value must not differ between processes; those who
/// write policies gain nothing from a collision but late enforcement of their own change.
fn revision(chain: &Chain, policies: &[(&ObjectName, &PolicyState)]) -> u64 {
    let mut hasher = DefaultHasher::new();
    chain.hash(&mut hasher);
    for (_, policy) in policies {
        policy.rules(chain.direction).hash(&mut hasher);
    }
    hasher.finish()
}
