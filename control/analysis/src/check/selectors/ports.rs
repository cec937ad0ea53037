//! Named ports that no container has where a rule looks.

use std::collections::BTreeSet;

use manx_objects::code::Code;
use manx_objects::object::calico::{self, EntityRule};
use manx_objects::object::cluster::{ClusterMatch, ClusterProtocol};
use manx_objects::object::{Kind, Object, Port, PortNumber, Protocol};
use manx_policy_compiler::model::{Direction, PortMatch, RuleEnd};

use super::Place;
use crate::check::parts::listed;
use crate::check::report::Report;
use crate::check::scene::{Member, Role};

impl<'a> Place<'_, 'a> {
    pub(super) fn ports(&self, members: &[Member<'_>], report: &mut Report<'a>) {
        for (side, end) in self.ends() {
            for port in &end.ports {
                let PortMatch::Named(name) = port else { continue };
                let Some(there) = self.other_names(side, end, name, members) else { continue };
                let field = self.port_field(side, name);
                if report.has_told(self.key, &field) {
                    continue;
                }
                let there = if there.is_empty() {
                    "they have no named ports".to_owned()
                } else {
                    format!("they have {}", listed(there, ", "))
                };
                let message = format!(
                    "no container of the pods that this rule is about has a port named {name}{}, so it matches nothing by it: {there}",
                    self.rule
                        .protocol
                        .map(|it| format!(" of {}", protocol(it)))
                        .unwrap_or_default()
                );
                report.tell(self.key, &field, Code::NoSuchPort, message);
            }
        }
    }

    /// The names of the ports at one end of the rule, if `wanted` is not one of them and there is something at that
    /// end.
    fn other_names(
        &self,
        side: &str,
        end: &RuleEnd,
        wanted: &str,
        members: &[Member<'_>],
    ) -> Option<BTreeSet<String>> {
        let local = (side == "destination") == (self.direction == Direction::Ingress);
        let mut is_empty = true;
        let mut names = BTreeSet::new();
        for member in members.iter().filter(|member| member.role == Role::Endpoint) {
            if (local && !member.fits(&self.policy.selector)) || !may_be(member, end) {
                continue;
            }
            is_empty = false;
            for port in &member.ports {
                let number = port.protocol.number();
                if port.name == wanted && self.rule.protocol.is_none_or(|it| it == number) {
                    return None;
                }
                names.insert(format!("{} ({})", port.name, protocol(number)));
            }
        }
        (!is_empty).then_some(names)
    }

    fn port_field(&self, side: &str, name: &str) -> String {
        let rule = self.field();
        let index = self.rule.index as usize;
        let ingress = self.direction == Direction::Ingress;
        let (list, at) = match self.object {
            Object::NetworkPolicy(wire) => {
                let rules = if ingress { &wire.ingress } else { &wire.egress };
                let ports = rules.as_deref().and_then(|rules| rules.get(index)?.ports.as_deref());
                let is_it = |port: &Port| {
                    let protocol = match port.protocol {
                        None | Some(Protocol::Tcp) => 6,
                        Some(Protocol::Udp) => 17,
                        Some(Protocol::Sctp) => 132,
                    };
                    self.rule.protocol == Some(protocol)
                        && matches!(&port.port, Some(PortNumber::Name(of)) if of == name)
                };
                ("ports".to_owned(), ports.and_then(|ports| ports.iter().position(is_it)))
            }
            Object::ClusterNetworkPolicy(wire) => {
                let rules = if ingress { &wire.ingress } else { &wire.egress };
                let protocols = rules.get(index).and_then(|rule| match &rule.matches {
                    ClusterMatch::Of { protocols, .. } => protocols.as_deref(),
                    ClusterMatch::Unsupported => None,
                });
                let is_it =
                    |it: &ClusterProtocol| matches!(it, ClusterProtocol::Named(of) if of == name);
                let list =
                    if self.key.kind == Kind::ClusterNetworkPolicy { "protocols" } else { "ports" };
                (list.to_owned(), protocols.and_then(|all| all.iter().position(is_it)))
            }
            Object::CalicoPolicy(wire) => {
                let rules = if ingress { &wire.ingress } else { &wire.egress };
                let end = |rule: &calico::Rule| -> EntityRule {
                    if side == "source" { rule.source.clone() } else { rule.destination.clone() }
                };
                let ports = rules.get(index).map(|rule| end(rule).ports).unwrap_or_default();
                let at = ports.iter().position(|it| *it == calico::Port::Name(name.to_owned()));
                (format!("{side}.ports"), at)
            }
            _ => (String::new(), None),
        };
        match at {
            Some(at) => format!("{rule}.{list}[{at}]"),
            None => rule,
        }
    }
}

/// Whether an end of a rule may mean a member. Nets and services are not asked: addresses may be unknown.
fn may_be(member: &Member<'_>, end: &RuleEnd) -> bool {
    end.entities.as_ref().is_none_or(|entities| {
        entities.iter().any(|entity| {
            entity.selector.as_ref().is_none_or(|selector| member.fits(selector))
                && !entity.not_selector.as_ref().is_some_and(|it| it.matches(&member.labels))
        })
    })
}

fn protocol(number: u8) -> String {
    match number {
        6 => "TCP".to_owned(),
        17 => "UDP".to_owned(),
        132 => "SCTP".to_owned(),
        number => format!("protocol {number}"),
    }
}
