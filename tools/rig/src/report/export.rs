//! The export for the analysis of a deviation: a folder with the logs, the agents' status, the
//! manifests, the report, and captures of the deviating probes, which are sent once more.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Report;
use crate::plan::prober::Prober;
use crate::traffic::check::Finding;
use crate::world::bounded_log;
use crate::world::cluster::Cluster;
use crate::world::command::{Probe, Task};
use crate::world::workdir::Workdir;
use manx_api::Status;
use manx_linux::private;

/// The number of deviating probes that are sent again under capture.
const CAPTURED: usize = 3;
/// The time that such a probe waits for an answer.
const PATIENCE_MS: u64 = 1000;

/// Writes the export and returns its folder.
pub(crate) async fn export(
    cluster: &Cluster,
    report: &Report,
    statuses: &[Status],
) -> io::Result<PathBuf> {
    let folder = folder(&cluster.setup.exports, cluster.workdir.name())?;
    write_json(&folder.join("report.json"), report)?;
    copy_folder(&cluster.workdir.manifests(), &folder.join("manifests"))?;
    if cluster.workdir.log().exists() {
        copy(&cluster.workdir.log(), &folder.join("rig.log"))?;
    }
    for (agent, status) in cluster.agents.iter().zip(statuses) {
        write_json(&folder.join(format!("{}.status.json", agent.node())), status)?;
    }
    for (index, finding) in report.deviations().take(CAPTURED).enumerate() {
        capture(cluster, finding, &folder, index).await?;
    }
    // The logs come last, so that they include the repeated probes.
    for agent in &cluster.agents {
        copy_log(agent.log(), &folder.join(format!("{}.log", agent.node())))?;
    }
    Ok(folder)
}

/// Exports the logs of a rig that could not be built. Returns the folder, if there are any logs.
pub(crate) fn export_logs(workdir: &Workdir, exports: &Path) -> io::Result<Option<PathBuf>> {
    let nodes = (0..).map(|index| (index, workdir.agent_log(index)));
    let logs: Vec<(usize, PathBuf)> = nodes.take_while(|(_, log)| log.exists()).collect();
    if logs.is_empty() {
        return Ok(None);
    }
    let folder = folder(exports, workdir.name())?;
    for (index, log) in logs {
        copy_log(&log, &folder.join(format!("agent-{index}.log")))?;
    }
    copy_folder(&workdir.manifests(), &folder.join("manifests"))?;
    Ok(Some(folder))
}

/// A new folder with an unpredictable name, because all users may be able to write to its parent.
fn folder(exports: &Path, rig: &str) -> io::Result<PathBuf> {
    private::make_unpredictable(exports, &format!("manx-rig-{rig}-"))
}

fn write_json(path: &Path, value: &impl serde::Serialize) -> io::Result<()> {
    private::write_new(path, &serde_json::to_vec_pretty(value)?)
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    io::copy(&mut File::open(from)?, &mut private::create(to)?).map(drop)
}

fn copy_log(from: &Path, to: &Path) -> io::Result<()> {
    let mut text = bounded_log::lines(from)?.join("\n");
    text.push('\n');
    private::write_new(to, text.as_bytes())
}

fn copy_folder(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        if let Some(name) = path.file_name().filter(|_| path.is_file()) {
            copy(&path, &to.join(name))?;
        }
    }
    Ok(())
}

/// Sends a probe again while the ports of the pods at both ends are captured.
async fn capture(
    cluster: &Cluster,
    finding: &Finding,
    folder: &Path,
    index: usize,
) -> io::Result<()> {
    let cell = &finding.cell;
    let mut running = Vec::new();
    for prober in [&cell.source, &cell.destination] {
        let Prober::Pod(pod) = prober else { continue };
        let Some(planned) = cluster.plan.pods.get(pod) else { continue };
        let Some(agent) = cluster.agents.iter().find(|agent| agent.node() == planned.node) else {
            continue;
        };
        // The export is made even if an agent cannot capture.
        let Ok(stream) = agent.capture(pod.to_string()).await else { continue };
        let path = folder.join(format!("probe-{index}.{}.{}.pcapng", pod.namespace, pod.name));
        let end = stream.try_clone()?;
        running.push((end, tokio::task::spawn_blocking(move || save(stream, &path))));
    }
    if let Some(process) = cluster.probers.get(&cell.source) {
        let probe = Probe { to: cell.address, service: cell.service, timeout_ms: PATIENCE_MS };
        // The result is not needed, because the capture shows it.
        let _ = process.run_task(Task::Probe(probe)).await;
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    for (end, task) in running {
        let _ = end.shutdown(std::net::Shutdown::Both);
        task.await??;
    }
    Ok(())
}

fn save(mut stream: UnixStream, path: &Path) -> io::Result<()> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
        Err(error) => return Err(error),
    }
    private::write_new(path, &bytes)
}
