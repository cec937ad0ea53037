//! `manx ipam split`.
//!
//! The parts are made first, and then the pool is deleted. So each address is in a pool at every
//! moment: if pools overlap, the oldest one counts, which is the old pool until it is deleted.
//! Blocks and addresses stay as they are. A run that was interrupted can be repeated.
//!
//! Programs of Calico may treat overlapping pools as an error, and may assign addresses from either
//! of them. They stop while their datastore is locked. So in a cluster that has a
//! `ClusterInformation` the lock is required, as for `calicoctl`. Manx needs no lock, because the
//! parts have the same blocks as the pool, and a block is written by compare-and-swap whichever
//! pool it is in.

use std::fmt::Write as _;

use clap::Args;
use comfy_table::Cell;
use ipnet::IpNet;
use manx_block_ipam::split::parts;
use manx_datastore::{ServedKey, WriteError, Writes};
use manx_objects::object::Kind;
use serde_json::{Value, json};

use super::cluster::{Cluster, write_error};
use crate::Error;
use crate::datastore::ServerOptions;
use crate::output;
use crate::values::net;

/// The most bytes of an object's name.
const LONGEST_NAME: usize = 253;
/// The annotation in which Calico stores an object's own metadata.
const CALICOS_METADATA: &str = "projectcalico.org/metadata";
/// The annotation in which kubectl stores the applied object.
const APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The settings of `manx ipam split`.
#[derive(Debug, Clone, Args)]
#[group(id = "pool", required = true, multiple = false, args = ["cidr", "name"])]
pub struct Split {
    /// Number of pools to make: a power of two
    #[arg(value_name = "NUMBER")]
    pub number: u32,
    /// CIDR of the `IPPool` to split
    #[arg(long, value_name = "CIDR", value_parser = net)]
    pub cidr: Option<IpNet>,
    /// Name of the `IPPool` to split
    #[arg(long, value_name = "POOL")]
    pub name: Option<String>,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take it for the command's own description")]
    pub server: ServerOptions,
}

/// Splits the pool.
pub(super) async fn run<W: Writes + Sync>(
    split: &Split,
    cluster: &Cluster<W>,
) -> Result<(), Error> {
    output::print(&text(split, cluster).await?)
}

pub(super) async fn text<W: Writes + Sync>(
    split: &Split,
    cluster: &Cluster<W>,
) -> Result<String, Error> {
    if cluster.information().await?.is_some_and(|it| !it.is_locked) {
        return Err(Error::Failed(
            "Calico's datastore is not locked, and its programs must not see pools that overlap; expected spec.datastoreReady: false in ClusterInformation default. Lock it by `calicoctl datastore migrate lock`, or by `kubectl patch clusterinformations.crd.projectcalico.org default --type merge -p '{\"spec\":{\"datastoreReady\":false}}'`"
                .to_owned(),
        ));
    }
    let pools = cluster.pools().await?;
    let is_asked = |name: &str, cidr: IpNet| match (&split.name, split.cidr) {
        (Some(asked), _) => name == asked,
        (None, asked) => asked == Some(cidr),
    };
    let Some(pool) = pools.iter().find(|it| is_asked(&it.name, it.cidr)) else {
        let asked = split.name.clone().or(split.cidr.map(|it| it.to_string())).unwrap_or_default();
        let all: Vec<String> =
            pools.iter().map(|it| format!("{} ({})", it.name, it.cidr)).collect();
        let all = if all.is_empty() { "none".to_owned() } else { all.join(", ") };
        return Err(Error::Invalid(format!("there is no IPPool {asked}; found {all}")));
    };
    let cidrs = parts(pool.cidr, pool.block_size, split.number).map_err(|error| {
        Error::Invalid(format!("IPPool {} cannot be split: {error}", pool.name))
    })?;
    let key = ServedKey::new(Kind::IpPool, "", &pool.name);
    let found = cluster.writes().get(&key).await.map_err(write_error)?;
    let Some((object, revision)) = found else { return Err(write_error(WriteError::Gone)) };
    let mut made = Vec::new();
    let mut missing = Vec::new();
    for (at, cidr) in cidrs.into_iter().enumerate() {
        let name = name_of_part(&pool.name, at);
        let part = part(&object, &name, cidr);
        let key = ServedKey::new(Kind::IpPool, "", &name);
        if !is_made(cluster, &key, &part).await? {
            missing.push((key, part));
        }
        made.push((name, cidr));
    }
    for (key, part) in missing {
        cluster.writes().create(&key, part).await.map_err(write_error)?;
    }
    cluster.writes().delete(&key, &revision).await.map_err(|error| match error {
        WriteError::Conflict => Error::Failed(format!(
            "IPPool {} was changed meanwhile, and is there still, beside its parts: delete the pools split-{}-*, and run the command again",
            pool.name, pool.name
        )),
        error => write_error(error),
    })?;
    let rows = made.iter().map(|(name, cidr)| [Cell::new(name), Cell::new(cidr)]).collect();
    let mut text = output::table(["ippool", "cidr"], &[], rows);
    let _ = writeln!(
        text,
        "\nIPPool {} ({}) is split into these; its blocks and addresses stay as they are",
        pool.name, pool.cidr
    );
    Ok(text)
}

/// The name of a part, as Calico forms it.
fn name_of_part(pool: &str, at: usize) -> String {
    let (prefix, suffix) = ("split-", format!("-{at}"));
    let room = LONGEST_NAME - prefix.len() - suffix.len();
    format!("{prefix}{}{suffix}", pool.get(..room.min(pool.len())).unwrap_or(pool))
}

/// A part with all settings of its pool.
fn part(pool: &Value, name: &str, cidr: IpNet) -> Value {
    let mut annotations = pool["metadata"]["annotations"].clone();
    if let Some(all) = annotations.as_object_mut() {
        all.remove(APPLIED);
        let own = all.get(CALICOS_METADATA).and_then(Value::as_str);
        let own: Option<Value> = own.and_then(|text| serde_json::from_str(text).ok());
        if let Some(Value::Object(mut own)) = own {
            // These fields identify the old pool.
            for field in ["uid", "creationTimestamp", "resourceVersion", "generation"] {
                own.remove(field);
            }
            if own.contains_key("name") {
                own.insert("name".to_owned(), name.into());
            }
            all.insert(CALICOS_METADATA.to_owned(), Value::Object(own).to_string().into());
        }
    }
    let mut part = json!({ "metadata": {}, "spec": pool["spec"] });
    part["spec"]["cidr"] = cidr.to_string().into();
    for (field, value) in
        [("labels", pool["metadata"]["labels"].clone()), ("annotations", annotations)]
    {
        if value.as_object().is_some_and(|it| !it.is_empty()) {
            part["metadata"][field] = value;
        }
    }
    part
}

/// Whether an earlier run has already made this part.
async fn is_made<W: Writes + Sync>(
    cluster: &Cluster<W>,
    key: &ServedKey,
    part: &Value,
) -> Result<bool, Error> {
    let found = cluster.writes().get(key).await.map_err(write_error)?;
    let Some((found, _)) = found else { return Ok(false) };
    let (found, expected) = (&found["spec"], &part["spec"]);
    if found == expected {
        return Ok(true);
    }
    Err(Error::Failed(format!(
        "{key} exists with other settings (cidr: {}), expected none, or one with the settings of the pool (cidr: {}): delete or rename it, and run the command again",
        found["cidr"], expected["cidr"]
    )))
}
