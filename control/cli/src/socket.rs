//! The agent that a command talks to.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;

use super::Error;
use manx_api::client::Client;
use manx_linux::private;

/// The agent's socket.
#[derive(Debug, Clone, Default, Args)]
pub struct Socket {
    /// The agent's socket [default: the only one in the runtime folder]
    ///
    /// The runtime folder is /run/manx for root and manx in the user's own (`$XDG_RUNTIME_DIR`) for others.
    #[arg(long, env = "MANX_SOCKET", value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// The agent's node, where several run on one machine
    #[arg(long, value_name = "NODE", conflicts_with = "socket")]
    pub node: Option<String>,
}

impl Socket {
    /// Connects to the agent.
    pub fn connect(&self) -> Result<Client, Error> {
        let path = match &self.socket {
            Some(path) => path.clone(),
            None => self.path(&runtime_folder()?)?,
        };
        Ok(Client::connect(&path)?)
    }

    /// The agent's socket in the runtime folder.
    fn path(&self, folder: &Path) -> Result<PathBuf, Error> {
        if let Some(node) = &self.node {
            return Ok(of_node(folder, node));
        }
        let mut found: Vec<PathBuf> = fs::read_dir(folder)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "sock"))
            .collect();
        found.sort();
        match found.as_slice() {
            [one] => Ok(one.clone()),
            [] => Err(Error::Environment(format!(
                "no agent's socket is in {}: start an agent with `manx node`, or name its socket by --socket",
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

/// The default socket of a node's agent.
pub fn of_node(folder: &Path, node: &str) -> PathBuf {
    folder.join(format!("{node}.sock"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_its_nodes_or_the_only_one() {
        let folder = tempfile::tempdir().unwrap();
        let chosen = |socket: Socket| socket.path(folder.path());
        assert!(matches!(chosen(Socket::default()), Err(Error::Environment(_))));
        fs::write(folder.path().join("node-1.sock"), "").unwrap();
        fs::write(folder.path().join("node-1.sock.lock"), "").unwrap();
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
