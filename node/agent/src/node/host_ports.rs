//! Decides which requested ports of this node (`hostPort`) pods get: those that no process of the node uses.
//!
//! Any author of pods can request a port. If a process listens there, the port stays the process's for as long as that pod
//! requests it. Otherwise the pod would get the port while the process is restarted. A file keeps these refusals for the
//! next agent. If a connection from the port is open, the decision waits until the connection ends, because its answers
//! come to the same port.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use manx_calculation::services::GrantedPorts;
use manx_dataplane::services::FrontendKey;
use manx_linux::listening::{PortUse, UsedPorts};
use manx_linux::whole_file;
use manx_objects::object::{Kind, ObjectKey};

use crate::port_rules::GrantedPort;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct HostPortGrants {
    granted: GrantedPorts,
    /// The requests that were refused, because a process listened at the port.
    refused: GrantedPorts,
    /// The file with the refusals; empty if there is none.
    record: PathBuf,
    /// The requests that wait, because connections from the port were open.
    waiting: BTreeMap<FrontendKey, Arc<ObjectKey>>,
}

/// The extension of the file with the refusals, which is next to the socket.
const REFUSED_PORTS: &str = "refused-host-ports";

impl HostPortGrants {
    /// Starts without granted ports. Earlier refusals of an agent at this socket stay.
    pub(super) fn load(socket: &Path) -> Self {
        let record = socket.with_extension(REFUSED_PORTS);
        let refused = match fs::read_to_string(&record) {
            Ok(text) => text.lines().filter_map(|line| parse(line, &record)).collect(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => {
                let record = record.display();
                tracing::error!(%error, %record, "which ports of the node no pod gets is forgotten");
                BTreeMap::new()
            }
        };
        Self { refused, record, ..Self::default() }
    }

    /// Decides about the requested ports. `read` returns the used ports. It is called only if there is a new request, and
    /// no request is granted if it fails.
    pub(super) fn decide<E>(
        &mut self,
        asked: &GrantedPorts,
        read: impl FnOnce() -> Result<UsedPorts, E>,
    ) -> Result<(), E> {
        let same = |key: &FrontendKey, pod: &mut Arc<ObjectKey>| asked.get(key) == Some(&*pod);
        let refused = self.refused.len();
        self.granted.retain(same);
        self.refused.retain(same);
        self.waiting.retain(same);
        if self.refused.len() != refused {
            self.save();
        }
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
        let refused = self.refused.len();
        for (key, pod) in new {
            let Some(port) = GrantedPort::new(&key) else { continue };
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
        if self.refused.len() != refused {
            self.save();
        }
        Ok(())
    }

    /// Removes the file. It is no error if there is none.
    pub(super) fn forget(&self) {
        let _ = fs::remove_file(&self.record);
    }

    /// Writes the refusals, one in each line.
    fn save(&self) {
        if self.record.as_os_str().is_empty() {
            return;
        }
        let mut text = String::new();
        for (FrontendKey { address, protocol, port }, pod) in &self.refused {
            // Writing to a string does not fail.
            let ObjectKey { namespace, name, .. } = &**pod;
            let _ = writeln!(text, "{protocol} {} {port} {namespace}/{name}", address.to_ip());
        }
        if let Err(error) = whole_file::replace(&self.record, text.as_bytes()) {
            let record = self.record.display();
            tracing::error!(%error, %record, "the next agent may give a pod the port of a process that is replaced then");
        }
    }

    /// Makes the next call of [`HostPortGrants::decide`] decide again about the requests that wait.
    pub(super) fn retry(&mut self) {
        self.waiting.clear();
    }

    pub(super) const fn granted(&self) -> &GrantedPorts {
        &self.granted
    }
}

/// Parses the port and the pod in a line of the file at `at`.
fn parse(line: &str, at: &Path) -> Option<(FrontendKey, Arc<ObjectKey>)> {
    let port = || {
        let [protocol, address, port, pod] = line.split(' ').collect::<Vec<_>>().try_into().ok()?;
        let (namespace, name) = pod.split_once('/')?;
        let address: IpAddr = address.parse().ok()?;
        let (protocol, port) = (protocol.parse().ok()?, port.parse().ok()?);
        let key = FrontendKey { address: address.into(), protocol, port };
        Some((key, Arc::new(ObjectKey::new(Kind::Pod, namespace, name))))
    };
    let found = port();
    if found.is_none() {
        let at = at.display();
        tracing::error!(line, %at, "expected a protocol, an address, a port and a pod: the line is left out");
    }
    found
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use manx_linux::netns;
    use manx_linux::testing::namespaces_allowed;

    use super::*;

    fn asked(ports: &[(u16, &str)]) -> GrantedPorts {
        let key = |port| {
            let address: IpAddr = [127, 0, 0, 1].into();
            FrontendKey { address: address.into(), protocol: 6, port }
        };
        let pod = |name: &str| Arc::new(ObjectKey::new(Kind::Pod, "a", name));
        ports.iter().map(|(port, name)| (key(*port), pod(name))).collect()
    }

    fn granted(ports: &HostPortGrants) -> Vec<u16> {
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
            let folder = tempfile::tempdir().unwrap();
            let socket = folder.path().join("node.sock");
            let mut ports = HostPortGrants::load(&socket);
            let process = TcpListener::bind("0.0.0.0:80").unwrap();
            ports.decide(&asked(&[(80, "x"), (81, "x")]), UsedPorts::read).unwrap();
            assert_eq!(granted(&ports), [81]);
            drop(process);
            ports.retry();
            ports.decide(&asked(&[(80, "x"), (81, "x")]), UsedPorts::read).unwrap();
            assert_eq!(granted(&ports), [81], "the same pod");
            let mut next = HostPortGrants::load(&socket);
            next.decide(&asked(&[(80, "x"), (81, "x")]), UsedPorts::read).unwrap();
            assert_eq!(granted(&next), [81], "the next agent");
            ports.decide(&asked(&[(81, "x")]), UsedPorts::read).unwrap();
            ports.decide(&asked(&[(80, "y"), (81, "x")]), UsedPorts::read).unwrap();
            assert_eq!(granted(&ports), [80, 81], "another pod, after the process");

            // The node itself has a connection from a port that a pod requests.
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
