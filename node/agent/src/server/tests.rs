use std::os::unix::fs::PermissionsExt;
use std::os::unix::net as blocking;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::thread::JoinHandle;
use std::{fs, thread};

use super::*;
use manx_api::client::{self, Client};
use manx_api::{Attach, Attached, Device, PodName};

/// An agent in its own thread. It attaches every pod except those of the namespace `full`, streams every capture except
/// that of `nothing`, and never answers requests for the status.
struct Agent {
    path: PathBuf,
    stop: mpsc::Sender<()>,
    thread: Option<JoinHandle<()>>,
    _folder: tempfile::TempDir,
}

/// The number of slow answers in progress.
static AT_WORK: AtomicU32 = AtomicU32::new(0);

fn bind(path: &Path) -> Result<Server, socket::Error> {
    Server::listen(SocketLock::take(path)?)
}

fn answer(call: Call) -> Option<Outcome> {
    let failed =
        |kind, message: &str| Outcome::Reply(Err(Failure { kind, message: message.to_owned() }));
    match call {
        Call::Attach(attach) if attach.pod.namespace == "full" => {
            Some(failed(ErrorKind::Exhausted, "no address is left"))
        }
        Call::Reserve(_) | Call::HandOver => {
            Some(failed(ErrorKind::Invalid, "nothing is made here"))
        }
        Call::Attach(_) => {
            let addresses = vec!["10.0.0.2".parse().unwrap()];
            Some(Outcome::Reply(Ok(Reply::Attached(Attached {
                addresses,
                device: Device::Tun,
                mtu: 1480,
                mac: None,
            }))))
        }
        Call::Detach(_) => Some(Outcome::Reply(Ok(Reply::Detached))),
        Call::Explain(request) if request.from == "slow" => {
            Some(Outcome::Deferred(Box::new(|| {
                let others = AT_WORK.fetch_add(1, SeqCst);
                thread::sleep(Duration::from_millis(20));
                AT_WORK.fetch_sub(1, SeqCst);
                let message = format!("{others} others at work");
                Err(Failure { kind: ErrorKind::Internal, message })
            })))
        }
        Call::Explain(request) => Some(failed(ErrorKind::Invalid, &request.from)),
        Call::Flows(_) => Some(Outcome::Reply(Ok(Reply::Flows(Box::default())))),
        Call::Denials => Some(Outcome::Reply(Ok(Reply::Denials(vec![])))),
        Call::Capture(capture) if capture.port == "nothing" => {
            Some(failed(ErrorKind::Invalid, "there is no port nothing"))
        }
        Call::Capture(_) => {
            let (pieces, receiver) = mpsc::channel(1);
            tokio::spawn(async move {
                for piece in [b"first ".to_vec(), b"second".to_vec()] {
                    pieces.send(piece).await.unwrap();
                }
            });
            Some(Outcome::Stream(receiver))
        }
        Call::Attachments => Some(Outcome::Reply(Ok(Reply::Attachments(vec![])))),
        Call::Ready => Some(Outcome::Reply(Ok(Reply::Ready))),
        Call::Routes(_) => Some(failed(ErrorKind::Internal, "no routes")),
        Call::Removed => Some(Outcome::Reply(Ok(Reply::Removed(false)))),
        Call::Status => None,
    }
}

impl Agent {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run/agent.sock");
        let (stop, mut stopped) = mpsc::channel(1);
        let (ready, started) = std::sync::mpsc::channel();
        let thread = thread::spawn({
            let path = path.clone();
            move || {
                let runtime =
                    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async {
                    let (requests, mut inbox) = mpsc::channel(1);
                    let server = bind(&path).unwrap();
                    ready.send(()).unwrap();
                    let serving = tokio::spawn(server.run(requests));
                    loop {
                        tokio::select! {
                            question = inbox.recv() => {
                                let PendingRequest { call, answer: sender, .. } = question.unwrap();
                                if let Some(answer) = answer(call) {
                                    let _ = sender.send(answer);
                                }
                            }
                            _ = stopped.recv() => break,
                        }
                    }
                    drop(inbox);
                    serving.await.unwrap();
                });
            }
        });
        started.recv().unwrap();
        Self { path, stop, thread: Some(thread), _folder: folder }
    }

    fn client(&self) -> Client {
        Client::connect(&self.path).unwrap()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.stop.blocking_send(());
        self.thread.take().unwrap().join().unwrap();
        assert!(!self.path.exists(), "a stopped agent leaves no socket behind");
        assert_eq!(fs::read_dir(self.path.parent().unwrap()).unwrap().count(), 0, "nor a lock");
    }
}

fn attach(namespace: &str) -> Attach {
    let pod = PodName { namespace: namespace.to_owned(), name: "web".to_owned() };
    Attach::new(pod, "/run/netns/web", "eth0")
}

#[test]
fn questions_are_answered_in_turn_on_one_connection() {
    let agent = Agent::start();
    let mut client = agent.client();
    let attached = client.attach(attach("default")).unwrap();
    assert_eq!((attached.device, attached.mtu), (Device::Tun, 1480));
    assert_eq!(client.attach(attach("full")).unwrap_err().kind(), ErrorKind::Exhausted);
    client.detach(attach("default").pod).unwrap();
    assert_eq!(client.denials().unwrap(), []);
}

