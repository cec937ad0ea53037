//! `manx rig watch`: the flows of a rig as they happen, with the rules that decided.
//!
//! At short intervals the command asks the agents for the flows in their tables, and for the flows
//! denied since the last request. A flow between two nodes is decided at both ends, so its line
//! waits one interval for the other agent's reply.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write as _};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::flow::{FlowEnds, FlowVerdict, Verdict};
use super::flow_line::{self, Line, Names};
use super::settings::Watch;
use crate::Error;
use crate::chosen_rig::{chosen, state};
use crate::output::{self, Output};
use manx_api::client::Client;
use manx_api::{Denial, FlowStatus, Flows};
use manx_policy_compiler::model::Protocol;
use manx_rig::world::setup::{NodeState, State};

/// The time between two requests to the agents.
const AGAIN: Duration = Duration::from_millis(250);
/// The time that an agent may take to answer. A slower agent is no longer watched, because the
/// others wait for it.
const PATIENCE: Duration = Duration::from_secs(3);
/// The number of intervals after which a flow that is in no table is forgotten. It is more than one because two copies of
/// a large table may hold different flows.
const FORGET: u64 = 40;
/// The most lines of one interval. Further lines are left out and counted.
const LINES: usize = 1000;

/// An agent that is watched.
struct Agent {
    node: String,
    client: Client,
    /// The last reply.
    last: Flows,
    /// For each known flow: its number of packets, and the interval at which it was last in the table.
    known: HashMap<FlowEnds, (u64, u64)>,
}

/// Prints the flows until the rig ends, or the reader of the output has gone.
pub(super) fn watch(settings: &Watch) -> Result<(), Error> {
    let workdir = chosen(settings.rig.as_deref())?;
    let state = state(&workdir)?;
    let names = Names::new(&state);
    let mut agents = connect(&state)?;
    // If standard error is closed, there is no reader.
    let _ = writeln!(io::stderr(), "manx: watching the flows of rig {} from now on", state.name);
    let mut waiting = BTreeMap::new();
    let mut missing = 0;
    for round in 0.. {
        std::thread::sleep(AGAIN);
        let is_last = !workdir.is_running()?;
        let mut new = BTreeMap::new();
        agents.retain_mut(|agent| match agent.ask(round, &mut new) {
            Ok(left_out) => {
                missing += left_out;
                true
            }
            Err(error) => {
                if !is_last {
                    let _ = writeln!(
                        io::stderr(),
                        "manx: node {} is watched no more: {error}",
                        agent.node
                    );
                }
                false
            }
        });
        // The second agent of a flow may report it one interval after the first.
        for (ends, decided) in &mut waiting {
            if let Some(more) = new.remove(ends) {
                merge(decided, more);
            }
        }
        let due = std::mem::replace(&mut waiting, new);
        let text = lines(due, &names, settings.output, &mut missing)?;
        if !output::print_while_read(&text)? || is_last {
            break;
        }
    }
    Ok(())
}

/// Connects to the agents that listen.
fn connect(state: &State) -> Result<Vec<Agent>, Error> {
    let (mut agents, mut silent) = (Vec::new(), None);
    for node in &state.nodes {
        match Agent::connect(node) {
            Ok(agent) => agents.push(agent),
            Err(error) => {
                // If standard error is closed, there is no reader.
                let _ = writeln!(io::stderr(), "manx: node {} is not watched: {error}", node.name);
                silent = Some(error);
            }
        }
    }
    match silent {
        Some(error) if agents.is_empty() => Err(error.into()),
        _ => Ok(agents),
    }
}

fn ends(flow: &FlowStatus) -> FlowEnds {
    FlowEnds {
        source: (flow.source, flow.source_port),
        destination: (flow.destination, flow.destination_port),
        protocol: flow.protocol,
    }
}

