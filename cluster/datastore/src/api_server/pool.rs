//! The first `IPPool`s of a cluster with an API server. The installation writes them, because agents have no right to
//! do so.

use ipnet::IpNet;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{GetParams, Request};
use manx_objects::object::Kind;
use tokio::time::timeout;

use super::access::Access;
use super::connection::ANSWER;
use super::fault::code;
use super::writer::Writer;
use crate::error::SourceError;
use crate::followed::Pause;
use crate::pool::{DefaultPool, make_first, pod_networks};
use crate::writes::WriteError;

/// Creates each pool, unless a pool of its family exists, whatever its name. Returns the pools that were created. Waits
/// as long as the server does not answer, or the CRD is not installed yet.
///
/// `pools` returns the pools to create. If `asks_kubeadm` is set, it gets the pods' networks in kubeadm's `ConfigMap`
/// `kubeadm-config`. It gets an empty list if kubeadm has not created the cluster or was given no pods' network.
///
/// # Errors
/// Returns an error if no setting names a server, if the server refuses a pool, the list of pools or the `ConfigMap`,
/// or if `pools` returns an error.
pub fn make_first_pools(
    access: &Access,
    asks_kubeadm: bool,
    pools: impl Fn(&[IpNet]) -> Result<Vec<DefaultPool>, String>,
) -> Result<Vec<DefaultPool>, SourceError> {
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(make(access, asks_kubeadm, pools)),
        Err(error) => Err(SourceError::Client {
            server: "the API server".to_owned(),
            reason: error.to_string(),
        }),
    }
}

async fn make(
    access: &Access,
    asks_kubeadm: bool,
    pools: impl Fn(&[IpNet]) -> Result<Vec<DefaultPool>, String>,
) -> Result<Vec<DefaultPool>, SourceError> {
    let (mut pause, mut told) = (Pause::default(), String::new());
    loop {
        let server = access.config().await?.cluster_url.to_string();
        let writer = Writer::open(access).await?;
        let attempt = async {
            let networks = if asks_kubeadm { kubeadm(&writer).await? } else { Vec::new() };
            make_first(&writer, &pools(&networks).map_err(WriteError::Refused)?).await
        };
        let waits = match timeout(ANSWER, attempt).await {
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

/// Reads the pods' networks that kubeadm has recorded.
async fn kubeadm(writer: &Writer) -> Result<Vec<IpNet>, WriteError> {
    const NAME: &str = "kubeadm-config";
    let request = Request::new("/api/v1/namespaces/kube-system/configmaps");
    let found = match writer.ask(request.get(NAME, &GetParams::default())).await {
        Err(error) if code(&error) == Some(404) => return Ok(Vec::new()),
        found => found?,
    };
    let map: ConfigMap = serde_json::from_value(found)
        .map_err(|error| WriteError::Refused(format!("ConfigMap {NAME}: {error}")))?;
    let configuration = map.data.unwrap_or_default().remove("ClusterConfiguration");
    pod_networks(&configuration.unwrap_or_default())
        .map_err(|error| WriteError::Refused(format!("ConfigMap {NAME}: {error}")))
}
