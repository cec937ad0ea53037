//! Installs and removes the program and its configuration where container runtimes look for them.
//!
//! A file appears there as a whole, by a rename, or not at all, because a runtime reads the folders at any time. The
//! program is written before the configuration that names it, and removed after it. A file that this program did not
//! write is never replaced or removed: files that it writes have a mark.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write as _, stderr, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::config::SOCKET;
use crate::conflist::{self, Conflist, NAME};
use crate::elf;
use crate::hold;
use crate::policy_only::{self, Returned};
use manx_api::client::{self, Client};
use manx_linux::whole_file;

/// The default folder in which runtimes look for programs.
const BIN_DIR: &str = "/opt/cni/bin";
/// The default folder in which runtimes look for configurations.
const CONF_DIR: &str = "/etc/cni/net.d";
/// The name of the configuration. Runtimes take the first in order of names.
const CONF_NAME: &str = "10-manx.conflist";
/// The name of a configuration with another plugin, which comes before that plugin's own.
const CONF_NAME_BEHIND: &str = "00-manx.conflist";
/// The mark that every program of this name contains, and no other program.
#[used]
static PROGRAM_MARK: [u8; 59] = *b"manx-cni, the program: 5d0e3b8c-1f6a-4f0e-9a55-7b1c0cf62a17";

const USAGE: &str = "\
manx-cni is a CNI plugin: a container runtime starts it with CNI_COMMAND set.

  manx-cni install      copies this program to the runtime's folder of plugins, and writes a configuration that names it
  manx-cni uninstall    removes both, ends the holder, and gives pods back to the plugin that connected them
  manx-cni hold         is the holder, which keeps pods' devices while there is no agent; the plugin starts it

    --bin-dir DIR       folder of plugins [default: /opt/cni/bin]
    --conf-dir DIR      folder of configurations [default: /etc/cni/net.d]
    --conf-name NAME    the configuration's file [default: 10-manx.conflist; 00-manx.conflist with --policy-only]
    --services WHO      who translates services: kube-proxy, manx or none, as `manx node` is told. Without manx, the plugin
                        portmap is chained behind if it is there, because the agent does not do hostPort itself
                        [default: kube-proxy]
    --policy-only       install behind the first plugin of the configuration that is there, and only judge
    --if-removed        uninstall only if the agent says that Manx is gone from the cluster
    --socket PATH       the agent's socket, for the configuration and the holder [default: /run/manx/node.sock]
";

