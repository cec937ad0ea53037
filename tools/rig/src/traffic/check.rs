//! Sends every probe and finds out its result.
//!
//! Silence alone proves nothing: a probe counts as denied only if an agent recorded the denial of exactly that packet.
//! A probe with an unexpected result is sent again, from another source port and with a longer timeout.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::matrix::{Cell, Outcome};
use crate::plan::prober::Prober;
use crate::world::agent::Agent;
use crate::world::command::{Probe, ProbeReply, ProbeResult, Task, TaskResult};
use crate::world::process::Process;
use manx_api::Denial;

/// The largest number of probes in flight at one time.
const IN_FLIGHT: usize = 128;
/// The number of tries before a probe counts as a deviation.
const TRIES: usize = 3;
/// The time for an answer, for each try.
const PATIENCE: [Duration; TRIES] =
    [Duration::from_secs(1), Duration::from_millis(1500), Duration::from_millis(2500)];
/// The time for the first try of a probe that should be denied. It is shorter, because the proof is the agent's record
/// and not the silence.
const SHORT: Duration = Duration::from_millis(200);
/// The number of times that the agents are asked for their denials after a round, before a silence counts as a loss,
/// and the pause in between.
const ASKS: usize = 5;
const PAUSE: Duration = Duration::from_millis(75);

/// The observed result of a probe.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Observed {
    /// One of the three results that can be expected.
    Clear(Outcome),
    /// There was no answer, and no agent recorded a denial.
    Lost,
    /// Another prober answered.
    Wrong(String),
    /// The destination answered, and saw another address of the source than it should.
    SeenAs(IpAddr),
    /// Another result, in the kernel's words.
    Error(String),
}

impl std::fmt::Display for Observed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Clear(outcome) => f.write_str(outcome.name()),
            Self::Lost => f.write_str("lost (silence, and no agent recorded a denial)"),
            Self::Wrong(by) => write!(f, "answered by {by}"),
            Self::SeenAs(address) => write!(f, "answered, to a client with the address {address}"),
            Self::Error(words) => write!(f, "failed: {words}"),
        }
    }
}

/// A cell with the observed result of its probe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    #[serde(flatten)]
    pub cell: Cell,
    /// The result of the last try.
    pub observed: Observed,
    /// The source of the last try.
    pub from: Option<SocketAddr>,
    /// The rule or reason of the denial, according to the agent.
    pub denied_by: Option<String>,
    /// The number of tries.
    pub tries: usize,
}

impl Finding {
    /// Whether the observed result is the expected one.
    pub fn as_expected(&self) -> bool {
        self.observed == Observed::Clear(self.cell.expected)
    }
}

/// The packet of a denial: source, destination, protocol, ports.
type Packet = (IpAddr, IpAddr, u8, u16, u16);

/// The denials that the agents recorded since a given time, each with its rule or reason.
#[derive(Debug, Default)]
struct DenialLog {
    since_ms: u64,
    denials: HashMap<Packet, String>,
}

impl DenialLog {
    fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { since_ms: since.as_millis() as u64, denials: HashMap::new() }
    }

    async fn refresh(&mut self, agents: &[Arc<Agent>]) {
        for agent in agents {
            // If an agent does not answer, the probes will show that.
            let Ok(denials) = agent.denials().await else { continue };
            for denial in denials.into_iter().filter(|denial| denial.at_ms >= self.since_ms) {
                if denial.reason.starts_with("policy-") {
                    self.denials
                        .insert(packet(&denial), format!("{}: {}", agent.node(), denial.rule));
                }
            }
        }
    }

    fn what_denied(&self, cell: &Cell, from: SocketAddr) -> Option<String> {
        let transport = cell.service.transport(cell.address.is_ipv4());
        let port = transport.destination_port().unwrap_or(0);
        let packet = (from.ip(), cell.address, transport.protocol, from.port(), port);
        self.denials.get(&packet).cloned()
    }
}

