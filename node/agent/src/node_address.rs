//! Which address this node has for others: detected by Calico's methods, and written to the Node's annotations, by which all
//! nodes go.
//!
//! Without such settings nothing is detected, and nothing is written: the Node's object says which address it is. With them:
//! - A start waits for an address. Packets between nodes would go by one that nobody has chosen.
//! - While the agent runs it looks again once a minute. An address that stands stays while the method admits it. One that
//!   is found no more stays, too, and people are told: nobody else has the node's address.
//! - Another address of IPv4 ends the agent when the Node's object has it, because its sockets are those of the old one.
//!   The next agent begins with it. So there is one restart in a minute at most.
//! - A directory of manifests is not written to. There the address is only compared.

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

/// The time between two looks while the agent runs: that of calico-node (`-monitor-addresses`).
const LOOKS: Duration = Duration::from_mins(1);
/// The time between two looks while a start waits.
pub(crate) const WAITING: Duration = Duration::from_secs(1);

/// Annotations to write, by name.
type Annotations = BTreeMap<&'static str, String>;

/// See the module.
#[derive(Debug)]
pub(crate) struct NodeAddresses {
    node: String,
    wanted: NodeAddressSettings,
    /// Whether there is an API server that takes annotations.
    writes: bool,
    /// The interfaces, addresses and routes of the kernel.
    facts: Facts,
    /// What was written last, and when.
    written: Option<(Annotations, Instant)>,
    /// The IPv4 address with which the agent has started.
    started: Option<IpAddr>,
    /// The problem that people were told of last.
    told: Option<String>,
}

/// What follows from the facts and the Node's object.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The object has the addresses that are wanted, or keeps those that are found no more.
    Stands,
    /// The object is to have these.
    Write(Annotations),
    /// An address is wanted, and there is none. Why.
    Lacks(String),
}

/// What is new of a problem with the addresses.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// There is one.
    Problem(String),
    /// There is none any more.
    Over,
}

impl NodeAddresses {
    /// The state before anything is looked at. Where another plugin reaches the other nodes nothing is detected, as with
    /// Calico (`CALICO_NETWORKING_BACKEND=none`).
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

    /// What is asked for.
    pub(crate) const fn wanted(&self) -> &NodeAddressSettings {
        &self.wanted
    }

    /// The addresses that the settings ask for, by family, each with the object's part.
    fn choices<'a>(&'a self, node: &'a Node) -> impl Iterator<Item = (Family, Known, Choice)> + 'a {
        Family::ALL.into_iter().zip(&self.wanted).filter_map(move |(family, wanted)| {
            let known = known(family, node);
            let choice = autodetect::choose(wanted.as_ref()?, family, &self.facts, &known);
            Some((family, known, choice))
        })
    }

    /// What is to be done. A Node that is not there, or not valid, is told of elsewhere.
    fn judge(&self, contents: &Contents) -> Verdict {
        let Some(node) = object(contents, &self.node).filter(|_| self.writes) else {
            return Verdict::Stands;
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
            Verdict::Lacks(lacks.join("; "))
        } else if annotations.is_empty() {
            Verdict::Stands
        } else {
            Verdict::Write(annotations)
        }
    }

    /// The annotations of a verdict, unless they were written within the last minute.
    fn due_write(&mut self, verdict: Verdict, now: Instant) -> Option<Annotations> {
        let Verdict::Write(annotations) = verdict else { return None };
        let is_written = self.written.as_ref().is_some_and(|(written, at)| {
            *written == annotations && now.saturating_duration_since(*at) < LOOKS
        });
        if is_written {
            return None;
        }
        self.written = Some((annotations.clone(), now));
        Some(annotations)
    }

    /// Looks at new facts. Returns annotations that are to be written now.
    pub(crate) fn look(
        &mut self,
        facts: Facts,
        contents: &Contents,
        now: Instant,
    ) -> Option<Annotations> {
        self.facts = facts;
        let verdict = self.judge(contents);
        self.due_write(verdict, now)
    }

    /// What a start waits for, if it waits. `warnings`: what has failed at the API server.
    pub(crate) fn waits(&self, contents: &Contents, warnings: &[String]) -> Option<String> {
        waiting(&self.judge(contents), warnings)
    }

    /// Notes that the agent starts with the address that the Node's object has.
    pub(crate) fn start(&mut self, contents: &Contents) {
        let known = object(contents, &self.node).map(|node| known(Family::V4, node));
        self.started = known.and_then(|it| it.annotated).map(|it| it.addr());
    }

    /// What people have not been told of yet.
    pub(crate) fn news(&mut self, contents: &Contents) -> Option<News> {
        let problems: Vec<String> = self.problems(contents).map(|(_, it)| it).collect();
        let now = (!problems.is_empty()).then(|| problems.join("; "));
        if now == self.told {
            return None;
        }
        self.told.clone_from(&now);
        Some(now.map_or(News::Over, News::Problem))
    }

    /// The IPv4 address that the agent has started with, and the one that the Node's object has instead, because it was
    /// detected.
    pub(crate) fn replaced(&self, contents: &Contents) -> Option<(IpAddr, IpAddr)> {
        let (started, _) = (self.started?, self.wanted[0].as_ref()?);
        let annotated = known(Family::V4, object(contents, &self.node)?).annotated?;
        let is_found = |it: &Found| it.address.addr() == annotated.addr();
        let here = autodetect::addresses(Family::V4, &self.facts);
        (annotated.addr() != started && here.iter().any(is_found))
            .then_some((started, annotated.addr()))
    }

    /// What is wrong, by family.
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

    /// The interface in whose net an address lies.
    pub(crate) fn interface_to(&self, address: IpAddr) -> Option<&str> {
        let has = |it: &&Interface| it.up && it.addresses.iter().any(|net| net.contains(&address));
        self.facts.interfaces.iter().find(has).map(|it| it.name.as_str())
    }

    /// The addresses for `manx status`, by family. A family is left out if the node has no address of it and none is wanted.
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
                // A length that only the interface knows is no part of what others go by.
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

/// The variable that asks for an address.
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

/// What the node's object says of a family.
fn known(family: Family, node: &Node) -> Known {
    let internal_ip = node.internal_ips.iter().copied().find(|it| Family::of(*it) == family);
    let annotated: Option<IpNet> = [node.calico_address, node.bgp.ipv6_address][index(family)];
    Known { internal_ip, annotated }
}

/// What a start waits for, if it waits. `warnings`: what has failed at the API server.
fn waiting(verdict: &Verdict, warnings: &[String]) -> Option<String> {
    match verdict {
        Verdict::Stands => None,
        Verdict::Lacks(problem) => Some(format!("it waits for an address of this node: {problem}")),
        Verdict::Write(wanted) => {
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
