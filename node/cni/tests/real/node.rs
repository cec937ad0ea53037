//! A node in its own namespaces: an agent with a directory of manifests, and the installed plugin.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use manx_agent::Settings;
use manx_agent::pod_device::Preference;
use manx_agent::settings::{Datastore, Network, ServiceTranslator};
use manx_api::client::Client;
use manx_api::{Attachment, Device};
use manx_dataplane::sys::capabilities::{CapabilitySet, keep_only};
use manx_dataplane::tables::{Established, TrackingSettings};
use manx_dataplane::worker::Polling;
use manx_devices::holder;
use manx_fixtures::skip::{Need, skip};
use manx_linux::netlink::{self, Peer, Veth};
use manx_linux::netns;
use manx_linux::testing::{namespaces_allowed, tun_allowed};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// The variable that makes a process of this program an agent. Its value is the folder of the agent's node.
const FOLDER: &str = "MANX_CNI_TEST_FOLDER";
/// The number of workers of that agent.
const WORKERS: &str = "MANX_CNI_TEST_WORKERS";
/// Set if that agent translates the addresses of services.
const SERVICES: &str = "MANX_CNI_TEST_SERVICES";
/// Set if another plugin connects the pods.
const POLICY_ONLY: &str = "MANX_CNI_TEST_POLICY_ONLY";
/// Set if the agent waits for the end of another one.
const STANDBY: &str = "MANX_CNI_TEST_STANDBY";
/// The kind of device that the agent gives pods.
const DEVICE: &str = "MANX_CNI_TEST_DEVICE";
/// The name of the agent's [`Power`].
const POWER: &str = "MANX_CNI_TEST_POWER";
/// The test that runs as the agent in such a process.
const AGENT: &str = "an_agent_listens_where_the_configuration_says_until_it_is_told_to_stop";
/// The folder of the plugins of Debian's package `containernetworking-plugins`.
const PLUGINS: &str = "/usr/lib/cni";
/// The node's own address on its uplink.
pub(crate) const NODE: &str = "172.18.0.2";

const PATIENCE: Duration = Duration::from_secs(10);

/// Whether this environment makes devices of a kind.
fn is_allowed(device: Device) -> bool {
    device == Device::Veth || tun_allowed()
}

/// Runs an agent until it is stopped, if this process should be one.
pub(crate) fn be_an_agent() -> bool {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return false };
    let settings = Settings {
        name: "node-1".to_owned(),
        datastore: Datastore::Directory(folder.join("manifests")),
        socket: folder.join("run/node.sock"),
        uplink: Some("eth0".to_owned()),
        addresses: [None, None],
        packet_socket: true,
        services: match std::env::var_os(SERVICES) {
            Some(_) => ServiceTranslator::KubeProxy,
            None => ServiceTranslator::None,
        },
        network: match std::env::var_os(POLICY_ONLY) {
            Some(_) => Network::OtherPlugin,
            None => Network::Manx,
        },
        ipam: manx_agent::settings::Ipam::HostLocal,
        bgp: false,
        pod_device: std::env::var(DEVICE)
            .map_or(Preference::Auto, |name| Preference::Only(Device::named(&name).unwrap())),
        polling: Polling::Adaptive,
        cores: vec![None; std::env::var(WORKERS).unwrap().parse().unwrap()],
        connections: TrackingSettings { tcp_strict: false, established: Established::Judge },
        verify_tables: false,
        standby: std::env::var_os(STANDBY).is_some(),
        observed_at: manx_agent::settings::Addresses::default(),
        report_ready: || {},
    };
    if std::env::var(POWER).unwrap() == Power::WithoutSysAdmin.name() {
        keep_only(CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW).unwrap();
    }
    manx_agent::run(&settings).unwrap();
    true
}

/// The capabilities of an agent.
#[derive(Clone, Copy)]
pub(crate) enum Power {
    Root,
    /// As in a container without `CAP_SYS_ADMIN`.
    WithoutSysAdmin,
}

