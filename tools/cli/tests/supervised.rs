//! The process of an agent: restarts by the supervisor, answers while it waits, and the users whose
//! answers are trusted.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs::{self, File};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use manx_api::client::Client;
use manx_api::{ErrorKind, Status};
use manx_linux::testing::namespaces_allowed;
use manx_linux::{netlink, netns};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const MANX: &str = env!("CARGO_BIN_EXE_manx");
const LONG: Duration = Duration::from_secs(20);

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < LONG, "{what}: it does not come");
        thread::sleep(Duration::from_millis(2));
    }
}

/// The folder of an agent, with the files that it makes.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("manifests")).unwrap();
        let node = "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\nspec: {podCIDRs: [10.1.2.0/24]}\n\
                    status: {addresses: [{type: InternalIP, address: 172.18.0.2}]}\n";
        fs::write(folder.path().join("manifests/node.yaml"), node).unwrap();
        Self(folder)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn socket(&self) -> PathBuf {
        self.at("run/n1.sock")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.at("log")).unwrap_or_default()
    }

    /// Starts `manx node` through these programs. Its log is appended.
    fn node(&self, starter: &[&str]) -> Command {
        let (program, arguments) = starter.split_first().unwrap_or((&MANX, &[]));
        let mut node = Command::new(program);
        node.args(arguments).args((!starter.is_empty()).then_some(MANX));
        node.args(["node", "--name", "n1", "--socket"]).arg(self.socket());
        let log = File::options().create(true).append(true).open(self.at("log")).unwrap();
        node.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        node
    }

    /// Starts an agent whose API server does not listen.
    fn waiting(&self, starter: &[&str]) -> Command {
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut node = self.node(starter);
        node.args(["--datastore-type", "kubernetes", "--api-endpoint"])
            .arg(format!("http://{closed}"))
            .arg("--state")
            .arg(self.at("state"));
        node
    }

    fn status(&self) -> Result<Status, manx_api::client::Error> {
        Client::connect(&self.socket())?.status()
    }

    fn manx(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let output = Command::new(MANX).args(arguments).arg("--socket").arg(self.socket()).output();
        let Output { status, stdout, stderr } = output.unwrap();
        let said = [stdout, stderr].concat();
        (status.code(), String::from_utf8(said).unwrap())
    }
}

/// A process that is killed when this is dropped.
struct Running(Child);

impl Running {
    fn pid(&self) -> i32 {
        self.0.id().cast_signed()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn children(pid: i32) -> Vec<i32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().map(|it| it.parse().unwrap()).collect()
}

fn only_child(pid: i32) -> Option<i32> {
    <[i32; 1]>::try_from(children(pid)).ok().map(|[child]| child)
}

/// A set of a process's capabilities: `CapEff`, those in effect, or `CapPrm`, those that it may have in effect.
fn capabilities(pid: i32, set: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(set)?.strip_prefix(':')).unwrap();
    u64::from_str_radix(line.trim(), 16).unwrap()
}

fn end(pid: i32, how: Signal) {
    kill(Pid::from_raw(pid), how).unwrap();
}

/// A node's network namespace, with the interface that has the node's address.
fn network() -> OwnedFd {
    let node = netns::create().unwrap();
    netlink::in_netns(&node, async |netlink| {
        let peer = netlink::Peer { name: "far", netns: None, mac: None, index: None };
        let veth = netlink::Veth { name: "eth0", mac: None, index: None, mtu: 1500, peer };
        netlink.add_veth(&veth).await?;
        for name in ["lo", "eth0"] {
            let link = netlink.existing(name).await?;
            if name == "eth0" {
                netlink.add_address(link.index, "172.18.0.2/24".parse().unwrap()).await?;
            }
            netlink.set_up(link.index).await?;
        }
        Ok(())
    })
    .unwrap();
    node
}

fn start_in(network: &OwnedFd, command: &mut Command) -> Running {
    Running(netns::run_in(network, || command.spawn().unwrap()).unwrap())
}

#[test]
fn an_agent_that_is_killed_ten_times_in_a_row_is_started_again_at_once() {
    if !namespaces_allowed() {
        return;
    }
    let (place, network) = (Place::new(), network());
    // The supervisor is process 1, as in a container.
    let starter = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let mut node = place.node(&starter);
    node.arg("--datastore").arg(place.at("manifests")).args(["--uplink", "eth0", "--supervise"]);
    let outside = start_in(&network, &mut node);
    let supervisor = until("the supervisor", || only_child(outside.pid()));
    let mut last = 0;
    for killed in 0..=10 {
        let agent = until(&place.log(), || {
            let agent = only_child(supervisor).filter(|it| *it != last)?;
            place.status().ok().map(|_| agent)
        });
        // A process whose parent has ended becomes a child of process 1.
        let orphan =
            ["-t", &supervisor.to_string(), "-p", "sh", "-c", "true & exit 0"].map(str::to_owned);
        assert!(Command::new("nsenter").args(orphan).status().unwrap().success());
        until("the orphan's end", || only_child(supervisor));
        assert_eq!(only_child(outside.pid()), Some(supervisor), "it goes on");
        if killed < 10 {
            end(agent, Signal::SIGKILL);
        }
        last = agent;
    }
    let log = place.log();
    let again = "the agent has ended by SIGKILL, and was ready: it is started again at once";
    assert_eq!(log.matches(again).count(), 10, "{log}");
    assert_eq!(log.matches("the agent has ended").count(), 10, "{log}");

    assert_eq!(capabilities(supervisor, "CapEff"), 0);
    // ptrace(2) needs all capabilities that the traced process may have in effect.
    let [own, of_agent] = [supervisor, last].map(|pid| capabilities(pid, "CapPrm"));
    assert!(of_agent != 0 && of_agent & !own == 0 && own != of_agent, "{own:x} {of_agent:x}");
    assert_eq!(fs::read_to_string(format!("/proc/{last}/comm")).unwrap(), "manx\n");
    // The supervisor forwards the signal to the agent, and ends with the agent's exit code.
    let mut outside = outside;
    end(supervisor, Signal::SIGTERM);
    assert_eq!(outside.0.wait().unwrap().code(), Some(0), "{}", place.log());
    assert!(!place.socket().exists() && !Path::new(&format!("/proc/{last}")).exists());
}

