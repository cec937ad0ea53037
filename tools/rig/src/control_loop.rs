//! The main loop of the cluster's process: it builds the rig, reports that, and then answers
//! requests on the rig's socket.

use std::fs::Permissions;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Instant;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Mutex, mpsc};

use crate::plan::objects::Objects;
use crate::plan::policy_reference::PolicyReference;
use crate::report::event::{Event, Request};
use crate::report::{self, Report, changes, export, probers};
use crate::traffic::check::{self, Finding};
use crate::traffic::crossings::Crossings;
use crate::traffic::policy_ports::PolicyPorts;
use crate::traffic::{matrix, measure};
use crate::world::agent::Agent;
use crate::world::cluster::{Cluster, ClusterError};
use crate::world::setup::Setup;
use crate::world::workdir::Workdir;
use manx_oracle::Oracle;

/// The channel for the events of a rig.
type Events = mpsc::UnboundedSender<Event>;

/// A cluster, and the results of its last run.
struct Rig {
    cluster: Cluster,
    last: Option<Vec<Finding>>,
}

/// Runs the process. It ends only on request or if building fails.
pub fn run(workdir: Workdir) -> io::Result<()> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(run_control_loop(workdir))
}

async fn run_control_loop(workdir: Workdir) -> io::Result<()> {
    let socket = workdir.socket();
    let built = Cluster::build(workdir.clone(), |step, done, total| {
        emit(&Event::Progress { step: step.to_owned(), done, total });
    })
    .await;
    let cluster = match built {
        Ok(cluster) => cluster,
        Err(error) => {
            let exports = Setup::read(&workdir).map(|setup| setup.exports).ok();
            let logs = exports.and_then(|exports| export::export_logs(&workdir, &exports).ok()?);
            let logs = logs.map(|logs| format!("; logs: {}", logs.display())).unwrap_or_default();
            emit(&Event::Failed { fault: error.fault(), message: format!("{error}{logs}") });
            return Err(io::Error::other(error));
        }
    };
    let listener = UnixListener::bind(&socket)?;
    std::fs::set_permissions(&socket, Permissions::from_mode(0o600))?;
    let agents = cluster.agents.clone();
    let rig = Arc::new(Mutex::new(Rig { cluster, last: None }));
    emit(&Event::Ready);
    loop {
        let (stream, _) = listener.accept().await?;
        let (rig, agents) = (rig.clone(), agents.clone());
        tokio::spawn(async move {
            // A caller that disconnects does not affect others.
            let _ = handle_request(stream, &rig, &agents).await;
        });
    }
}

/// Sends an event to the process that started the rig, which may have ended.
pub fn emit(event: &Event) {
    if let Ok(mut line) = serde_json::to_vec(event) {
        line.push(b'\n');
        let mut stdout = io::stdout().lock();
        let _ = stdout.write_all(&line).and_then(|()| stdout.flush());
    }
}

fn failed(error: &ClusterError) -> Event {
    Event::Failed { fault: error.fault(), message: error.to_string() }
}

/// Handles one request and sends the events that answer it.
async fn handle_request(
    stream: UnixStream,
    rig: &Mutex<Rig>,
    agents: &[Arc<Agent>],
) -> io::Result<()> {
    let (read_half, mut write_half) = stream.into_split();
    let mut read_half = BufReader::new(read_half);
    let mut line = String::new();
    read_half.read_line(&mut line).await?;
    let request = serde_json::from_str(&line)?;
    let (events, mut told) = mpsc::unbounded_channel();
    let gone = async {
        // A caller sends nothing after its request, so the end of its stream means that it has
        // gone.
        let _ = read_half.read_u8().await;
    };
    let speaking = async move {
        while let Some(event) = told.recv().await {
            let mut line = serde_json::to_vec(&event)?;
            line.push(b'\n');
            write_half.write_all(&line).await?;
        }
        Ok::<(), io::Error>(())
    };
    // The channel closes with the end of the work, and that ends `speaking`.
    let working = async move { work(request, rig, agents, &events).await };
    tokio::select! {
        () = gone => Ok(()),
        ((), spoken) = async { tokio::join!(working, speaking) } => spoken,
    }
}

/// Does what a request asks for, and sends the events that answer it.
async fn work(request: Request, rig: &Mutex<Rig>, agents: &[Arc<Agent>], events: &Events) {
    match request {
        Request::Agents => {
            let states = agents.iter().map(|agent| agent.state()).collect();
            drop(events.send(Event::Agents(states)));
        }
        Request::Check => {
            let mut rig = rig.lock().await;
            probe(&mut rig, events).await;
        }
        Request::Apply(objects) => {
            let mut rig = rig.lock().await;
            match rig.cluster.apply(Objects::from_json(&objects)).await {
                Ok(()) => probe(&mut rig, events).await,
                Err(error) => drop(events.send(failed(&error))),
            }
        }
        Request::Delete(names) => {
            let references: Vec<PolicyReference> =
                names.iter().map(|it| it.as_str().into()).collect();
            let mut rig = rig.lock().await;
            match rig.cluster.delete(&references).await {
                Ok(keys) => {
                    for key in keys {
                        let _ = events.send(Event::Note(format!("deleted {key}")));
                    }
                    probe(&mut rig, events).await;
                }
                Err(error) => drop(events.send(failed(&error))),
            }
        }
    }
}

/// Probes everything, compares the results with the expected ones and with those of the run before,
/// and reports.
async fn probe(Rig { cluster, last }: &mut Rig, events: &Events) {
    let start = Instant::now();
    let contents = cluster.contents();
    let oracle = Oracle::new(&contents.objects);
    let (plan, addresses) = (&cluster.plan, &cluster.addresses);
    let policy_ports = PolicyPorts::find(&contents, plan, addresses);
    let crossings = Crossings { plan, addresses, contents: &contents, oracle: &oracle };
    let cells = matrix::cells(&crossings, &policy_ports);
    let notes = [plan.note_of_ports(), policy_ports.note(), matrix::note_of_unanswered(&crossings)];
    let total = cells.len();
    let probes = check::check(cells.clone(), &cluster.probers, &cluster.agents, |done| {
        let _ = events.send(Event::Progress { step: "probe".to_owned(), done, total });
    })
    .await;
    let elapsed_ms = start.elapsed().as_millis() as u64;
    let samples = if cluster.setup.settings.samples {
        let _ = events.send(Event::Progress { step: "samples".to_owned(), done: 0, total: 1 });
        measure::measure(cluster, &cells).await
    } else {
        Vec::new()
    };
    let mut statuses = Vec::new();
    for agent in &cluster.agents {
        // The log of an agent that has ended contains the reason.
        match agent.check_alive().and(agent.status().await) {
            Ok(status) => statuses.push(status),
            Err(error) => return drop(events.send(failed(&error.into()))),
        }
    }
    let before = last.replace(probes.clone());
    let mut report = Report {
        rig: cluster.workdir.name().to_owned(),
        as_expected: probes.iter().all(Finding::as_expected),
        probers: probers::describe(cluster, &contents),
        changes: before.map(|before| changes::changes(&before, &probes)),
        probes,
        rules: report::rules(&statuses),
        drops: report::drops(&statuses),
        notes: notes.into_iter().flatten().collect(),
        samples,
        elapsed_ms,
        export: None,
    };
    if !report.as_expected {
        match export::export(cluster, &report, &statuses).await {
            Ok(folder) => report.export = Some(folder),
            Err(error) => {
                let note = format!("the export cannot be written: {error}");
                let _ = events.send(Event::Note(note));
            }
        }
    }
    let _ = events.send(Event::Report(Box::new(report)));
}
