//! The effects of a server's answers, with the server of `fake`.

use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use manx_objects::problem::{Cause, Place, Problem, Severity};
use serde_json::json;

use super::fake::{Answer, Fake, status};
use super::*;
use crate::followed::{Snapshot, Trouble};

/// The maximum wait for an expected event.
const PATIENCE: Duration = Duration::from_secs(20);
/// The time for which a test waits to be sure that an event does not happen.
const NEVER: Duration = Duration::from_millis(1500);

fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(test)
}

fn access(server: &Fake) -> Access {
    Access { endpoint: Some(format!("http://{}", server.address)), ..Access::default() }
}

fn follower(state: Option<&Path>) -> Follower {
    Follower {
        node: "n1".to_owned(),
        namespace: "kube-system".to_owned(),
        state: state.map(Path::to_owned),
    }
}

async fn open(server: &Fake, state: Option<&Path>) -> ApiServer {
    let opened = ApiServer::open(access(server), follower(state), |_| ());
    timeout(PATIENCE, opened).await.expect("not in sync").unwrap()
}

/// Follows the server until a condition holds.
async fn until(server: &mut ApiServer, mut holds: impl FnMut(&ApiServer) -> bool) {
    let start = Instant::now();
    while !holds(server) {
        assert!(start.elapsed() < PATIENCE, "{:?} {:?}", server.stale(), server.warnings());
        let _ = timeout(Duration::from_millis(50), server.next()).await;
    }
}

const POLICIES: &str = "/apis/projectcalico.org/v3/globalnetworkpolicies";

fn deny_all() -> Value {
    json!({ "metadata": { "name": "deny" }, "spec": { "types": ["Ingress"] } })
}

fn policies(server: &ApiServer) -> usize {
    server.contents().of_kind(Kind::GlobalNetworkPolicy).count()
}

fn stale(server: &ApiServer) -> String {
    server.stale().map(|stale| stale.reason).unwrap_or_default()
}

#[test]
fn a_kind_that_a_starting_server_does_not_serve_yet_is_waited_for() {
    run(async {
        let server = Fake::start();
        server.world().define("GlobalNetworkPolicy", "globalnetworkpolicies", false);
        server.world().put(POLICIES, deny_all());
        let opened = ApiServer::open(access(&server), follower(None), |_| ());
        let mut opened = Box::pin(opened);
        assert!(timeout(NEVER, &mut opened).await.is_err(), "in sync without the policies");
        server.world().serve("GlobalNetworkPolicy", "globalnetworkpolicies");
        let opened = timeout(PATIENCE, opened).await.unwrap().unwrap();
        assert_eq!(policies(&opened), 1);
    });
}

#[test]
fn a_kind_that_is_installed_counts_as_soon_as_the_server_serves_it() {
    run(async {
        let server = Fake::start();
        let mut opened = open(&server, None).await;
        server.world().define("GlobalNetworkPolicy", "globalnetworkpolicies", false);
        server.world().put(POLICIES, deny_all());
        // The server needs more time than the agent's look-ups, so the agent reports the reason for its wait.
        until(&mut opened, |it| stale(it).contains("globalnetworkpolicies")).await;
        server.world().serve("GlobalNetworkPolicy", "globalnetworkpolicies");
        until(&mut opened, |it| policies(it) == 1 && it.stale().is_none()).await;
    });
}

#[test]
fn what_a_server_lacks_while_it_is_not_ready_is_not_missing() {
    run(async {
        let server = Fake::start();
        server.world().ready = false;
        let mut opened = Box::pin(ApiServer::open(access(&server), follower(None), |_| ()));
        assert!(timeout(NEVER, &mut opened).await.is_err(), "in sync without Calico's kinds");
        server.world().ready = true;
        let opened = timeout(PATIENCE, opened).await.unwrap().unwrap();
        assert_eq!(opened.stale(), None);
        assert!(opened.contents().in_sync);
    });
}

