//! A small API server for tests. It supports discovery, lists and watches, and a test can define the answers to single
//! requests.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::resource::DEFINITIONS;

#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) authorization: String,
    pub(crate) body: Value,
}

/// An answer that a test defines instead of the server's own.
pub(crate) enum Answer {
    /// A status and a JSON body.
    Json(u16, Value),
    /// These bytes with status 200, in pieces of this size, and then nothing more; the connection stays open.
    Pieces(Vec<u8>, usize),
    /// No answer at all.
    Never,
    /// The end of the connection.
    Close,
    /// The server executes the request, and then closes the connection without an answer.
    Lost,
}

type Rule = Box<dyn Fn(&Request) -> Option<Answer> + Send>;

/// The objects and settings of the server.
pub(crate) struct ServerState {
    /// The result of discovery: `GROUP/VERSION`, and the kinds and plurals in it.
    pub(crate) served: BTreeMap<String, Vec<(String, String)>>,
    /// The CRDs.
    pub(crate) definitions: Vec<Value>,
    pub(crate) ready: bool,
    /// The objects, by the path of their list.
    objects: BTreeMap<String, Vec<Value>>,
    /// The lines of the watch, by the path of the list.
    lines: BTreeMap<String, Vec<Value>>,
    pub(crate) rule: Rule,
    pub(crate) asked: Vec<Request>,
    /// The client certificates that the server has received, in order.
    pub(crate) clients: Vec<Vec<u8>>,
    /// The maximum number of pieces of one answer that a client has read.
    pub(crate) taken: usize,
    /// The number of requests that read or wrote single objects.
    version: usize,
    acceptor: Option<TlsAcceptor>,
}

/// The server. It stops when this value is dropped.
pub(crate) struct Fake {
    pub(crate) address: SocketAddr,
    world: Arc<Mutex<ServerState>>,
    thread: Option<(tokio::sync::oneshot::Sender<()>, std::thread::JoinHandle<()>)>,
}

const CORE: [(&str, &str); 5] = [
    ("Namespace", "namespaces"),
    ("Node", "nodes"),
    ("Pod", "pods"),
    ("ServiceAccount", "serviceaccounts"),
    ("Service", "services"),
];

impl Fake {
    /// Starts a server without CRDs and without objects.
    pub(crate) fn start() -> Self {
        Self::start_with(None)
    }

    /// Starts a server. With an acceptor it uses TLS.
    pub(crate) fn start_with(acceptor: Option<TlsAcceptor>) -> Self {
        let of = |kinds: &[(&str, &str)]| {
            kinds.iter().map(|(kind, plural)| ((*kind).to_owned(), (*plural).to_owned())).collect()
        };
        let served = BTreeMap::from([
            ("v1".to_owned(), of(&CORE)),
            ("discovery.k8s.io/v1".to_owned(), of(&[("EndpointSlice", "endpointslices")])),
            ("networking.k8s.io/v1".to_owned(), of(&[("NetworkPolicy", "networkpolicies")])),
        ]);
        let world = Arc::new(Mutex::new(ServerState {
            served,
            definitions: Vec::new(),
            ready: true,
            objects: BTreeMap::new(),
            lines: BTreeMap::new(),
            rule: Box::new(|_| None),
            asked: Vec::new(),
            clients: Vec::new(),
            taken: 0,
            version: 0,
            acceptor,
        }));
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let (told, address) = std::sync::mpsc::channel();
        let of_thread = Arc::clone(&world);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                told.send(listener.local_addr().unwrap()).unwrap();
                tokio::select! {
                    () = accept(listener, of_thread) => {}
                    _ = stopped => {}
                }
            });
        });
        Self { address: address.recv().unwrap(), world, thread: Some((stop, thread)) }
    }

    pub(crate) fn world(&self) -> MutexGuard<'_, ServerState> {
        self.world.lock().unwrap()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.thread.take() {
            drop(stop);
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking());
        }
    }
}

impl ServerState {
    pub(crate) fn set_acceptor(&mut self, acceptor: TlsAcceptor) {
        self.acceptor = Some(acceptor);
    }

