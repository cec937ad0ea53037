//! The node's own devices, and the pattern for pods' devices.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use manx_dataplane::encapsulation::Encapsulation;

use crate::error::Error;
use crate::fault::Fault;
use crate::host_device::{ChangedRoutes, HostDevice};
use crate::interfaces::HOST;
use crate::port_rules::Desired;
use crate::reconcile::{Findings, Pass};
use crate::service_device::ServiceDevice;
use crate::settings::{ServiceTranslator, Settings};
use crate::translation_device::{self, TranslationDevice, TranslationSettings};
use manx_api::{Attach, Device, MAX_NODE_SETTINGS, NodeSetting};
use manx_calculation::topology::{HostNetwork, Topology};
use manx_devices::device::{self, AgentNamespace, DeviceSpec, OpenDevice};
use manx_devices::pod_device;
use manx_linux::listening::UsedPorts;
use manx_linux::netlink;
use manx_objects::few;

/// The extension of the file with the ports that Manx has reserved, which is next to the socket.
const RESERVED_PORTS: &str = "reserved-ports";

/// The shortest interval between two checks of the kernel for the status.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The most faults in the node's kernel that a warning lists.
const NAMED: usize = 3;
/// The most faults that a line of the log lists.
const NAMED_IN_LOG: usize = 20;

/// See the module.
pub(super) struct NodeDevices {
    pub(super) namespace: Arc<AgentNamespace>,
    /// The specification of the node's own device, with the uplink's MTU. Pods' devices differ in name, addresses and MTU.
    pub(super) pattern: DeviceSpec<'static>,
    host: HostDevice,
    service: Option<TranslationPort>,
    /// The reason why the last attempt to route the node's ports to Manx failed.
    ports_fault: Fault,
    /// The findings of the last check of the host port.
    host_found: Findings,
    looked: Option<(Instant, Looked)>,
}

/// The wanted settings of the node's kernel, and their faults.
#[derive(Debug, Clone)]
pub(super) struct Looked {
    /// The settings, at most [`MAX_NODE_SETTINGS`]; those that the kernel lacks come first.
    pub(super) settings: Vec<NodeSetting>,
    /// The number of all settings.
    pub(super) count: usize,
    /// Texts about faults, for people.
    pub(super) wrong: Vec<String>,
}

