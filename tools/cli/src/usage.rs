//! Additions to clap's messages about wrong usage: the variable that a wrong value came from, and
//! other ways to name the input.

use std::ffi::OsString;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command};

/// Completes the error that the words of a command line caused. The first word is the program.
pub(super) fn complete(
    mut error: clap::Error,
    command: &Command,
    words: &[OsString],
) -> clap::Error {
    let command = asked(command, words);
    if let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidArg)
        && let Some(arg) = command.get_arguments().find(|it| it.to_string() == *name)
        && let Some(variable) = variable(arg, words)
    {
        let named = format!("{name} (variable {variable})");
        error.insert(ContextKind::InvalidArg, ContextValue::String(named));
    }
    let arg = |id: &str| command.get_arguments().find(|it| it.get_id() == id);
    if error.kind() == ErrorKind::MissingRequiredArgument
        && let Some(ContextValue::Strings(missing)) = error.get(ContextKind::InvalidArg)
        && let (Some(paths), Some(_)) = (arg("paths"), arg("live"))
        && let Some([name, ..]) = paths.get_value_names()
        && missing.iter().any(|it| it.contains(name.as_str()))
    {
        let tip = "name manifests, or read a live cluster by --live, --kubeconfig or --context";
        let tips = vec![StyledStr::from(tip)];
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
    }
    error
}

/// The command that the words name.
fn asked<'a>(command: &'a Command, words: &[OsString]) -> &'a Command {
    let mut asked = command;
    for word in words.iter().skip(1) {
        match asked.find_subcommand(word) {
            Some(command) => asked = command,
            None => break,
        }
    }
    asked
}

/// The variable that an option's value came from. `None`: it came from its flag.
fn variable(arg: &Arg, words: &[OsString]) -> Option<String> {
    let variable = arg.get_env().filter(|it| std::env::var_os(it).is_some())?;
    let flag = format!("--{}", arg.get_long()?);
    let is_flag = |word: &OsString| {
        let word = word.to_string_lossy();
        word.strip_prefix(&*flag).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    };
    (!words.iter().any(is_flag)).then(|| variable.to_string_lossy().into_owned())
}