#[test]
fn an_address_that_another_process_has_ends_no_agent_and_is_told() {
    if !namespaces_allowed() {
        return;
    }
    let (place, network) = (Place::new(), network());
    let address = "127.0.0.1:9099";
    let taken = netns::run_in(&network, || TcpListener::bind(address).unwrap()).unwrap();
    let mut node = place.node(&[]);
    node.arg("--datastore").arg(place.at("manifests")).args(["--uplink", "eth0"]);
    node.env("FELIX_HEALTHENABLED", "true");
    let _agent = start_in(&network, &mut node);
    let warned = |status: &Status| {
        status
            .warnings
            .iter()
            .any(|it| it.contains("not served at 127.0.0.1:9099: Address already in use"))
    };
    until(&place.log(), || place.status().ok().filter(warned));
    for page in ["liveness", "readiness"] {
        let (code, said) = place.manx(&["health", page]);
        assert_eq!(code, Some(0), "{said}");
    }
    drop(taken);
    until("the agent gets the address", || place.status().ok().filter(|it| !warned(it)));
    netns::run_in(&network, || std::net::TcpStream::connect(address).unwrap()).unwrap();
}

#[test]
fn an_agent_that_waits_for_its_api_server_says_so_at_its_sockets() {
    let place = Place::new();
    let _agent = Running(place.waiting(&[]).spawn().unwrap());
    // Before the agent listens, its own socket also refuses connections.
    let told = until("a refused connection", || match place.status() {
        Err(error) if error.to_string().contains("refused") => {
            (error.kind() == ErrorKind::Starting).then_some(error)
        }
        _ => None,
    });
    let text = told.to_string();
    let begins = "the agent has just started, and nothing passes: it waits for the API server at http://127.0.0.1:";
    assert!(text.starts_with(begins) && text.ends_with("it tries again within 8 s"), "{text}");
    let (code, said) = place.manx(&["status"]);
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("it waits for the API server"), "{said}");
    let (code, said) = place.manx(&["health", "liveness"]);
    assert_eq!(
        (code, said.as_str()),
        (Some(0), "alive: the objects are read for the first time\n")
    );
    let (code, said) = place.manx(&["health"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("it waits for the API server") && said.contains("refused"), "{said}");
}

#[test]
fn without_an_agent_health_says_where_it_looked() {
    let place = Place::new();
    let (code, said) = place.manx(&["health", "liveness"]);
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("n1.health"), "{said}");
}

#[test]
fn a_start_right_after_a_kill_takes_the_place_and_one_beside_a_living_agent_does_not() {
    let place = Place::new();
    let mut agent = Running(place.waiting(&[]).spawn().unwrap());
    let answers = || place.status().is_err_and(|it| it.kind() == ErrorKind::Starting).then_some(());
    for _ in 0..10 {
        until(&place.log(), answers);
        // This agent starts before the other one is killed, so it waits for the end of that one.
        let mut next = Running(place.waiting(&[]).spawn().unwrap());
        end(agent.pid(), Signal::SIGKILL);
        agent.0.wait().unwrap();
        until(&place.log(), answers);
        assert_eq!(next.0.try_wait().unwrap(), None, "{}", place.log());
        agent = next;
    }
    let mut beside = Running(place.waiting(&[]).spawn().unwrap());
    assert_eq!(beside.0.wait().unwrap().code(), Some(2));
    assert!(place.log().contains("another process listens at "), "{}", place.log());
}

#[test]
fn an_agent_that_cannot_start_ends_its_supervisor_with_its_exit_code_and_one_that_is_killed_before_it_is_ready_is_started_again()
 {
    let place = Place::new();
    let mut node = place.node(&[]);
    let ended = node.args(["--datastore", "/nowhere", "--supervise"]).status().unwrap();
    assert_eq!(ended.code(), Some(2));
    let log = place.log();
    assert_eq!(log.matches("there is no directory /nowhere").count(), 1, "{log}");

    let mut supervisor = Running(place.waiting(&[]).arg("--supervise").spawn().unwrap());
    let mut last = 0;
    for killed in 0..5 {
        let agent = until("an agent", || {
            let agent = only_child(supervisor.pid()).filter(|it| *it != last)?;
            place.status().is_err_and(|it| it.kind() == ErrorKind::Starting).then_some(agent)
        });
        assert_eq!(place.log().matches("before it was ready: it is started again").count(), killed);
        end(agent, Signal::SIGKILL);
        last = agent;
    }
    until("a pause", || place.log().contains("it is started again in 200ms").then_some(()));
    until("the next", || only_child(supervisor.pid()).filter(|it| *it != last));
    until("its socket", || {
        place.status().is_err_and(|it| it.kind() == ErrorKind::Starting).then_some(())
    });
    // When the supervisor is killed, its agent ends, too.
    let agent = only_child(supervisor.pid()).unwrap();
    supervisor.0.kill().unwrap();
    supervisor.0.wait().unwrap();
    until("the agent's end", || (!place.socket().exists()).then_some(()));
    assert!(manx_linux::process::is_ending(agent) || !place.socket().exists());
}