#[test]
fn a_kind_that_is_served_no_longer_stays_in_force_until_its_definition_is_gone() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let server = Fake::start();
        server.world().define("GlobalNetworkPolicy", "globalnetworkpolicies", true);
        server.world().put(POLICIES, deny_all());
        let mut opened = open(&server, Some(&state)).await;
        assert_eq!((policies(&opened), stale(&opened)), (1, String::new()));
        // This is the state after a restart of the server: all watches have ended, and discovery is not complete yet.
        let group = server.world().served.remove("projectcalico.org/v3").unwrap();
        until(&mut opened, |it| stale(it).contains("GlobalNetworkPolicy")).await;
        let reason = stale(&opened);
        let name = "CustomResourceDefinition globalnetworkpolicies.projectcalico.org is there";
        assert!(reason.contains(name), "{reason}");
        assert_eq!(policies(&opened), 1, "it stays in force");
        tokio::time::sleep(NEVER).await;
        let on_disk = String::from_utf8(fs::read(&state).unwrap()).unwrap();
        assert!(on_disk.contains("GlobalNetworkPolicy//deny"), "and stays on disk: {on_disk}");
        assert!(!on_disk.contains("-\"GlobalNetworkPolicy//deny"));
        // The kind is served again, and then its definition is deleted.
        server.world().served.insert("projectcalico.org/v3".to_owned(), group);
        until(&mut opened, |it| it.stale().is_none()).await;
        assert_eq!(policies(&opened), 1);
        server.world().served.remove("projectcalico.org/v3");
        server.world().definitions.clear();
        until(&mut opened, |it| policies(it) == 0 && it.stale().is_none()).await;
    });
}

#[test]
fn a_start_beside_a_server_that_does_not_serve_a_kind_yet_uses_the_last_state() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let [state, probe, copy] = ["state", "probe", "copy"].map(|it| folder.path().join(it));
        let server = Fake::start();
        server.world().define("GlobalNetworkPolicy", "globalnetworkpolicies", true);
        server.world().put(POLICIES, deny_all());
        let mut last = open(&server, Some(&state)).await;
        // The last agent still holds its file, and a reader locks a file for a moment.
        until(&mut last, |_| {
            fs::copy(&state, &probe).unwrap();
            Snapshot::open(&probe, *SERVER, &Trouble::default()).1.is_some()
        })
        .await;
        fs::copy(&probe, &copy).unwrap();
        server.world().served.remove("projectcalico.org/v3");
        let mut next = open(&server, Some(&copy)).await;
        assert_eq!(policies(&next), 1);
        let reason = stale(&next);
        assert!(reason.contains("not all objects were listed since the start"), "{reason}");
        assert!(reason.contains("GlobalNetworkPolicy: CustomResourceDefinition"), "{reason}");
        server.world().definitions.clear();
        until(&mut next, |it| policies(it) == 0 && it.stale().is_none()).await;
    });
}

#[test]
fn a_refusal_of_one_kind_is_told_at_once() {
    run(async {
        let server = Fake::start();
        let mut opened = open(&server, None).await;
        let pods = "/api/v1/pods";
        server.world().rule = Box::new(move |asked| {
            (asked.path == pods).then(|| Answer::Json(503, status(503, "storage is initializing")))
        });
        // The current watch ends, so the kind is looked up again.
        let core = server.world().served.remove("v1").unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
        server.world().served.insert("v1".to_owned(), core);
        let start = Instant::now();
        until(&mut opened, |it| stale(it).contains("Pod: storage is initializing")).await;
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    });
}