    /// Installs a Calico kind. If `served` is set, discovery contains it, too.
    pub(crate) fn define(&mut self, kind: &str, plural: &str, served: bool) {
        let definition = json!({
            "metadata": { "name": format!("{plural}.projectcalico.org") },
            "spec": { "versions": [{ "name": "v3", "served": true }] },
            "status": { "conditions": [{ "type": "Established", "status": "True" }] },
        });
        self.put(DEFINITIONS, definition.clone());
        self.definitions.push(definition);
        if served {
            self.serve(kind, plural);
        }
    }

    pub(crate) fn serve(&mut self, kind: &str, plural: &str) {
        self.serve_in("projectcalico.org/v3", kind, plural);
    }

    /// Adds a kind to the server's discovery.
    pub(crate) fn serve_in(&mut self, api_version: &str, kind: &str, plural: &str) {
        let kinds = self.served.entry(api_version.to_owned()).or_default();
        kinds.push((kind.to_owned(), plural.to_owned()));
    }

    pub(crate) fn put(&mut self, list: &str, object: Value) {
        self.lines
            .entry(list.to_owned())
            .or_default()
            .push(json!({ "type": "ADDED", "object": object }));
        self.objects.entry(list.to_owned()).or_default().push(object);
    }

    /// Adds an object, changes it (`MODIFIED`) or removes it (`DELETED`), with an event.
    pub(crate) fn tell(&mut self, event: &str, list: &str, object: &Value) {
        let all = self.objects.entry(list.to_owned()).or_default();
        all.retain(|it| it["metadata"]["name"] != object["metadata"]["name"]);
        if event != "DELETED" {
            all.push(object.clone());
        }
        let lines = self.lines.entry(list.to_owned()).or_default();
        lines.push(json!({ "type": event, "object": object }));
    }

    /// Removes all objects without events.
    pub(crate) fn clear(&mut self, list: &str) {
        self.objects.remove(list);
    }

    fn list(&self, asked: &Request) -> Value {
        let all = self.objects.get(&asked.path).map(Vec::as_slice).unwrap_or_default();
        // A selector consists of one label and its value.
        let selector = parameter(&asked.query, "labelSelector").unwrap_or_default();
        let is_selected = |object: &&Value| match selector.split_once('=') {
            Some((label, value)) => object["metadata"]["labels"][label] == value,
            None => true,
        };
        let all: Vec<&Value> = all.iter().filter(is_selected).collect();
        let number =
            |name: &str| parameter(&asked.query, name).and_then(|it| it.parse::<usize>().ok());
        let from = number("continue").unwrap_or(0);
        let to = all.len().min(from + number("limit").unwrap_or(usize::MAX - from));
        let next = if to < all.len() { to.to_string() } else { String::new() };
        let version = self.lines.get(&asked.path).map_or(0, Vec::len).to_string();
        json!({ "kind": "List", "metadata": { "resourceVersion": version, "continue": next }, "items": all[from..to] })
    }

    /// Returns whether the path is the path of a kind's objects, either all or those of one namespace.
    fn has(&self, path: &str) -> bool {
        let of_namespace = path.split_once("/namespaces/").and_then(|(group, rest)| {
            let (_, plural) = rest.split_once('/')?;
            Some(format!("{group}/{plural}"))
        });
        let path = of_namespace.as_deref().unwrap_or(path);
        self.served.iter().any(|(version, kinds)| {
            let group = if version.contains('/') { "/apis/" } else { "/api/" };
            kinds.iter().any(|(_, plural)| path == format!("{group}{version}/{plural}"))
        })
    }

