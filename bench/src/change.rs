//! What a change of one object costs the control thread of a node, in a cluster of 100,000 pods, 5,000 nodes and 14,000
//! policies: from the changed object in the store to tables that say so.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use manx_analysis::proof::{Depth, Proof, prove};
use manx_calculation::calc::{Calculation, Inputs, Local, NextStep, Underlay};
use manx_calculation::import::{Cluster, import_for};
use manx_calculation::interfaces::Interfaces;
use manx_calculation::topology::{Topology, topology};
use manx_dataplane::tables::{Connections, Link, PortId, Tables};
use manx_datastore::{STANDS, Store};
use manx_objects::contents::{Changes, Contents, Stored};
use manx_objects::object::{Kind, ObjectKey};
use manx_oracle::Oracle;
use manx_policy_compiler::model::ObjectName;

use crate::error::Error;
use crate::goal::Goal;
use crate::report::Figure;
use crate::run::{Listed, Run, Settings};
use crate::statistics::Summary;

const NAMESPACES: usize = 1_000;
const PODS: usize = 100;
const POLICIES: usize = 14;
const NODES: usize = 5_000;
/// Pods of the node.
const LOCAL: usize = 250;
/// The first namespace that has none of them.
const OTHERS: usize = LOCAL.div_ceil(PODS);
const POLICIES_CHANGED: usize = 10;
const NODE: &str = "node-0";

const NAME: &str = "change";
const WORDS: &str = "one object changes among 100,000 pods, 5,000 nodes and 14,000 policies";

type Failure = Box<dyn std::error::Error>;

/// Its row.
pub fn rows(_: &Settings) -> Vec<Listed> {
    vec![Listed { name: NAME, words: WORDS.to_owned(), takes: TAKES }]
}

/// About how long it takes.
const TAKES: Duration = Duration::from_secs(15);

/// Measures it.
pub fn measure(run: &mut Run) -> Result<(), Error> {
    run.progress.begin(&format!("{NAME}: {WORDS}"));
    match measured(run.settings.changes) {
        Ok((figures, remarks)) => {
            run.report.remarks.extend(remarks.into_iter().map(|words| format!("{NAME}: {words}")));
            for figure in figures {
                run.found(figure)?;
            }
        }
        Err(error) => run.lacks(NAME, error.to_string(), true)?,
    }
    run.progress.step(format!("{NAME}: done"), TAKES);
    Ok(())
}

fn namespace(index: usize) -> String {
    let own = format!(
        "{{apiVersion: v1, kind: Namespace, metadata: {{name: ns-{index}, labels: {{team: t{}}}}}}}",
        index % 40
    );
    let pods = (0..PODS).map(|at| pod(index, at, at % 20));
    let policies = (0..POLICIES).map(|at| policy(index, at, 9000));
    let objects: Vec<String> = [own].into_iter().chain(pods).chain(policies).collect();
    objects.join("\n---\n")
}

/// The pod of a namespace and a number, of which the first are the node's.
fn pod(namespace: usize, at: usize, app: usize) -> String {
    let index = namespace * PODS + at;
    let node = index / (NAMESPACES * PODS / NODES).max(LOCAL) % NODES;
    let address = Ipv4Addr::from_bits(0x0a00_0000 + (node * 256 + 2 + index % LOCAL) as u32);
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: pod-{at}, namespace: ns-{namespace}, labels: {{app: app-{app}, tier: t{}}}}}, \
         spec: {{nodeName: node-{node}, containers: [{{name: c, ports: [{{name: http, containerPort: 8080}}]}}]}}, status: {{podIP: {address}}}}}",
        at % 3
    )
}

/// A deny for everybody, DNS for everybody, and twelve applications' own.
fn policy(namespace: usize, at: usize, port: usize) -> String {
    let spec = match at {
        0 => "podSelector: {}, policyTypes: [Ingress, Egress]".to_owned(),
        1 => {
            "podSelector: {}, policyTypes: [Egress], egress: [{ports: [{protocol: UDP, port: 53}]}]"
                .to_owned()
        }
        _ => format!(
            "podSelector: {{matchLabels: {{app: app-{at}}}}}, ingress: [{{from: [{{podSelector: {{matchLabels: {{app: app-{}}}}}}}, \
             {{namespaceSelector: {{matchLabels: {{team: t{}}}}}, podSelector: {{matchLabels: {{tier: t1}}}}}}], \
             ports: [{{port: http}}, {{port: {port}}}]}}]",
            (at + 1) % 20,
            (namespace + at) % 40
        ),
    };
    format!(
        "{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: p-{at}, namespace: ns-{namespace}}}, spec: {{{spec}}}}}"
    )
}