/// The reason why a file cannot be installed or removed, or why the holder cannot be started or ended.
#[derive(Debug, thiserror::Error)]
enum Error {
    /// The command line is wrong.
    #[error("{0}\n\n{USAGE}")]
    Usage(String),
    /// There is a file that this program did not write.
    #[error(
        "{0} is there, and manx-cni did not write it: move it away, or name another folder or file"
    )]
    Foreign(PathBuf),
    /// `--policy-only`: there is no network of another plugin.
    #[error(
        "{0} has no configuration of another plugin: expected a .conflist, .conf or .json file; install that plugin first"
    )]
    NoOther(PathBuf),
    /// This plugin cannot be added to the network of the other plugin.
    #[error("{path}: {source}")]
    Other { path: PathBuf, source: conflist::Error },
    /// A file operation failed.
    #[error("{path} cannot be {verb}: {source}")]
    File { path: PathBuf, verb: &'static str, source: io::Error },
    /// The holder cannot be started or ended.
    #[error(transparent)]
    Hold(#[from] hold::Error),
    /// The agent does not answer.
    #[error("{0}; nothing is removed")]
    Agent(#[from] client::Error),
    /// The links of pods that another plugin has connected cannot be given back.
    #[error("pods cannot be given back to the plugin that connected them: {0}; run this again")]
    GiveBack(crate::error::Error),
    /// Some of these links were not given back unchanged.
    #[error("{}{}", lines(failed.iter().map(|it| format!("not given back: {it}; run this again"))), lines(bare.iter().map(|host_end| {
        format!("{host_end}, the node's end of a pod's link, has lost its addresses, routes and bridge: make that pod anew")
    })))]
    NotAll {
        /// The reasons for the links that were not given back.
        failed: Vec<String>,
        /// The links that have lost their configuration.
        bare: Vec<String>,
    },
    /// The lock for moving the links' ends.
    #[error(transparent)]
    Lock(#[from] manx_devices::shelter::Error),
    #[error(transparent)]
    Holder(#[from] manx_devices::holder::Error),
}

fn at(path: &Path, verb: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::File { path: path.to_owned(), verb, source }
}

/// The paths for the program and the configuration.
#[derive(Debug, PartialEq, Eq)]
struct InstallPaths {
    bin_dir: PathBuf,
    conf_dir: PathBuf,
    /// The configuration's name, if the caller gave one.
    conf_name: Option<String>,
    socket: PathBuf,
    /// Whether the agent translates services, so that `hostPort` needs no other plugin.
    agent_translates: bool,
    /// Whether another plugin connects the pods.
    policy_only: bool,
    /// Whether `uninstall` first asks the agent whether Manx is removed.
    if_removed: bool,
}

impl InstallPaths {
    fn read(arguments: &[String]) -> Result<Self, Error> {
        let [bin_dir, conf_dir, socket] = [BIN_DIR, CONF_DIR, SOCKET].map(PathBuf::from);
        let (conf_name, policy_only, if_removed) = (None, false, false);
        let agent_translates = false;
        let mut places = Self {
            bin_dir,
            conf_dir,
            conf_name,
            socket,
            agent_translates,
            policy_only,
            if_removed,
        };
        let mut rest = arguments.iter();
        while let Some(flag) = rest.next() {
            let switch = match flag.as_str() {
                "--if-removed" => Some(&mut places.if_removed),
                "--policy-only" => Some(&mut places.policy_only),
                _ => None,
            };
            if let Some(switch) = switch {
                *switch = true;
                continue;
            }
            let value = rest.next().ok_or_else(|| Error::Usage(format!("{flag} needs a value")))?;
            match flag.as_str() {
                "--bin-dir" => places.bin_dir = value.into(),
                "--conf-dir" => places.conf_dir = value.into(),
                "--conf-name" => places.conf_name = Some(value.clone()),
                "--socket" => places.socket = value.into(),
                "--services" => places.agent_translates = translates(value)?,
                _ => return Err(Error::Usage(format!("{flag} is not known"))),
            }
        }
        let is_name = |found: &&String| {
            let name = Path::new(found);
            name.file_name() == Some(name.as_os_str())
                && name.extension() == Some("conflist".as_ref())
        };
        match places.conf_name.iter().find(|it| !is_name(it)) {
            None => Ok(places),
            Some(found) => Err(Error::Usage(format!(
                "--conf-name {found}: expected a file's name that ends with .conflist"
            ))),
        }
    }

    fn program(&self) -> PathBuf {
        self.bin_dir.join(NAME)
    }

    fn conf_name(&self) -> &str {
        let default = if self.policy_only { CONF_NAME_BEHIND } else { CONF_NAME };
        self.conf_name.as_deref().unwrap_or(default)
    }

    fn conflist(&self) -> PathBuf {
        self.conf_dir.join(self.conf_name())
    }

    /// The paths of every configuration that may have been written.
    fn conflists(&self) -> Vec<PathBuf> {
        let names = match &self.conf_name {
            Some(name) => vec![name.as_str()],
            None => vec![CONF_NAME, CONF_NAME_BEHIND],
        };
        names.into_iter().map(|name| self.conf_dir.join(name)).collect()
    }
}

/// Whether the agent translates services itself.
fn translates(services: &str) -> Result<bool, Error> {
    match services {
        "manx" => Ok(true),
        "kube-proxy" | "none" => Ok(false),
        other => {
            Err(Error::Usage(format!("--services {other}: expected kube-proxy, manx or none")))
        }
    }
}

/// Runs `manx-cni` as a command, without a runtime.
pub(crate) fn main(arguments: &[String]) -> ExitCode {
    let done = match arguments.split_first() {
        Some((verb, rest)) if verb == "install" => {
            InstallPaths::read(rest).and_then(|it| install(&it))
        }
        Some((verb, rest)) if verb == "uninstall" => {
            InstallPaths::read(rest).and_then(|it| uninstall(&it))
        }
        Some((verb, rest)) if verb == "hold" => InstallPaths::read(rest)
            .and_then(|it| Ok(hold::run(&it.socket).map(|()| String::new())?)),
        Some((flag, [])) if flag == "--help" => Ok(USAGE.to_owned()),
        _ => Err(Error::Usage("expected install, uninstall, hold or CNI_COMMAND".to_owned())),
    };
    let (written, status) = match done {
        Ok(text) => (stdout().write_all(text.as_bytes()), ExitCode::SUCCESS),
        Err(error) => {
            let status = if matches!(error, Error::Usage(_)) { 2 } else { 1 };
            (writeln!(stderr(), "manx-cni: {error}"), ExitCode::from(status))
        }
    };
    if written.is_err() { ExitCode::FAILURE } else { status }
}

/// Installs both files. Returns a report in lines.
fn install(places: &InstallPaths) -> Result<String, Error> {
    let own = Path::new("/proc/self/exe");
    let program = fs::read(own).map_err(at(own, "read"))?;
    install_program(places, &program)
}

fn install_program(places: &InstallPaths, program: &[u8]) -> Result<String, Error> {
    let (to, conflist) = (places.program(), places.conflist());
    // Both files are checked before either is written.
    if [is_ours(&to, is_program)?, is_ours(&conflist, conflist::is_ours)?].contains(&Some(false)) {
        let foreign = if is_ours(&to, is_program)? == Some(false) { to } else { conflist };
        return Err(Error::Foreign(foreign));
    }
    for folder in [&places.bin_dir, &places.conf_dir] {
        fs::create_dir_all(folder).map_err(at(folder, "written"))?;
    }
    let Conflist { text, told } = if places.policy_only {
        add_to_current(places)?
    } else {
        let has_portmap = places.bin_dir.join("portmap").is_file();
        conflist::own(&places.socket, has_portmap && !places.agent_translates)
    };
    if places.policy_only {
        policy_only::allow(&places.socket)?;
    }
    write_whole(&to, program, 0o755)?;
    write_whole(&conflist, text.as_bytes(), 0o644)?;
    let mut told =
        vec![format!("wrote {}", to.display()), format!("wrote {}{told}", conflist.display())];
    if let Some(interpreter) = elf::interpreter(program) {
        told.push(format!(
            "WARNING: {} is not static: on a node without {interpreter}, and the C library that it was built for, no pod is \
             attached; deploy/programs builds one that needs neither",
            to.display()
        ));
    }
    // A configuration that an install with the other value of `--policy-only` wrote.
    for other in places.conflists().into_iter().filter(|it| *it != conflist) {
        if is_ours(&other, conflist::is_ours)? == Some(true) {
            told.push(remove(&other, conflist::is_ours)?);
        }
    }
    let (folder, own) = (places.conf_dir.display(), places.conf_name());
    let is_earlier = |name: &String| name.as_str() < own;
    let earlier = configurations(places)?.into_iter().filter(is_earlier).map(|name| {
        format!("{name} in {folder} comes before {own}, and is the one that runtimes use")
    });
    Ok(lines(told.into_iter().chain(earlier)))
}

/// The network that runtimes use now, which another plugin makes, with this plugin added.
fn add_to_current(places: &InstallPaths) -> Result<Conflist, Error> {
    for name in configurations(places)? {
        let path = places.conf_dir.join(name);
        let bytes = fs::read(&path).map_err(at(&path, "read"))?;
        if !conflist::is_ours(&bytes) {
            return conflist::add_to(&path, &bytes, &places.socket)
                .map_err(|source| Error::Other { path, source });
        }
    }
    Err(Error::NoOther(places.conf_dir.clone()))
}

/// The names of all configurations, in the order in which runtimes read them.
fn configurations(places: &InstallPaths) -> Result<Vec<String>, Error> {
    let entries = fs::read_dir(&places.conf_dir).map_err(at(&places.conf_dir, "read"))?;
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let is_configuration = |name: &String| {
        let extension = Path::new(name).extension().and_then(OsStr::to_str);
        matches!(extension, Some("conf" | "conflist" | "json"))
    };
    let mut found: Vec<String> = names.filter(is_configuration).collect();
    found.sort();
    Ok(found)
}

fn lines(told: impl Iterator<Item = String>) -> String {
    told.map(|line| line + "\n").collect()
}

/// Removes both files. Returns a report in lines.
fn uninstall(places: &InstallPaths) -> Result<String, Error> {
    if places.if_removed && !Client::connect(&places.socket)?.removed()? {
        return Ok("Manx is still in the cluster: nothing is removed\n".to_owned());
    }
    let mut conflists = places.conflists();
    let is_there = |path: &PathBuf| fs::symlink_metadata(path).is_ok();
    if conflists.iter().any(is_there) {
        conflists.retain(is_there);
    } else {
        conflists.truncate(1);
    }
    let conflists: Vec<String> =
        conflists.iter().map(|it| remove(it, conflist::is_ours)).collect::<Result<_, _>>()?;
    let ended = hold::end(&places.socket)?;
    let ended = ended.then(|| {
        "ended the holder: pods keep their interface as long as the agent runs".to_owned()
    });
    let Returned { whole, bare, failed } =
        policy_only::give_all_back(&places.socket).map_err(Error::GiveBack)?;
    if !failed.is_empty() {
        return Err(Error::NotAll { failed, bare });
    }
    let given =
        (whole > 0).then(|| format!("gave {whole} pods back to the plugin that connected them"));
    let program = remove(&places.program(), is_program)?;
    if !bare.is_empty() {
        return Err(Error::NotAll { failed, bare });
    }
    Ok(lines(conflists.into_iter().chain([program]).chain(ended).chain(given)))
}

fn remove(path: &Path, is_its_own: fn(&[u8]) -> bool) -> Result<String, Error> {
    let shown = path.display();
    Ok(match is_ours(path, is_its_own)? {
        None => format!("{shown} is not there"),
        Some(false) => format!("left {shown}: manx-cni did not write it"),
        Some(true) => {
            fs::remove_file(path).map_err(at(path, "removed"))?;
            format!("removed {shown}")
        }
    })
}

/// Whether this program wrote a file; `None` if there is no file.
fn is_ours(path: &Path, is_its_own: fn(&[u8]) -> bool) -> Result<Option<bool>, Error> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(at(path, "read")(error)),
        // A link, even one to such a file, was made by another program.
        Ok(found) if !found.is_file() => Ok(Some(false)),
        Ok(_) => fs::read(path).map(|bytes| Some(is_its_own(&bytes))).map_err(at(path, "read")),
    }
}

