//! The agents' settings for services.

use clap::{Args, ValueEnum};
use ipnet::IpNet;
use manx_agent::settings::PortRange;
use manx_analysis::services::{AgentSettings, Translates};

use crate::values::{NODE_PORTS, net, node_ports};

/// See the module.
#[derive(Debug, Clone, Args)]
pub struct ServiceSettings {
    /// The API server's --service-node-port-range
    #[arg(long, env = "MANX_NODE_PORTS", value_name = "FIRST-LAST", value_parser = node_ports, default_value = NODE_PORTS)]
    pub node_ports: PortRange,
    /// Networks whose addresses Services may have as externalIPs, as for the agents' --external-ips
    #[arg(long, env = "MANX_EXTERNAL_IPS", value_name = "CIDR,...", value_delimiter = ',', value_parser = net)]
    pub external_ips: Vec<IpNet>,
}

/// What translates services.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Translator {
    /// Manx itself, as in deploy/manx.yaml
    #[default]
    Manx,
    /// kube-proxy on the nodes
    KubeProxy,
}

impl ServiceSettings {
    /// The settings of the agents.
    pub fn of_agents(&self) -> AgentSettings {
        AgentSettings {
            node_ports: (self.node_ports.first(), self.node_ports.last()),
            external_ips: self.external_ips.clone(),
        }
    }

    /// The translation of services by this program, with its settings.
    pub fn translates(&self, translator: Translator) -> Translates {
        match translator {
            Translator::Manx => Translates::Manx(self.of_agents()),
            Translator::KubeProxy => Translates::KubeProxy,
        }
    }
}