    /// Answers a request for a single object. The object is read or created, or it is replaced or deleted if it has the
    /// version in the request. As in a real server, a uid in the request is a precondition. A request to replace an
    /// object that is gone does not meet it.
    fn one(&mut self, asked: &Request) -> Option<(u16, Value)> {
        let (list, name) = match asked.method.as_str() {
            "POST" => (asked.path.as_str(), asked.body["metadata"]["name"].as_str()?),
            _ => asked.path.rsplit_once('/')?,
        };
        if !self.has(list) {
            return None;
        }
        self.version += 1;
        let mut new = asked.body.clone();
        let named = match asked.method.as_str() {
            "DELETE" => new["preconditions"].take(),
            _ => new["metadata"].clone(),
        };
        new["metadata"]["resourceVersion"] = self.version.to_string().into();
        let all = self.objects.entry(list.to_owned()).or_default();
        let known = all.iter().position(|it| it["metadata"]["name"] == name);
        let is_named = |at: usize| {
            let metadata = &all[at]["metadata"];
            metadata["resourceVersion"] == named["resourceVersion"]
                && (named["uid"].is_null() || metadata["uid"] == named["uid"])
        };
        match (asked.method.as_str(), known) {
            ("GET", Some(at)) => return Some((200, all[at].clone())),
            ("POST", None) => {
                new["metadata"]["uid"] = format!("u-{}", self.version).into();
                all.push(new.clone());
            }
            ("PUT", Some(at)) if is_named(at) => {
                new["metadata"]["uid"] = all[at]["metadata"]["uid"].clone();
                all[at] = new.clone();
            }
            ("DELETE", Some(at)) if is_named(at) => {
                all.remove(at);
                return Some((200, json!({ "kind": "Status", "status": "Success" })));
            }
            ("PUT", None) if !named["uid"].is_null() => {
                return Some((409, status(409, "the uid is of another")));
            }
            ("POST" | "PUT" | "DELETE", Some(_)) => {
                return Some((409, status(409, "there is another")));
            }
            ("GET" | "PUT" | "DELETE", None) => return Some((404, status(404, "there is none"))),
            _ => return None,
        }
        Some((200, new))
    }

    fn answer(&mut self, asked: &Request) -> (u16, Value) {
        if let Some(answer) = self.one(asked) {
            return answer;
        }
        let path = asked.path.as_str();
        let version = path.strip_prefix("/apis/").or_else(|| path.strip_prefix("/api/"));
        match path {
            "/version" => (200, json!({ "major": "1", "minor": "35" })),
            "/readyz" if self.ready => (200, json!("ok")),
            "/readyz" => (500, json!("[-]poststarthook/crd-informer-synced failed")),
            "/apis" => {
                let groups =
                    self.served.keys().filter_map(|it| it.split_once('/').map(|all| (it, all)));
                let groups = groups.map(|(both, (group, version))| {
                    json!({ "name": group, "versions": [{ "groupVersion": both, "version": version }] })
                });
                (200, json!({ "kind": "APIGroupList", "groups": groups.collect::<Vec<_>>() }))
            }
            DEFINITIONS => {
                let name = parameter(&asked.query, "fieldSelector").unwrap_or_default();
                let is_asked = |it: &&Value| {
                    name.is_empty() || name.ends_with(it["metadata"]["name"].as_str().unwrap())
                };
                let items: Vec<&Value> = self.definitions.iter().filter(is_asked).collect();
                (200, json!({ "kind": "CustomResourceDefinitionList", "items": items }))
            }
            _ => match version.and_then(|version| Some((version, self.served.get(version)?))) {
                Some((version, kinds)) => {
                    let one = |(kind, plural): &(String, String)| json!({ "name": plural, "kind": kind, "singularName": "", "namespaced": true, "verbs": [] });
                    let all: Vec<Value> = kinds.iter().map(one).collect();
                    (200, json!({ "groupVersion": version, "resources": all }))
                }
                None if self.has(path) => (200, self.list(asked)),
                None => (404, status(404, "the server could not find the requested resource")),
            },
        }
    }
}

pub(crate) fn status(code: u16, message: &str) -> Value {
    json!({ "kind": "Status", "status": "Failure", "code": code, "message": message, "reason": "" })
}

fn parameter(query: &str, name: &str) -> Option<String> {
    let mut all = query.split('&').filter_map(|it| it.split_once('='));
    all.find(|(key, _)| *key == name)
        .map(|(_, value)| value.replace("%3D", "=").replace("%2F", "/"))
}

