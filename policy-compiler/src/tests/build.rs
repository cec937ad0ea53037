//! Short ways to write models in tests.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use crate::compile::Compiler;
use crate::image::Image;
use crate::model::*;
use crate::prove::prove;
use crate::reference::judge;

pub(super) fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

pub(super) fn select(pairs: &[(&str, &str)]) -> LabelSelector {
    let requirement = |(key, value): &(&str, &str)| {
        Requirement::In((*key).to_owned(), [(*value).to_owned()].into())
    };
    LabelSelector(pairs.iter().map(requirement).collect())
}

pub(super) fn name(text: &str) -> ObjectName {
    let (namespace, name) = text.split_once('/').unwrap();
    ObjectName::new(namespace, name)
}

pub(super) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(super) fn tcp(port: u16) -> Transport {
    Transport { protocol: 6, port: Some(port) }
}

pub(super) fn udp(port: u16) -> Transport {
    Transport { protocol: 17, port: Some(port) }
}

pub(super) fn sctp(port: u16) -> Transport {
    Transport { protocol: 132, port: Some(port) }
}

pub(super) fn portless(protocol: u8) -> Transport {
    Transport { protocol, port: None }
}

pub(super) fn block(cidr: &str, except: &[&str]) -> Peer {
    let except = except.iter().map(|net| net.parse().unwrap());
    Peer::Block(IpBlock::new(cidr.parse().unwrap(), except).unwrap())
}

pub(super) fn here(pairs: &[(&str, &str)]) -> Peer {
    Peer::PodsHere(select(pairs))
}

pub(super) fn across(namespaces: &[(&str, &str)], pods: &[(&str, &str)]) -> Peer {
    Peer::PodsIn { namespaces: select(namespaces), pods: select(pods) }
}

pub(super) fn service(protocol: Protocol, port: PortMatch) -> Service {
    Service { protocol, port }
}

pub(super) fn port(number: u16) -> Service {
    service(Protocol::Tcp, PortMatch::Range { first: number, last: number })
}

pub(super) fn named(name: &str) -> Service {
    service(Protocol::Tcp, PortMatch::Named(name.to_owned()))
}

pub(super) fn rule(peers: &[Peer], services: &[Service]) -> Rule {
    Rule { peers: Some(peers.to_vec()), services: Some(services.to_vec()) }
}

pub(super) fn from(peers: &[Peer]) -> Rule {
    Rule { peers: Some(peers.to_vec()), services: None }
}

pub(super) fn on(services: &[Service]) -> Rule {
    Rule { peers: None, services: Some(services.to_vec()) }
}

/// A cluster to ask: every question goes to the compiled tables and to the reference, which must agree.
#[derive(Default)]
pub(super) struct Cluster {
    pub(super) model: Model,
}

impl Cluster {
    pub(super) fn namespace(mut self, name: &str, pairs: &[(&str, &str)]) -> Self {
        self.model.namespaces.insert(name.to_owned(), labels(pairs));
        self
    }

    pub(super) fn pod(self, pod: &str, pairs: &[(&str, &str)], addresses: &[&str]) -> Self {
        self.pod_with_ports(pod, pairs, addresses, &[])
    }

    pub(super) fn pod_with_ports(
        mut self,
        pod: &str,
        pairs: &[(&str, &str)],
        addresses: &[&str],
        ports: &[(&str, Protocol, u16)],
    ) -> Self {
        let named = |(name, protocol, port): &(&str, Protocol, u16)| NamedPort {
            name: (*name).to_owned(),
            protocol: *protocol,
            port: *port,
        };
        let endpoint = Endpoint {
            labels: labels(pairs),
            addresses: addresses.iter().map(|address| ip(address)).collect(),
            named_ports: ports.iter().map(named).collect(),
        };
        self.model.endpoints.insert(name(pod), Arc::new(endpoint));
        self
    }

    pub(super) fn policy(
        mut self,
        policy: &str,
        selector: LabelSelector,
        ingress: Option<Vec<Rule>>,
        egress: Option<Vec<Rule>>,
    ) -> Self {
        let state = PolicyState::Valid(Arc::new(Policy { selector, ingress, egress }));
        self.model.policies.insert(name(policy), state);
        self
    }

    pub(super) fn ingress(self, policy: &str, pairs: &[(&str, &str)], rules: Vec<Rule>) -> Self {
        self.policy(policy, select(pairs), Some(rules), None)
    }

    pub(super) fn egress(self, policy: &str, pairs: &[(&str, &str)], rules: Vec<Rule>) -> Self {
        self.policy(policy, select(pairs), None, Some(rules))
    }

    pub(super) fn invalid(mut self, policy: &str, selector: LabelSelector) -> Self {
        self.model.policies.insert(name(policy), PolicyState::Invalid(selector));
        self
    }

    pub(super) fn all(&self) -> BTreeSet<ObjectName> {
        self.model.endpoints.keys().cloned().collect()
    }

    /// The image of every endpoint, proved.
    pub(super) fn image(&self) -> Image {
        let image = Compiler::new().compile(&self.model, &self.all());
        prove(&self.model, &self.all(), &image).unwrap();
        image
    }

    /// What decides a packet, in the tables; the reference must agree.
    pub(super) fn reason(
        &self,
        pod: &str,
        direction: Direction,
        peer: &str,
        transport: Transport,
    ) -> Reason {
        let image = self.image();
        let chain = image.chain(&name(pod), direction).unwrap();
        let path = image.path(image.classify(chain, image.identity(ip(peer)), transport));
        let expected = judge(&self.model, &name(pod), direction, ip(peer), transport);
        assert_eq!(path.reason, expected);
        assert_eq!(path.verdict, expected.verdict());
        expected
    }

    pub(super) fn allows_in(&self, pod: &str, source: &str, transport: Transport) -> bool {
        self.reason(pod, Direction::Ingress, source, transport).verdict() == Verdict::Allow
    }

    pub(super) fn allows_out(&self, pod: &str, destination: &str, transport: Transport) -> bool {
        self.reason(pod, Direction::Egress, destination, transport).verdict() == Verdict::Allow
    }
}