impl Power {
    const fn name(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::WithoutSysAdmin => "without",
        }
    }
}

/// See the module.
pub(crate) struct Node {
    pub(crate) folder: tempfile::TempDir,
    netns: OwnedFd,
    /// A namespace beyond the node's uplink.
    pub(crate) outside: OwnedFd,
    agent: Option<Child>,
    /// The kind of device that the next agent gives pods; `None`: the agent chooses.
    pub(crate) device: Option<Device>,
    translates_services: bool,
    is_policy_only: bool,
}

/// Ends an agent. Returns whether it ended well.
pub(crate) fn end(mut agent: Child, how: Signal) -> bool {
    kill(Pid::from_raw(agent.id().cast_signed()), how).unwrap();
    agent.wait().unwrap().success()
}

/// The output of `manx-cni` or `cnitool`.
pub(crate) struct Said {
    pub(crate) succeeded: bool,
    pub(crate) text: String,
}

impl Said {
    fn new(output: &Output) -> Self {
        let both = [&output.stdout[..], &output.stderr[..]].map(String::from_utf8_lossy).concat();
        Self { succeeded: output.status.success(), text: both }
    }

    /// The result of a success.
    pub(crate) fn result(&self) -> Value {
        assert!(self.succeeded, "{}", self.text);
        serde_json::from_str(&self.text).unwrap_or_default()
    }

    /// The code and the message of a failure.
    pub(crate) fn error(&self) -> (u64, String) {
        assert!(!self.succeeded, "{}", self.text);
        let value: Value = serde_json::from_str(&self.text).expect(&self.text);
        (value["code"].as_u64().unwrap(), value["msg"].as_str().unwrap().to_owned())
    }
}

impl Node {
    /// A node with these pod CIDRs, and no agent yet. `None`: the test cannot run here, or ran in a user namespace.
    pub(crate) fn new(cidrs: &[&str]) -> Option<Self> {
        if !namespaces_allowed() {
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        for name in ["manifests", "ns", "run", "lib", "bin"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        let netns = netns::create().unwrap();
        let outside = netns::create().unwrap();
        let peer = Peer { name: "far", netns: Some(outside.as_fd()), mac: None, index: None };
        let veth = Veth { name: "eth0", mac: None, index: None, mtu: 1500, peer };
        netlink::in_netns(&netns, async |netlink| {
            netlink.add_veth(&veth).await?;
            for name in ["lo", "eth0"] {
                let link = netlink.existing(name).await?;
                if name == "eth0" {
                    netlink.add_address(link.index, format!("{NODE}/24").parse().unwrap()).await?;
                }
                netlink.set_up(link.index).await?;
            }
            Ok(())
        })
        .unwrap();
        let node = Self {
            folder,
            netns,
            outside,
            agent: None,
            device: None,
            translates_services: false,
            is_policy_only: false,
        };
        node.write_own(cidrs);
        node.install();
        // cnitool has STATUS and GC from this version on.
        node.change_conflist(|it| it["cniVersion"] = "1.1.0".into());
        Some(node)
    }

    /// Writes the node's own object.
    fn write_own(&self, cidrs: &[&str]) {
        let cidrs = serde_json::to_string(cidrs).unwrap();
        let node = format!(
            r#"{{"apiVersion":"v1","kind":"Node","metadata":{{"name":"node-1"}},"spec":{{"podCIDRs":{cidrs}}},
            "status":{{"addresses":[{{"type":"InternalIP","address":"{NODE}"}}]}}}}"#
        );
        fs::write(self.folder.path().join("manifests/node.json"), node).unwrap();
    }

    /// Starts an agent that connects the pods itself, with addresses from these CIDRs.
    pub(crate) fn connect_pods_itself(&mut self, cidrs: &[&str]) {
        self.write_own(cidrs);
        self.is_policy_only = false;
        self.start_agent();
    }

    /// A node with a running agent.
    pub(crate) fn start(cidrs: &[&str]) -> Option<Self> {
        let mut node = Self::new(cidrs)?;
        node.start_agent();
        Some(node)
    }

