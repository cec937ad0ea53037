//! The cost of Services for a node that translates them, in addition to the pods and policies of the whole cluster. It
//! is measured from their JSON to the first table, and from one changed object to the time when the last worker uses
//! it.

mod manifests;
mod published;

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use manx_calculation::calc::{Calculation, NextStep};
use manx_calculation::import::import_for;
use manx_calculation::services::{Frontends, NodePorts, ServiceRanges, admits};
use manx_calculation::topology::{Reserved, topology};
use manx_dataplane::tables::Tables;
use manx_datastore::Store;
use manx_objects::Entry;
use manx_objects::contents::{Changes, Contents, Stored};
use manx_objects::object::ObjectKey;

use self::published::Published;
use super::cluster::{NODE, write_manifests};
use super::node::{Node, attached_pods, read, store, timed};
use crate::error::{Error, Failure};
use crate::report::figures::Figure;
use crate::report::goal::Goal;
use crate::report::statistics::percentile;
use crate::run::Run;

pub(super) const NAME: &str = "services";
pub(super) const DESCRIPTION: &str =
    "Services with ten endpoints each, among 100,000 pods, 5,000 nodes and 14,000 policies";
pub(super) const ESTIMATE: Duration = Duration::from_secs(25);
/// The number of rounds of changes. Each has its own p99.
const ROUNDS: usize = 5;
/// The smallest number of changes in a round.
const FEWEST: usize = 200;
/// The goals: for the p99 of the time from a change until every worker uses it, in microseconds, and for the time from
/// the texts to the first table, in milliseconds.
const GOALS: (Goal, Goal) = (Goal::AtMost(1000.0), Goal::AtMost(150.0));
/// One tenant changes a Service continuously: the time between two of these changes. Also the number of these changes
/// for each change by a neighbour.
const CHURN: (Duration, usize) = (Duration::from_millis(1), 10);

pub(super) fn measure(run: &mut Run) -> Result<(), Error> {
    let (services, changes) = (run.settings.services, run.settings.changes);
    run.progress.begin(&format!("{NAME}: {services} {DESCRIPTION}"));
    let mut results = Results { head: format!("{services} {DESCRIPTION}"), ..Results::default() };
    let measured = measure_all(services, changes.max(FEWEST), &mut results);
    let Results { figures, remarks, .. } = results;
    run.report.remarks.extend(remarks.into_iter().map(|remark| format!("{NAME}: {remark}")));
    run.add_measured(NAME, measured.map(|()| figures))?;
    run.progress.step(format!("{NAME}: done"), ESTIMATE);
    Ok(())
}

#[derive(Default)]
struct Results {
    head: String,
    figures: Vec<Figure>,
    remarks: Vec<String>,
}

impl Results {
    fn add_time(&mut self, what: &str, time: Duration, goal: Option<Goal>) {
        self.figures.extend(Figure::from_times(NAME, &self.head, what, "ms", &[time], goal));
    }

    /// Divides the times into rounds, and adds two figures in microseconds: the medians and the p99s of the rounds. The
    /// goal applies to the p99.
    fn add_rounds(&mut self, what: &str, times: &[Duration], goal: Option<Goal>) {
        let micros: Vec<f64> = times.iter().map(|it| it.as_secs_f64() * 1e6).collect();
        let rounds = micros.chunks(micros.len().div_ceil(ROUNDS).max(1));
        for (name, percent, goal) in [("p50", 50, None), ("p99", 99, goal)] {
            let of_rounds: Vec<f64> =
                rounds.clone().filter_map(|round| percentile(round, percent)).collect();
            let what = format!("{what}, {name}");
            self.figures
                .extend(Figure::from_values(NAME, &self.head, &what, "us", &of_rounds, goal));
        }
    }
}

fn measure_all(services: usize, changes: usize, results: &mut Results) -> Result<(), Failure> {
    let mut contents = cluster()?;
    let mut state = measure_start(services, &mut contents, results)?;
    measure_endpoints(services, changes, &mut contents, &mut state, results)?;
    measure_services(services, changes / 10, &mut contents, &mut state, results)?;
    measure_churn(services, changes / 10, &mut contents, &mut state, results)
}

/// The objects of the cluster without its Services.
fn cluster() -> Result<Contents, Failure> {
    let directory = write_manifests()?;
    let mut store = Store::new(directory.path());
    store.refresh();
    let contents = store.contents();
    if contents.in_sync && contents.problems.is_empty() {
        return Ok(contents.clone());
    }
    Err(format!("the manifests are not as they should be: {:?}", contents.problems).into())
}

