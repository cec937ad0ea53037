//! The node's own devices, and the pattern for pods' devices.

use std::sync::Arc;

use manx_dataplane::encapsulation::Encapsulation;

use crate::error::Error;
use crate::host_device::{self, HostDevice};
use crate::service_device::ServiceDevice;
use crate::settings::{Services, Settings};
use manx_api::{Attach, Device};
use manx_calculation::topology::{HostNetwork, Topology};
use manx_devices::device::{self, AgentNamespace, DeviceSpec, OpenDevice};
use manx_devices::pod_device;
use manx_linux::netlink;

/// See the module.
pub(super) struct NodeDevices {
    pub(super) namespace: Arc<AgentNamespace>,
    /// The specification of the node's own device, with the uplink's MTU. Pods' devices differ in name, addresses and MTU.
    pub(super) pattern: DeviceSpec<'static>,
    host: HostDevice,
    service: Option<ServiceDevice>,
}

/// The queues of the node's own devices, for the workers.
pub(super) struct OwnDevices {
    /// The queues of the host port.
    pub(super) host: OpenDevice,
    /// The queues of the port of forwarded packets, in a network of Manx.
    pub(super) forwarded: Option<OpenDevice>,
    /// The queues of the service port, if the node translates service addresses.
    pub(super) service: Option<OpenDevice>,
}

impl NodeDevices {
    /// Makes the node's own devices.
    pub(super) fn open(
        settings: &Settings,
        uplink: &netlink::Link,
    ) -> Result<(Self, OwnDevices), Error> {
        let queues = settings.cores.len();
        let namespace = Arc::new(AgentNamespace::create_if_allowed()?);
        let pattern = DeviceSpec {
            interface: host_device::NAME,
            addresses: &[],
            mtu: uplink.mtu,
            segments: None,
            device: pod_device::choose(settings.pod_device, queues)?,
            queues,
            polling: settings.polling,
        };
        if !namespace.is_own() {
            if !pattern.device.can_be_handed_over() {
                return Err(device::Error::NotAllowed.into());
            }
            tracing::info!(
                "without CAP_SYS_ADMIN: pods are attached by the CNI plugin, which makes their devices"
            );
        }
        let (host, held) =
            HostDevice::attach(&namespace, &pattern, &uplink.name, settings.network)?;
        let (service, service_queues) = match settings.services {
            Services::None | Services::Manx(_) => (None, None),
            Services::KubeProxy => {
                let (device, held) = ServiceDevice::attach(&namespace, &pattern)?;
                (Some(device), Some(held))
            }
        };
        let own = OwnDevices { host: held.own, forwarded: held.forwarded, service: service_queues };
        Ok((Self { namespace, pattern, host, service }, own))
    }

    /// The kind of device for a request.
    pub(super) fn kind(&self, attach: &Attach) -> Device {
        attach.device.unwrap_or(self.pattern.device)
    }

    /// The MTU that fits all tunnels of the topology, and IPIP, which is Calico's default.
    pub(super) fn pod_mtu(&self, topology: &Topology) -> u32 {
        let overlays = topology.peers().into_iter().map(|peer| peer.overlay);
        let headers = overlays.map(|overlay| overlay.encapsulation().header_len());
        let most = headers.max().unwrap_or(0).max(Encapsulation::Ipip.header_len());
        self.pattern.mtu.saturating_sub(most as u32)
    }

    /// Makes the node's own addresses and routes those of `desired`.
    pub(super) fn reconcile_host(&self, desired: &HostNetwork) {
        let reconciled = self.host.reconcile(desired).inspect_err(
            |error| tracing::error!(%error, "the node's own routes are not as they should be"),
        );
        for block in reconciled.into_iter().flat_map(|it| it.unreachable) {
            tracing::error!(%block, "the node has no route to the node of this block");
        }
    }

    /// Removes the node's own addresses, routes and rules.
    pub(super) fn remove_host(&self) {
        if let Some(Err(error)) = self.service.as_ref().map(|it| it.detach(&self.namespace)) {
            tracing::warn!(%error, "the rule of the service port could not be removed");
        }
        if let Err(error) = self.host.detach(&self.namespace) {
            tracing::warn!(%error, "the node's own routes could not be removed");
        }
    }
}