/// The port `manx1`.
enum TranslationPort {
    /// `manx1` for kube-proxy's translation.
    KubeProxy(ServiceDevice),
    /// `manx1` for Manx's own translation.
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
        // An earlier agent may have translated services. Its rules would keep the node's ports from the processes that use
        // them now.
        if !matches!(settings.services, ServiceTranslator::Manx(_))
            && let Err(error) = translation_device::remove(&record)
        {
            tracing::warn!(%error, "rules for node ports of an agent with --services manx may be left");
        }
        let (service, service_queues) = match &settings.services {
            ServiceTranslator::None => (None, None),
            ServiceTranslator::KubeProxy => {
                let (device, held) = ServiceDevice::attach(&namespace, &pattern)?;
                (Some(TranslationPort::KubeProxy(device)), Some(held))
            }
            ServiceTranslator::Manx(translation) => {
                let wanted = TranslationSettings { ports: translation.ports, record };
                let (device, held) = TranslationDevice::attach(&namespace, &pattern, wanted)?;
                (Some(TranslationPort::Manx(device)), Some(held))
            }
        };
        let own = OwnDevices { host: held.own, forwarded: held.forwarded, service: service_queues };
        let devices = Self {
            namespace,
            pattern,
            host,
            service,
            ports_fault: Fault::default(),
            host_found: Findings::default(),
            looked: None,
        };
        Ok((devices, own))
    }

    /// The kind of device for a request.
    pub(super) fn kind(&self, attach: &Attach) -> Device {
        attach.device.unwrap_or(self.pattern.device)
    }

    /// The greatest MTU that fits all tunnels of the topology. It also fits IPIP, which is Calico's default.
    pub(super) fn pod_mtu(&self, topology: &Topology) -> u32 {
        let overlays = topology.peers().into_iter().map(|peer| peer.overlay);
        let headers = overlays.map(|overlay| overlay.encapsulation().header_len());
        let most = headers.max().unwrap_or(0).max(Encapsulation::Ipip.header_len());
        self.pattern.mtu.saturating_sub(most as u32)
    }

    /// Changes the node's own settings, addresses, rules and routes to those of `desired`.
    pub(super) fn reconcile_host(&self, desired: &HostNetwork) {
        log_unreachable(&self.walk_host(desired, &mut Pass::default()));
    }

    /// Returns the blocks that the node cannot reach. Logs an error.
    fn walk_host(&self, desired: &HostNetwork, pass: &mut Pass) -> Vec<IpNet> {
        let walked = self.host.walk(desired, pass).inspect_err(
            |error| tracing::error!(%error, "the node's own routes are not as they should be"),
        );
        walked.unwrap_or_default()
    }

    /// Changes single routes of the node itself. If that fails, changes all of them to those of `desired`.
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
            Some(TranslationPort::Manx(device)) => device.used_ports(),
            Some(TranslationPort::KubeProxy(_)) | None => Ok(UsedPorts::default()),
        }
    }

    /// Sets the routing rules for the ports of the node that are routed to Manx to those of `desired`. Logs changes of them
    /// that other programs have made. Does nothing if Manx does not translate.
    pub(super) fn reconcile_ports(&mut self, desired: &Desired) {
        let Some(TranslationPort::Manx(device)) = &self.service else { return };
        let reconciled = device.reconcile(desired).map_err(|error| {
            format!("ports of the node do not come to Manx as they should: {error}")
        });
        let Some(Findings { foreign, set_back, .. }) = self.ports_fault.record(reconciled) else {
            return;
        };
        for rule in foreign {
            tracing::error!(rule, "another program has put this where Manx's routing rules are");
        }
        log_set_back(&set_back);
    }

    /// Undoes changes of the node's own addresses, routes, rules and settings that other programs have made, and logs them.
    pub(super) fn check_host(&mut self, host: &HostNetwork) {
        let mut pass = Pass::default();
        let unreachable = self.walk_host(host, &mut pass);
        let Findings { set, removed, .. } = &pass.findings;
        if set.is_empty() && removed.is_empty() {
            self.host_found = Findings::default();
            return;
        }
        log_unreachable(&unreachable);
        // Settings that cannot be set are logged once.
        if pass.findings != self.host_found {
            pass.find_set_back(&pass.wanted.iter().cloned().collect());
            log_set_back(&pass.findings.set_back);
            pass.findings.set_back.clear();
            self.host_found = pass.findings;
        }
    }

    /// The wanted settings of the node's kernel, and whether the kernel has them. The answer may be a second old, because
    /// requests for the status must not keep the agent from its work.
    pub(super) fn look(&mut self, ports: &Desired, host: &HostNetwork, now: Instant) -> Looked {
        match &self.looked {
            Some((at, looked)) if now.duration_since(*at) < LOOK_EVERY => looked.clone(),
            _ => {
                let looked = self.look_now(ports, host);
                self.looked = Some((now, looked.clone()));
                looked
            }
        }
    }

    fn look_now(&self, ports: &Desired, host: &HostNetwork) -> Looked {
        let (mut pass, mut wrong) = (Pass::default(), Vec::new());
        if let Some(TranslationPort::Manx(device)) = &self.service {
            let looked;
            (pass, looked) = device.look(ports);
            wrong.extend(looked.err().map(|error| error.to_string()));
        }
        pass.only_looks = true;
        let looked = self.host.walk(host, &mut pass);
        wrong.extend(looked.err().map(|error| error.to_string()));
        wrong.extend(self.ports_fault.message().map(str::to_owned));
        let Pass { wanted, findings: Findings { set, removed, foreign, .. }, .. } = pass;
        for (what, told) in [
            (&foreign, "what disturbs Manx, from another program"),
            (&set, "not what Manx has put there (it is set back within a minute)"),
            (&removed, "more than Manx has put there (it is removed within a minute)"),
        ] {
            if !what.is_empty() {
                wrong.push(format!("the node's kernel has {told}: {}", few(what, NAMED)));
            }
        }
        let missing: BTreeSet<String> = set.into_iter().collect();
        let count = wanted.len();
        let setting = |what: String| NodeSetting { stands: !missing.contains(&what), what };
        let mut settings: Vec<NodeSetting> = wanted.into_iter().map(setting).collect();
        settings.sort_by_key(|setting| setting.stands);
        settings.truncate(MAX_NODE_SETTINGS);
        Looked { settings, count, wrong }
    }

    /// Removes the node's own addresses, routes and rules. `keeps_ports` is set if another agent follows. Until then,
    /// packets to the node's ports that are Manx's must not reach the node's sockets.
    pub(super) fn remove_host(&self, keeps_ports: bool) {
        match &self.service {
            None => {}
            Some(TranslationPort::KubeProxy(device)) => {
                if let Err(error) = device.detach(&self.namespace) {
                    tracing::warn!(%error, "the rule of the service port could not be removed");
                }
            }
            Some(TranslationPort::Manx(device)) => {
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
        if let Err(error) = self.host.detach(&self.namespace, keeps_ports) {
            tracing::warn!(%error, "the node's own routes could not be removed");
        }
    }
}

fn log_unreachable(blocks: &[IpNet]) {
    for block in blocks {
        tracing::error!(%block, "the node has no route to the node of this block");
    }
}

fn log_set_back(what: &[String]) {
    if !what.is_empty() {
        let what = few(what, NAMED_IN_LOG);
        tracing::warn!(what, "the node's kernel was not as Manx had left it: set back");
    }
}
