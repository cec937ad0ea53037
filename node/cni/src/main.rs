//! `manx-cni`: the CNI plugin. A container runtime starts it whenever a pod starts or ends. It asks the node's agent,
//! and reports the agent's result in CNI's form (specification 0.4.0 to 1.1.0).
//!
//! The layers, in order:
//! - [`error`]: CNI's error codes.
//! - [`version`]: the versions of the specification.
//! - [`parameters`]: the runtime's environment variables.
//! - [`config`]: the configuration on standard input.
//! - [`success`]: the result of an ADD.
//! - [`namespace`]: the interfaces and routes of a pod's namespace, for CHECK.
//! - [`hold`]: a process that keeps pods' devices while there is no agent.
//! - [`agent`]: requests to the agent that several verbs make.
//! - [`policy_only`]: the verbs if another plugin connects the pod.
//! - [`verbs`]: the verbs, each a call or two to the agent.
//! - [`conflist`]: the network configurations that the installer writes.
//! - [`elf`]: whether a program needs a loader of the node.
//! - [`install`]: installs and removes the program and its configuration.
//!
//! It keeps no state: the agent owns addresses and devices. It has one thread, because CHECK enters the pod's
//! namespace.

mod agent;
mod config;
mod conflist;
mod elf;
mod error;
mod hold;
mod install;
mod namespace;
mod parameters;
mod policy_only;
mod success;
mod verbs;
mod version;

use std::env;
use std::io::{Read as _, Write as _, stderr, stdin, stdout};
use std::process::ExitCode;

use crate::config::Config;
use crate::error::{Code, Error};
use crate::parameters::{Parameters, Verb};

/// The most bytes of a configuration that are read. A conflist has some hundred bytes.
const MAX_CONFIG: u64 = 1 << 20;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if env::var_os("CNI_COMMAND").is_none() {
        return install::main(&arguments);
    }
    let mut input = Vec::new();
    let read = stdin().take(MAX_CONFIG).read_to_end(&mut input);
    let answer = match read {
        Ok(_) => run(&input),
        Err(source) => {
            Err(Error::new(Code::Io, format!("standard input cannot be read: {source}")))
        }
    };
    let (text, status) = match answer {
        Ok(text) => (text, ExitCode::SUCCESS),
        Err(error) => (error.to_json(&version::reply_version(&input)), ExitCode::FAILURE),
    };
    match stdout().write_all(text.as_bytes()) {
        Ok(()) => status,
        Err(error) => {
            // The error cannot be reported elsewhere.
            let _ = writeln!(stderr(), "manx-cni: standard output cannot be written: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the verb that the runtime has requested. Returns the text for standard output.
fn run(input: &[u8]) -> Result<String, Error> {
    let verb = Verb::read(&|name| env::var(name).ok())?;
    if verb == Verb::Version {
        return Ok(verbs::version(&version::reply_version(input)));
    }
    let config = Config::parse(input)?;
    if !verb.is_in(&config.version) {
        let text = format!(
            "{verb} is not in CNI {}: it came with 1.1.0, and the network configuration's `cniVersion` says which is spoken",
            config.version
        );
        return Err(Error::new(Code::Version, text));
    }
    let parameters = Parameters::read(verb, &|name| env::var(name).ok())?;
    match (verb, parameters) {
        (Verb::Add, Parameters::Container(container)) => verbs::add(&config, &container),
        (Verb::Check, Parameters::Container(container)) => verbs::check(&config, &container),
        (Verb::Del, Parameters::Container(container)) => verbs::del(&config, &container),
        (Verb::Gc, _) => verbs::gc(&config),
        _ => verbs::status(&config),
    }
}
