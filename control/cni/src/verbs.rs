//! ADD, DEL, CHECK, GC, STATUS, VERSION.

use std::collections::BTreeSet;

use manx_api::client::{self, Client};
use manx_api::{Attach, Detach};
use serde_json::json;

use crate::request::{Attachment, Configuration};
use crate::{Error, VERSIONS, result};

/// Does what `command` says, given the variables of the request and the text on standard input. Returns what the runtime
/// is to read, if it is anything.
pub fn answer(
    command: &str,
    variable: &impl Fn(&str) -> Option<String>,
    text: &str,
) -> Result<Option<String>, Error> {
    match command {
        "VERSION" => Ok(Some(versions())),
        "ADD" => add(&Configuration::read(text)?, &Attachment::read(variable)?).map(Some),
        "DEL" => delete(&Configuration::read(text)?, &Attachment::read(variable)?).map(|()| None),
        "CHECK" => check(&Configuration::read(text)?, &Attachment::read(variable)?).map(|()| None),
        "GC" => collect(&Configuration::read(text)?).map(|()| None),
        "STATUS" => status(&Configuration::read(text)?).map(|()| None),
        other => Err(Error::Variable {
            name: "CNI_COMMAND",
            found: format!("{other:?}"),
            expected: "ADD, DEL, CHECK, GC, STATUS or VERSION",
        }),
    }
}

fn versions() -> String {
    let newest = VERSIONS.last();
    json!({ "cniVersion": newest, "supportedVersions": VERSIONS }).to_string()
}

/// Attaches the container. The agent answers when the pod's policy is in force; the same request again gets the same
/// answer.
fn add(configuration: &Configuration, to: &Attachment) -> Result<String, Error> {
    let attach = Attach {
        pod: to.pod.clone(),
        netns: to.netns()?,
        interface: to.interface.clone(),
        addresses: configuration.addresses()?,
        sandbox: Some(to.container.clone()),
    };
    let attached = Client::connect(&configuration.socket())?.attach(attach)?;
    Ok(result::added(configuration, to, &attached).to_string())
}

/// Detaches the container. What is gone already is no error. Without the agent the runtime is to try again: nobody else
/// would give the address back.
fn delete(configuration: &Configuration, from: &Attachment) -> Result<(), Error> {
    let detach = Detach { pod: from.pod.clone(), sandbox: Some(from.container.clone()) };
    Ok(Client::connect(&configuration.socket())?.detach(detach)?)
}

/// Compares what the agent has with what ADD has returned.
fn check(configuration: &Configuration, of: &Attachment) -> Result<(), Error> {
    let status = Client::connect(&configuration.socket())?.status()?;
    let container = &of.container;
    let found = status.endpoints.iter().find(|it| it.sandbox.as_ref() == Some(container));
    let Some(endpoint) = found else {
        return Err(Error::Unknown(format!(
            "the node agent has no interface of container {container} (pod {}): delete the pod's sandbox, and the runtime makes it anew",
            of.pod
        )));
    };
    if !endpoint.enforced {
        let message = format!("pod {} has no policy in force yet: nothing passes it", of.pod);
        return Err(Error::NotReady(message));
    }
    let Some(previous) = &configuration.prev_result else { return Ok(()) };
    let wanted: BTreeSet<_> = result::addresses(previous, &of.interface).into_iter().collect();
    if wanted == endpoint.addresses.iter().copied().collect() {
        return Ok(());
    }
    Err(Error::Unknown(format!(
        "pod {} has the addresses {:?}, and the result of ADD says {wanted:?}",
        of.pod, endpoint.addresses
    )))
}

/// Detaches all containers but those that are in use.
fn collect(configuration: &Configuration) -> Result<(), Error> {
    Client::connect(&configuration.socket())?.collect(configuration.valid()?)?;
    Ok(())
}

/// Whether the node takes pods. Here, too, an agent that is not there is "not available" and no other error.
fn status(configuration: &Configuration) -> Result<(), Error> {
    let ask = || Client::connect(&configuration.socket())?.status();
    match ask() {
        Ok(status) if status.in_sync => Ok(()),
        Ok(_) => Err(Error::NotReady("its agent has not read all objects yet".to_owned())),
        Err(error @ client::Error::Refused(_)) => Err(error.into()),
        Err(error) => Err(Error::NotReady(error.to_string())),
    }
}
