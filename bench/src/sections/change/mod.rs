//! The cost of one object's change for the control thread of a node, in a cluster of 100,000 pods, 5,000 nodes and
//! 14,000 policies. It is measured from the changed object in the store to new tables.

mod cluster;
mod node;
mod services;

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use manx_analysis::proof::{Depth, Proof, prove};
use manx_calculation::calc::{Calculation, NextStep};
use manx_calculation::import::import_for;
use manx_calculation::topology::{Reserved, topology};
use manx_dataplane::tables::Tables;
use manx_datastore::{STANDS, Store};
use manx_objects::contents::{Changes, Contents};
use manx_objects::object::{Kind, ObjectKey};
use manx_oracle::Oracle;
use tempfile::TempDir;

use crate::error::{Error, Failure};
use crate::report::figures::Figure;
use crate::report::goal::Goal;
use crate::run::{ListedRow, Run, Settings};

use cluster::{
    FIRST_REMOTE, NAMESPACES, NODE, PODS, namespace, node, pod, policy, write_manifests,
};
use node::{Node, attached_pods, change, key, timed};

const NAME: &str = "change";
const DESCRIPTION: &str = "one object changes among 100,000 pods, 5,000 nodes and 14,000 policies";
/// The estimated time.
const ESTIMATE: Duration = Duration::from_secs(15);
/// The number of policies that change.
const POLICIES_CHANGED: usize = 10;
/// The number of nodes whose blocks change.
const BLOCKS_CHANGED: usize = 10;
/// The steps for a pod of another node.
const POD_STEPS: [&str; 4] = [
    "a pod of another node changes",
    "a pod of another node changes back",
    "a pod of another node goes",
    "a pod of another node comes",
];

/// The rows of this section.
pub fn rows(settings: &Settings) -> Vec<ListedRow> {
    let services = format!("{} {}", settings.services, services::DESCRIPTION);
    vec![
        ListedRow::new(NAME, DESCRIPTION, ESTIMATE),
        ListedRow::new(services::NAME, &services, services::ESTIMATE),
    ]
}

pub fn measure(run: &mut Run) -> Result<(), Error> {
    if run.wants(NAME) {
        measure_objects(run)?;
    }
    if run.wants(services::NAME) { services::measure(run) } else { Ok(()) }
}

fn measure_objects(run: &mut Run) -> Result<(), Error> {
    run.progress.begin(&format!("{NAME}: {DESCRIPTION}"));
    let measured = measure_all(run.settings.changes).map(|Results { figures, remarks }| {
        run.report.remarks.extend(remarks.into_iter().map(|remark| format!("{NAME}: {remark}")));
        figures
    });
    run.add_measured(NAME, measured)?;
    run.progress.step(format!("{NAME}: done"), ESTIMATE);
    Ok(())
}

#[derive(Default)]
struct Results {
    figures: Vec<Figure>,
    remarks: Vec<String>,
}

impl Results {
    /// Adds a figure of these times, in `us` or `ms`. If there are no times, it adds nothing.
    fn add(&mut self, what: &str, unit: &'static str, times: &[Duration], goal: Option<Goal>) {
        let head = format!("Following the cluster: {DESCRIPTION}");
        let figure = Figure::from_times(NAME, &head, what, unit, times, goal);
        self.figures.extend(figure);
    }
}

/// Measures all steps, one after the other on the same node.
fn measure_all(pods_changed: usize) -> Result<Results, Failure> {
    let mut results = Results::default();
    let directory = write_manifests()?;
    let mut store = Store::new(directory.path());
    let (mut node, mut tables) = measure_start(&mut store, &mut results)?;
    let mut contents = store.contents().clone();
    measure_proof(&contents, &node, &tables, &mut results)?;
    measure_pods(pods_changed, &mut contents, &mut node, &mut tables, &mut results)?;
    measure_policies(&mut contents, &mut node, &mut tables, &mut results)?;
    measure_routes(&mut contents, &mut node, &tables, &mut results)?;
    measure_directory(&directory, &mut store, &mut results)?;
    Ok(results)
}

/// Measures the steps from the manifests to the first tables.
fn measure_start(store: &mut Store, results: &mut Results) -> Result<(Node, Tables), Failure> {
    let read = timed(|| store.refresh()).1;
    let contents = store.contents();
    if !contents.in_sync || !contents.problems.is_empty() {
        return Err(
            format!("the manifests are not as they should be: {:?}", contents.problems).into()
        );
    }
    let (cluster, import) = timed(|| import_for(contents, NODE));
    let (topology, placed) = timed(|| topology(&cluster, NODE, &Reserved::new()));
    let locals = attached_pods(&cluster);
    let mut node = Node {
        calculation: Calculation::default(),
        cluster,
        topology: topology?,
        locals,
        services: None,
    };
    let (tables, calculated) = timed(|| node.tables());
    results.add("from nothing: read", "ms", &[read], None);
    results.add("from nothing: imported", "ms", &[import], None);
    results.add("from nothing: the topology", "ms", &[placed], None);
    results.add("from nothing: the tables", "ms", &[calculated], None);
    Ok((node, tables))
}

fn measure_proof(
    contents: &Contents,
    node: &Node,
    tables: &Tables,
    results: &mut Results,
) -> Result<(), Failure> {
    let (proof, time) = timed(|| {
        let oracle = Oracle::new(&contents.objects);
        let local = node.locals.keys().cloned().collect();
        prove(&oracle, &local, &tables.image, Depth::Distinct, |_, _| {})
    });
    let Proof { endpoints, cells, questions, peers } = proof.map_err(|it| it.to_string())?;
    results.add("the tables are proved", "ms", &[time], Some(Goal::AtMost(2000.0)));
    results.remarks.push(format!(
        "{endpoints} endpoints, {cells} cells, {questions} questions, {peers} peers stand for all"
    ));
    Ok(())
}

