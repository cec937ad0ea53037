//! The first `IPPool` of a cluster that has none.

use manx_objects::object::Kind;
use serde_json::json;

use crate::served::ServedKey;
use crate::writes::{WriteError, Writes};

/// The name that Calico gives it.
const NAME: &str = "default-ipv4-ippool";

/// The pool to make if there is none.
#[derive(Debug, Clone)]
pub struct DefaultPool {
    /// Its addresses.
    pub cidr: String,
    /// Its `ipipMode`.
    pub ipip: &'static str,
    /// Its `natOutgoing`.
    pub nat_outgoing: bool,
}

/// Makes the pool unless there is one, of any name. Returns whether it was made.
pub(crate) async fn make_first(
    writes: &impl Writes,
    pool: &DefaultPool,
) -> Result<bool, WriteError> {
    if !writes.list(Kind::IpPool.into(), "").await?.is_empty() {
        return Ok(false);
    }
    let key = ServedKey::new(Kind::IpPool, "", NAME);
    let object = json!({
        "spec": { "cidr": pool.cidr, "ipipMode": pool.ipip, "natOutgoing": pool.nat_outgoing },
    });
    match writes.create(&key, object).await {
        Ok(_) => Ok(true),
        // Another writer was first.
        Err(WriteError::Conflict) => Ok(false),
        Err(error) => Err(error),
    }
}
