//! One node agent, and pods that are ready to be attached to it.

use std::net::Ipv4Addr;

use manx_api::client::Client;
use manx_api::{Attach, PodName};
use tempfile::TempDir;

use super::agent::{Agent, MANIFESTS};
use super::cluster::{start_datastore, write};
use super::manifests::{self, Pod};
use super::shape::Shape;
use crate::error::Error;
use crate::path::constants::NAMESPACE;
use crate::path::links::named_namespace;

/// An agent, the pods that it can attach, and their folder. The agent ends when this value is dropped.
#[derive(Debug)]
pub struct Node {
    agent: Agent,
    pods: Vec<Attach>,
    folder: TempDir,
}

impl Node {
    /// Starts the agent of one node that knows this many pods. Their network namespaces exist, and none of the pods is
    /// attached. Each pod gets the address of its manifest.
    pub fn start(shape: Shape, pods: u8) -> Result<Self, Error> {
        let folder = start_datastore(&shape)?;
        let pod = |index: u8| {
            let address = Ipv4Addr::new(10, 244, 1, 2 + index).into();
            Pod { name: format!("pod-{index}"), node: 0, address }
        };
        let pods: Vec<Pod> = (0..pods).map(pod).collect();
        write(&folder.path().join(MANIFESTS), "pods.yaml", &manifests::pods(&pods))?;
        let mut agent = Agent::start(folder.path(), "node-1", shape, true)?;
        agent.wait_until("it knows all pods", |status| status.known_endpoints == pods.len())?;
        let waiting = |Pod { name, address, .. }: Pod| {
            named_namespace(folder.path(), &name)?;
            let netns = folder.path().join(&name);
            let pod = PodName { namespace: NAMESPACE.to_owned(), name };
            Ok(Attach { addresses: vec![address], ..Attach::new(pod, netns, "eth0") })
        };
        let pods = pods.into_iter().map(waiting).collect::<Result<_, Error>>()?;
        Ok(Self { agent, pods, folder })
    }

    pub fn pods(&self) -> &[Attach] {
        &self.pods
    }

    /// A connection to the agent.
    pub fn connect(&self) -> Result<Client, Error> {
        Ok(Client::connect(&self.agent.socket)?)
    }

    /// Gives another port to a policy that selects all pods.
    pub fn change_policy(&self, port: u16) -> Result<(), Error> {
        write(
            &self.folder.path().join(MANIFESTS),
            "changing.yaml",
            &manifests::changing_policy(port),
        )
    }
}
