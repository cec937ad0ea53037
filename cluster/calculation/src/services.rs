//! The service addresses that a node translates: by kube-proxy ([`KubeProxyServices`]), or by Manx itself
//! ([`Frontends`]).

mod addresses;
pub mod announced;
mod backends;
mod bounds;
mod frontends;
mod host_ports;
mod kube_proxy;
mod named_addresses;
mod numbers;
mod omission;
mod ranges;
mod rank;
mod shares;
mod slices;

pub use addresses::{AddressKind, LeftAlone, Untranslated, admits};
pub use backends::{LeftOut, TrafficPolicy, zone};
pub use frontends::granted::GrantedPorts;
pub use frontends::health_checks::{HealthCheck, HealthChecks, LocalEndpoints};
pub use frontends::view;
pub use frontends::{Frontends, NodePorts};
pub use kube_proxy::KubeProxyServices;
pub use manx_dataplane::services::{FrontendKey, WithoutBackend};
pub use omission::Omission;
pub use ranges::{RangeProblem, RoutedRanges, ServiceRanges};