fn packet(denial: &Denial) -> Packet {
    let echo = matches!(denial.protocol, 1 | 58);
    let ports = if echo { (0, 0) } else { (denial.source_port, denial.destination_port) };
    (denial.source, denial.destination, denial.protocol, ports.0, ports.1)
}

/// Sends all probes. `progress` is called with the number of probes that are done.
pub(crate) async fn check(
    cells: Vec<Cell>,
    probers: &BTreeMap<Prober, Arc<Process>>,
    agents: &[Arc<Agent>],
    mut progress: impl FnMut(usize),
) -> Vec<Finding> {
    let mut book = DenialLog::now();
    let mut findings: Vec<Finding> = cells.into_iter().map(unsent).collect();
    let total = findings.len();
    for (round, patience) in PATIENCE.into_iter().enumerate() {
        let open: Vec<usize> = (0..total).filter(|i| !findings[*i].as_expected()).collect();
        if open.is_empty() {
            break;
        }
        let answered = total - open.len();
        let mut done = 0;
        let mut seen = send(&findings, &open, probers, |finding| {
            let short = round == 0 && finding.cell.expected == Outcome::Denied;
            if short { SHORT } else { patience }
        });
        while let Some(result) = seen.join_next().await {
            let Ok((index, result)) = result else { continue };
            done += 1;
            progress(answered + done);
            let finding = &mut findings[index];
            let meant = probers.get(&finding.cell.destination).map(|process| process.name());
            note(finding, meant.unwrap_or_default(), result);
        }
        for ask in 1..=ASKS {
            book.refresh(agents).await;
            let mut silent = false;
            for index in &open {
                silent |= !confirm(&mut findings[*index], &book);
            }
            if !silent || ask == ASKS {
                break;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
    findings
}

fn unsent(cell: Cell) -> Finding {
    Finding { cell, observed: Observed::Lost, from: None, denied_by: None, tries: 0 }
}

/// Sends the probes in `open`, as many at once as the limit allows.
fn send(
    findings: &[Finding],
    open: &[usize],
    probers: &BTreeMap<Prober, Arc<Process>>,
    patience: impl Fn(&Finding) -> Duration,
) -> JoinSet<(usize, TaskResult)> {
    let bound = Arc::new(Semaphore::new(IN_FLIGHT));
    let mut sent = JoinSet::new();
    for index in open {
        let finding = &findings[*index];
        let probe = Probe {
            to: finding.cell.address,
            service: finding.cell.service,
            timeout_ms: patience(finding).as_millis() as u64,
        };
        let (bound, process, index) =
            (bound.clone(), probers.get(&finding.cell.source).cloned(), *index);
        sent.spawn(async move {
            let _place = bound.acquire_owned().await;
            match process {
                Some(process) => (index, process.run_task(Task::Probe(probe)).await),
                None => (index, TaskResult::Failed("the pod has no prober".to_owned())),
            }
        });
    }
    sent
}

/// Records the result of a try. `meant` is the name of the prober that should answer.
fn note(finding: &mut Finding, meant: &str, result: TaskResult) {
    finding.tries += 1;
    finding.denied_by = None;
    let ProbeResult { from, answer } = match result {
        TaskResult::Probed(seen) => seen,
        TaskResult::Failed(words) => ProbeResult { from: None, answer: ProbeReply::Error(words) },
        TaskResult::Streamed { .. } | TaskResult::PingPonged { .. } => ProbeResult {
            from: None,
            answer: ProbeReply::Error("another task's answer".to_owned()),
        },
    };
    finding.from = from;
    let seen_as = finding.cell.seen_as.or(from.map(|it| it.ip()));
    finding.observed = match answer {
        ProbeReply::Echo => Observed::Clear(Outcome::Allowed),
        ProbeReply::From { name, .. } if name != meant => Observed::Wrong(name),
        ProbeReply::From { client, .. } => match client.filter(|it| Some(*it) != seen_as) {
            Some(client) => Observed::SeenAs(client),
            None => Observed::Clear(Outcome::Allowed),
        },
        ProbeReply::Refused => Observed::Clear(Outcome::Refused),
        ProbeReply::Silence => Observed::Lost,
        ProbeReply::Error(words) => Observed::Error(words),
    };
}

/// Turns a loss into a denial if an agent recorded it. Returns whether the result is final.
fn confirm(finding: &mut Finding, book: &DenialLog) -> bool {
    if finding.observed != Observed::Lost {
        return true;
    }
    finding.denied_by = finding.from.and_then(|from| book.what_denied(&finding.cell, from));
    if finding.denied_by.is_some() {
        finding.observed = Observed::Clear(Outcome::Denied);
    }
    finding.denied_by.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::port::Port;
    use crate::world::service::Service;
    use manx_api::PodName;
    use manx_policy_compiler::model::Protocol;

    fn finding(service: Service) -> Finding {
        let pod =
            |name: &str| Prober::Pod(PodName { namespace: "d".to_owned(), name: name.to_owned() });
        unsent(Cell {
            source: pod("a"),
            destination: pod("b"),
            address: "10.1.1.3".parse().unwrap(),
            seen_as: None,
            service,
            listening: true,
            expected: Outcome::Denied,
            because: String::new(),
        })
    }

    fn tcp() -> Service {
        Service::Port(Port { protocol: Protocol::Tcp, number: 80 })
    }

    fn denial(protocol: u8, source_port: u16, destination_port: u16) -> Denial {
        Denial {
            at_ms: 100,
            source: "10.1.1.2".parse().unwrap(),
            destination: "10.1.1.3".parse().unwrap(),
            protocol,
            source_port,
            destination_port,
            reason: "policy-ingress".to_owned(),
            rule: "d/p".to_owned(),
        }
    }

    fn book(denial: &Denial) -> DenialLog {
        DenialLog { since_ms: 0, denials: [(packet(denial), "n: d/p".to_owned())].into() }
    }

    fn see(finding: &mut Finding, answer: ProbeReply) {
        let from = Some("10.1.1.2:40000".parse().unwrap());
        note(finding, "d/b", TaskResult::Probed(ProbeResult { from, answer }));
    }

    #[test]
    fn silence_is_a_loss_until_an_agent_says_that_it_denied_that_very_packet() {
        let mut finding = finding(tcp());
        see(&mut finding, ProbeReply::Silence);
        assert_eq!(finding.observed, Observed::Lost);
        for other in [denial(6, 40_001, 80), denial(17, 40_000, 80), denial(6, 40_000, 81)] {
            assert!(!confirm(&mut finding, &book(&other)));
            assert!(!finding.as_expected());
        }
        assert!(confirm(&mut finding, &book(&denial(6, 40_000, 80))));
        assert!(finding.as_expected());
        assert_eq!(finding.denied_by.as_deref(), Some("n: d/p"));
    }

    #[test]
    fn an_echo_has_no_ports_whatever_the_denial_says() {
        let mut finding = finding(Service::Echo);
        let from = Some("10.1.1.2:0".parse().unwrap());
        see(&mut finding, ProbeReply::Silence);
        finding.from = from;
        assert!(confirm(&mut finding, &book(&denial(1, 77, 0))));
    }

    #[test]
    fn an_answer_counts_only_from_whom_it_was_asked() {
        let mut finding = finding(tcp());
        let from = |name: &str, client: &str| ProbeReply::From {
            name: name.to_owned(),
            client: Some(client.parse().unwrap()),
        };
        see(&mut finding, from("d/b", "10.1.1.2"));
        assert_eq!(finding.observed, Observed::Clear(Outcome::Allowed));
        see(&mut finding, from("d/c", "10.1.1.2"));
        assert_eq!(finding.observed, Observed::Wrong("d/c".to_owned()));
        see(&mut finding, from("d/b", "172.18.0.2"));
        assert_eq!(finding.observed, Observed::SeenAs("172.18.0.2".parse().unwrap()));
        see(&mut finding, ProbeReply::Refused);
        assert_eq!(finding.observed, Observed::Clear(Outcome::Refused));
        assert_eq!(finding.tries, 4);
    }
}
