//! The settings that say where the objects are. Their variables have the names of Calico's install
//! pages.

use std::env;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use crate::Error;
use manx_agent::settings::Datastore;
use manx_datastore::api_server::Access;
use manx_objects::object::{Kind, ObjectKey};

/// The kinds of datastore.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DatastoreType {
    /// A directory of manifests
    Directory,
    /// The cluster's API server
    Kubernetes,
}

/// The address of the API server, and the credentials for it.
#[derive(Debug, Clone, Args)]
pub struct ServerOptions {
    /// Kubeconfig file. Without it and without --api-endpoint, the service account of this
    /// process's pod is used
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// URL of the API server
    #[arg(long, env = "K8S_API_ENDPOINT", value_name = "URL")]
    pub api_endpoint: Option<String>,
    /// Client certificate (PEM)
    #[arg(long, env = "K8S_CERT_FILE", value_name = "FILE")]
    pub api_cert: Option<PathBuf>,
    /// Key of the client certificate (PEM)
    #[arg(long, env = "K8S_KEY_FILE", value_name = "FILE")]
    pub api_key: Option<PathBuf>,
    /// Authorities that sign the server's certificate (PEM)
    #[arg(long, env = "K8S_CA_FILE", value_name = "FILE")]
    pub api_ca: Option<PathBuf>,
    /// Bearer token [env: also `K8S_TOKEN`]
    #[arg(long, env = "K8S_API_TOKEN", value_name = "TOKEN", hide_env_values = true)]
    pub api_token: Option<String>,
}

/// The place of the agent's objects.
#[derive(Debug, Clone, Args)]
pub struct DatastoreOptions {
    /// Where the objects are [default: directory with --datastore, else kubernetes]
    #[arg(long, env = "DATASTORE_TYPE", value_enum, value_name = "TYPE")]
    pub datastore_type: Option<DatastoreType>,
    /// Directory of manifests
    #[arg(long, env = "MANX_DATASTORE", value_name = "DIR")]
    pub datastore: Option<PathBuf>,
    /// File with the last state of the API server's objects, for a start while the server does not answer
    /// [default: NODE.state beside the socket]
    #[arg(long, env = "MANX_STATE", value_name = "FILE")]
    pub state: Option<PathBuf>,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take it for the command's own description")]
    pub server: ServerOptions,
    /// Where pods' addresses come from, as in Calico's manifests: true, the Node's podCIDRs; false,
    /// Calico's blocks, which need --ipam calico
    #[arg(long, env = "USE_POD_CIDR", value_name = "true|false")]
    pub use_pod_cidr: Option<String>,
    /// Service account of the agent's pod. If it is deleted, Manx counts as removed from the
    /// cluster, and `manx-cni uninstall --if-removed` removes the plugin. Its namespace has the
    /// Secrets with passwords of BGP peers
    #[arg(long, env = "MANX_SERVICE_ACCOUNT", value_name = "NAMESPACE/NAME")]
    pub service_account: Option<String>,
}

/// Checks that Calico's own setting agrees with `--ipam` about where addresses come from.
fn check_use_pod_cidr(value: Option<&str>, is_calico: bool) -> Result<(), Error> {
    let expected = match (value, is_calico) {
        (None, _) | (Some("true"), false) | (Some("false"), true) => return Ok(()),
        (Some(_), false) => {
            "true: pods' addresses come from the Node's podCIDRs (--ipam calico, MANX_IPAM, takes Calico's blocks)"
        }
        (Some(_), true) => {
            "false or nothing: with --ipam calico (MANX_IPAM) pods' addresses come from Calico's blocks, and not from \
             the Node's podCIDRs"
        }
    };
    let value = value.unwrap_or_default();
    Err(Error::Invalid(format!(
        "--use-pod-cidr (USE_POD_CIDR): found {value:?}, expected {expected}"
    )))
}

