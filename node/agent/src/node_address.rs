//! Chooses this node's address for other nodes: it is detected by Calico's methods, and written to the Node's annotations,
//! which all nodes read.
//!
//! Without such settings nothing is detected and nothing is written: the Node's object gives the address. With them:
//! - A start waits for an address. Otherwise packets between nodes would use an address that no setting has chosen.
//! - A running agent checks the address once a minute. The current address stays while it is among those that the
//!   method allows. If the method finds no address any more, the current one stays, too, because no other node has it.
//!   A problem is reported.
//! - If the Node's object gets another IPv4 address, the agent ends, because its sockets use the old one. The next agent
//!   starts with the new one. So there is at most one restart in a minute.
//! - A directory of manifests is never written. With one, the agent only compares the found address with the Node's
//!   object.

use std::collections::BTreeMap;
use std::iter;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use manx_api::node_address::{NodeAddress, OtherAddress};
use manx_linux::autodetect::{self, Choice, Facts, Found, Interface, Known, MOST_TOLD};
use manx_linux::netlink::{Family, Netlink};
use manx_objects::contents::Contents;
use manx_objects::object::{Kind, NODE_ADDRESSES, Node, Object, ObjectKey};
use tokio::sync::watch;

use crate::settings::{Datastore, Network, NodeAddressSettings, Settings};

/// The interval between two checks while the agent runs: that of calico-node (`-monitor-addresses`).
const LOOKS: Duration = Duration::from_mins(1);
/// The interval between two checks while a start waits.
pub(crate) const WAITING: Duration = Duration::from_secs(1);

/// Annotations to write, by name.
type Annotations = BTreeMap<&'static str, String>;

/// See the module.
#[derive(Debug)]
pub(crate) struct NodeAddresses {
    node: String,
    wanted: NodeAddressSettings,
    /// Whether there is an API server to which annotations can be written.
    writes: bool,
    /// The interfaces, addresses and routes of the kernel.
    facts: Facts,
    /// The annotations that were written last, and the time.
    written: Option<(Annotations, Instant)>,
    /// The IPv4 address with which the agent started.
    started: Option<IpAddr>,
    /// The last reported problem.
    told: Option<String>,
}

/// The decision that follows from the facts and the Node's object.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AddressAction {
    /// The object has the wanted addresses, or keeps addresses that are no longer found.
    Stands,
    /// The object must get these annotations.
    Write(Annotations),
    /// A wanted address is missing, for this reason.
    Lacks(String),
}

/// A change of the problem with the addresses.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// There is a new problem.
    Problem(String),
    /// The problem is solved.
    Over,
}

impl NodeAddresses {
    /// The state before the first check. If another plugin reaches the other nodes, nothing is detected, as with Calico
    /// (`CALICO_NETWORKING_BACKEND=none`).
    pub(crate) fn new(settings: &Settings) -> Self {
        let is_asked = settings.network == Network::Manx;
        Self {
            node: settings.name.clone(),
            wanted: if is_asked { settings.addresses.clone() } else { [None, None] },
            writes: matches!(settings.datastore, Datastore::Kubernetes { .. }),
            facts: Facts::default(),
            written: None,
            started: None,
            told: None,
        }
    }

    /// The settings.
    pub(crate) const fn wanted(&self) -> &NodeAddressSettings {
        &self.wanted
    }

    /// The address that the settings choose in each family, with the object's addresses of that family.
    fn choices<'a>(&'a self, node: &'a Node) -> impl Iterator<Item = (Family, Known, Choice)> + 'a {
        Family::ALL.into_iter().zip(&self.wanted).filter_map(move |(family, wanted)| {
            let known = known(family, node);
            let choice = autodetect::choose(wanted.as_ref()?, family, &self.facts, &known);
            Some((family, known, choice))
        })
    }

