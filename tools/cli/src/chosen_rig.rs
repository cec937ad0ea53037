//! The choice of a command's rig: the named one, or the only one that runs.

use super::Error;
use manx_linux::private;
use manx_rig::world::setup::State;
use manx_rig::world::workdir::{self, Workdir, WorkdirError};

/// Chooses the rig of a command that changes or ends it. Everybody who is root on this machine shares root's rigs. So
/// root has to name the rig: otherwise one person could end another person's rig.
pub(crate) fn chosen_to_change(name: Option<&str>) -> Result<Workdir, Error> {
    choose(name, private::is_shared_by_root())
}

/// Chooses the rig of any other command.
pub(crate) fn chosen(name: Option<&str>) -> Result<Workdir, Error> {
    choose(name, false)
}

/// The nodes, pods and addresses of a running rig.
pub(crate) fn state(workdir: &Workdir) -> Result<State, Error> {
    if !workdir.state().exists() {
        return Err(Error::Invalid(format!(
            "rig {} is still being built: try again when `manx rig list` shows its nodes",
            workdir.name()
        )));
    }
    Ok(State::read(workdir)?)
}

/// Chooses the named rig, or the only one if no name is required.
fn choose(name: Option<&str>, to_be_named: bool) -> Result<Workdir, Error> {
    if let Some(name) = name {
        let workdir = Workdir::from_name(name)?;
        return if workdir.is_running()? {
            Ok(workdir)
        } else {
            Err(WorkdirError::NotRunning(name.to_owned()).into())
        };
    }
    let mut running = workdir::running()?;
    let names = running.iter().map(Workdir::name).collect::<Vec<&str>>().join(", ");
    match (running.pop(), running.len()) {
        (None, _) => Err(Error::Invalid(
            "no rig is running: `manx rig run --keep DIR` leaves one running".to_owned(),
        )),
        (Some(_), _) if to_be_named => Err(Error::Invalid(format!(
            "root's rigs are those of everybody who is root here ({names}): name the one that is meant"
        ))),
        (Some(only), 0) => Ok(only),
        (Some(_), _) => {
            Err(Error::Invalid(format!("several rigs are running ({names}): say which is meant")))
        }
    }
}
