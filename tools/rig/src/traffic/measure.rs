//! One throughput and one latency sample, on one node and across nodes: a first impression, not a benchmark.

use std::net::SocketAddr;

use manx_policy_compiler::model::Protocol;
use serde::{Deserialize, Serialize};

use super::matrix::{Cell, Outcome};
use crate::plan::prober::Prober;
use crate::world::cluster::Cluster;
use crate::world::command::{Sample, Task, TaskResult};
use crate::world::service::Service;

/// The duration of a stream.
const STREAM_MS: u64 = 1000;
/// The duration of small exchanges.
const PING_PONG_MS: u64 = 300;

/// The measurements between two pods.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// `same node` or `across nodes`.
    pub path: String,
    /// The client.
    pub source: Prober,
    /// The server.
    pub destination: Prober,
    /// The speed of one TCP stream, in bits a second, or the reason why there is none.
    pub throughput_bps: Result<f64, String>,
    /// The median round trip of 64 bytes over TCP, in microseconds, or the reason why there is
    /// none.
    pub latency_us: Result<f64, String>,
}

/// Measures on one node and across nodes. A measurement is left out if no two pods there may connect by TCP.
pub(crate) async fn measure(cluster: &Cluster, cells: &[Cell]) -> Vec<Measured> {
    let mut measured = Vec::new();
    for (path, same) in [("same node", true), ("across nodes", false)] {
        let Some(cell) = cells.iter().find(|cell| fits(cluster, cell, same)) else { continue };
        let Service::Port(port) = cell.service else { continue };
        let to = SocketAddr::new(cell.address, port.number);
        let Some(process) = cluster.probers.get(&cell.source) else { continue };
        let stream = Task::Stream(Sample { to, duration_ms: STREAM_MS });
        let throughput_bps = match process.run_task(stream).await {
            TaskResult::Streamed { bytes, elapsed_us } => {
                Ok(bytes as f64 * 8.0 / (elapsed_us.max(1) as f64 / 1e6))
            }
            other => Err(why(other)),
        };
        let small = Task::PingPong(Sample { to, duration_ms: PING_PONG_MS });
        let latency_us = match process.run_task(small).await {
            TaskResult::PingPonged { median_ns, .. } => Ok(median_ns as f64 / 1e3),
            other => Err(why(other)),
        };
        measured.push(Measured {
            path: path.to_owned(),
            source: cell.source.clone(),
            destination: cell.destination.clone(),
            throughput_bps,
            latency_us,
        });
    }
    measured
}

fn why(done: TaskResult) -> String {
    match done {
        TaskResult::Failed(words) => words,
        TaskResult::Probed(_) | TaskResult::Streamed { .. } | TaskResult::PingPonged { .. } => {
            "another task's answer".to_owned()
        }
    }
}

/// Whether a cell is an allowed TCP connection between pods, on one node (`same`) or across nodes.
fn fits(cluster: &Cluster, cell: &Cell, same: bool) -> bool {
    let node = |prober: &Prober| match prober {
        Prober::Pod(pod) => cluster.plan.pods.get(pod).map(|pod| pod.node.as_str()),
        Prober::Node(_) | Prober::Outside => None,
    };
    let tcp = matches!(cell.service, Service::Port(port) if port.protocol == Protocol::Tcp);
    match (node(&cell.source), node(&cell.destination)) {
        (Some(a), Some(b)) => tcp && cell.expected == Outcome::Allowed && (a == b) == same,
        _ => false,
    }
}