fn is_program(bytes: &[u8]) -> bool {
    bytes.windows(PROGRAM_MARK.len()).any(|it| it == PROGRAM_MARK)
}

fn write_whole(path: &Path, bytes: &[u8], mode: u32) -> Result<(), Error> {
    whole_file::replace_durably(path, bytes, mode).map_err(at(path, "written"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn places(folder: &Path) -> InstallPaths {
        let [bin, conf] = ["bin", "net.d"].map(|name| folder.join(name).display().to_string());
        // This is not the socket of an agent that may run on this machine.
        let socket = "/nowhere/node.sock";
        let arguments = ["--bin-dir", &bin, "--conf-dir", &conf, "--socket", socket];
        let arguments = arguments.map(str::to_owned);
        InstallPaths::read(&arguments).unwrap()
    }

    fn files(folder: &Path) -> BTreeSet<String> {
        let entries = fs::read_dir(folder).into_iter().flatten();
        entries.map(|it| it.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// A program with the mark, in another version.
    fn program(version: &str) -> Vec<u8> {
        [version.as_bytes(), &PROGRAM_MARK, b"more"].concat()
    }

    #[test]
    fn both_files_come_are_replaced_and_go_and_nothing_else_changes() {
        let folder = tempfile::tempdir().unwrap();
        let places = places(folder.path());
        for version in ["1", "2"] {
            install_program(&places, &program(version)).unwrap();
            assert_eq!(fs::read(places.program()).unwrap(), program(version));
            let mode = |path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!((mode(places.program()), mode(places.conflist())), (0o755, 0o644));
        }
        fs::write(places.bin_dir.join("portmap"), "").unwrap();
        fs::write(places.conf_dir.join("05-other.conf"), "").unwrap();
        let told = install_program(&places, &program("3")).unwrap();
        assert!(told.contains("05-other.conf in "), "{told}");
        insta::assert_snapshot!(fs::read_to_string(places.conflist()).unwrap());
        // The agent does what portmap does.
        let translating = InstallPaths { agent_translates: true, ..self::places(folder.path()) };
        install_program(&translating, &program("3")).unwrap();
        assert!(!fs::read_to_string(places.conflist()).unwrap().contains("portmap"));
        uninstall(&places).unwrap();
        let left = [files(&places.bin_dir), files(&places.conf_dir)];
        assert_eq!(left, ["portmap", "05-other.conf"].map(|it| BTreeSet::from([it.to_owned()])));
        let again = uninstall(&places).unwrap();
        assert_eq!(again.matches("is not there").count(), 2, "{again}");
    }

    #[test]
    fn a_program_that_needs_a_loader_of_the_node_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let told = install_program(&places(folder.path()), &program("1")).unwrap();
        assert!(!told.contains("not static"), "{told}");
        // This test's program has the mark, and this machine's loader if it needs one.
        let own = fs::read("/proc/self/exe").unwrap();
        let told = install_program(&places(folder.path()), &own).unwrap();
        assert_eq!(
            told.contains("is not static: on a node without /"),
            !cfg!(target_feature = "crt-static")
        );
    }

    #[test]
    fn behind_another_plugin_the_configuration_comes_first_and_is_written_anew_with_the_other() {
        let folder = tempfile::tempdir().unwrap();
        let places = InstallPaths { policy_only: true, ..places(folder.path()) };
        let error = install_program(&places, &program("1")).unwrap_err();
        assert!(matches!(error, Error::NoOther(_)), "{error}");
        assert_eq!(files(&places.bin_dir), BTreeSet::new(), "nothing is installed");
        let other = places.conf_dir.join("10-ptp.conflist");
        for network in ["a", "b"] {
            let text = format!(r#"{{"name": "{network}", "plugins": [{{"type": "ptp"}}]}}"#);
            fs::write(&other, &text).unwrap();
            let told = install_program(&places, &program("1")).unwrap();
            assert!(told.contains("with manx-cni behind ptp"), "{told}");
            let written = fs::read_to_string(places.conf_dir.join("00-manx.conflist")).unwrap();
            assert!(written.contains(&format!(r#""name": "{network}""#)), "{written}");
            assert_eq!(fs::read_to_string(&other).unwrap(), text, "the other's own stays");
        }
        // An install with the other value of `--policy-only` replaces the first one.
        let told = install_program(
            &InstallPaths { policy_only: false, ..self::places(folder.path()) },
            &program("1"),
        );
        assert!(told.unwrap().contains("removed"), "the one behind is gone");
        let names = ["10-manx.conflist", "10-ptp.conflist"].map(str::to_owned);
        assert_eq!(files(&places.conf_dir), BTreeSet::from(names));
        install_program(&places, &program("1")).unwrap();
        let names = ["00-manx.conflist", "10-ptp.conflist"].map(str::to_owned);
        assert_eq!(files(&places.conf_dir), BTreeSet::from(names));
        fs::write(&other, "{").unwrap();
        let error = install_program(&places, &program("1")).unwrap_err();
        assert!(error.to_string().contains("10-ptp.conflist: it is no network"), "{error}");
        // Uninstall works without the flag.
        uninstall(&InstallPaths { policy_only: false, ..places }).unwrap();
        assert_eq!(
            files(&folder.path().join("net.d")),
            BTreeSet::from(["10-ptp.conflist".to_owned()])
        );
    }

    #[test]
    fn what_others_wrote_is_neither_replaced_nor_removed() {
        let folder = tempfile::tempdir().unwrap();
        let places = places(folder.path());
        fs::create_dir_all(&places.bin_dir).unwrap();
        fs::create_dir_all(&places.conf_dir).unwrap();
        let link = |path: &Path| std::os::unix::fs::symlink("/dev/null", path).unwrap();
        let text = |path: &Path| fs::write(path, "{\"name\": \"mine\"}").unwrap();
        for (path, put) in [
            (places.program(), &text as &dyn Fn(&Path)),
            (places.conflist(), &text),
            (places.program(), &link),
            (places.conflist(), &link),
        ] {
            put(&path);
            let before = [files(&places.bin_dir), files(&places.conf_dir)];
            let error = install_program(&places, &program("1")).unwrap_err();
            assert!(matches!(&error, Error::Foreign(found) if *found == path), "{error}");
            let told = uninstall(&places).unwrap();
            assert!(told.contains(&format!("left {}", path.display())), "{told}");
            assert_eq!([files(&places.bin_dir), files(&places.conf_dir)], before);
            fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn the_command_line_is_checked() {
        let refused = |arguments: &[&str]| {
            let arguments: Vec<String> = arguments.iter().map(|it| (*it).to_owned()).collect();
            let error = InstallPaths::read(&arguments).unwrap_err().to_string();
            error.lines().next().unwrap().to_owned()
        };
        let texts = [
            refused(&["--bin-dir"]),
            refused(&["--bindir", "/x"]),
            refused(&["--conf-name", "../x.conflist"]),
            refused(&["--conf-name", "x.json"]),
        ];
        insta::assert_snapshot!(texts.join("\n"), @r"
        --bin-dir needs a value
        --bindir is not known
        --conf-name ../x.conflist: expected a file's name that ends with .conflist
        --conf-name x.json: expected a file's name that ends with .conflist
        ");
    }
}
