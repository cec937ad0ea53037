//! The first `IPPool` of a cluster that has none.

use kube::api::{ListParams, PostParams};
use kube::core::Request;
use manx_objects::object::Kind;
use serde_json::{Value, json};

use super::connection::Connection;
use super::fault::{code, words};
use super::follow::Pause;
use super::resource;

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

/// Makes the pool unless there is one, of any name. Tries again until it is known whether there is one: the CRD may
/// come later.
pub(super) async fn make(connection: &Connection, pool: &DefaultPool) {
    let mut pause = Pause::default();
    let mut told = false;
    loop {
        let problem = match try_make(connection, pool).await {
            Ok(made) => {
                if made {
                    tracing::info!(
                        name = NAME,
                        cidr = pool.cidr,
                        ipip = pool.ipip,
                        "made the first IPPool"
                    );
                }
                return;
            }
            Err(Some(error)) => words(&error),
            Err(None) => "the CRD of IPPools is not installed".to_owned(),
        };
        if !std::mem::replace(&mut told, true) {
            tracing::warn!(problem, "the first IPPool cannot be made yet");
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
        // Another node was first.
        Err(error) if code(&error) == Some(409) => Ok(false),
        Err(error) => Err(Some(error)),
    }
}
