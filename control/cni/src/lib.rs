//! The CNI plugin: a container runtime's request, brought to the node agent's socket, and its answer as CNI wants it.
//!
//! The layers, in order:
//! - `error`: what the runtime is told when it does not work (CNI, "Error").
//! - `request`: what the runtime asks for: variables, and the network configuration on standard input.
//! - `result`: what a pod got, in the form of the request's version.
//! - `verbs`: ADD, DEL, CHECK, GC, STATUS, VERSION.
//! - `install`: puts the plugin and its configuration where the runtime looks for them, and takes them away.
//!
//! The agent makes the device, gives the addresses and answers when policy is in force; the plugin decides nothing. It
//! depends on the agent's protocol only, so it is small and starts quickly.
//!
//! Source: the CNI specification, versions 0.4.0 to 1.1.0.

mod error;
mod install;
mod request;
mod result;
mod verbs;

use std::env;
use std::io::{self, Read as _, Write as _};
use std::process::ExitCode;

pub use error::Error;
pub use verbs::answer;

/// The versions of CNI that the plugin speaks, oldest first.
pub const VERSIONS: [&str; 3] = ["0.4.0", "1.0.0", "1.1.0"];

/// The most bytes of a network configuration.
const MOST: u64 = 1 << 20;

/// Does what the runtime asks for by `CNI_COMMAND`, or, without that, what the command line says.
pub fn main() -> ExitCode {
    let Some(command) = env::var("CNI_COMMAND").ok().filter(|command| !command.is_empty()) else {
        return install::main(&env::args().skip(1).collect::<Vec<_>>());
    };
    let mut text = String::new();
    // A runtime gives VERSION a configuration, too; one without is answered as well.
    let read = io::stdin().take(MOST).read_to_string(&mut text);
    let answer = match read {
        Ok(_) => answer(&command, &|name| env::var(name).ok(), &text),
        Err(source) => Err(Error::Input(source)),
    };
    let (text, code) = match answer {
        Ok(answer) => (answer.unwrap_or_default(), ExitCode::SUCCESS),
        Err(error) => (error.render(&text), ExitCode::FAILURE),
    };
    // The runtime reads standard output. If it has gone, nobody is left to tell.
    let _ = writeln!(io::stdout(), "{text}");
    code
}
