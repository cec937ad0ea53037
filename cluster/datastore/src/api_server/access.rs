//! Access to the API server: its URL, the certificate authorities to trust, and the client's identity.

use std::env;
use std::path::PathBuf;

use kube::config::{
    AuthInfo, Cluster, Config, Context, KubeConfigOptions, Kubeconfig, NamedAuthInfo, NamedCluster,
    NamedContext,
};
use std::time::Duration;

use super::connection::{Connection, TokenFile};
use super::fault::{reasons, words};
use crate::error::SourceError;

/// If a server does not accept a connection within this time, it counts as not answering.
const CONNECT: Duration = Duration::from_secs(5);

/// The name of the context in a kubeconfig that is made from single settings, without a file.
const OWN: &str = "manx";

/// Access to the API server. Settings that are not given come from the kubeconfig. If there is none, they come from the
/// service account of the pod in which this program runs.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// A kubeconfig file.
    pub kubeconfig: Option<PathBuf>,
    /// The context in the kubeconfig. If it is not given, the current context is used.
    pub context: Option<String>,
    /// The server's URL.
    pub endpoint: Option<String>,
    /// The client's certificate, a PEM file.
    pub certificate: Option<PathBuf>,
    /// Its key, a PEM file.
    pub key: Option<PathBuf>,
    /// The certificate authorities that may have signed the server's certificate, as a PEM file.
    pub authority: Option<PathBuf>,
    pub token: Option<String>,
}

impl Access {
    /// Makes a client with the current credentials from the files.
    pub(super) async fn connect(&self) -> Result<Connection, SourceError> {
        let mut config = self.config().await?;
        let server = config.cluster_url.to_string();
        let unusable = |reason: String| SourceError::Client { server: server.clone(), reason };
        if config.root_cert.as_ref().is_some_and(Vec::is_empty) {
            let found = "found no certificate of an authority in what is to hold it (--api-ca, the kubeconfig's \
                         certificate-authority, or the service account's ca.crt), expected PEM";
            return Err(unusable(found.to_owned()));
        }
        let user = &mut config.auth_info;
        // The library would treat the line break at the end of a token file as a part of the token, so the file is read
        // here. The credentials in `other` take precedence over a token file in a kubeconfig.
        let other = user.auth_provider.is_some() || user.token.is_some() || user.password.is_some();
        let token = match user.token_file.take_if(|_| !other) {
            Some(file) => {
                user.exec = None;
                Some(TokenFile::open(file.into()).map_err(unusable)?)
            }
            None => None,
        };
        Connection::new(config, token).map_err(|error| unusable(words(&error)))
    }

    /// Returns the client's configuration. The files that the configuration names are read now, except the file of a
    /// token.
    pub(super) async fn config(&self) -> Result<Config, SourceError> {
        let file = self
            .kubeconfig
            .as_ref()
            .map_or("of --api-endpoint".to_owned(), |file| file.display().to_string());
        let unusable = |error: &dyn std::error::Error| SourceError::Kubeconfig {
            file: file.clone(),
            reason: reasons(error),
        };
        let read = self.kubeconfig.as_ref().map(Kubeconfig::read_from).transpose();
        let kubeconfig = match read.map_err(|error| unusable(&error))? {
            Some(kubeconfig) => Some(kubeconfig),
            None if self.endpoint.is_some() => Some(Kubeconfig::default()),
            None => None,
        };
        let mut config = match kubeconfig {
            Some(kubeconfig) => {
                let (kubeconfig, options) = self.adjust(kubeconfig);
                let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
                config.map_err(|error| unusable(&error))?
            }
            None => {
                Config::incluster_env().map_err(|error| SourceError::Nowhere(reasons(&error)))?
            }
        };
        config.connect_timeout = Some(CONNECT);
        // The library would try again for minutes without a report. Agents try again themselves, and report failures.
        config.default_retry = false;
        Ok(config)
    }

    /// Replaces settings of a kubeconfig's context by the single settings.
    fn adjust(&self, mut kubeconfig: Kubeconfig) -> (Kubeconfig, KubeConfigOptions) {
        let wanted = self.context.clone().or_else(|| kubeconfig.current_context.clone());
        let context = kubeconfig.contexts.iter().find(|it| Some(&it.name) == wanted.as_ref());
        let context = context.and_then(|it| it.context.clone());
        let any = self.endpoint.is_some()
            || self.certificate.is_some()
            || self.key.is_some()
            || self.authority.is_some()
            || self.token.is_some();
        if !any || (context.is_none() && self.endpoint.is_none()) {
            let options = KubeConfigOptions { context: self.context.clone(), ..Default::default() };
            return (kubeconfig, options);
        }
        let path = |path: &PathBuf| path.display().to_string();
        let mut cluster = Cluster::default();
        let mut user = AuthInfo::default();
        if let Some(context) = &context {
            let named = kubeconfig.clusters.iter().find(|it| it.name == context.cluster);
            cluster = named.and_then(|it| it.cluster.clone()).unwrap_or_default();
            let named =
                kubeconfig.auth_infos.iter().find(|it| Some(&it.name) == context.user.as_ref());
            user = named.and_then(|it| it.auth_info.clone()).unwrap_or_default();
        }
        if let Some(endpoint) = &self.endpoint {
            cluster.server = Some(endpoint.clone());
        }
        if let Some(authority) = &self.authority {
            cluster.certificate_authority = Some(path(authority));
            cluster.certificate_authority_data = None;
        }
        if let Some(certificate) = &self.certificate {
            user.client_certificate = Some(path(certificate));
            user.client_certificate_data = None;
        }
        if let Some(key) = &self.key {
            user.client_key = Some(path(key));
            user.client_key_data = None;
        }
        if let Some(token) = &self.token {
            user.token = Some(token.trim().into());
            user.token_file = None;
        }
        let own = || OWN.to_owned();
        kubeconfig.clusters =
            vec![NamedCluster { name: own(), cluster: Some(cluster), ..Default::default() }];
        kubeconfig.auth_infos =
            vec![NamedAuthInfo { name: own(), auth_info: Some(user), ..Default::default() }];
        let context = Context { cluster: own(), user: Some(own()), ..Default::default() };
        kubeconfig.contexts =
            vec![NamedContext { name: own(), context: Some(context), ..Default::default() }];
        kubeconfig.current_context = Some(own());
        (kubeconfig, KubeConfigOptions::default())
    }

    /// Returns the kubeconfig that kubectl would use: from `KUBECONFIG`, or from the home directory.
    pub fn of_kubectl() -> Option<PathBuf> {
        let named = env::var_os("KUBECONFIG").filter(|named| !named.is_empty());
        if let Some(named) = named {
            return Some(named.into());
        }
        let file = env::home_dir()?.join(".kube/config");
        file.exists().then_some(file)
    }
}