#[test]
fn slow_answers_are_made_one_at_a_time_and_nothing_else_waits_for_them() {
    let agent = Agent::start();
    let request = manx_api::explain::ExplainRequest {
        from: "slow".to_owned(),
        to: String::new(),
        packet: manx_api::explain::PacketSpec::Icmp(None),
        source_port: 0,
        ipv6: false,
        routes: true,
        uplink: None,
    };
    let mut clients: Vec<Client> = (0..8).map(|_| agent.client()).collect();
    let told: Vec<String> = thread::scope(|scope| {
        let ask = |client: &mut Client| client.explain(request.clone()).unwrap_err().to_string();
        let asking: Vec<_> =
            clients.iter_mut().map(|client| scope.spawn(move || ask(client))).collect();
        assert_eq!(agent.client().denials().unwrap(), []);
        asking.into_iter().map(|asked| asked.join().unwrap()).collect()
    });
    assert_eq!(told, ["0 others at work"; 8]);
}

#[test]
fn an_agent_that_drops_a_question_is_told_from_one_that_refuses() {
    let agent = Agent::start();
    let mut client = agent.client();
    let error = client.status().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal);
    assert_eq!(error.to_string(), "the agent is stopping and answers no more");
}

#[test]
fn a_capture_is_a_stream_after_its_answer() {
    let agent = Agent::start();
    let mut text = String::new();
    io::Read::read_to_string(&mut agent.client().capture("host".to_owned()).unwrap(), &mut text)
        .unwrap();
    assert_eq!(text, "first second");
    let refused = agent.client().capture("nothing".to_owned()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
}

#[test]
fn the_socket_is_its_owners_alone() {
    let agent = Agent::start();
    assert_eq!(fs::metadata(&agent.path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_living_socket_is_not_replaced_and_a_stale_one_is() {
    let agent = Agent::start();
    assert!(matches!(bind(&agent.path), Err(socket::Error::InUse(_))));
    let folder = tempfile::tempdir().unwrap();

    let foreign = folder.path().join("foreign.sock");
    let listener = blocking::UnixListener::bind(&foreign).unwrap();
    assert!(
        matches!(bind(&foreign), Err(socket::Error::InUse(_))),
        "one that takes no lock lives too"
    );
    drop(listener);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _guard = runtime.enter();
    let server = bind(&foreign).unwrap();
    blocking::UnixStream::connect(&foreign).unwrap();
    drop(server);

    let file = folder.path().join("file");
    fs::write(&file, "precious").unwrap();
    assert!(matches!(bind(&file), Err(socket::Error::NotASocket(_))));
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    let long = folder.path().join("x".repeat(120));
    assert!(matches!(bind(&long), Err(socket::Error::PathTooLong(_))));
}

#[test]
fn what_is_no_request_is_told_why_and_the_connection_goes_on() {
    use std::io::{Read as _, Write as _};
    let agent = Agent::start();
    let mut stream = blocking::UnixStream::connect(&agent.path).unwrap();
    let mut told = Vec::new();
    for text in [
        r#"{"version":9,"call":"fly"}"#,
        r#"{"version":3,"call":"fly"}"#,
        "nonsense",
        r#"{"version":3,"call":"denials"}"#,
    ] {
        stream.write_all(&(text.len() as u32).to_le_bytes()).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        let mut header = [0; 4];
        stream.read_exact(&mut header).unwrap();
        let mut bytes = vec![0; manx_api::message_len(header).unwrap()];
        stream.read_exact(&mut bytes).unwrap();
        told.push(match serde_json::from_slice::<Response>(&bytes).unwrap() {
            Ok(reply) => format!("{reply:?}"),
            Err(Failure { kind, message }) => format!("{kind:?}: {message}"),
        });
    }
    insta::assert_snapshot!(told.join("\n"), @r"
    Version: the request speaks version 9 of the agent's protocol, this agent (manx 0.1.0) speaks version 3: use the manx that the agent was started from
    Invalid: a message that does not parse: unknown variant `fly`, expected one of `attach`, `reserve`, `hand-over`, `detach`, `attachments`, `ready`, `removed`, `status`, `routes`, `explain`, `denials`, `flows`, `capture` at line 1 column 25
    Invalid: a message that does not parse: expected ident at line 1 column 2
    Denials([])
    ");
    // A length above the limit ends the connection before memory is allocated for the message.
    stream.write_all(&u32::MAX.to_le_bytes()).unwrap();
    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn a_client_without_an_agent_says_where_it_looked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.sock");
    let error = Client::connect(&path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Environment);
    assert_eq!(
        error.to_string(),
        format!(
            "no agent listens at {} (No such file or directory (os error 2)): start one with `manx node`, or name its socket by --socket",
            path.display()
        )
    );
    drop(blocking::UnixListener::bind(&path).unwrap());
    assert!(matches!(Client::connect(&path), Err(client::Error::NoAgent { .. })));
}

#[test]
fn an_agent_does_not_listen_where_others_can_put_what_they_like() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    let error = bind(&folder.path().join("agent.sock")).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "a socket lies in a folder of its user's alone: others may write to {} (mode 1777); name a socket in such a folder by --socket",
            folder.path().display()
        )
    );
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    let link = folder.path().join("link");
    std::os::unix::fs::symlink("/", &link).unwrap();
    assert!(matches!(bind(&link.join("agent.sock")), Err(socket::Error::Folder(_))));
}
