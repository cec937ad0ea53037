//! `manx rig`: the commands of the rig.

mod flow;
mod flow_line;
mod internal;
mod logs;
mod run;
mod running;
mod screen;
pub mod settings;
mod watch;

pub use self::internal::{Internal, run_internal};
use self::settings::{Command, Rig};
use super::Error;
use super::output;
use manx_rig::caller::CallError;
use manx_rig::plan::error::PlanError;
use manx_rig::plan::input::InputError;
use manx_rig::plan::template;
use manx_rig::world::fault::Fault;
use manx_rig::world::workdir::WorkdirError;

impl From<WorkdirError> for Error {
    fn from(error: WorkdirError) -> Self {
        match error {
            WorkdirError::Name(_) | WorkdirError::Running(_) | WorkdirError::NotRunning(_) => {
                Self::Invalid(error.to_string())
            }
            WorkdirError::Private(_) | WorkdirError::TooLong(_) | WorkdirError::File { .. } => {
                Self::Environment(error.to_string())
            }
        }
    }
}

impl From<InputError> for Error {
    fn from(error: InputError) -> Self {
        Self::Invalid(error.to_string())
    }
}

impl From<PlanError> for Error {
    fn from(error: PlanError) -> Self {
        Self::Invalid(error.to_string())
    }
}

impl From<CallError> for Error {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Failed { fault: Fault::Input, message } => Self::Invalid(message),
            CallError::Failed { fault: Fault::Environment, message } => Self::Environment(message),
            other => Self::Failed(other.to_string()),
        }
    }
}

/// Runs one of the rig's commands.
pub fn run(rig: Rig) -> Result<(), Error> {
    match rig.command {
        Command::Run(settings) => run::run(&settings),
        Command::Exec(settings) => run::exec(&settings),
        Command::Apply(settings) => run::apply(&settings),
        Command::Delete(settings) => run::delete(&settings),
        Command::List { output } => running::list(output),
        Command::Status(shown) => running::status(&shown),
        Command::Logs(settings) => logs::logs(&settings),
        Command::Watch(settings) => watch::watch(&settings),
        Command::Down(named) => running::down(&named),
        Command::Init { directory } => {
            template::write(&directory).map_err(|error| Error::Invalid(error.to_string()))?;
            output::print(&format!("{0} is a rig: `manx rig run {0}`\n", directory.display()))
        }
    }
}