fn nodes() -> String {
    let node = |index: usize| {
        let block = Ipv4Addr::from_bits(0x0a00_0000 + (index * 256) as u32);
        let address = Ipv4Addr::from_bits(0xac10_0000 + index as u32 + 1);
        format!(
            "{{apiVersion: v1, kind: Node, metadata: {{name: node-{index}}}, spec: {{podCIDR: {block}/24}}, \
             status: {{addresses: [{{type: InternalIP, address: {address}}}]}}}}\n---\n"
        )
    };
    let pool = "{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: pool}, spec: {cidr: 10.0.0.0/8, ipipMode: Always}}";
    (0..NODES).map(node).collect::<String>() + pool
}

/// The node, but for its devices.
struct Node {
    calculation: Calculation,
    cluster: Cluster,
    topology: Topology,
    locals: BTreeMap<ObjectName, Local>,
}

impl Node {
    fn tables(&mut self) -> Tables {
        self.calculation.tables(&Inputs {
            cluster: &self.cluster,
            topology: &self.topology,
            locals: &self.locals,
            underlay: &Underlay {
                mtu: 1500,
                raw: PortId(1),
                packet_socket: None,
                next_hops: BTreeMap::new(),
                vxlan: None,
            },
            host: Link::native(PortId(0), 1500),
            uplink: None,
            connections: Connections::default(),
            interfaces: Interfaces { node: NODE, uplink: None, addresses: &[] },
        })
    }
}

/// Puts a text's object into the store, or takes `key` out; what it was.
fn change(
    contents: &mut Contents,
    key: &ObjectKey,
    text: Option<&str>,
) -> Result<Changes, Failure> {
    let mut manifest = text.map(|text| manx_objects::read("change", text)).transpose()?;
    let before = match manifest.as_mut().and_then(|it| it.entries.pop()) {
        Some(entry) => {
            contents.objects.insert(entry.key, Stored { state: entry.state, place: entry.place })
        }
        None => contents.objects.remove(key),
    };
    Ok(Changes::Objects(BTreeMap::from([(key.clone(), before)])))
}

fn key(kind: Kind, namespace: usize, name: String) -> ObjectKey {
    ObjectKey { kind, namespace: format!("ns-{namespace}"), name }
}

/// This node's pods, as if each had been attached.
fn attached(cluster: &Cluster) -> BTreeMap<ObjectName, Local> {
    let ours = cluster.pods_by_node.iter().filter(|(_, node)| *node == NODE).map(|(name, _)| name);
    let local = |(index, name): (u32, &ObjectName)| {
        let addresses = cluster.model.endpoints.get(name).map(|it| it.addresses.clone());
        let addresses = addresses.into_iter().flatten().collect();
        let port = PortId(2 + index as u16);
        (name.clone(), Local { index, attachment: index, port, addresses, mtu: 1480 })
    };
    (0..).zip(ours).map(local).collect()
}

/// How long it takes to prove the node's tables, and of what they were proved.
fn proved(
    contents: &Contents,
    node: &Node,
    tables: &Tables,
) -> Result<(Duration, String), Failure> {
    let (proof, time) = timed(|| {
        let oracle = Oracle::new(&contents.objects);
        let local = node.locals.keys().cloned().collect();
        prove(&oracle, &local, &tables.image, Depth::Distinct, |_, _| {})
    });
    let Proof { endpoints, cells, questions, peers } = proof.map_err(|it| it.to_string())?;
    let of = format!(
        "{endpoints} endpoints, {cells} cells, {questions} questions, {peers} peers stand for all"
    );
    Ok((time, of))
}