impl Agent {
    fn connect(node: &NodeState) -> Result<Self, manx_api::client::Error> {
        let mut client = Client::connect(&node.socket)?;
        client.set_patience(PATIENCE)?;
        let last = client.flows(None)?;
        let known = last.flows.iter().map(|flow| (ends(flow), (flow.packets[0], 0))).collect();
        Ok(Self { node: node.name.clone(), client, last, known })
    }

    /// Adds the new flows, and returns the number of flows that the agent cannot show.
    fn ask(
        &mut self,
        round: u64,
        new: &mut BTreeMap<FlowEnds, FlowVerdict>,
    ) -> Result<u64, manx_api::client::Error> {
        let flows = self.client.flows(Some(self.last.denied))?;
        let left_out = left_out(&flows, &self.last);
        for flow in flows.flows.iter().filter(|flow| flow.verdict == "allow") {
            let known = self.known.insert(ends(flow), (flow.packets[0], round));
            // A flow with fewer packets than before is another one between the same ends.
            if known.is_none_or(|(packets, _)| packets > flow.packets[0]) {
                add(new, ends(flow), allowed(flow));
            }
        }
        for denial in &flows.denials {
            let (ends, decided) = denied(denial);
            // If policy allows the flow later, it gets a line again.
            self.known.remove(&ends);
            add(new, ends, decided);
        }
        self.known.retain(|_, (_, seen)| *seen + FORGET > round);
        self.last = flows;
        Ok(left_out)
    }
}

/// An upper bound for the number of flows that began since the last reply and are not in this one.
fn left_out(now: &Flows, before: &Flows) -> u64 {
    let counts = |it: &Flows| [it.unreported, it.evicted, it.more];
    let pairs = counts(now).into_iter().zip(counts(before));
    now.forgotten + pairs.map(|(now, before)| now.saturating_sub(before)).sum::<u64>()
}

fn allowed(flow: &FlowStatus) -> FlowVerdict {
    let (egress, ingress) = (flow.egress.clone(), flow.ingress.clone());
    FlowVerdict { at: SystemTime::now(), verdict: Verdict::Allowed, egress, ingress }
}

fn denied(denial: &Denial) -> (FlowEnds, FlowVerdict) {
    // A denial of an ICMP echo has the echo's identifier in place of the ports, but the ports of an ICMP flow are 0.
    let has_ports = Protocol::from_number(denial.protocol).is_some();
    let port = |number| if has_ports { number } else { 0 };
    let ends = FlowEnds {
        source: (denial.source, port(denial.source_port)),
        destination: (denial.destination, port(denial.destination_port)),
        protocol: denial.protocol,
    };
    let at = UNIX_EPOCH + Duration::from_millis(denial.at_ms);
    let rule = Some(denial.rule.clone());
    let (egress, ingress) =
        if denial.reason == "policy-egress" { (rule, None) } else { (None, rule) };
    (ends, FlowVerdict { at, verdict: Verdict::Denied, egress, ingress })
}

fn add(new: &mut BTreeMap<FlowEnds, FlowVerdict>, ends: FlowEnds, decided: FlowVerdict) {
    match new.get_mut(&ends) {
        Some(known) => merge(known, decided),
        None => _ = new.insert(ends, decided),
    }
}

/// Joins the reports of two agents on a flow: the flow passes if both let it pass, and a denial has
/// the rule that denied it.
fn merge(known: &mut FlowVerdict, more: FlowVerdict) {
    match (known.verdict, more.verdict) {
        (Verdict::Allowed, Verdict::Denied) => *known = more,
        (Verdict::Denied, Verdict::Allowed) => {}
        _ => {
            known.egress = known.egress.take().or(more.egress);
            known.ingress = known.ingress.take().or(more.ingress);
            known.at = known.at.min(more.at);
        }
    }
}

