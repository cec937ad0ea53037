//! `manx rig logs`.

use std::io::{self, Write as _};
use std::time::Duration;

use super::settings::Logs;
use crate::Error;
use crate::chosen_rig::{chosen, state};
use crate::output;
use manx_rig::world::bounded_log::{LogReader, NewLines};
use manx_rig::world::setup::State;
use manx_rig::world::workdir::Workdir;

/// The time between two reads of a log.
const AGAIN: Duration = Duration::from_millis(200);

struct Log {
    /// The node's name, before each line if there are several logs.
    prefix: String,
    node: String,
    reader: LogReader,
}

/// Prints the logs, node by node. With `-f` it then prints each new line, until the rig ends.
pub(super) fn logs(settings: &Logs) -> Result<(), Error> {
    let workdir = chosen(settings.rig.as_deref())?;
    let mut logs = open(&workdir, &state(&workdir)?, settings.node.as_deref())?;
    for log in &mut logs {
        let mut new = log.read()?;
        if let Some(tail) = settings.tail {
            new.lines.drain(..new.lines.len().saturating_sub(tail));
        }
        if !log.print(&new)? {
            return Ok(());
        }
    }
    // Whether the rig runs is checked before the logs are read, so that its last lines are printed.
    let mut running = settings.follow;
    while running {
        std::thread::sleep(AGAIN);
        running = workdir.is_running()?;
        for log in &mut logs {
            let new = log.read()?;
            running &= log.print(&new)?;
        }
    }
    Ok(())
}

fn open(workdir: &Workdir, state: &State, node: Option<&str>) -> Result<Vec<Log>, Error> {
    let wanted = node.map(|node| node.strip_prefix("node/").unwrap_or(node));
    let names: Vec<&str> = state.nodes.iter().map(|node| node.name.as_str()).collect();
    let is_wanted = |name: &str| wanted.is_none_or(|wanted| wanted == name);
    let chosen: Vec<(usize, &str)> =
        names.iter().copied().enumerate().filter(|(_, name)| is_wanted(name)).collect();
    if chosen.is_empty() {
        return Err(Error::Invalid(format!(
            "rig {} has no node {}: expected one of {}",
            state.name,
            wanted.unwrap_or_default(),
            names.join(", ")
        )));
    }
    let several = chosen.len() > 1;
    let open = |(index, node): (usize, &str)| {
        let reader =
            LogReader::open(&workdir.agent_log(index)).map_err(|error| failed(node, &error))?;
        let prefix = if several { format!("{node}: ") } else { String::new() };
        Ok(Log { prefix, node: node.to_owned(), reader })
    };
    chosen.into_iter().map(open).collect()
}

fn failed(node: &str, error: &io::Error) -> Error {
    Error::Failed(format!("the log of node {node} cannot be read: {error}"))
}

impl Log {
    fn read(&mut self) -> Result<NewLines, Error> {
        self.reader.new_lines().map_err(|error| failed(&self.node, &error))
    }

    /// Prints the new lines. Returns false if the reader has closed the pipe.
    fn print(&self, new: &NewLines) -> Result<bool, Error> {
        if new.lost {
            // This fails if standard error is closed, and then there is no reader.
            let _ = writeln!(
                io::stderr(),
                "manx: the log of node {} was written faster than it is read: lines are missing here",
                self.node
            );
        }
        let lines = new.lines.iter().map(|line| format!("{}{line}\n", self.prefix));
        output::print_while_read(&lines.collect::<String>())
    }
}