/// The node, with workers that use its tables.
struct Running {
    node: Node,
    of_nodes: HashSet<IpAddr>,
    published: Published,
}

/// Measures the steps from the texts of the Services to the first tables.
fn measure_start(
    services: usize,
    contents: &mut Contents,
    results: &mut Results,
) -> Result<Running, Failure> {
    let mut texts = Vec::new();
    for service in 0..services {
        texts.push(manifests::service(service));
        texts.extend((0..manifests::slices(service)).map(|it| manifests::slice(service, it, None)));
    }
    let length: usize = texts.iter().map(String::len).sum();
    let (entries, reading) =
        timed(|| texts.iter().map(|text| read(text)).collect::<Result<Vec<_>, _>>());
    let entries = entries?;
    let slices = entries.len() - services;
    let ((), storing) = timed(|| {
        for entry in entries.into_iter().flatten() {
            let stored = Stored { state: entry.state, place: entry.place };
            contents.objects.insert(entry.key, stored);
        }
    });
    let cluster = import_for(contents, NODE);
    let topology = topology(&cluster, NODE, &Reserved::new())?;
    let locals = attached_pods(&cluster);
    let ranges =
        ServiceRanges::new(contents, &[manifests::RANGE.parse()?], std::iter::empty(), &cluster);
    let of_nodes: HashSet<IpAddr> = cluster.node_addresses().into_keys().collect();
    let addresses = topology.addresses.iter().copied().collect();
    let node_ports = NodePorts { range: (30_000, 32_767), addresses, of_pods: true };
    let mut frontends = Frontends::new(NODE, node_ports);
    let admits = |address| admits(&topology, |it| of_nodes.contains(it), address);
    let (_, compiling) = timed(|| frontends.follow(contents, &Changes::Everything, admits));
    let told = frontends.omissions().count();
    if told > 0 {
        return Err(format!("{told} Services are not translated in full").into());
    }
    let bytes = frontends.table().bytes();
    let services = Some((frontends, ranges));
    let mut node =
        Node { calculation: Calculation::default(), cluster, topology, locals, services };
    let published = Published::new(node.tables())?;
    results.add_time("from nothing: read", reading, None);
    results.add_time("from nothing: stored", storing, None);
    results.add_time("from nothing: compiled", compiling, None);
    let all = reading + storing + compiling;
    results.add_time("from nothing, in all", all, Some(GOALS.1));
    let head = results.head.clone();
    let megabytes = bytes as f64 / f64::from(1 << 20);
    results.figures.extend(Figure::from_values(
        NAME,
        &head,
        "the table of services",
        "MiB",
        &[megabytes],
        None,
    ));
    results.remarks.push(format!("{slices} slices, {length} bytes of JSON"));
    Ok(Running { node, of_nodes, published })
}

impl Running {
    /// Applies changes as the agent does, and waits until every worker uses them. Returns the time of the calculation,
    /// and the time from `began` until the last worker uses them.
    fn follow(
        &mut self,
        contents: &Contents,
        changes: &Changes,
        began: Instant,
    ) -> Result<(Duration, Duration), Failure> {
        let Self { node, of_nodes, published } = self;
        let start = Instant::now();
        let image = Arc::clone(&published.tables.image);
        let left = node.calculation.apply_delta(&image, &mut node.cluster, contents, changes);
        if left != NextStep::Nothing(0) {
            return Err(format!("a Service took {left:?}, expected nothing").into());
        }
        let Some((frontends, ranges)) = &mut node.services else {
            return Err("no services".into());
        };
        let topology = &node.topology;
        let admits = |address| admits(topology, |it| of_nodes.contains(it), address);
        let addresses = frontends.follow(contents, changes, admits);
        let routed = ranges.routed(topology);
        let is_routed = addresses.iter().all(|address| routed.contain(address));
        if !is_routed && !node.change_routes(&published.tables) {
            return Err("a Service took new tables".into());
        }
        let services = node.services.as_ref().map(|(frontends, _)| Arc::clone(frontends.table()));
        let tables = Tables { services, ..Tables::clone(&published.tables) };
        let calculated = start.elapsed();
        Ok((calculated, published.publish(Arc::new(tables), began)?))
    }
}

