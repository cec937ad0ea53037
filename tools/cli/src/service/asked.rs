//! The input that both commands of `manx service` have.

use clap::Args;
use ipnet::IpNet;
use manx_analysis::services::ServiceTables;
use manx_objects::object::ServiceType;

use crate::Error;
use crate::output::Output;
use crate::policy::assume::{Assume, Completed};
use crate::policy::manifests::{Manifests, report_invalid};
use crate::policy::service_settings::ServiceSettings;

/// The input of both commands.
#[derive(Debug, Clone, Args)]
pub struct Asked {
    /// Show only this node [default: all nodes]
    #[arg(long, value_name = "NODE")]
    pub node: Option<String>,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take it for the command's own description")]
    pub settings: ServiceSettings,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take it for the command's own description")]
    pub assume: Assume,
    /// Form of the output
    #[arg(long, short, value_enum, default_value_t)]
    pub output: Output,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take it for the command's own description")]
    pub manifests: Manifests,
}

impl Asked {
    /// Reads the objects, and assumes cluster IPs for Services without one. `None`: the user only
    /// wants to see the assumptions.
    pub(super) fn read(&self) -> Result<Option<Completed>, Error> {
        let contents = self.manifests.read()?;
        report_invalid(&contents)?;
        self.assume.complete_with(contents, with_cluster_ips)
    }

    /// The tables of the nodes.
    pub(super) fn tables<'a>(&self, completed: &'a Completed) -> Result<ServiceTables<'a>, Error> {
        let settings = self.settings.of_agents();
        ServiceTables::new(&completed.contents, settings, self.node.as_deref())
            .map_err(Error::Invalid)
    }
}

/// Assumes cluster IPs for Services that the API server has not completed yet.
pub(super) fn with_cluster_ips(Completed { contents, assumed }: &mut Completed) {
    manx_assume::give_cluster_ips(contents, assumed);
}

/// The most of a Service's source ranges that a line names.
pub(super) const MOST_RANGES: usize = 5;

/// The Kubernetes name of a traffic policy.
pub(super) const fn policy_name(is_local: bool) -> &'static str {
    if is_local { "Local" } else { "Cluster" }
}

/// Nets as text for programs.
pub(super) fn texts(nets: &[IpNet]) -> Vec<String> {
    nets.iter().map(ToString::to_string).collect()
}

/// The text of a Service's session affinity, by which clients keep their backend for this many
/// seconds.
pub(super) fn affinity_text(seconds: u32) -> String {
    format!("sessionAffinity ClientIP for {seconds} s")
}

/// The Kubernetes name of a Service type.
pub(super) const fn type_name(service_type: ServiceType) -> &'static str {
    match service_type {
        ServiceType::ClusterIp => "ClusterIP",
        ServiceType::NodePort => "NodePort",
        ServiceType::LoadBalancer => "LoadBalancer",
        ServiceType::ExternalName => "ExternalName",
    }
}