fn parse_account(text: &str) -> Result<ObjectKey, Error> {
    let named = text.split_once('/').filter(|(namespace, name)| {
        !namespace.is_empty() && !name.is_empty() && !name.contains('/')
    });
    let (namespace, name) = named.ok_or_else(|| {
        Error::Invalid(format!(
            "--service-account (MANX_SERVICE_ACCOUNT): found {text:?}, expected NAMESPACE/NAME, e.g. kube-system/manx-node"
        ))
    })?;
    let (namespace, name) = (namespace.to_owned(), name.to_owned());
    Ok(ObjectKey { kind: Kind::ServiceAccount, namespace, name })
}

impl DatastoreOptions {
    /// Checks that `--use-pod-cidr` agrees with `--ipam`. `is_calico`: `--ipam` is `calico`.
    pub fn check_use_pod_cidr(&self, is_calico: bool) -> Result<(), Error> {
        check_use_pod_cidr(self.use_pod_cidr.as_deref(), is_calico)
    }

    /// The datastore of an agent that listens on `socket`.
    pub fn datastore(&self, socket: &Path) -> Result<Datastore, Error> {
        let wanted = match (self.datastore_type, &self.datastore) {
            (Some(DatastoreType::Directory), None) => {
                return Err(Error::Invalid(
                    "DATASTORE_TYPE is directory, and no directory is named: expected --datastore DIR (MANX_DATASTORE)"
                        .to_owned(),
                ));
            }
            (Some(DatastoreType::Kubernetes), Some(directory)) => {
                return Err(Error::Invalid(format!(
                    "DATASTORE_TYPE is kubernetes, and there is a directory of manifests, {}: expected one of the two",
                    directory.display()
                )));
            }
            (_, directory) => directory,
        };
        if let Some(directory) = wanted {
            return Ok(Datastore::Directory(directory.clone()));
        }
        let state = self.state.clone().unwrap_or_else(|| socket.with_extension("state"));
        let access = Box::new(self.server.access());
        let account = self.service_account.as_deref().map(parse_account).transpose()?;
        Ok(Datastore::Kubernetes { access, state, account })
    }
}

impl ServerOptions {
    /// The access that the settings describe.
    pub fn access(&self) -> Access {
        let other_token = || env::var("K8S_TOKEN").ok().filter(|token| !token.is_empty());
        Access {
            kubeconfig: self.kubeconfig.clone(),
            context: None,
            endpoint: self.api_endpoint.clone(),
            certificate: self.api_cert.clone(),
            key: self.api_key.clone(),
            authority: self.api_ca.clone(),
            token: self.api_token.clone().or_else(other_token),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calicos_setting_of_pod_cidrs_may_not_contradict_the_ipam() {
        for (value, is_calico) in [(None, false), (None, true), (Some("true"), false)] {
            assert!(check_use_pod_cidr(value, is_calico).is_ok(), "{value:?}");
        }
        assert!(check_use_pod_cidr(Some("false"), true).is_ok());
        for (value, is_calico, expected) in [
            ("false", false, "found \"false\", expected true: "),
            ("no", false, "found \"no\", expected true: "),
            ("true", true, "found \"true\", expected false or nothing: "),
        ] {
            let told = check_use_pod_cidr(Some(value), is_calico).unwrap_err().to_string();
            let expected = format!("--use-pod-cidr (USE_POD_CIDR): {expected}");
            assert!(told.starts_with(&expected), "{told}");
        }
    }

    #[test]
    fn a_service_account_has_a_namespace_and_a_name() {
        let key = parse_account("kube-system/manx-node").unwrap();
        assert_eq!((&*key.namespace, &*key.name), ("kube-system", "manx-node"));
        for wrong in ["manx-node", "/manx-node", "kube-system/", "a/b/c"] {
            let told = parse_account(wrong).unwrap_err().to_string();
            assert!(told.contains(&format!("found {wrong:?}, expected NAMESPACE/NAME")), "{told}");
        }
    }
}
