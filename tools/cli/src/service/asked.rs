//! What the commands of `manx service` are asked about.

use clap::Args;
use manx_analysis::services::ServiceTables;
use manx_objects::object::ServiceType;

use crate::Error;
use crate::output::Output;
use crate::policy::assume::{Assume, Completed};
use crate::policy::manifests::{Manifests, report_invalid};
use crate::policy::service_settings::ServiceSettings;

/// What both commands are asked about.
#[derive(Debug, Clone, Args)]
pub struct Asked {
    /// Only what this node does [default: all nodes]
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
    /// Reads the objects. `None`: the user only wants to see the assumptions.
    pub(super) fn read(&self) -> Result<Option<Completed>, Error> {
        let contents = self.manifests.read()?;
        report_invalid(&contents)?;
        self.assume.complete(contents)
    }

    /// The tables of the nodes.
    pub(super) fn tables<'a>(&self, completed: &'a Completed) -> Result<ServiceTables<'a>, Error> {
        let settings = self.settings.of_agents();
        ServiceTables::new(&completed.contents, settings, self.node.as_deref())
            .map_err(Error::Invalid)
    }
}

/// A type in the words of Kubernetes.
pub(super) const fn type_name(service_type: ServiceType) -> &'static str {
    match service_type {
        ServiceType::ClusterIp => "ClusterIP",
        ServiceType::NodePort => "NodePort",
        ServiceType::LoadBalancer => "LoadBalancer",
        ServiceType::ExternalName => "ExternalName",
    }
}