async fn accept(listener: TcpListener, world: Arc<Mutex<ServerState>>) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (world, acceptor) = (Arc::clone(&world), world.lock().unwrap().acceptor.clone());
        tokio::spawn(async move {
            match acceptor {
                None => serve(stream, &world).await,
                Some(acceptor) => {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        let shown = stream.get_ref().1.peer_certificates().unwrap_or_default();
                        let shown = shown.iter().map(|it| it.to_vec());
                        world.lock().unwrap().clients.extend(shown);
                        serve(stream, &world).await;
                    }
                }
            }
        });
    }
}

/// Serves the requests of one connection until it ends.
async fn serve(mut stream: impl AsyncRead + AsyncWrite + Unpin, world: &Mutex<ServerState>) {
    while let Some(asked) = read(&mut stream).await {
        let rule = {
            let mut world = world.lock().unwrap();
            world.asked.push(asked.clone());
            (world.rule)(&asked)
        };
        let is_watch = asked.query.contains("watch=true");
        let (code, answer) = match rule {
            Some(Answer::Never) => return std::future::pending().await,
            Some(Answer::Close) => return,
            Some(Answer::Lost) => {
                world.lock().unwrap().answer(&asked);
                return;
            }
            Some(Answer::Pieces(piece, times)) => {
                if stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.is_err() {
                    return;
                }
                for at in 1..=times {
                    if stream.write_all(&piece).await.is_err() {
                        return;
                    }
                    let mut world = world.lock().unwrap();
                    world.taken = world.taken.max(at);
                }
                _ = stream.flush().await;
                return std::future::pending().await;
            }
            Some(Answer::Json(code, answer)) => (code, answer),
            None if is_watch && asked.query.contains("sendInitialEvents") => {
                (422, status(422, "sendInitialEvents is forbidden"))
            }
            None if is_watch => {
                let found = world.lock().unwrap().answer(&asked);
                if found.0 == 200 {
                    return watch(stream, &asked, world).await;
                }
                found
            }
            None => world.lock().unwrap().answer(&asked),
        };
        let text = answer.to_string();
        let head = format!("HTTP/1.1 {code} X\r\ncontent-length: {}\r\n\r\n", text.len());
        if stream.write_all(&[head.as_bytes(), text.as_bytes()].concat()).await.is_err() {
            return;
        }
        _ = stream.flush().await;
    }
}

/// Sends the lines from the requested version on, as long as the kind is served.
async fn watch(mut stream: impl AsyncWrite + Unpin, asked: &Request, world: &Mutex<ServerState>) {
    let version = parameter(&asked.query, "resourceVersion").and_then(|it| it.parse().ok());
    let mut at: usize = version.unwrap_or(0);
    if stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.is_err() {
        return;
    }
    loop {
        let new = {
            let world = world.lock().unwrap();
            if matches!((world.rule)(asked), Some(Answer::Close)) {
                return;
            }
            if !asked.path.contains("apiextensions") && !world.has(&asked.path) {
                return;
            }
            let all = world.lines.get(&asked.path).map(Vec::as_slice).unwrap_or_default();
            all.get(at..).unwrap_or_default().to_vec()
        };
        for mut line in new {
            at += 1;
            line["object"]["metadata"]["resourceVersion"] = at.to_string().into();
            if stream.write_all(format!("{line}\n").as_bytes()).await.is_err() {
                return;
            }
        }
        _ = stream.flush().await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn read(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> Option<Request> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
        // A client that uses TLS gets the answer of a server without TLS.
        if head == [0x16] {
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.ok()?;
            return None;
        }
    }
    let head = String::from_utf8(head).ok()?;
    let field = |name: &str| {
        let line = head.lines().find(|line| line.to_ascii_lowercase().starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let mut body = vec![0; field("content-length").and_then(|it| it.parse().ok()).unwrap_or(0)];
    stream.read_exact(&mut body).await.ok()?;
    let mut words = head.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?);
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    Some(Request {
        method,
        path: path.to_owned(),
        query: query.to_owned(),
        authorization: field("authorization").unwrap_or_default(),
        body: serde_json::from_slice(&body).unwrap_or_default(),
    })
}