#[test]
fn a_line_of_a_watch_that_is_too_long_is_a_fault_that_names_kind_and_size() {
    run(async {
        let server = Fake::start();
        server.world().rule = Box::new(|asked| {
            let is_watch = asked.path == "/api/v1/pods" && asked.query.contains("watch=true");
            let piece = vec![b'x'; 1 << 20];
            (is_watch && !asked.query.contains("sendInitialEvents"))
                .then_some(Answer::Pieces(piece, 300))
        });
        let mut opened = open(&server, None).await;
        until(&mut opened, |it| stale(it).contains("Pod")).await;
        assert_eq!(
            stale(&opened),
            "Pod: the server sent a line of a watch of more than 8388608 bytes, expected no more for one object: it was \
             read no further"
        );
        // Data in the sockets' buffers was already sent.
        let taken = server.world().taken;
        assert!((8..32).contains(&taken), "{taken} MiB of 300 were taken");
    });
}

#[test]
fn a_page_that_is_too_long_is_read_in_shorter_ones_and_an_object_that_is_too_long_is_a_fault() {
    run(async {
        let server = Fake::start();
        let pod = |at: usize, len: usize| {
            let metadata = json!({ "namespace": "shop", "name": format!("p{at}") });
            json!({ "metadata": metadata, "spec": { "volumes": "x".repeat(len) } })
        };
        for at in 0..30 {
            server.world().put("/api/v1/pods", pod(at, 1_000_000));
        }
        let opened = open(&server, None).await;
        assert_eq!(opened.contents().of_kind(Kind::Pod).count(), 30);
        drop(opened);
        server.world().put("/api/v1/pods", pod(30, connection::MOST));
        let connection = access(&server).connect().await.unwrap();
        let pods = resource::find(&connection, Kind::Pod.into()).await.unwrap().unwrap();
        let error = follow::read_pages(&connection, &pods, "", drop).await.unwrap_err();
        let words = fault::words(&error);
        assert!(
            words.starts_with("the server sent an answer of more than 8388608 bytes"),
            "{words}"
        );
    });
}

#[test]
fn a_token_file_that_ends_in_a_line_break_is_taken_and_a_new_token_as_well() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let token = folder.path().join("token");
        fs::write(&token, "secret\n").unwrap();
        let server = Fake::start();
        let kubeconfig = folder.path().join("kubeconfig");
        let text = format!(
            "{{clusters: [{{name: c, cluster: {{server: 'http://{}'}}}}], users: [{{name: u, user: {{tokenFile: {}}}}}], \
             contexts: [{{name: x, context: {{cluster: c, user: u}}}}], current-context: x}}",
            server.address,
            token.display()
        );
        fs::write(&kubeconfig, text).unwrap();
        let access = Access { kubeconfig: Some(kubeconfig.clone()), ..Access::default() };
        let open = || ApiServer::open(access.clone(), follower(None), |_| ());
        let mut opened = timeout(PATIENCE, open()).await.unwrap().unwrap();
        let sent = |token: &str| server.world().asked.iter().any(|it| it.authorization == token);
        assert!(sent("Bearer secret") && !sent(""));
        // From now on the server accepts only another token. The file gets this token by a rename, as kubelet does it.
        server.world().rule = Box::new(|asked| {
            let is_old = asked.authorization != "Bearer other";
            is_old.then(|| Answer::Json(401, status(401, "Unauthorized")))
        });
        until(&mut opened, |it| stale(it).contains("Unauthorized")).await;
        fs::write(&kubeconfig, "clusters: [{name: c, clu").unwrap();
        fs::write(folder.path().join("new"), "\tother\r\n").unwrap();
        fs::rename(folder.path().join("new"), &token).unwrap();
        until(&mut opened, |it| stale(it).contains("kubeconfig")).await;
        let text = format!(
            "{{clusters: [{{name: c, cluster: {{server: 'http://{}'}}}}], users: [{{name: u, user: {{tokenFile: {}}}}}], \
             contexts: [{{name: x, context: {{cluster: c, user: u}}}}], current-context: x}}",
            server.address,
            token.display()
        );
        fs::write(&kubeconfig, text).unwrap();
        until(&mut opened, |it| it.stale().is_none()).await;
        assert!(sent("Bearer other"));
    });
}

