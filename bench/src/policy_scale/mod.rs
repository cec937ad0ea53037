//! What policy costs at scale: compiling a node, and one lookup, beside the linear reference, which walks the policies as they
//! were written.

mod shapes;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use manx_policy_compiler::check::prove;
use manx_policy_compiler::check::{Packet, Reference};
use manx_policy_compiler::compile::Compiler;
use manx_policy_compiler::compile::PodChange;
use manx_policy_compiler::image::Lookup;
use manx_policy_compiler::image::{Identity, Image, PathId};
use manx_policy_compiler::model::{
    Action, Direction, Model, NetworkSet, ObjectName, Order, PolicyKind, PolicyName, PortMatch,
    Protocol, Rule, Transport,
};
use manx_policy_compiler::resolve::Stage;
use manx_policy_compiler::selector::Selector;

use crate::error::Error;
use crate::goal::Goal;
use crate::report::Figure;
use crate::run::{Listed, Run, Settings};
use crate::statistics::Summary;

use shapes::{Shape, members, policy};

const LOOKUPS: u32 = 2_000_000;
const LOOKUPS_OF_A_RUN: u32 = 10_000;
/// Packets judged side by side.
const BATCH: usize = 64;
const REFERENCES: usize = 50;

/// That one more network set is in the tables.
const SET_GOAL_MS: Option<f64> = Some(5.0);

/// A row: a shape, and what is hoped for of it.
struct Row {
    name: &'static str,
    what: &'static str,
    make: fn() -> Shape,
    seconds: u64,
    /// From nothing, in milliseconds.
    whole: f64,
    /// A policy of every endpoint, and one that asks what nobody had asked, in milliseconds.
    changed: [Option<f64>; 2],
}

const ROWS: [Row; 4] = [
    Row {
        name: "cluster",
        what: "100,000 pods, 14,000 policies, 250 local endpoints",
        make: shapes::cluster,
        seconds: 6,
        whole: 50.0,
        changed: [Some(5.0); 2],
    },
    Row {
        name: "site",
        what: "294 policies of 68 rules, 3,708 sets with 256,000 members, one endpoint",
        make: shapes::site,
        seconds: 12,
        whole: 50.0,
        changed: [None; 2],
    },
    Row {
        name: "sets",
        what: "250 policies of 50 rules, each with its own set, one endpoint",
        make: shapes::sets,
        seconds: 6,
        whole: 1000.0,
        changed: [None; 2],
    },
    Row {
        name: "explosion",
        what: "2,000 overlapping selectors on one endpoint, 8,000 identities",
        make: shapes::explosion,
        seconds: 8,
        whole: 1000.0,
        changed: [None; 2],
    },
];
/// Random lookups one by one and side by side, hot ones likewise, in nanoseconds.
const LOOKUP_GOALS: [[Option<f64>; 2]; 2] = [[Some(30.0), Some(15.0)], [Some(10.0), None]];
const POD_GOAL_US: f64 = 50.0;
const TABLES_GOAL_MB: f64 = 16.0;

/// Its rows.
pub fn rows(_: &Settings) -> Vec<Listed> {
    let listed = |row: &Row| Listed {
        name: row.name,
        words: row.what.to_owned(),
        takes: Duration::from_secs(row.seconds),
    };
    ROWS.iter().map(listed).collect()
}

/// Measures what was chosen of them.
pub fn measure(run: &mut Run) -> Result<(), Error> {
    for row in &ROWS {
        if !run.wants(row.name) {
            continue;
        }
        run.progress.begin(&format!("{}: {}", row.name, row.what));
        of_one(run, row)?;
        run.progress.step(format!("{}: done", row.name), Duration::from_secs(row.seconds));
    }
    Ok(())
}

/// Takes figures of one row down.
struct Sheet<'a> {
    run: &'a mut Run,
    row: &'static Row,
}