    /// A node with an agent, whose pods and own interfaces have this kind of device.
    pub(crate) fn start_with_device(cidrs: &[&str], device: Device) -> Option<Self> {
        let mut node = Self::new(cidrs)?;
        if !is_allowed(device) {
            return None;
        }
        node.device = Some(device);
        node.start_agent();
        Some(node)
    }

    /// A node with an agent that leaves the translation of service addresses to the node.
    pub(crate) fn start_with_services(cidrs: &[&str], device: Option<Device>) -> Option<Self> {
        let mut node = Self::new(cidrs)?;
        if device.is_some_and(|it| !is_allowed(it)) {
            return None;
        }
        node.device = device;
        node.translates_services = true;
        node.start_agent();
        Some(node)
    }

    /// A node with a network of another plugin, and an agent that only enforces policy.
    pub(crate) fn start_behind(main: &Value) -> Option<Self> {
        let mut node = Self::new(&[])?;
        node.is_policy_only = true;
        for plugin in [&main["type"], &main["ipam"]["type"]] {
            if !add_plugin(&node, plugin.as_str().unwrap()) {
                return None;
            }
        }
        // The configuration as its author wrote it.
        let list = serde_json::json!({"cniVersion": "1.0.0", "name": "manx", "plugins": [main]});
        node.uninstall();
        fs::write(node.folder.path().join("net.d/20-other.conflist"), list.to_string()).unwrap();
        node.install();
        node.start_agent();
        Some(node)
    }

    /// Installs the plugin and its configuration.
    pub(crate) fn install(&self) {
        let verb: &[_] =
            if self.is_policy_only { &["install", "--policy-only"] } else { &["install"] };
        let (succeeded, text) = self.run_installer(verb);
        assert!(succeeded, "{text}");
    }

    /// A socket of the node itself.
    pub(crate) fn socket_of_host(&self) -> UdpSocket {
        netns::run_in(&self.netns, || UdpSocket::bind((NODE, 0)).unwrap()).unwrap()
    }

    /// Uninstalls both. Returns the output.
    pub(crate) fn uninstall(&self) -> String {
        let (succeeded, text) = self.run_installer(&["uninstall"]);
        assert!(succeeded, "{text}");
        text
    }

    /// Uninstalls, and expects an error. Returns the output.
    pub(crate) fn uninstall_that_fails(&self) -> String {
        let (succeeded, text) = self.run_installer(&["uninstall"]);
        assert!(!succeeded, "{text}");
        text
    }

    /// Uninstalls both if Manx is removed from the cluster. Returns whether the agent said that it is, and the output.
    pub(crate) fn uninstall_if_removed(&self) -> (bool, String) {
        self.run_installer(&["uninstall", "--if-removed"])
    }

    fn run_installer(&self, verb: &[&str]) -> (bool, String) {
        let [bin, conf] = ["bin", "net.d"].map(|name| self.folder.path().join(name));
        let mut command = Command::new(env!("CARGO_BIN_EXE_manx-cni"));
        command
            .args(verb)
            .arg("--bin-dir")
            .arg(&bin)
            .arg("--conf-dir")
            .arg(&conf)
            .arg("--socket")
            .arg(self.socket());
        let output = self.inside(|| command.output().unwrap());
        let Said { succeeded, text } = Said::new(&output);
        (succeeded, text)
    }

    fn change_conflist(&self, change: impl FnOnce(&mut Value)) {
        let path = self.folder.path().join("net.d/10-manx.conflist");
        let mut conflist: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(&mut conflist);
        fs::write(&path, conflist.to_string()).unwrap();
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("run/node.sock")
    }

    pub(crate) fn start_agent(&mut self) {
        self.start_agent_with(1, Power::Root);
    }