fn measured(pods_changed: usize) -> Result<(Vec<Figure>, Vec<String>), Failure> {
    let directory = crate::world::folder()?;
    for index in 0..NAMESPACES {
        std::fs::write(directory.path().join(format!("ns-{index}.yaml")), namespace(index))?;
    }
    std::fs::write(directory.path().join("nodes.yaml"), nodes())?;
    let mut store = Store::new(directory.path());
    let read = timed(|| store.refresh()).1;
    let mut contents = store.contents().clone();
    if !contents.in_sync || !contents.problems.is_empty() {
        return Err(
            format!("the manifests are not as they should be: {:?}", contents.problems).into()
        );
    }
    let (cluster, import) = timed(|| import_for(&contents, NODE));
    let (topology, placed) = timed(|| topology(&cluster, NODE));
    let locals = attached(&cluster);
    let mut node =
        Node { calculation: Calculation::default(), cluster, topology: topology?, locals };
    let (mut tables, whole) = timed(|| node.tables());
    let (proved, proof) = proved(&contents, &node, &tables)?;
    let (mut figures, mut remarks) = (Vec::new(), vec![proof]);
    for (what, time, goal) in [
        ("from nothing: read", read, None),
        ("from nothing: imported", import, None),
        ("from nothing: the topology", placed, None),
        ("from nothing: the tables", whole, None),
        ("the tables are proved", proved, Some(Goal::AtMost(2000.0))),
    ] {
        let figure = figure(what, "ms", &[time]);
        figures.extend(figure.map(|it| Figure { goal, ..it }));
    }

    // How long it takes that a pod changes, changes back, goes and comes.
    let (mut times, mut anew) = ([const { Vec::new() }; 4], 0);
    for index in 0..pods_changed {
        let namespace = OTHERS + index % (NAMESPACES - OTHERS);
        let at = index * 7 % PODS;
        let key = key(Kind::Pod, namespace, format!("pod-{at}"));
        let (own, other) = (pod(namespace, at, at % 20), pod(namespace, at, (at + 1) % 20));
        let steps = [Some(&other), Some(&own), None, Some(&own)];
        for (text, times) in steps.into_iter().zip(&mut times) {
            let changes = change(&mut contents, &key, text.map(String::as_str))?;
            let start = Instant::now();
            let left =
                node.calculation.apply_delta(&tables.image, &mut node.cluster, &contents, &changes);
            if left != NextStep::Nothing(1) {
                tables = node.tables();
                anew += 1;
            }
            times.push(start.elapsed());
        }
    }
    for (what, times) in [
        "a pod of another node changes",
        "a pod of another node changes back",
        "a pod of another node goes",
        "a pod of another node comes",
    ]
    .into_iter()
    .zip(times)
    {
        figures.extend(figure(what, "us", &times));
    }
    remarks.push(format!("tables made anew for {anew} of {} changes of pods", 4 * pods_changed));

    let mut followed = Vec::new();
    let mut made = Vec::new();
    for index in 0..POLICIES_CHANGED {
        let namespace = index * 7 % NAMESPACES;
        let text = policy(namespace, 5, 9001 + index);
        let key = key(Kind::NetworkPolicy, namespace, "p-5".to_owned());
        let changes = change(&mut contents, &key, Some(&text))?;
        let (left, time) = timed(|| {
            node.calculation.apply_delta(&tables.image, &mut node.cluster, &contents, &changes)
        });
        if left != NextStep::Tables {
            return Err(format!("a policy took {left:?}, expected new tables").into());
        }
        followed.push(time);
        let (next, time) = timed(|| node.tables());
        tables = next;
        made.push(time);
    }
    figures.extend(figure("a policy changes", "us", &followed));
    figures.extend(figure("the tables after it", "ms", &made));

    // What was written a moment before it was read is read once more: by the next look at the directory, not by each change.
    std::thread::sleep(STANDS);
    store.refresh();
    let path = directory.path().join("ns-7.yaml");
    let temporary = directory.path().join(".ns-7.yaml");
    std::fs::write(&temporary, namespace(7).replace("app: app-3,", "app: app-4,"))?;
    std::fs::rename(temporary, path)?;
    let (changes, looked) = timed(|| store.refresh());
    let found = match changes {
        Some(Changes::Objects(objects)) => objects.len(),
        Some(Changes::Everything) | None => 0,
    };
    figures.extend(figure("a directory is looked at", "ms", &[looked]));
    remarks.push(format!(
        "the directory has {} files, of which one is new with {found} other objects",
        store.contents().texts
    ));
    Ok((figures, remarks))
}

fn timed<T>(what: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let done = what();
    (done, start.elapsed())
}

fn figure(what: &str, unit: &'static str, times: &[Duration]) -> Option<Figure> {
    let a_second = if unit == "us" { 1e6 } else { 1e3 };
    let values: Vec<f64> = times.iter().map(|time| time.as_secs_f64() * a_second).collect();
    Some(Figure {
        row: NAME,
        head: format!("Following the cluster: {WORDS}"),
        what: what.to_owned(),
        unit,
        beside: None,
        manx: Summary::of(&values)?,
        ratio: None,
        goal: None,
    })
}