fn problem(name: &str) -> Problem {
    Problem {
        severity: Severity::Error,
        place: Place { file: "https://192.0.2.1:6443/".into(), document: 0, at: None },
        object: Some(ObjectKey {
            kind: Kind::NetworkPolicy,
            namespace: "shop".to_owned(),
            name: name.to_owned(),
        }),
        field: "spec".to_owned(),
        cause: Cause::Syntax("wrong".to_owned()),
        line: None,
    }
}

#[test]
fn an_event_that_is_never_written_holds_up_no_other_and_is_given_up() {
    run(async {
        let server = Fake::start();
        let node = json!({ "metadata": { "name": "n1" } });
        server.world().put("/api/v1/nodes", node);
        let mut opened = open(&server, None).await;
        server.world().rule = Box::new(|asked| {
            let name = asked.path.rsplit('/').next().unwrap_or_default();
            let regarding = asked.body["regarding"]["name"].as_str().unwrap_or_default();
            match (asked.method.as_str(), name, regarding) {
                ("GET", "a" | "b" | "c" | "d", _) => {
                    let metadata = json!({ "name": name, "namespace": "shop", "uid": name });
                    Some(Answer::Json(200, json!({ "metadata": metadata })))
                }
                ("POST", "events", "a") => Some(Answer::Json(500, status(500, "webhook"))),
                ("POST", "events", "b") => Some(Answer::Never),
                ("POST", "events", "c") => Some(Answer::Json(403, status(403, "forbidden here"))),
                ("POST", "events", "d") => Some(Answer::Json(201, json!({}))),
                _ => None,
            }
        });
        opened.report(&["a", "b", "c", "d"].map(problem));
        let written = |name: &str| {
            let world = server.world();
            let posts = world.asked.iter().filter(|it| it.method == "POST");
            posts.filter(|it| it.body["regarding"]["name"] == name).count()
        };
        until(&mut opened, |_| written("d") == 1).await;
        assert_eq!((written("a"), written("b"), written("c")), (1, 1, 1));
        let told = "1 Events about objects could not be written; the last one about NetworkPolicy shop/c: forbidden here";
        assert_eq!(opened.warnings(), [told]);
    });
}

#[test]
fn what_happens_at_the_node_is_an_event_of_its_object_and_is_tried_again_only_if_that_may_help() {
    run(async {
        let server = Fake::start();
        let node = json!({ "metadata": { "name": "n1", "uid": "u-1" } });
        server.world().put("/api/v1/nodes", node.clone());
        let mut opened = open(&server, None).await;
        server.world().rule = Box::new(move |asked| match (asked.method.as_str(), &*asked.path) {
            ("GET", "/api/v1/nodes/n1") => Some(Answer::Json(200, node.clone())),
            ("POST", _) if asked.body["reason"] == "BgpSessionUp" => {
                Some(Answer::Json(403, status(403, "forbidden here")))
            }
            ("POST", _) => Some(Answer::Json(201, json!({}))),
            _ => None,
        });
        let tell = |opened: &ApiServer, reason, peer: &str| {
            let text = format!("{reason} {peer}");
            let happening = Happening { reason, action: "Speak", is_warning: true, text };
            opened.tell(peer.to_owned(), happening);
        };
        tell(&opened, "BgpSessionDown", "10.0.0.1");
        tell(&opened, "BgpSessionUp", "10.0.0.2");
        let posts = || {
            let world = server.world();
            let posts = world.asked.iter().filter(|it| it.method == "POST");
            posts.map(|it| (it.path.clone(), it.body.clone())).collect::<Vec<_>>()
        };
        until(&mut opened, |_| posts().len() == 2).await;
        for (path, body) in posts() {
            assert_eq!(path, "/apis/events.k8s.io/v1/namespaces/default/events");
            let regarding =
                json!({ "apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u-1" });
            assert_eq!(body["regarding"], regarding);
        }
        until(&mut opened, |it| !it.warnings().is_empty()).await;
        let told = "1 Events about objects could not be written; the last one about Node n1: forbidden here";
        assert_eq!(opened.warnings(), [told]);
    });
}

