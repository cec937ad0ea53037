//! Puts the plugin and its configuration where the runtime looks for them, and takes them away.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, id};

use serde_json::{Value, json};

use crate::request::SOCKET;

/// The plugin's name: its program's, and its type in configurations.
const PLUGIN: &str = "manx-cni";
/// The version of the configuration: the newest that containerd 1.6 knows.
const VERSION: &str = "1.0.0";

const USAGE: &str = "\
manx-cni is a CNI plugin: a container runtime runs it, with CNI_COMMAND and a network configuration.

  manx-cni install [OPTIONS]     put the plugin and its configuration where the runtime looks for them
  manx-cni uninstall [OPTIONS]   take both away

  --bin-dir DIR     programs of plugins [default: /opt/cni/bin]
  --conf-dir DIR    configurations [default: /etc/cni/net.d]
  --conf-name NAME  the configuration's file [default: 10-manx.conflist]
  --socket PATH     where the node agent listens [default: /run/manx/node.sock]";

struct Options {
    programs: PathBuf,
    configurations: PathBuf,
    name: String,
    socket: PathBuf,
}

impl Options {
    fn parse(args: &[String]) -> Result<Self, String> {
        let mut options = Self {
            programs: "/opt/cni/bin".into(),
            configurations: "/etc/cni/net.d".into(),
            name: "10-manx.conflist".to_owned(),
            socket: SOCKET.into(),
        };
        let mut args = args.iter();
        while let Some(option) = args.next() {
            let value = args.next().ok_or_else(|| format!("{option}: found no value"))?;
            match option.as_str() {
                "--bin-dir" => options.programs = value.into(),
                "--conf-dir" => options.configurations = value.into(),
                "--conf-name" => options.name.clone_from(value),
                "--socket" => options.socket = value.into(),
                other => return Err(format!("{other} is no option of manx-cni")),
            }
        }
        Ok(options)
    }

    fn program(&self) -> PathBuf {
        self.programs.join(PLUGIN)
    }

    fn configuration(&self) -> PathBuf {
        self.configurations.join(&self.name)
    }
}

/// Runs the command line. Exit status 2: it is not understood; 1: it did not work.
pub(crate) fn main(args: &[String]) -> ExitCode {
    let done = match args.split_first() {
        Some((command, rest)) if command == "install" => {
            Options::parse(rest).map(|it| install(&it))
        }
        Some((command, rest)) if command == "uninstall" => {
            Options::parse(rest).map(|it| uninstall(&it))
        }
        _ => Err("found no CNI_COMMAND and no command".to_owned()),
    };
    let (text, code) = match done {
        Ok(Ok(())) => return ExitCode::SUCCESS,
        Ok(Err(error)) => (error, 1),
        Err(error) => (format!("{error}\n\n{USAGE}"), 2),
    };
    // If standard error is closed, nobody is there to tell.
    let _ = writeln!(io::stderr(), "manx-cni: {text}");
    ExitCode::from(code)
}

/// The program first: a configuration without its program would fail every pod.
fn install(options: &Options) -> Result<(), String> {
    let own = std::env::current_exe().and_then(fs::read);
    let own = own.map_err(|error| format!("its own program cannot be read: {error}"))?;
    let configuration = options.configuration();
    if configuration.exists() && !is_ours(&configuration) {
        return Err(format!(
            "{} is there, and is not Manx's: found another plugin's configuration; remove it, or name another file by --conf-name",
            configuration.display()
        ));
    }
    for folder in [&options.programs, &options.configurations] {
        fs::create_dir_all(folder)
            .map_err(|error| format!("{} cannot be made: {error}", folder.display()))?;
    }
    replace(&options.program(), &own, 0o755)?;
    let text = configuration_text(options.programs.join("portmap").exists(), &options.socket);
    replace(&configuration, text.as_bytes(), 0o644)
}

/// The configuration first, for the same reason.
fn uninstall(options: &Options) -> Result<(), String> {
    let configuration = options.configuration();
    if is_ours(&configuration) {
        remove(&configuration)?;
    }
    remove(&options.program())
}