/// The lines in the order of their times, and then the number of flows without a line.
fn lines(
    due: BTreeMap<FlowEnds, FlowVerdict>,
    names: &Names,
    form: Output,
    missing: &mut u64,
) -> Result<String, Error> {
    *missing += due.len().saturating_sub(LINES) as u64;
    let mut lines: Vec<(FlowEnds, FlowVerdict)> = due.into_iter().collect();
    lines.sort_by_key(|(_, decided)| decided.at);
    lines.truncate(LINES);
    let mut text = String::new();
    for (ends, decided) in &lines {
        text.push_str(&Line::new(ends, decided, names).show(form)?);
    }
    let left_out = std::mem::take(missing);
    if left_out > 0 {
        text.push_str(&flow_line::show_missing(left_out, form)?);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends() -> FlowEnds {
        let address = |text: &str| text.parse().unwrap();
        FlowEnds {
            source: (address("10.244.1.2"), 40_000),
            destination: (address("10.244.2.3"), 80),
            protocol: 6,
        }
    }

    fn decided(verdict: Verdict, second: u64, rules: [Option<&str>; 2]) -> FlowVerdict {
        let at = UNIX_EPOCH + Duration::from_secs(second);
        let [egress, ingress] = rules.map(|rule| rule.map(str::to_owned));
        FlowVerdict { at, verdict, egress, ingress }
    }

    #[test]
    fn a_flow_between_nodes_is_one_line_whichever_agent_is_first() {
        use Verdict::{Allowed, Denied};
        for order in [[0, 1], [1, 0]] {
            let joined = |both: [FlowVerdict; 2]| {
                let mut new = BTreeMap::new();
                for index in order {
                    add(&mut new, ends(), both[index].clone());
                }
                assert_eq!(new.len(), 1);
                new.remove(&ends()).unwrap()
            };
            let at_source = decided(Allowed, 1, [Some("out"), None]);
            let allowed = joined([at_source.clone(), decided(Allowed, 2, [None, Some("in")])]);
            assert_eq!(allowed, decided(Allowed, 1, [Some("out"), Some("in")]));
            let denied = joined([at_source, decided(Denied, 2, [None, Some("in")])]);
            assert_eq!(denied, decided(Denied, 2, [None, Some("in")]));
        }
    }

    #[test]
    fn a_denied_echo_has_no_ports() {
        let denial = |protocol| Denial {
            at_ms: 5,
            source: ends().source.0,
            destination: ends().destination.0,
            protocol,
            source_port: 7,
            destination_port: 8,
            reason: "policy-egress".to_owned(),
            rule: "r".to_owned(),
        };
        let ports = |protocol| {
            let (ends, decided) = denied(&denial(protocol));
            assert_eq!((decided.egress.as_deref(), decided.ingress), (Some("r"), None));
            [ends.source.1, ends.destination.1]
        };
        assert_eq!([ports(1), ports(58), ports(6)], [[0, 0], [0, 0], [7, 8]]);
    }

    #[test]
    fn what_is_left_out_is_counted_and_told_once() {
        let before = Flows { unreported: 3, evicted: 4, more: 5, ..Flows::default() };
        let now = Flows { unreported: 5, evicted: 4, more: 2, forgotten: 7, ..Flows::default() };
        assert_eq!((left_out(&now, &before), left_out(&before, &before)), (2 + 7, 0));

        let flow = |port: usize| {
            let ends = FlowEnds { source: (ends().source.0, port as u16), ..ends() };
            (ends, decided(Verdict::Allowed, port as u64, [Some("a"), None]))
        };
        let names = Names::default();
        let mut missing = left_out(&now, &before);
        let due = (0..LINES + 5).map(flow).collect();
        let text = lines(due, &names, Output::Text, &mut missing).unwrap();
        assert_eq!(text.lines().count(), LINES + 1);
        assert!(text.lines().last().unwrap().starts_with("up to 14 flows are missing here"));
        let text = lines(BTreeMap::from([flow(1)]), &names, Output::Text, &mut missing).unwrap();
        assert_eq!(text.lines().count(), 1);
    }
}