impl Sheet<'_> {
    fn put(
        &mut self,
        what: &str,
        unit: &'static str,
        values: &[f64],
        goal: Option<f64>,
    ) -> Result<(), Error> {
        let Some(manx) = Summary::of(values) else { return Ok(()) };
        self.run.found(Figure {
            row: self.row.name,
            head: format!("Policy at scale, {}: {}", self.row.name, self.row.what),
            what: what.to_owned(),
            unit,
            beside: None,
            manx,
            ratio: None,
            goal: goal.map(Goal::AtMost),
        })
    }

    fn remark(&mut self, words: &str) {
        self.run.report.remarks.push(format!("policy-scale, {}: {words}", self.row.name));
    }
}

fn of_one(run: &mut Run, row: &'static Row) -> Result<(), Error> {
    let (rounds, changes, proves) = (run.settings.rounds, run.settings.changes, run.settings.prove);
    let shape = (row.make)();
    let Shape { model, local, peers } = &shape;
    let mut sheet = Sheet { run, row };
    let mut compiles = Vec::new();
    let mut image = Image::default();
    for _ in 0..rounds {
        let mut compiler = Compiler::new();
        let start = Instant::now();
        let next = compiler.compile(model, local);
        compiles.push(start.elapsed());
        image = next;
    }
    sheet.put("compiled from nothing", "ms", &in_units(&compiles, 1e3), Some(row.whole))?;
    let [ports, asks] = policy_changes(&shape, rounds);
    let changed = "a policy of every endpoint changes";
    sheet.put(changed, "ms", &in_units(&ports, 1e3), row.changed[0])?;
    let anew = "the same, asking what nobody had asked";
    sheet.put(anew, "ms", &in_units(&asks, 1e3), row.changed[1])?;
    let sets = "one more network set comes, changes or goes";
    sheet.put(sets, "ms", &in_units(&set_changes(&shape, rounds), 1e3), SET_GOAL_MS)?;
    let (times, refused) = churn(&shape, changes);
    let comes = "a pod elsewhere comes or goes";
    sheet.put(comes, "us", &in_units(&times, 1e6), Some(POD_GOAL_US))?;
    let reference = by_reference(model, local, peers);
    for ((which, count), goals) in
        [("random", peers.len()), ("of 64 hot ones", 64)].into_iter().zip(LOOKUP_GOALS)
    {
        let [lookup, beside] = by_image(&image, local, &peers[..count.min(peers.len())]);
        sheet.put(&format!("a lookup, {which}"), "ns", &lookup, goals[0])?;
        sheet.put(&format!("a lookup, {which}, side by side"), "ns", &beside, goals[1])?;
    }
    let megabytes = image.bytes() as f64 / 1e6;
    sheet.put("tables", "MB", &[megabytes], Some(TABLES_GOAL_MB))?;
    let counts = image.counts();
    sheet.remark(&format!(
        "{} classes, {} chains ({} rule by rule), {} rows; a lookup by the reference {reference:.0} ns; {refused} of {} pods \
         that came or went took more than the tables in use",
        counts.classes,
        counts.chains,
        counts.linear,
        counts.rows,
        times.len(),
    ));
    if proves {
        let start = Instant::now();
        match prove(model, local, &image) {
            Ok(proof) => sheet.remark(&format!(
                "proved in {:.2} s: {} cells, {} peers stand for all",
                start.elapsed().as_secs_f64(),
                proof.cells,
                proof.peers
            )),
            Err(counterexample) => {
                sheet.run.lacks(row.name, format!("WRONG: {counterexample}"), true)?;
            }
        }
    }
    Ok(())
}

fn in_units(times: &[Duration], a_second: f64) -> Vec<f64> {
    times.iter().map(|time| time.as_secs_f64() * a_second).collect()
}

