//! The requests to the node's agent that several verbs make.

use std::io::{Write as _, stderr};

use manx_api::client::{self, Client};
use manx_api::{Attachment, AttachmentId, Detach, Sandbox};

use crate::config::Config;
use crate::error::{Code, Error};
use crate::hold;
use crate::parameters::Container;

/// Connects to the agent.
pub(crate) fn connect(config: &Config) -> Result<Client, Error> {
    Client::connect(&config.socket).map_err(|error| match error {
        client::Error::NoAgent { path, source } => {
            let text = format!(
                "no agent listens at {} ({source}): see whether the node's Manx pod runs; the network configuration's `socket` names the \
                 agent's socket",
                path.display()
            );
            Error::new(Code::TryAgain, text)
        }
        other => other.into(),
    })
}

/// The agent's id of the container's attachment.
pub(crate) fn id(config: &Config, Container { id, interface, .. }: &Container) -> AttachmentId {
    let sandbox = Sandbox { network: config.network.clone(), container: id.clone() };
    AttachmentId { sandbox, interface: interface.clone() }
}

/// Starts the holder if there is none, and logs an error: without a holder a pod keeps its network only until the agent
/// ends.
pub(crate) fn ensure_holder(config: &Config) {
    if let Err(error) = hold::ensure(&config.socket) {
        let text = "manx-cni: when the agent ends, the pod has no network until it is made anew";
        let _ = writeln!(stderr(), "{text}: {error}");
    }
}

/// The agent's attachments with wanted ids, as requests to detach them.
pub(crate) fn attached_as(
    client: &mut Client,
    is_wanted: impl Fn(&AttachmentId) -> bool,
) -> Result<Vec<Attachment>, Error> {
    let all = client.attachments()?.into_iter();
    Ok(all.filter(|it| it.id.as_ref().is_some_and(&is_wanted)).collect())
}

/// Detaches all of these attachments, even if one of them fails.
pub(crate) fn detach_all(client: &mut Client, all: Vec<Attachment>) -> Result<(), Error> {
    let detach = |Attachment { pod, id, .. }| client.detach(Detach { pod, id });
    Error::of_all(all.into_iter().map(detach))
}