/// Measures changes of endpoints: in each change, one endpoint of a Service becomes unready, and in most changes the
/// one before becomes ready again.
fn measure_endpoints(
    services: usize,
    changes: usize,
    contents: &mut Contents,
    running: &mut Running,
    results: &mut Results,
) -> Result<(), Failure> {
    for (of, is_large) in [("of 5", false), ("of 505", true)] {
        let all: Vec<usize> =
            (0..services).filter(|it| manifests::is_large(*it) == is_large).collect();
        let (mut readings, mut calculations, mut whole) = (Vec::new(), Vec::new(), Vec::new());
        for index in 0..changes {
            let service = all[index * 7 % all.len()];
            let out = index % manifests::endpoints(service);
            let slice = manifests::slice_of(out);
            let text = manifests::slice(service, slice, Some(out));
            let key = manifests::slice_key(service, slice);
            let began = Instant::now();
            let entry = read(&text)?;
            readings.push(began.elapsed());
            let changes = store(contents, &key, entry);
            let (calculated, used) = running.follow(contents, &changes, began)?;
            calculations.push(calculated);
            whole.push(used);
        }
        results.add_rounds(&format!("one endpoint {of} changes: read"), &readings, None);
        results.add_rounds(&format!("one endpoint {of} changes: calculated"), &calculations, None);
        let what = format!("one endpoint {of} changes, until every worker uses it");
        results.add_rounds(&what, &whole, Some(GOALS.0));
    }
    Ok(())
}

/// Measures changes of Services: each Service is removed and added again.
fn measure_services(
    services: usize,
    changes: usize,
    contents: &mut Contents,
    running: &mut Running,
    results: &mut Results,
) -> Result<(), Failure> {
    let mut times = [Vec::new(), Vec::new()];
    for index in 0..changes {
        let service = index * 7 % services;
        let key = manifests::service_key(service);
        let text = manifests::service(service);
        for (entry, times) in [None, read(&text)?].into_iter().zip(&mut times) {
            let began = Instant::now();
            let changes = store(contents, &key, entry);
            times.push(running.follow(contents, &changes, began)?.1);
        }
    }
    let [gone, come] = times;
    results.add_rounds("a Service goes, until every worker knows", &gone, None);
    results.add_rounds("a Service comes, until every worker uses it", &come, None);
    Ok(())
}

/// Measures changes while one tenant's Service of 505 endpoints changes continuously and a neighbour's Service changes
/// from time to time. As in the agent, all changes that have arrived are applied together.
fn measure_churn(
    services: usize,
    changes: usize,
    contents: &mut Contents,
    running: &mut Running,
    results: &mut Results,
) -> Result<(), Failure> {
    let (noisy, neighbour) = (0, services / 2 + 1);
    let (sender, receiver) = mpsc::channel::<(Instant, bool, Entry)>();
    let (mut times, mut turns, mut events) = (Vec::new(), 0, 0);
    thread::scope(|scope| -> Result<(), Failure> {
        scope.spawn(move || {
            let mut next = Instant::now();
            for index in 0..changes * CHURN.1 {
                next += CHURN.0;
                thread::sleep(next.saturating_duration_since(Instant::now()));
                let is_neighbours = index % CHURN.1 == 0;
                let noisy = manifests::slice(noisy, 0, Some(index % 100));
                let other = is_neighbours
                    .then(|| manifests::slice(neighbour, 0, Some(index / CHURN.1 % 5)));
                for (text, is_neighbours) in [(Some(noisy), false), (other, true)] {
                    let received = Instant::now();
                    let entry = text.and_then(|text| read(&text).ok().flatten());
                    let sent =
                        entry.is_none_or(|it| sender.send((received, is_neighbours, it)).is_ok());
                    if !sent {
                        return;
                    }
                }
            }
        });
        while let Ok(first) = receiver.recv() {
            let mut all: Option<Changes> = None;
            let mut waiting = Vec::new();
            for (received, is_neighbours, entry) in [first].into_iter().chain(receiver.try_iter()) {
                let key = ObjectKey::clone(&entry.key);
                let changes = store(contents, &key, Some(entry));
                all = Some(match all {
                    Some(all) => all.then(changes),
                    None => changes,
                });
                waiting.extend(is_neighbours.then_some(received));
                events += 1;
            }
            let changes = all.unwrap_or(Changes::Objects(BTreeMap::new()));
            running.follow(contents, &changes, Instant::now())?;
            turns += 1;
            times.extend(waiting.iter().map(Instant::elapsed));
        }
        Ok(())
    })?;
    let what = "one endpoint changes, while a neighbour's 505 change 1,000 times a second";
    results.add_rounds(what, &times, Some(GOALS.0));
    results.remarks.push(format!("{events} changes of a neighbour and his own in {turns} turns"));
    Ok(())
}