/// How long each change takes of pods of other nodes that are taken out and put in again, one by one, in the image that is in
/// use, and how many of them took more than that.
fn churn(shape: &Shape, count: usize) -> (Vec<Duration>, usize) {
    let mut model = shape.model.clone();
    let mut compiler = Compiler::new();
    let image = compiler.compile(&model, &shape.local);
    let elsewhere = model.endpoints.keys().filter(|name| !shape.local.contains(*name));
    let names: Vec<ObjectName> = elsewhere.take(count).cloned().collect();
    let (mut times, mut refused) = (Vec::new(), 0);
    for name in &names {
        let Some(pod) = model.endpoints.remove(name) else { continue };
        let start = Instant::now();
        let goes = PodChange { name, before: Some(&pod), after: None };
        let gone = compiler.update(&image, &model, goes);
        times.push(start.elapsed());
        model.endpoints.insert(name.clone(), Arc::clone(&pod));
        let start = Instant::now();
        let comes = PodChange { name, before: None, after: Some(&pod) };
        let come = compiler.update(&image, &model, comes);
        times.push(start.elapsed());
        refused += usize::from(!gone) + usize::from(!come);
    }
    (times, refused)
}

/// How long it takes that a policy changes which every local endpoint has: the port that it allows, then the peers, by a label
/// that no other asks for.
fn policy_changes(shape: &Shape, rounds: usize) -> [Vec<Duration>; 2] {
    let mut model = shape.model.clone();
    let mut compiler = Compiler::new();
    let name = PolicyName::new(PolicyKind::Global, "", "of-everybody");
    let (mut ports, mut peers) = (Vec::new(), Vec::new());
    for index in 0..rounds as u16 {
        for (times, asks_anew) in [(&mut ports, false), (&mut peers, true)] {
            let mut allow = Rule::every_packet(0, Action::Allow);
            allow.protocol = Some(6);
            allow.destination.ports = vec![PortMatch::Range { first: index, last: index }];
            if asks_anew {
                let anew = Selector::equals("new", format!("{index}"));
                allow.source.entities = Some(vec![members(anew)]);
            }
            let policy = policy(Order::KUBERNETES, Selector::all(), Some(vec![allow]));
            model.policies.insert(name.clone(), Arc::new(policy));
            // After another vocabulary the next image rests on nothing.
            if !asks_anew {
                std::hint::black_box(compiler.compile(&model, &shape.local));
                let changed = model.policies.get_mut(&name).map(Arc::make_mut);
                let rules = changed.and_then(|policy| policy.ingress.as_mut());
                rules.into_iter().flatten().for_each(|rule| rule.destination.ports.clear());
            }
            let start = Instant::now();
            std::hint::black_box(compiler.compile(&model, &shape.local));
            times.push(start.elapsed());
        }
    }
    [ports, peers]
}

/// How long it takes that one more network set comes, which a rule asks for if it asks for the first, changes and goes; nothing
/// of a shape without sets.
fn set_changes(shape: &Shape, rounds: usize) -> Vec<Duration> {
    let mut model = shape.model.clone();
    let Some(labels) = model.network_sets.values().next().map(|set| set.labels.clone()) else {
        return Vec::new();
    };
    let mut compiler = Compiler::new();
    let mut image = compiler.compile(&model, &shape.local);
    let name = ObjectName::new("", "one-more");
    let set = |index: usize| {
        let address = |at| Ipv4Addr::from_bits(0x0b00_0000 | shuffled(at, 1 << 24) as u32);
        let addresses = (0..5).map(|at| IpAddr::V4(address((index * 5 + at) as u32)));
        let nets = addresses.map(IpNet::from).collect();
        Arc::new(NetworkSet { labels: labels.clone(), nets })
    };
    let mut times = Vec::new();
    for round in 0..rounds {
        for set in [Some(set(round * 2)), Some(set(round * 2 + 1)), None] {
            match set {
                Some(set) => model.network_sets.insert(name.clone(), set),
                None => model.network_sets.remove(&name),
            };
            let start = Instant::now();
            let next = compiler.compile(&model, &shape.local);
            times.push(start.elapsed());
            image = next;
        }
    }
    std::hint::black_box(image);
    times
}

