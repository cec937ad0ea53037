//! The tables of Manx's own, and the rules that lead to them.

use futures_util::TryStreamExt;
use rtnetlink::IpVersion;
use rtnetlink::packet_route::route::RouteProtocol;
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};

use super::route::MANX_PROTOCOL;
use super::{Error, Netlink};

/// The preference of Manx's rules that concern no packets to the node itself. It is between the local table's rule (0) and
/// the main table's (32,766).
pub const RULE_PREFERENCE: u32 = 77;

fn leads_to(message: &RuleMessage, table: u8) -> bool {
    let ours = RuleAttribute::Protocol(RouteProtocol::Other(MANX_PROTOCOL));
    let header = &message.header;
    (header.action, header.table) == (RuleAction::ToTable, table)
        && message.attributes.contains(&ours)
}

fn names_interface(message: &RuleMessage, name: &str) -> bool {
    let is_it =
        |attribute: &RuleAttribute| matches!(attribute, RuleAttribute::Iifname(it) if it == name);
    message.attributes.iter().any(is_it)
}

/// The table for packets that come back from the translation of services. The routes of Manx's tables are deleted with
/// their interfaces.
pub const TRANSLATED_TABLE: u8 = 77;
/// The table for packets that the node itself sends. The kernel treats them as coming in by `lo`.
pub const OWN_TABLE: u8 = 78;
/// The table for packets to those ports of the node's own addresses that Manx owns.
pub const PORTS_TABLE: u8 = 79;

impl Netlink {
    /// Makes the kernel use `table`, which is below 256, before the main table, but only for packets that come in by this
    /// interface. With `None` it applies to no packets. Packets to the node itself are routed earlier.
    pub async fn set_table_rule(&self, table: u8, interface: Option<&str>) -> Result<(), Error> {
        for version in [IpVersion::V4, IpVersion::V6] {
            let is_v4 = matches!(version, IpVersion::V4);
            let listed = self.handle.rule().get(version).execute().try_collect::<Vec<_>>().await;
            let listed = match listed {
                // The kernel may lack IPv6.
                Err(_) if !is_v4 => continue,
                listed => listed
                    .map_err(Error::request(|| "the routing rules cannot be listed".to_owned()))?,
            };
            let mut is_there = false;
            for message in listed.into_iter().filter(|it| leads_to(it, table)) {
                if interface.is_some_and(|name| names_interface(&message, name)) && !is_there {
                    is_there = true;
                    continue;
                }
                let removed = self.handle.rule().del(message).execute().await;
                removed.map_err(Error::request(|| {
                    format!("the rule that leads to table {table} cannot be removed")
                }))?;
            }
            let Some(interface) = interface.filter(|_| !is_there) else { continue };
            let new = || {
                let rule = self.handle.rule().add().input_interface(interface);
                rule.table_id(table.into()).priority(RULE_PREFERENCE)
            };
            let by = RuleAttribute::Protocol(RouteProtocol::Other(MANX_PROTOCOL));
            let made = if is_v4 {
                let mut rule = new().v4().action(RuleAction::ToTable);
                rule.message_mut().attributes.push(by);
                rule.execute().await
            } else {
                let mut rule = new().v6().action(RuleAction::ToTable);
                rule.message_mut().attributes.push(by);
                rule.execute().await
            };
            made.map_err(Error::request(|| {
                format!("packets from {interface} cannot be routed by table {table}")
            }))?;
        }
        Ok(())
    }
}