    pub(crate) fn start_agent_with(&mut self, workers: usize, power: Power) {
        let mut command = self.agent_command("log", workers, power);
        self.agent = Some(self.inside(|| command.spawn().unwrap()));
        let start = Instant::now();
        while self.client().is_none_or(|mut client| client.status().is_err()) {
            let log = fs::read_to_string(self.folder.path().join("log")).unwrap();
            assert!(start.elapsed() < PATIENCE, "the agent does not listen: {log}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Starts another agent, which waits for the end of the first one.
    pub(crate) fn start_standby(&self) -> Child {
        let mut command = self.agent_command("standby-log", 1, Power::Root);
        let mut successor = self.inside(|| command.env(STANDBY, "1").spawn().unwrap());
        // An agent that does not wait has ended by now.
        thread::sleep(Duration::from_millis(500));
        let log = fs::read_to_string(self.folder.path().join("standby-log")).unwrap();
        assert!(successor.try_wait().unwrap().is_none(), "{log}");
        successor
    }

    /// Ends the agent by a signal. From then on the waiting agent is the node's agent.
    pub(crate) fn replace_agent(&mut self, successor: Child, how: Signal) {
        let first = self.agent.replace(successor).unwrap();
        end(first, how);
    }

    fn agent_command(&self, log: &str, workers: usize, power: Power) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let log = File::create(self.folder.path().join(log)).unwrap();
        command
            .args(["--exact", AGENT, "--nocapture"])
            .env(FOLDER, self.folder.path())
            .env(WORKERS, workers.to_string())
            .env(POWER, power.name())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        if let Some(device) = self.device {
            command.env(DEVICE, device.name());
        }
        if self.is_policy_only {
            command.env(POLICY_ONLY, "1");
        }
        if self.translates_services {
            command.env(SERVICES, "1");
        }
        command
    }

    /// Ends the agent. Returns whether it ended well.
    pub(crate) fn stop_agent(&mut self) -> bool {
        self.agent.take().is_some_and(|agent| end(agent, Signal::SIGTERM))
    }

    /// Kills the agent, like a crash.
    pub(crate) fn kill_agent(&mut self) {
        end(self.agent.take().unwrap(), Signal::SIGKILL);
    }

    /// The process id of the holder, and a client of it. `None` if there is no holder.
    pub(crate) fn holder(&self) -> Option<(Pid, holder::Client)> {
        let client = holder::Client::connect(&holder::path(&self.socket())).ok()?;
        let socket = self.socket();
        let is_it = |pid: &i32| {
            let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let arguments: Vec<&[u8]> = arguments.split(|byte| *byte == 0).collect();
            arguments.get(1) == Some(&&b"hold"[..])
                && arguments.get(3) == Some(&socket.as_os_str().as_encoded_bytes())
        };
        let all = fs::read_dir("/proc").unwrap().flatten();
        let mut pids = all.filter_map(|it| it.file_name().to_str()?.parse().ok());
        Some((Pid::from_raw(pids.find(is_it)?), client))
    }

    /// The pods whose devices the holder keeps.
    pub(crate) fn kept(&self) -> BTreeSet<String> {
        let (_, mut client) = self.holder().unwrap();
        let pods = client.entries().unwrap().into_iter().filter_map(|it| match it.note.unwrap() {
            holder::Note::Pod(held) => Some(held.attach.pod.name),
            holder::Note::Flows { .. } => None,
        });
        pods.collect()
    }

    pub(crate) fn client(&self) -> Option<Client> {
        Client::connect(&self.socket()).ok()
    }

    pub(crate) fn attachments(&self) -> Vec<Attachment> {
        self.client().unwrap().attachments().unwrap()
    }

    /// Runs `work` in a thread in the node's namespace.
    pub(crate) fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        netns::run_in(&self.netns, work).unwrap()
    }

    pub(crate) fn add_namespace(&self, name: &str) -> PathBuf {
        let path = self.folder.path().join("ns").join(name);
        netns::create_named(&path).unwrap();
        path
    }

    /// Writes the object of a pod of the namespace `shop`, as the kubelet does after the pod is attached. Waits until
    /// the agent has it. Returns the addresses of the result of the pod's ADD.
    pub(crate) fn show(&self, pod: &str, result: &Value) -> Vec<IpAddr> {
        let all = self.write_pod(pod, result);
        let is_enforced = || self.attachments().iter().any(|it| it.pod.name == pod && it.enforced);
        let start = Instant::now();
        while !is_enforced() {
            let problems = self.client().unwrap().status().unwrap().invalid;
            assert!(start.elapsed() < PATIENCE, "nothing passes pod {pod}: {problems:?}");
            thread::sleep(Duration::from_millis(5));
        }
        all
    }

    /// Writes the pod's object without waiting.
    pub(crate) fn write_pod(&self, pod: &str, result: &Value) -> Vec<IpAddr> {
        let all = addresses(result);
        let ips: Vec<String> = all.iter().map(|ip| format!(r#"{{"ip":"{ip}"}}"#)).collect();
        let object = format!(
            r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"{pod}","namespace":"shop","labels":{{"pod":"{pod}"}}}},
            "spec":{{"nodeName":"node-1","containers":[{{"name":"c","image":"none"}}]}},
            "status":{{"phase":"Running","podIP":"{}","podIPs":[{}]}}}}"#,
            all[0],
            ips.join(",")
        );
        self.write(pod, &object);
        all
    }

    /// Removes the pod's object.
    pub(crate) fn remove_pod(&self, name: &str) {
        fs::remove_file(self.folder.path().join(format!("manifests/{name}.yaml"))).unwrap();
    }

    /// Writes a manifest atomically.
    pub(crate) fn write(&self, name: &str, object: &str) {
        let [hidden, shown] = [format!(".{name}"), format!("{name}.yaml")]
            .map(|file| self.folder.path().join("manifests").join(file));
        fs::write(&hidden, object).unwrap();
        fs::rename(hidden, shown).unwrap();
    }

    /// Calls `cnitool` in the node's namespace, for the pod with this namespace's name. Returns `None` if there is no
    /// cnitool.
    pub(crate) fn cnitool(&self, verb: &str, netns: &Path) -> Option<Said> {
        let cnitool = cnitool()?;
        let pod = netns.file_name().unwrap().to_str().unwrap();
        let mut command = Command::new("unshare");
        // cnitool keeps results of ADD in /var/lib/cni.
        let script = "mount --bind \"$1\" /var/lib && shift && exec \"$@\"";
        command
            .args(["-m", "sh", "-c", script, "sh"])
            .arg(self.folder.path().join("lib"))
            .arg(cnitool)
            .args([verb, "manx"])
            .arg(netns)
            .env("CNI_PATH", self.folder.path().join("bin"))
            .env("NETCONFPATH", self.folder.path().join("net.d"))
            .env("XTABLES_LOCKFILE", self.folder.path().join("lock"))
            .env("CNI_ARGS", format!("K8S_POD_NAMESPACE=shop;K8S_POD_NAME={pod};IgnoreUnknown=1"));
        if let Ok(given) = fs::read_to_string(self.folder.path().join("cap-args")) {
            command.env("CAP_ARGS", given);
        }
        Some(Said::new(&self.inside(|| command.output().unwrap())))
    }

    /// Starts the plugin as a runtime does, for a pod of the namespace `shop` and a container.
    pub(crate) fn call(&self, verb: &str, call: &Call<'_>) -> Said {
        self.start_call(verb, call).end()
    }

    pub(crate) fn start_call(&self, verb: &str, call: &Call<'_>) -> Running {
        let Call { pod, container, interface, netns, config } = call;
        let mut all = serde_json::json!({
            "cniVersion": "1.1.0", "name": "manx", "type": "manx-cni", "socket": self.socket()
        });
        all.as_object_mut().unwrap().extend(config.as_object().cloned().unwrap_or_default());
        let mut command = Command::new(self.folder.path().join("bin/manx-cni"));
        command
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", container)
            .env("CNI_NETNS", netns)
            .env("CNI_IFNAME", interface)
            .env("CNI_PATH", self.folder.path().join("bin"))
            .env("CNI_ARGS", format!("K8S_POD_NAMESPACE=shop;K8S_POD_NAME={pod}"));
        Running::start(self, command, &all)
    }
}