    /// Decides what must be done. A missing or invalid Node is reported elsewhere.
    fn judge(&self, contents: &Contents) -> AddressAction {
        let Some(node) = object(contents, &self.node).filter(|_| self.writes) else {
            return AddressAction::Stands;
        };
        let (mut annotations, mut lacks) = (Annotations::new(), Vec::new());
        for (family, known, choice) in self.choices(node) {
            match choice.taken {
                Ok(found) if known.annotated == Some(found.address) => {}
                Ok(found) => {
                    annotations.insert(annotation(family), found.address.to_string());
                }
                Err(_) if known.annotated.is_some() => {}
                Err(refusal) => lacks.push(self.sentence(family, &refusal)),
            }
        }
        if !lacks.is_empty() {
            AddressAction::Lacks(lacks.join("; "))
        } else if annotations.is_empty() {
            AddressAction::Stands
        } else {
            AddressAction::Write(annotations)
        }
    }

    /// The annotations of an action, unless they were written within the last minute.
    fn due_write(&mut self, action: AddressAction, now: Instant) -> Option<Annotations> {
        let AddressAction::Write(annotations) = action else { return None };
        let is_written = self.written.as_ref().is_some_and(|(written, at)| {
            *written == annotations && now.saturating_duration_since(*at) < LOOKS
        });
        if is_written {
            return None;
        }
        self.written = Some((annotations.clone(), now));
        Some(annotations)
    }

    /// Checks new facts. Returns the annotations that must be written now.
    pub(crate) fn look(
        &mut self,
        facts: Facts,
        contents: &Contents,
        now: Instant,
    ) -> Option<Annotations> {
        self.facts = facts;
        let action = self.judge(contents);
        self.due_write(action, now)
    }

    /// The reason why a start waits, if it does. `warnings` lists failures at the API server.
    pub(crate) fn waits(&self, contents: &Contents, warnings: &[String]) -> Option<String> {
        waiting(&self.judge(contents), warnings)
    }

    /// Records that the agent starts with the address in the Node's object.
    pub(crate) fn start(&mut self, contents: &Contents) {
        let known = object(contents, &self.node).map(|node| known(Family::V4, node));
        self.started = known.and_then(|it| it.annotated).map(|it| it.addr());
    }

    /// The change of the problem that has not been reported yet.
    pub(crate) fn news(&mut self, contents: &Contents) -> Option<News> {
        let problems: Vec<String> = self.problems(contents).map(|(_, it)| it).collect();
        let now = (!problems.is_empty()).then(|| problems.join("; "));
        if now == self.told {
            return None;
        }
        self.told.clone_from(&now);
        Some(now.map_or(News::Over, News::Problem))
    }

    /// The IPv4 address with which the agent started, and the address that has replaced it in the Node's object, because it
    /// was detected.
    pub(crate) fn replaced(&self, contents: &Contents) -> Option<(IpAddr, IpAddr)> {
        let (started, _) = (self.started?, self.wanted[0].as_ref()?);
        let annotated = known(Family::V4, object(contents, &self.node)?).annotated?;
        let is_found = |it: &Found| it.address.addr() == annotated.addr();
        let here = autodetect::addresses(Family::V4, &self.facts);
        (annotated.addr() != started && here.iter().any(is_found))
            .then_some((started, annotated.addr()))
    }