/// Starts a server with the Node `n1` that gives this answer to each write of the Node's status.
fn server_of_node(written: impl Fn(usize) -> Answer + Send + 'static) -> Fake {
    let server = Fake::start();
    let node = json!({ "metadata": { "name": "n1", "resourceVersion": "7" } });
    server.world().put("/api/v1/nodes", node.clone());
    let times = AtomicUsize::new(0);
    server.world().rule = Box::new(move |asked| match (asked.method.as_str(), &*asked.path) {
        ("GET", "/api/v1/nodes/n1") => Some(Answer::Json(200, node.clone())),
        ("PATCH", "/api/v1/nodes/n1/status") => Some(written(times.fetch_add(1, Relaxed))),
        _ => None,
    });
    server
}

/// Returns the patches of the condition: status, reason, and the version of the Node for which each was made.
fn conditions(server: &Fake) -> Vec<String> {
    let world = server.world();
    let patches = world.asked.iter().filter(|it| it.method == "PATCH").map(|it| &it.body);
    let one = |body: &Value| {
        let condition = &body["status"]["conditions"][0];
        assert_eq!(condition["type"], "NetworkUnavailable");
        let version = &body["metadata"]["resourceVersion"];
        format!("{} {} {version}", condition["status"], condition["reason"])
    };
    patches.map(one).collect()
}