/// A call of the plugin.
#[derive(Clone)]
pub(crate) struct Call<'a> {
    pub(crate) pod: &'a str,
    pub(crate) container: &'a str,
    pub(crate) interface: &'a str,
    pub(crate) netns: &'a Path,
    /// Additions to the usual configuration.
    pub(crate) config: Value,
}

impl<'a> Call<'a> {
    /// A call for a container whose id is its pod's name.
    pub(crate) fn new(pod: &'a str, netns: &'a Path) -> Self {
        Self { pod, container: pod, interface: "eth0", netns, config: Value::Null }
    }
}

pub(crate) struct Running(Child);

impl Running {
    /// Starts a plugin in the node's namespace with a configuration.
    pub(crate) fn start(node: &Node, mut command: Command, config: &Value) -> Self {
        // The input is a file, so that nothing waits for the plugin to read it.
        let input = tempfile::tempfile().unwrap();
        serde_json::to_writer(&input, config).unwrap();
        std::io::Seek::rewind(&mut &input).unwrap();
        command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(node.inside(|| command.spawn().unwrap()))
    }

    /// Kills the plugin, as a runtime does after it gave up waiting.
    pub(crate) fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    pub(crate) fn end(self) -> Said {
        Said::new(&self.0.wait_with_output().unwrap())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            let _ = agent.kill();
            let _ = agent.wait();
        }
        if let Ok(mut holder) = holder::Client::connect(&holder::path(&self.socket())) {
            let _ = holder.end();
        }
        for name in fs::read_dir(self.folder.path().join("ns")).unwrap() {
            netns::delete(&name.unwrap().path()).unwrap();
        }
        // Deletes the shelter, if there is one.
        netns::delete(&self.socket().with_extension("netns")).unwrap();
    }
}