    /// The problems, by family.
    fn problems<'a>(
        &'a self,
        contents: &'a Contents,
    ) -> impl Iterator<Item = (Family, String)> + 'a {
        let node = object(contents, &self.node).into_iter();
        node.flat_map(|node| self.choices(node)).filter_map(|(family, known, choice)| {
            let problem = match choice.taken {
                Err(refusal) => self.sentence(family, &refusal),
                Ok(found) if !self.writes && Some(found.address) != known.annotated => format!(
                    "{}: found {found}, and the Node's manifest has {}: write the annotation {}: {}, or take the setting away; a \
                     directory of manifests is not written to",
                    setting(family),
                    known.annotated.map_or_else(|| "none".to_owned(), |it| it.to_string()),
                    annotation(family),
                    found.address
                ),
                Ok(_) => return None,
            };
            Some((family, problem))
        })
    }

    fn sentence(&self, family: Family, refusal: &autodetect::Refusal) -> String {
        let wanted = self.wanted[index(family)].as_ref();
        let wanted = wanted.map(ToString::to_string).unwrap_or_default();
        format!("{}, {wanted}: {refusal}", setting(family))
    }

    /// The interface whose net contains an address.
    pub(crate) fn interface_to(&self, address: IpAddr) -> Option<&str> {
        let has = |it: &&Interface| it.up && it.addresses.iter().any(|net| net.contains(&address));
        self.facts.interfaces.iter().find(has).map(|it| it.name.as_str())
    }

    /// The addresses for `manx status`, by family. A family is left out if the node has no address of that family and the
    /// settings request none.
    pub(crate) fn status(&self, contents: &Contents) -> Vec<NodeAddress> {
        let node = object(contents, &self.node);
        let problems: BTreeMap<Family, String> = self.problems(contents).collect();
        let one = |family: Family| {
            let wanted = self.wanted[index(family)].as_ref();
            let known = node.map(|node| known(family, node)).unwrap_or_default();
            let there = autodetect::addresses(family, &self.facts);
            let address = known.annotated.or(known.internal_ip.map(IpNet::from));
            let here = |it: &&Found| address.is_some_and(|to| to.addr() == it.address.addr());
            let source = match (known.annotated, known.internal_ip) {
                (Some(_), _) => Some(format!("annotation {}", annotation(family))),
                (None, Some(_)) => Some("InternalIP".to_owned()),
                (None, None) => None,
            };
            let others = there.iter().filter(|it| !here(it)).take(MOST_TOLD);
            let status = NodeAddress {
                family: family.name().to_owned(),
                // A prefix length that only the interface has is left out, because other nodes do not know it.
                address: known
                    .annotated
                    .map(|it| it.to_string())
                    .or(known.internal_ip.map(|it| it.to_string())),
                source,
                interface: there.iter().find(here).map(|it| it.interface.clone()),
                method: wanted.map(ToString::to_string),
                others: others.map(other).collect(),
                problem: problems.get(&family).cloned(),
            };
            (address.is_some() || wanted.is_some()).then_some(status)
        };
        Family::ALL.into_iter().filter_map(one).collect()
    }
}

fn other(found: &Found) -> OtherAddress {
    OtherAddress { address: found.address.to_string(), interface: found.interface.clone() }
}

const fn index(family: Family) -> usize {
    match family {
        Family::V4 => 0,
        Family::V6 => 1,
    }
}

const fn annotation(family: Family) -> &'static str {
    NODE_ADDRESSES[index(family)]
}

/// The variable that requests an address.
const fn setting(family: Family) -> &'static str {
    ["IP", "IP6"][index(family)]
}

/// The node's object, if it is valid.
fn object<'a>(contents: &'a Contents, node: &str) -> Option<&'a Node> {
    match contents.valid(&ObjectKey::new(Kind::Node, "", node))? {
        Object::Node(node) => Some(node),
        _ => None,
    }
}

/// The addresses of a family in the node's object.
fn known(family: Family, node: &Node) -> Known {
    let internal_ip = node.internal_ips.iter().copied().find(|it| Family::of(*it) == family);
    let annotated: Option<IpNet> = [node.calico_address, node.bgp.ipv6_address][index(family)];
    Known { internal_ip, annotated }
}

/// The reason why a start waits, if it does. `warnings` lists failures at the API server.
fn waiting(action: &AddressAction, warnings: &[String]) -> Option<String> {
    match action {
        AddressAction::Stands => None,
        AddressAction::Lacks(problem) => {
            Some(format!("it waits for an address of this node: {problem}"))
        }
        AddressAction::Write(wanted) => {
            let wanted: Vec<&str> = wanted.values().map(String::as_str).collect();
            let wanted = wanted.join(" and ");
            let waits =
                format!("it waits until the API server has {wanted} in the Node's annotations");
            let all = iter::once(waits.as_str()).chain(warnings.iter().map(String::as_str));
            Some(all.collect::<Vec<_>>().join(": "))
        }
    }
}

/// Keeps `facts` up to date; never ends.
pub(crate) async fn watch(
    netlink: Netlink,
    wanted: NodeAddressSettings,
    facts: watch::Sender<Facts>,
) {
    loop {
        tokio::time::sleep(LOOKS).await;
        match autodetect::read(&netlink, autodetect::methods(&wanted)).await {
            Ok(found) => drop(facts.send_replace(found)),
            Err(error) => tracing::warn!(%error, "the node's address stays as it was"),
        }
    }
}

#[cfg(test)]
mod tests;
