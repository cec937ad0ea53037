//! The settings of the agents that say what becomes of services.

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
    /// Nets whose addresses Services may have as externalIPs, as the agents' own --external-ips
    #[arg(long, env = "MANX_EXTERNAL_IPS", value_name = "CIDR,...", value_delimiter = ',', value_parser = net)]
    pub external_ips: Vec<IpNet>,
}

/// Who translates services.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Translator {
    /// Manx itself, as deploy/manx.yaml asks for
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

    /// Who translates services, with what that needs.
    pub fn translates(&self, translator: Translator) -> Translates {
        match translator {
            Translator::Manx => Translates::Manx(self.of_agents()),
            Translator::KubeProxy => Translates::KubeProxy,
        }
    }
}
