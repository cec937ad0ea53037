//! Which ports of this node lead to the pods that ask for them (`hostPort`): those that no process of the node uses.
//!
//! Whoever can make a pod can ask for a port. What a process listens at stays the process's, as long as that pod asks:
//! otherwise the pod would get it while the process is replaced. A port from which a connection is open waits until that
//! ends, because its answers come to the same port.

use std::collections::BTreeMap;
use std::sync::Arc;

use manx_calculation::services::GrantedPorts;
use manx_dataplane::services::FrontendKey;
use manx_linux::listening::{PortUse, UsedPorts};
use manx_objects::object::ObjectKey;

use crate::port_rules::HostPort;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct HostPorts {
    granted: GrantedPorts,
    /// The ports at which a process listened when a pod asked for them.
    refused: BTreeMap<FrontendKey, Arc<ObjectKey>>,
    /// The ports from which connections were open.
    waiting: BTreeMap<FrontendKey, Arc<ObjectKey>>,
}

impl HostPorts {
    /// Decides about the ports that are asked for. `read` returns the ports in use; it is asked only if there is something
    /// to decide, and nothing is granted if it fails.
    pub(super) fn decide<E>(
        &mut self,
        asked: &GrantedPorts,
        read: impl FnOnce() -> Result<UsedPorts, E>,
    ) -> Result<(), E> {
        let same = |key: &FrontendKey, pod: &mut Arc<ObjectKey>| asked.get(key) == Some(&*pod);
        self.granted.retain(same);
        self.refused.retain(same);
        self.waiting.retain(same);
        let decided = [&self.granted, &self.refused, &self.waiting];
        let is_new = |key: &FrontendKey| decided.iter().all(|it| !it.contains_key(key));
        let new: GrantedPorts = asked
            .iter()
            .filter(|(key, _)| is_new(key))
            .map(|(key, pod)| (*key, Arc::clone(pod)))
            .collect();
        if new.is_empty() {
            return Ok(());
        }
        let used = read()?;
        for (key, pod) in new {
            let Some(port) = HostPort::new(&key) else { continue };
            match used.used(port.transport, port.address, port.port) {
                None => _ = self.granted.insert(key, pod),
                Some(PortUse::Listening) => {
                    tracing::error!(
                        %port,
                        %pod,
                        "a process of the node listens at a port that a pod asks for (hostPort): it stays the process's"
                    );
                    self.refused.insert(key, pod);
                }
                Some(PortUse::Connected) => _ = self.waiting.insert(key, pod),
            }
        }
        Ok(())
    }

    /// Decides about the ports that wait at the next call of [`HostPorts::decide`].
    pub(super) fn retry(&mut self) {
        self.waiting.clear();
    }

    pub(super) const fn granted(&self) -> &GrantedPorts {
        &self.granted
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use manx_linux::netns;
    use manx_linux::testing::namespaces_allowed;
    use manx_objects::object::Kind;

    use super::*;

    fn asked(ports: &[(u16, &str)]) -> GrantedPorts {
        let key = |port| {
            let address: std::net::IpAddr = [127, 0, 0, 1].into();
            FrontendKey { address: address.into(), protocol: 6, port }
        };
        let pod = |name: &str| Arc::new(ObjectKey::new(Kind::Pod, "a", name));
        ports.iter().map(|(port, name)| (key(*port), pod(name))).collect()
    }

    fn granted(ports: &HostPorts) -> Vec<u16> {
        ports.granted().keys().map(|key| key.port).collect()
    }

    #[test]
    fn no_pod_gets_a_port_by_waiting_for_the_end_of_its_process() {
        if !namespaces_allowed() {
            return;
        }
        netns::run_in(netns::create().unwrap(), || {
            manx_linux::netlink::in_netns(netns::current().unwrap(), async |netlink| {
                let link = netlink.existing("lo").await?;
                netlink.set_up(link.index).await
            })
            .unwrap();
            let mut ports = HostPorts::default();
            let process = TcpListener::bind("0.0.0.0:80").unwrap();
            ports.decide(&asked(&[(80, "x"), (81, "x")]), UsedPorts::read).unwrap();
            assert_eq!(granted(&ports), [81]);
            drop(process);
            ports.retry();
            ports.decide(&asked(&[(80, "x"), (81, "x")]), UsedPorts::read).unwrap();
            assert_eq!(granted(&ports), [81], "the same pod");
            ports.decide(&asked(&[(81, "x")]), UsedPorts::read).unwrap();
            ports.decide(&asked(&[(80, "y"), (81, "x")]), UsedPorts::read).unwrap();
            assert_eq!(granted(&ports), [80, 81], "another pod, after the process");

            // A connection of the node's own, from a port that a pod asks for.
            let server = TcpListener::bind("127.0.0.1:90").unwrap();
            let own = std::net::TcpStream::connect("127.0.0.1:90").unwrap();
            let accepted = server.accept().unwrap();
            let port = own.local_addr().unwrap().port();
            ports.decide(&asked(&[(port, "z")]), UsedPorts::read).unwrap();
            assert_eq!(granted(&ports), [0; 0], "and those that nobody asks for are nobody's");
            drop((accepted, own));
            ports.decide(&asked(&[(port, "z")]), UsedPorts::read).unwrap();
            assert_eq!(granted(&ports), [0; 0], "not read again before its time");
            ports.retry();
            ports.decide(&asked(&[(port, "z")]), UsedPorts::read).unwrap();
            assert_eq!(granted(&ports), [port]);

            let failed = ports.decide(&asked(&[(port, "z"), (100, "z")]), || Err("no list"));
            assert_eq!((failed, granted(&ports)), (Err("no list"), vec![port]));
        })
        .unwrap();
    }
}
