//! The choice of the agent to which a command sends its request.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;

use super::{Error, chosen_rig};
use manx_api::client::Client;
use manx_linux::private;
use manx_rig::world::setup::{NodeState, State};

/// The settings that choose the agent.
#[derive(Debug, Clone, Default, Args)]
pub struct Socket {
    /// The agent's socket [default: the only one in the runtime folder]
    ///
    /// The runtime folder is /run/manx for root, and manx in `$XDG_RUNTIME_DIR` for other users.
    #[arg(long, env = "MANX_SOCKET", value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// The agent's node, if several agents run on one machine or in a rig
    #[arg(long, value_name = "NODE", conflicts_with = "socket")]
    pub node: Option<String>,
    /// The rig of the agent; `manx rig list` shows the running rigs
    #[arg(long, value_name = "RIG", conflicts_with = "socket")]
    pub rig: Option<String>,
}

impl Socket {
    /// Connects to the agent. If a rig is named without a node, the node is the rig's only one, or the one that `usual`
    /// chooses.
    pub fn connect(
        &self,
        usual: impl FnOnce(&State) -> Option<&NodeState>,
    ) -> Result<Client, Error> {
        Ok(Client::connect(&self.path_of(usual)?)?)
    }

    /// The path of the agent's socket.
    pub fn path_of(
        &self,
        usual: impl FnOnce(&State) -> Option<&NodeState>,
    ) -> Result<PathBuf, Error> {
        match (&self.socket, self.named_rig()?) {
            (Some(path), _) => Ok(path.clone()),
            (None, Some(rig)) => Ok(self.node_of(&rig, usual)?.socket.clone()),
            (None, None) => self.path(&runtime_folder()?),
        }
    }

    /// The rig, if one is named.
    pub fn named_rig(&self) -> Result<Option<State>, Error> {
        let rig =
            self.rig.as_deref().map(|name| chosen_rig::state(&chosen_rig::chosen(Some(name))?));
        rig.transpose()
    }

    fn node_of<'s>(
        &self,
        rig: &'s State,
        usual: impl FnOnce(&'s State) -> Option<&'s NodeState>,
    ) -> Result<&'s NodeState, Error> {
        let found = match (&self.node, rig.nodes.as_slice()) {
            (Some(name), nodes) => nodes.iter().find(|node| node.name == *name),
            (None, [only]) => Some(only),
            (None, _) => usual(rig),
        };
        found.ok_or_else(|| {
            let names: Vec<&str> = rig.nodes.iter().map(|node| node.name.as_str()).collect();
            let problem = match &self.node {
                Some(name) => format!("rig {} has no node {name}", rig.name),
                None => format!("rig {} has several agents", rig.name),
            };
            Error::Invalid(format!("{problem}: choose one by --node ({})", names.join(", ")))
        })
    }

    /// The path of the agent's socket in the runtime folder.
    fn path(&self, folder: &Path) -> Result<PathBuf, Error> {
        if let Some(node) = &self.node {
            return Ok(of_node(folder, node));
        }
        let mut found: Vec<PathBuf> = fs::read_dir(folder)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| is_agents(path))
            .collect();
        found.sort();
        match found.as_slice() {
            [one] => Ok(one.clone()),
            [] => Err(Error::Environment(format!(
                "no agent's socket is in {}: start an agent with `manx node`, or name its socket by --socket, or a rig by --rig",
                folder.display()
            ))),
            several => {
                let names: Vec<String> = several
                    .iter()
                    .filter_map(|path| path.file_stem())
                    .map(|name| name.to_string_lossy().into_owned())
                    .collect();
                Err(Error::Invalid(format!(
                    "several agents run on this machine: choose one by --node ({})",
                    names.join(", ")
                )))
            }
        }
    }
}

/// The folder of the agents' sockets. It need not exist; if it does, it belongs to the caller.
pub fn runtime_folder() -> Result<PathBuf, Error> {
    private::of_agents().map_err(|error| {
        Error::Environment(format!(
            "agents' sockets are in a folder that belongs to the user alone: {error}; set XDG_RUNTIME_DIR to a folder of your own, or name \
             the socket by --socket"
        ))
    })
}

/// Whether a file of the runtime folder is an agent's socket, and not that of a holder.
fn is_agents(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "sock")
        && path.file_stem().is_some_and(|stem| !stem.as_encoded_bytes().ends_with(b".holder"))
}

/// The default socket of a node's agent.
pub fn of_node(folder: &Path, node: &str) -> PathBuf {
    folder.join(format!("{node}.sock"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_of_a_rig_is_its_nodes_or_the_usual_one() {
        let node = |name: &str| NodeState {
            name: name.to_owned(),
            addresses: Vec::new(),
            socket: format!("/{name}").into(),
        };
        let rig = |nodes: &[&str]| State {
            name: "shop".to_owned(),
            source: PathBuf::new(),
            built_s: 0,
            nodes: nodes.iter().map(|name| node(name)).collect(),
            pods: Vec::new(),
            host_pods: Vec::new(),
            outside: Vec::new(),
        };
        let (any, named) =
            (Socket::default(), Socket { node: Some("b".to_owned()), ..Socket::default() });
        let (one, two) = (rig(&["a"]), rig(&["a", "b"]));
        assert_eq!(any.node_of(&one, |_| None).unwrap().name, "a");
        assert_eq!(any.node_of(&two, |rig| rig.nodes.last()).unwrap().name, "b");
        assert_eq!(named.node_of(&two, |rig| rig.nodes.first()).unwrap().name, "b");
        let said = |socket: &Socket, rig| socket.node_of(rig, |_| None).unwrap_err().to_string();
        insta::assert_snapshot!(said(&any, &two), @"rig shop has several agents: choose one by --node (a, b)");
        insta::assert_snapshot!(said(&named, &one), @"rig shop has no node b: choose one by --node (a)");
    }

    #[test]
    fn a_socket_is_its_nodes_or_the_only_one() {
        let folder = tempfile::tempdir().unwrap();
        let chosen = |socket: Socket| socket.path(folder.path());
        assert!(matches!(chosen(Socket::default()), Err(Error::Environment(_))));
        fs::write(folder.path().join("node-1.sock"), "").unwrap();
        for beside in ["node-1.sock.lock", "node-1.holder.sock", "node-1.health"] {
            fs::write(folder.path().join(beside), "").unwrap();
        }
        assert_eq!(chosen(Socket::default()).unwrap(), folder.path().join("node-1.sock"));
        fs::write(folder.path().join("node-2.sock"), "").unwrap();
        let error = chosen(Socket::default()).unwrap_err();
        assert_eq!(error.code(), 2);
        assert_eq!(
            error.to_string(),
            "several agents run on this machine: choose one by --node (node-1, node-2)"
        );
        let node = Socket { node: Some("node-2".to_owned()), ..Socket::default() };
        assert_eq!(chosen(node).unwrap(), folder.path().join("node-2.sock"));
    }
}
