//! The node's own devices, and the pattern for pods' devices.

use std::sync::Arc;

use manx_dataplane::encapsulation::Encapsulation;

use crate::error::Error;
use crate::host_device::{ChangedRoutes, HostDevice, RouteChanges};
use crate::interfaces::HOST;
use crate::port_rules::Desired;
use crate::service_device::ServiceDevice;
use crate::settings::{Services, Settings};
use crate::translation_device::{self, Findings, TranslationDevice, TranslationSettings};
use manx_api::{Attach, Device};
use manx_calculation::topology::{HostNetwork, Topology};
use manx_devices::device::{self, AgentNamespace, DeviceSpec, OpenDevice};
use manx_devices::pod_device;
use manx_linux::listening::UsedPorts;
use manx_linux::netlink;

/// The name's end of the file, beside the socket, that says which ports Manx has reserved.
const RESERVED_PORTS: &str = "reserved-ports";

/// See the module.
pub(super) struct NodeDevices {
    pub(super) namespace: Arc<AgentNamespace>,
    /// The specification of the node's own device, with the uplink's MTU. Pods' devices differ in name, addresses and MTU.
    pub(super) pattern: DeviceSpec<'static>,
    host: HostDevice,
    service: Option<ServicePort>,
}

/// The port `manx1`.
enum ServicePort {
    /// Of the translation by kube-proxy.
    KubeProxy(ServiceDevice),
    /// Of Manx's own.
    Manx(TranslationDevice),
}

/// The queues of the node's own devices, for the workers.
pub(super) struct OwnDevices {
    /// The queues of the host port.
    pub(super) host: OpenDevice,
    /// The queues of the port of forwarded packets.
    pub(super) forwarded: Option<OpenDevice>,
    /// The queues of the service port, if service addresses are translated.
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
            interface: HOST,
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
            HostDevice::attach(&namespace, &pattern, &uplink.name, settings.takes_forwarded())?;
        let record = settings.socket.with_extension(RESERVED_PORTS);
        // An agent before this one may have translated. Its rules would keep the node's ports from who serves them now.
        if !matches!(settings.services, Services::Manx(_))
            && let Err(error) = translation_device::remove(&record)
        {
            tracing::warn!(%error, "rules for node ports of an agent with --services manx may be left");
        }
        let (service, service_queues) = match &settings.services {
            Services::None => (None, None),
            Services::KubeProxy => {
                let (device, held) = ServiceDevice::attach(&namespace, &pattern)?;
                (Some(ServicePort::KubeProxy(device)), Some(held))
            }
            Services::Manx(translation) => {
                let wanted = TranslationSettings { ports: translation.ports, record };
                let (device, held) = TranslationDevice::attach(&namespace, &pattern, wanted)?;
                (Some(ServicePort::Manx(device)), Some(held))
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

    /// Sets back what another program has changed of the node's own addresses and routes, and logs it. Blocks whose node
    /// has no route have been told.
    pub(super) fn restore_host(&self, desired: &HostNetwork) {
        match self.host.reconcile(desired) {
            Ok(RouteChanges { set, removed, .. }) => {
                for route in set {
                    let route = route.destination;
                    tracing::warn!(%route, "another program had removed or changed this route of Manx's; it is set again");
                }
                for route in removed {
                    let route = route.destination;
                    tracing::warn!(%route, "a route that is not Manx's was where Manx's are; it is removed");
                }
            }
            Err(error) => {
                tracing::error!(%error, "the node's own routes are not as they should be");
            }
        }
    }

    /// Changes single routes of the node's own. If that fails, all are made those of `desired`.
    pub(super) fn change_host_routes(
        &self,
        changed: &ChangedRoutes,
        desired: impl FnOnce() -> HostNetwork,
    ) {
        if let Err(error) = self.host.change_routes(changed) {
            tracing::warn!(%error, "a route of the node's own cannot be changed, so all are set");
            self.reconcile_host(&desired());
        }
    }

    /// The ports that the node's processes use; none if Manx does not translate.
    pub(super) fn used_ports(&self) -> Result<UsedPorts, translation_device::Error> {
        match &self.service {
            Some(ServicePort::Manx(device)) => device.used_ports(),
            Some(ServicePort::KubeProxy(_)) | None => Ok(UsedPorts::default()),
        }
    }

    /// Sets the routing rules for the ports of the node that come to Manx, as `desired` says. Logs what other programs
    /// have changed of them. Does nothing if Manx does not translate.
    pub(super) fn reconcile_ports(&self, desired: &Desired) {
        let Some(ServicePort::Manx(device)) = &self.service else { return };
        match device.reconcile(desired) {
            Ok(Findings { foreign, .. }) => {
                for rule in foreign {
                    tracing::error!(
                        rule,
                        "another program has put this where Manx's routing rules are"
                    );
                }
            }
            Err(error) => {
                tracing::error!(%error, "ports of the node do not come to Manx as they should");
            }
        }
    }

    /// Removes the node's own addresses, routes and rules. `keeps_ports`: another agent follows, and until then what comes to
    /// the node's ports that are Manx's must not come to the node's sockets.
    pub(super) fn remove_host(&self, keeps_ports: bool) {
        match &self.service {
            None => {}
            Some(ServicePort::KubeProxy(device)) => {
                if let Err(error) = device.detach(&self.namespace) {
                    tracing::warn!(%error, "the rule of the service port could not be removed");
                }
            }
            Some(ServicePort::Manx(device)) => {
                let removed = if keeps_ports {
                    device.close(&self.namespace)
                } else {
                    device.detach(&self.namespace)
                };
                if let Err(error) = removed {
                    tracing::warn!(%error, "the rules of the node's ports could not be removed");
                }
            }
        }
        if let Err(error) = self.host.detach(&self.namespace) {
            tracing::warn!(%error, "the node's own routes could not be removed");
        }
    }
}
