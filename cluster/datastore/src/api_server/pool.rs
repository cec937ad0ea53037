//! The first `IPPool` of a cluster whose objects an API server has. The installation makes it: an agent may make no pools.

use manx_objects::object::Kind;
use tokio::time::timeout;

use super::access::Access;
use super::connection::ANSWER;
use super::writer::Writer;
use crate::error::SourceError;
use crate::followed::Pause;
use crate::pool::{DefaultPool, make_first};
use crate::writes::WriteError;

/// Makes the pool unless there is one, of any name. Returns whether it was made. Waits for a server that does not
/// answer, and for the CRD: it may come later.
///
/// # Errors
/// No setting names a server, or the server refuses the pool or the list of pools.
pub fn make_first_pool(access: &Access, pool: &DefaultPool) -> Result<bool, SourceError> {
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(make(access, pool)),
        Err(error) => Err(SourceError::Client {
            server: "the API server".to_owned(),
            reason: error.to_string(),
        }),
    }
}

async fn make(access: &Access, pool: &DefaultPool) -> Result<bool, SourceError> {
    let (mut pause, mut told) = (Pause::default(), String::new());
    loop {
        let server = access.config().await?.cluster_url.to_string();
        let writer = Writer::open(access).await?;
        let waits = match timeout(ANSWER, make_first(&writer, pool)).await {
            Ok(Ok(made)) => return Ok(made),
            Ok(Err(WriteError::NotServed(_))) => "the CRD of IPPools is not installed".to_owned(),
            Ok(Err(WriteError::Unreachable(reason))) => reason,
            Ok(Err(error)) => {
                let (kind, reason) = (Kind::IpPool.name(), error.to_string());
                return Err(SourceError::Unmade { server, kind, reason });
            }
            Err(_elapsed) => format!("no answer for {} s", ANSWER.as_secs()),
        };
        if waits != told {
            tracing::warn!(server, reason = waits, "the first IPPool cannot be made yet: waiting");
            told = waits;
        }
        pause.wait().await;
    }
}