#[test]
fn a_nodes_condition_is_written_once_for_each_change_and_tried_again_when_that_fails() {
    run(async {
        let server = server_of_node(|at| match at {
            0 => Answer::Json(409, status(409, "the object has been modified")),
            1 | 2 => Answer::Json(403, status(403, "forbidden here")),
            3 => Answer::Close,
            _ => Answer::Json(200, json!({})),
        });
        let mut opened = open(&server, None).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(conditions(&server), [""; 0], "nothing before the agent says so");
        opened.tell_network_up();
        until(&mut opened, |it| !it.warnings().is_empty()).await;
        let told = "the condition NetworkUnavailable of Node \"n1\" could not be written: ";
        assert!(opened.warnings()[0].starts_with(told), "{:?}", opened.warnings());
        until(&mut opened, |_| conditions(&server).len() == 5).await;
        until(&mut opened, |it| it.warnings().is_empty()).await;
        // A new connection does not cause a write.
        let usual = std::mem::replace(&mut server.world().rule, Box::new(|_| Some(Answer::Close)));
        until(&mut opened, |it| it.stale().is_some()).await;
        server.world().rule = usual;
        until(&mut opened, |it| it.stale().is_none()).await;
        opened.tell_network_up();
        tokio::time::sleep(NEVER).await;
        let up = r#""False" "ManxIsUp" "7""#;
        assert_eq!(conditions(&server), [up; 5]);
        opened.tell_network_down().await;
        assert_eq!(conditions(&server)[5..], [r#""True" "ManxIsDown" "7""#]);
    });
}

#[test]
fn an_agent_that_ends_waits_a_second_for_its_nodes_condition_and_no_longer() {
    run(async {
        let server = server_of_node(|_| Answer::Never);
        let opened = open(&server, None).await;
        let start = Instant::now();
        opened.tell_network_down().await;
        let took = start.elapsed();
        assert!((Duration::from_secs(1)..Duration::from_secs(3)).contains(&took), "{took:?}");
        assert_eq!(conditions(&server), [r#""True" "ManxIsDown" "7""#]);
    });
}

#[test]
fn a_damaged_state_is_set_aside_and_said_and_the_next_one_is_whole() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        fs::write(&state, "redb: torn").unwrap();
        let server = Fake::start();
        let mut opened = open(&server, Some(&state)).await;
        assert_eq!(fs::read(folder.path().join("state.damaged")).unwrap(), b"redb: torn");
        until(&mut opened, |it| it.warnings().is_empty()).await;
        drop(opened);
        // The thread notices that its receiver is gone when it sends the next event.
        drop(server);
        let loaded = loop {
            let trouble = Trouble::default();
            let (_, loaded) = Snapshot::open(&state, *SERVER, &trouble);
            match trouble.text() {
                None => break loaded,
                Some(text) => assert!(text.contains("another process"), "{text}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        assert!(loaded.is_some());
        assert!(!fs::exists(folder.path().join("state.new")).unwrap());
    });
}

/// Returns a TLS acceptor with a certificate that `openssl ca` made for these tests. There are certificates for
/// 127.0.0.1 that are valid until 2120, from two authorities. There are also one that has expired, one that is not
/// valid yet, and one for another name. All have the same key.
fn acceptor(certificate: &str) -> tokio_rustls::TlsAcceptor {
    acceptor_for(certificate, rustls::server::WebPkiClientVerifier::no_client_auth())
}

fn acceptor_for(
    certificate: &str,
    clients: Arc<dyn rustls::server::danger::ClientCertVerifier>,
) -> tokio_rustls::TlsAcceptor {
    use rustls::ServerConfig;
    use rustls::pki_types::PrivateKeyDer;
    use rustls::pki_types::pem::PemObject as _;
    let chain = vec![of_pem(certificate)];
    let key = PrivateKeyDer::from_pem_file(Path::new(FILES).join("server.key")).unwrap();
    let config = ServerConfig::builder().with_client_cert_verifier(clients);
    Arc::new(config.with_single_cert(chain, key).unwrap()).into()
}

fn of_pem(name: &str) -> rustls::pki_types::CertificateDer<'static> {
    use rustls::pki_types::pem::PemObject as _;
    rustls::pki_types::CertificateDer::from_pem_file(Path::new(FILES).join(name)).unwrap()
}

const FILES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/api_server/fake");

#[test]
fn a_certificate_that_is_not_trusted_is_told_with_its_cause() {
    run(async {
        let mut texts = Vec::new();
        let wrong = [
            "server-of-other.pem",
            "server-expired.pem",
            "server-not-yet.pem",
            "server-elsewhere.pem",
        ];
        for certificate in wrong {
            let server = Fake::start_with(Some(acceptor(certificate)));
            let access = Access {
                endpoint: Some(format!("https://{}", server.address)),
                authority: Some(Path::new(FILES).join("authority.pem")),
                ..Access::default()
            };
            let connection = access.connect().await.unwrap();
            let text = probe(&connection).await.unwrap_err();
            // The rest of the library's message contains times.
            texts.push(text.split(" (verification").next().unwrap().to_owned());
        }
        let plain = Fake::start();
        let endpoint = Some(format!("https://{}", plain.address));
        let connection = Access { endpoint, ..Access::default() }.connect().await.unwrap();
        texts.push(probe(&connection).await.unwrap_err());
        let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let endpoint = Some(format!("https://{gone}"));
        let connection = Access { endpoint, ..Access::default() }.connect().await.unwrap();
        texts.push(probe(&connection).await.unwrap_err());
        insta::assert_snapshot!(texts.join("\n"), @r#"
        the API server's certificate is not signed by an authority that the agent trusts: look at --api-ca, at the kubeconfig's certificate-authority, or at the service account's ca.crt
        the API server's certificate has expired, or the clock of this node is wrong
        the API server's certificate is not valid yet, or the clock of this node is wrong
        the API server's certificate is for another name than the server's address (not valid for name "127.0.0.1"; certificate is only valid for DnsName("elsewhere.example"))
        the API server's port speaks no TLS: found something else, expected https
        cannot connect: tcp connect error: Connection refused (os error 111)
        "#);
    });
}

#[test]
fn certificates_of_the_server_and_of_its_authority_may_be_replaced_while_the_agent_runs() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let authority = folder.path().join("ca.crt");
        let file = |name: &str| fs::read(Path::new(FILES).join(name)).unwrap();
        fs::write(&authority, file("authority.pem")).unwrap();
        let server = Fake::start_with(Some(acceptor("server.pem")));
        let access = Access {
            endpoint: Some(format!("https://{}", server.address)),
            authority: Some(authority.clone()),
            ..Access::default()
        };
        let opened = ApiServer::open(access, follower(None), |_| ());
        let mut opened = timeout(PATIENCE, opened).await.unwrap().unwrap();
        // The server is restarted with a certificate of another authority.
        server.world().set_acceptor(acceptor("server-of-other.pem"));
        server.world().rule = Box::new(|_| Some(Answer::Close));
        until(&mut opened, |it| stale(it).contains("is not signed by an authority")).await;
        server.world().rule = Box::new(|_| None);
        // An incomplete file is not used, and the previous certificates stay in force.
        let new = file("other-authority.pem");
        fs::write(&authority, &new[..new.len() / 2]).unwrap();
        until(&mut opened, |it| stale(it).contains("no certificate of an authority")).await;
        assert!(opened.contents().in_sync);
        fs::write(folder.path().join("new"), new).unwrap();
        fs::rename(folder.path().join("new"), &authority).unwrap();
        until(&mut opened, |it| it.stale().is_none()).await;
    });
}

#[test]
fn a_clients_certificate_that_is_replaced_is_shown_at_the_next_connection() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        // The certificates are self-signed, and the server accepts both.
        let names = ["client.pem", "other-client.pem"];
        let mut roots = rustls::RootCertStore::empty();
        for name in names {
            roots.add(of_pem(name)).unwrap();
        }
        let clients = rustls::server::WebPkiClientVerifier::builder(roots.into());
        let acceptor = acceptor_for("server.pem", clients.build().unwrap());
        let server = Fake::start_with(Some(acceptor));
        fs::copy(Path::new(FILES).join(names[0]), path("client.crt")).unwrap();
        let kubeconfig = json!({
            "clusters": [{ "name": "c", "cluster": {
                "server": format!("https://{}", server.address),
                "certificate-authority": Path::new(FILES).join("authority.pem"),
            } }],
            "users": [{ "name": "u", "user": {
                "client-certificate": path("client.crt"),
                "client-key": Path::new(FILES).join("server.key"),
            } }],
            "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
            "current-context": "c",
        });
        fs::write(path("kubeconfig"), kubeconfig.to_string()).unwrap();
        let access = Access { kubeconfig: Some(path("kubeconfig")), ..Access::default() };
        let opened = ApiServer::open(access, follower(None), |_| ());
        let mut opened = timeout(PATIENCE, opened).await.unwrap().unwrap();
        let shown = |server: &Fake| std::mem::take(&mut server.world().clients);
        let (one, other) = (of_pem(names[0]).to_vec(), of_pem(names[1]).to_vec());
        let before = shown(&server);
        assert!(!before.is_empty() && before.iter().all(|it| *it == one));
        // An incomplete file is not used.
        let new = fs::read(Path::new(FILES).join(names[1])).unwrap();
        fs::write(path("client.crt"), &new[..new.len() / 2]).unwrap();
        server.world().rule = Box::new(|_| Some(Answer::Close));
        until(&mut opened, |it| stale(it).contains("no client can be made")).await;
        server.world().rule = Box::new(|_| None);
        shown(&server);
        fs::write(path("new"), new).unwrap();
        fs::rename(path("new"), path("client.crt")).unwrap();
        until(&mut opened, |it| it.stale().is_none()).await;
        let after = shown(&server);
        assert!(!after.is_empty() && after.iter().all(|it| *it == other));
    });
}
