//! Finds named ports that no container has among the pods that a rule selects.

use std::collections::BTreeSet;

use manx_objects::code::Code;
use manx_policy_compiler::model::{PortMatch, Protocol};

use super::Place;
use crate::check::fields::Side;
use crate::check::parts::listed;
use crate::check::report::Report;
use crate::check::scene::Role;
use crate::check::selected::Selected;

impl<'a> Place<'_, 'a> {
    pub(super) fn ports(&self, selected: &mut Selected<'_>, report: &mut Report<'a>) {
        let (key, protocol) = (self.fields.key, self.rule.protocol);
        for side in Side::ALL {
            for port in &side.of(self.rule).ports {
                let PortMatch::Named(name) = port else { continue };
                let field = self.fields.port(side, protocol, port);
                if report.has_told(key, &field) {
                    continue;
                }
                let Some(there) = self.other_names(side, name, selected) else { continue };
                let there = if there.is_empty() {
                    "they have no named ports".to_owned()
                } else {
                    format!("they have {}", listed(there, ", "))
                };
                let of_protocol = protocol.map(|it| format!(" of {}", title(it)));
                let message = format!(
                    "no container of the pods that this rule is about has a port named {name}{}, so it matches nothing by it: {there}",
                    of_protocol.unwrap_or_default()
                );
                report.tell(key, &field, Code::NoSuchPort, message);
            }
        }
    }

    /// Returns the names of the ports at one side of the rule, if that side has members and none of
    /// the names is `wanted`. Nets and services are not compared, because it may not be known which
    /// pods have their addresses.
    fn other_names(
        &self,
        side: Side,
        wanted: &str,
        selected: &mut Selected<'_>,
    ) -> Option<BTreeSet<String>> {
        let there = selected.at_side(self.policy, self.fields.direction, self.rule, side)?;
        let mut is_empty = true;
        let mut names = BTreeSet::new();
        for member in there.into_iter().map(|it| &selected.members[it]) {
            if member.role != Role::Endpoint {
                continue;
            }
            is_empty = false;
            for port in &member.ports {
                let number = port.protocol.number();
                if port.name == wanted && self.rule.protocol.is_none_or(|it| it == number) {
                    return None;
                }
                names.insert(format!("{} ({})", port.name, title(number)));
            }
        }
        (!is_empty).then_some(names)
    }
}

/// Returns the name of a protocol.
fn title(protocol: u8) -> String {
    let named = Protocol::from_number(protocol);
    named.map_or_else(|| format!("protocol {protocol}"), |protocol| protocol.to_string())
}