/// Measures changes of pods: each is changed, changed back, removed and added.
fn measure_pods(
    count: usize,
    contents: &mut Contents,
    node: &mut Node,
    tables: &mut Tables,
    results: &mut Results,
) -> Result<(), Failure> {
    let (mut times, mut recalculated) = ([const { Vec::new() }; POD_STEPS.len()], 0);
    for index in 0..count {
        let namespace = FIRST_REMOTE + index % (NAMESPACES - FIRST_REMOTE);
        let at = index * 7 % PODS;
        let key = key(Kind::Pod, namespace, format!("pod-{at}"));
        let (own, other) = (pod(namespace, at, at % 20), pod(namespace, at, (at + 1) % 20));
        let steps = [Some(&other), Some(&own), None, Some(&own)];
        for (text, times) in steps.into_iter().zip(&mut times) {
            let changes = change(contents, &key, text.map(String::as_str))?;
            let start = Instant::now();
            let left =
                node.calculation.apply_delta(&tables.image, &mut node.cluster, contents, &changes);
            if left != NextStep::Nothing(1) {
                *tables = node.tables();
                recalculated += 1;
            }
            times.push(start.elapsed());
        }
    }
    for (what, times) in POD_STEPS.into_iter().zip(times) {
        results.add(what, "us", &times, None);
    }
    let changes = POD_STEPS.len() * count;
    results
        .remarks
        .push(format!("tables made anew for {recalculated} of {changes} changes of pods"));
    Ok(())
}

/// Measures changes of the ports of policies. Each change needs new tables.
fn measure_policies(
    contents: &mut Contents,
    node: &mut Node,
    tables: &mut Tables,
    results: &mut Results,
) -> Result<(), Failure> {
    let (mut followed, mut calculated) = (Vec::new(), Vec::new());
    for index in 0..POLICIES_CHANGED {
        let namespace = index * 7 % NAMESPACES;
        let text = policy(namespace, 5, 9001 + index);
        let key = key(Kind::NetworkPolicy, namespace, "p-5".to_owned());
        let changes = change(contents, &key, Some(&text))?;
        let (left, time) = timed(|| {
            node.calculation.apply_delta(&tables.image, &mut node.cluster, contents, &changes)
        });
        if left != NextStep::Tables {
            return Err(format!("a policy took {left:?}, expected new tables").into());
        }
        followed.push(time);
        let (next, time) = timed(|| node.tables());
        *tables = next;
        calculated.push(time);
    }
    results.add("a policy changes", "us", &followed, None);
    results.add("the tables after it", "ms", &calculated, None);
    Ok(())
}

/// Measures changes of the blocks of other nodes. Each block is halved, and then gets its old size again. Each change
/// is stored in the tables in use.
fn measure_routes(
    contents: &mut Contents,
    node: &mut Node,
    tables: &Tables,
    results: &mut Results,
) -> Result<(), Failure> {
    let (mut followed, mut placed, mut stored) = (Vec::new(), Vec::new(), Vec::new());
    for (index, length) in (1..=BLOCKS_CHANGED).flat_map(|index| [(index, 25), (index, 24)]) {
        let (kind, name) = (Kind::Node, format!("node-{index}"));
        let key = ObjectKey { kind, namespace: String::new(), name };
        let changes = change(contents, &key, Some(&self::node(index, length)))?;
        let (left, time) = timed(|| {
            node.calculation.apply_delta(&tables.image, &mut node.cluster, contents, &changes)
        });
        if left != (NextStep::Routes { pods: 0, tables: false }) {
            return Err(format!("a node took {left:?}, expected other routes").into());
        }
        followed.push(time);
        let (topology, time) = timed(|| topology(&node.cluster, NODE, &Reserved::new()));
        node.topology = topology?;
        placed.push(time);
        let (is_stored, time) = timed(|| node.change_routes(tables));
        if !is_stored {
            return Err("a route took new tables".into());
        }
        stored.push(time);
    }
    results.add("a block of another node changes", "us", &followed, None);
    results.add("the topology after it", "ms", &placed, None);
    results.add("its routes stored in place", "ms", &stored, None);
    Ok(())
}

/// Measures the refresh after one file of the directory has changed.
fn measure_directory(
    directory: &TempDir,
    store: &mut Store,
    results: &mut Results,
) -> Result<(), Failure> {
    // A refresh reads a file once more if the file was new when it was last read. That refresh is made here, before the
    // measurement.
    thread::sleep(STANDS);
    store.refresh();
    let path = directory.path().join("ns-7.yaml");
    let temporary = directory.path().join(".ns-7.yaml");
    fs::write(&temporary, namespace(7).replace("app: app-3,", "app: app-4,"))?;
    fs::rename(temporary, path)?;
    let (changes, time) = timed(|| store.refresh());
    let found = match changes {
        Some(Changes::Objects(objects)) => objects.len(),
        Some(Changes::Everything) | None => 0,
    };
    results.add("a directory is looked at", "ms", &[time], None);
    results.remarks.push(format!(
        "the directory has {} files; one of them is new, with {found} other objects",
        store.contents().texts
    ));
    Ok(())
}
