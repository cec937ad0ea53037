//! The first `IPPool` of a cluster that has none. The installation makes it: an agent may make no pools.

use kube::api::{ListParams, PostParams};
use kube::core::Request;
use manx_objects::object::Kind;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::access::Access;
use super::connection::{ANSWER, Connection};
use super::fault::{code, is_passing, words};
use super::resource;
use crate::error::SourceError;
use crate::followed::Pause;

/// The name that Calico gives it.
const NAME: &str = "default-ipv4-ippool";

/// What the pool is to be if there is none.
#[derive(Debug, Clone)]
pub struct DefaultPool {
    /// Its addresses.
    pub cidr: String,
    /// Its `ipipMode`.
    pub ipip: &'static str,
}

/// Makes the pool unless there is one, of any name, and returns whether it was made now. Waits for a server that does not
/// answer, and for the CRD: it may come later.
///
/// # Errors
/// Nothing says how to reach a server, or the server refuses the pool or the question for pools.
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
        let connection = access.connect().await?;
        let made = timeout(ANSWER, try_make(&connection, pool)).await;
        let waits = match made {
            Ok(Ok(made)) => return Ok(made),
            Ok(Err(Some(error))) if !is_passing(&error) => {
                let (kind, reason) = (Kind::IpPool.name(), words(&error));
                return Err(SourceError::Unmade { server, kind, reason });
            }
            Ok(Err(Some(error))) => words(&error),
            Ok(Err(None)) => "the CRD of IPPools is not installed".to_owned(),
            Err(_elapsed) => format!("no answer for {} s", ANSWER.as_secs()),
        };
        if waits != told {
            tracing::warn!(server, reason = waits, "the first IPPool cannot be made yet: waiting");
            told = waits;
        }
        pause.wait().await;
    }
}

/// Returns whether it was made now. `Err(None)`: the server knows no pools.
async fn try_make(
    connection: &Connection,
    pool: &DefaultPool,
) -> Result<bool, Option<kube::Error>> {
    let resource = resource::find(connection, Kind::IpPool).await?.ok_or(None)?;
    let path = Request::new(resource.path.clone());
    let request = path.list(&ListParams::default().limit(1)).map_err(kube::Error::BuildRequest)?;
    let pools: Value = connection.ask(request).await?;
    if pools["items"].as_array().is_some_and(|items| !items.is_empty()) {
        return Ok(false);
    }
    let object = json!({
        "apiVersion": resource.api_version, "kind": Kind::IpPool.name(),
        "metadata": { "name": NAME },
        "spec": { "cidr": pool.cidr, "ipipMode": pool.ipip },
    });
    let request = path.create(&PostParams::default(), object.to_string().into_bytes());
    match connection.ask::<Value>(request.map_err(kube::Error::BuildRequest)?).await {
        Ok(_) => Ok(true),
        // Somebody else was first.
        Err(error) if code(&error) == Some(409) => Ok(false),
        Err(error) => Err(Some(error)),
    }
}