/// Whether a configuration is of this plugin. One that cannot be read is not.
fn is_ours(file: &Path) -> bool {
    let value: Value = fs::read(file)
        .ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .unwrap_or_default();
    value["plugins"][0]["type"] == *PLUGIN
}

fn configuration_text(portmap: bool, socket: &Path) -> String {
    let mut plugins = vec![json!({
        "type": PLUGIN, "socket": socket, "capabilities": { "ips": true },
    })];
    if portmap {
        plugins.push(json!({ "type": "portmap", "capabilities": { "portMappings": true } }));
    }
    let list = json!({ "cniVersion": VERSION, "name": "manx", "plugins": plugins });
    format!("{list:#}\n")
}

/// Replaces a file by a whole one: the runtime sees the old or the new one. A file that is there and equal stays.
fn replace(file: &Path, content: &[u8], mode: u32) -> Result<(), String> {
    if fs::read(file).is_ok_and(|found| found == content) {
        return Ok(());
    }
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    // Runtimes skip names that begin with a dot and end in nothing they know.
    let beside = file.with_file_name(format!(".{name}.{}", id()));
    let write = || {
        let mut new =
            OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&beside)?;
        new.write_all(content)?;
        new.sync_all()?;
        fs::rename(&beside, file)?;
        file.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
    };
    write().map_err(|error: io::Error| {
        // The first error is the one to tell.
        let _ = fs::remove_file(&beside);
        format!("{} cannot be written: {error}", file.display())
    })
}

fn remove(file: &Path) -> Result<(), String> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(format!("{} cannot be removed: {error}", file.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(folder: &Path) -> Options {
        let option = |name: &str| folder.join(name).display().to_string();
        let (bin, conf) = (option("bin"), option("conf"));
        let args = ["--bin-dir", &bin, "--conf-dir", &conf, "--socket", "/run/n.sock"];
        Options::parse(&args.map(str::to_owned)).unwrap()
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> =
            entries.map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn it_is_put_there_and_taken_away_and_what_is_others_stays() {
        let folder = tempfile::tempdir().unwrap();
        let options = options(folder.path());
        for _ in 0..2 {
            install(&options).unwrap();
            assert_eq!(names(&options.programs), ["manx-cni"]);
            assert_eq!(names(&options.configurations), ["10-manx.conflist"]);
        }
        let read = || {
            let bytes = fs::read(options.configuration()).unwrap();
            serde_json::from_slice::<Value>(&bytes).unwrap()
        };
        assert_eq!(read()["cniVersion"], "1.0.0");
        assert_eq!(read()["plugins"].as_array().unwrap().len(), 1);
        assert_eq!(read()["plugins"][0]["socket"], "/run/n.sock");
        fs::write(options.programs.join("portmap"), "").unwrap();
        install(&options).unwrap();
        assert_eq!(read()["plugins"][1]["type"], "portmap");

        fs::write(options.configurations.join("20-other.conflist"), "{}").unwrap();
        uninstall(&options).unwrap();
        uninstall(&options).unwrap();
        assert_eq!(names(&options.programs), ["portmap"]);
        assert_eq!(names(&options.configurations), ["20-other.conflist"]);
    }

    #[test]
    fn a_configuration_of_another_plugin_stays_and_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let options = options(folder.path());
        fs::create_dir_all(&options.configurations).unwrap();
        let others = r#"{"cniVersion": "1.0.0", "name": "x", "plugins": [{"type": "calico"}]}"#;
        fs::write(options.configuration(), others).unwrap();
        let error = install(&options).unwrap_err();
        assert!(error.contains("another plugin's") && error.contains("--conf-name"), "{error}");
        uninstall(&options).unwrap();
        assert_eq!(fs::read_to_string(options.configuration()).unwrap(), others);
    }

    #[test]
    fn a_command_line_that_is_not_understood_is_told() {
        let parse = |args: &[&str]| {
            let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
            Options::parse(&args).err()
        };
        insta::assert_snapshot!(parse(&["--bin-dir"]).unwrap(), @"--bin-dir: found no value");
        insta::assert_snapshot!(parse(&["--bin", "x"]).unwrap(), @"--bin is no option of manx-cni");
        assert_eq!(parse(&[]), None);
    }
}