/// The multiplier of a permutation of all 32-bit numbers: a cheap shuffle.
fn shuffled(index: u32, below: usize) -> usize {
    ((u64::from(index.wrapping_mul(2_654_435_761)) * below as u64) >> 32) as usize
}

/// Nanoseconds of address, class, row and path, one by one, where one lookup does not wait for the other, and in batches, in
/// short runs, so that few of them are interrupted.
fn by_image(image: &Image, local: &BTreeSet<ObjectName>, peers: &[u32]) -> [Vec<f64>; 2] {
    let chains: Vec<_> =
        local.iter().filter_map(|name| image.chain(name, Direction::Ingress)).collect();
    let own = image.identity_v4(peers[0]);
    let (mut one_by_one, mut beside) = (Vec::new(), Vec::new());
    for run in 0..LOOKUPS / LOOKUPS_OF_A_RUN {
        let flow = |index| {
            let at = shuffled(index, peers.len());
            let port = 8080 + (at % 1100) as u16;
            (chains[at % chains.len()], peers[at], Transport::ports(Protocol::Tcp, 49_152, port))
        };
        let flows: Vec<_> =
            (run * LOOKUPS_OF_A_RUN..(run + 1) * LOOKUPS_OF_A_RUN).map(flow).collect();
        let start = Instant::now();
        let mut paths = 0u64;
        for (chain, peer, packet) in &flows {
            let path = image.classify(*chain, own, image.identity_v4(*peer), *packet);
            paths += u64::from(path.0);
        }
        one_by_one.push(start.elapsed());
        let addresses: Vec<u32> = flows.iter().map(|(_, peer, _)| *peer).collect();
        let mut asked: Vec<Lookup> = flows
            .iter()
            .map(|(chain, _, packet)| Lookup {
                chain: *chain,
                local: own,
                peer: Identity::UNKNOWN,
                transport: *packet,
            })
            .collect();
        let mut identities = [Identity::UNKNOWN; BATCH];
        let mut found = [PathId::default(); BATCH];
        let mut together = 0;
        let start = Instant::now();
        for (addresses, asked) in addresses.chunks(BATCH).zip(asked.chunks_mut(BATCH)) {
            image.identities_v4(addresses, &mut identities);
            asked.iter_mut().zip(identities).for_each(|(asked, peer)| asked.peer = peer);
            image.classify_all(asked, &mut found);
            together += found[..asked.len()].iter().map(|path| u64::from(path.0)).sum::<u64>();
        }
        beside.push(start.elapsed());
        assert_eq!(paths, together, "side by side is as one by one");
    }
    let of_one = |run: Duration| run.as_secs_f64() * 1e9 / f64::from(LOOKUPS_OF_A_RUN);
    [one_by_one, beside].map(|runs| runs.into_iter().map(of_one).collect())
}

/// Nanoseconds of the same by the reference, with the endpoint's policies already found.
fn by_reference(model: &Model, local: &BTreeSet<ObjectName>, peers: &[u32]) -> f64 {
    let reference = Reference::new(model);
    let Some((name, policies, address)) = local.iter().find_map(|name| {
        let policies = reference.policies(name, Stage::Pod, Direction::Ingress)?;
        Some((name, policies, *model.endpoints.get(name)?.addresses.first()?))
    }) else {
        return f64::NAN;
    };
    let start = Instant::now();
    for index in 0..REFERENCES {
        let peer = IpAddr::V4(Ipv4Addr::from_bits(peers[shuffled(index as u32, peers.len())]));
        let transport = Transport::ports(Protocol::Tcp, 49_152, 8080);
        let packet = Packet { local: address, peer, transport };
        let decision = reference.judge_by(&policies, name, Stage::Pod, Direction::Ingress, &packet);
        std::hint::black_box(decision);
    }
    start.elapsed().as_secs_f64() * 1e9 / REFERENCES as f64
}
