//! Measurements over TCP: one stream, and small exchanges one after another.

use std::io;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::serve::{ECHO, SINK};
use crate::world::command::{Sample, TaskResult};

/// The time that a measurement may take in addition to its duration.
const GRACE: Duration = Duration::from_secs(3);
/// The number of bytes in a small exchange.
const SMALL: usize = 64;

fn duration(sample: &Sample) -> Duration {
    Duration::from_millis(sample.duration_ms)
}

async fn connect(sample: &Sample, wish: u8) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(sample.to).await?;
    stream.set_nodelay(true)?;
    while stream.read_u8().await? != b'\n' {}
    stream.write_u8(wish).await?;
    Ok(stream)
}

fn in_time<T>(result: Result<io::Result<T>, tokio::time::error::Elapsed>) -> Result<T, String> {
    match result {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_elapsed) => Err("it did not end in time".to_owned()),
    }
}

/// Sends one stream for the sample's duration. The time is counted until the server has read
/// everything.
pub(super) async fn stream(sample: &Sample) -> TaskResult {
    let work = async {
        let mut stream = connect(sample, SINK).await?;
        let block = vec![0x6d; 256 << 10];
        let start = Instant::now();
        while start.elapsed() < duration(sample) {
            stream.write_all(&block).await?;
        }
        stream.shutdown().await?;
        let bytes = stream.read_u64().await?;
        Ok(TaskResult::Streamed { bytes, elapsed_us: start.elapsed().as_micros() as u64 })
    };
    in_time(timeout(duration(sample) + GRACE, work).await).unwrap_or_else(TaskResult::Failed)
}

/// Makes small exchanges for the sample's duration.
pub(super) async fn ping_pong(sample: &Sample) -> TaskResult {
    let work = async {
        let mut stream = connect(sample, ECHO).await?;
        let mut block = [0x6d; SMALL];
        let mut times = Vec::new();
        let start = Instant::now();
        while times.is_empty() || start.elapsed() < duration(sample) {
            let sent = Instant::now();
            stream.write_all(&block).await?;
            stream.read_exact(&mut block).await?;
            times.push(sent.elapsed());
        }
        times.sort_unstable();
        let median_ns = times[times.len() / 2].as_nanos() as u64;
        Ok(TaskResult::PingPonged { median_ns, exchanges: times.len() as u64 })
    };
    in_time(timeout(duration(sample) + GRACE, work).await).unwrap_or_else(TaskResult::Failed)
}