/// cnitool, which is built from its Go module: in `PATH`, or in the folder of `go install`.
fn cnitool() -> Option<PathBuf> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join("go/bin"));
    let folders = std::env::split_paths(&paths).chain(home);
    let found = folders.map(|it| it.join("cnitool")).find(|it| it.exists());
    if found.is_none() {
        let reason = "there is no cnitool in PATH: go install github.com/containernetworking/cni/cnitool@v1.3.0";
        skip(Need::Cni, "a test with cnitool", reason);
    }
    found
}

/// Adds a plugin of Debian to the node's plugins. `false` if it is missing, and the calling test cannot run.
pub(crate) fn add_plugin(node: &Node, name: &str) -> bool {
    let from = Path::new(PLUGINS).join(name);
    let there = from.exists();
    if there {
        fs::copy(from, node.folder.path().join("bin").join(name)).unwrap();
    } else {
        let reason =
            format!("there is no {}: apt-get install containernetworking-plugins", from.display());
        skip(Need::Cni, "a test with other plugins", &reason);
    }
    there
}

/// The addresses in a result of ADD.
pub(crate) fn addresses(result: &Value) -> Vec<IpAddr> {
    let ips = result["ips"].as_array().unwrap().iter();
    ips.map(|ip| ip["address"].as_str().unwrap().split('/').next().unwrap().parse().unwrap())
        .collect()
}

/// Whether a TCP connection from one namespace reaches a listener in another.
pub(crate) fn reaches(from: &OwnedFd, to: &OwnedFd, address: IpAddr) -> bool {
    let listener = netns::run_in(to, || TcpListener::bind((address, 0)).unwrap()).unwrap();
    let address = SocketAddr::new(address, listener.local_addr().unwrap().port());
    netns::run_in(from, || connects(address)).unwrap()
}

/// Whether the calling thread's namespace reaches a listener.
pub(crate) fn connects(address: SocketAddr) -> bool {
    // The timeout is a little longer than the time until a lost SYN is sent again. A denied connection waits for the
    // whole timeout.
    TcpStream::connect_timeout(&address, Duration::from_millis(1500)).is_ok()
}
