//! Sessions with BIRD, which Calico's nodes and many routers run.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use manx_bgp::peer::{Peer, SecretKey};
use manx_fixtures::skip::{Need, skip};
use tempfile::TempDir;

use super::net::{
    A, A6, B, B6, configuration, in_namespace, is_established, learned, peer, speaker, status,
    stays, wait_for,
};
use crate::status::SessionState;
use crate::{Password, Speaker};

/// A running BIRD with its own folder. It is killed when this is dropped.
struct Bird {
    folder: TempDir,
    child: Child,
}

impl Bird {
    /// Starts BIRD with a configuration. Returns `None` if BIRD is not installed and the test may be left out.
    fn start(test: &str, configuration: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        match run(folder.path(), configuration, &[]) {
            Ok(child) => {
                let bird = Self { folder, child };
                wait_for("BIRD's socket", &true, || {
                    bird.ask("show status").contains("up and running")
                });
                Some(bird)
            }
            Err(error) => {
                let reason = format!("bird (apt-get install bird2): {error}");
                skip(Need::Bird, test, &reason);
                None
            }
        }
    }

    /// Kills BIRD, like a crash, and waits until it is gone.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts BIRD again, in the mode of a graceful restart: it has kept its routes in the kernel.
    fn restart(&mut self, configuration: &str) {
        self.child = run(self.folder.path(), configuration, &["-R"]).unwrap();
    }

    /// Loads another configuration into BIRD.
    fn configure(&self, configuration: &str) {
        write(self.folder.path(), configuration);
        let answer = self.ask("configure");
        assert!(answer.contains("Reconfigur"), "{answer}");
    }

    /// BIRD's reply to a command.
    fn ask(&self, command: &str) -> String {
        let socket = self.folder.path().join("bird.ctl");
        let output = Command::new("birdc").arg("-s").arg(socket).arg(command).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The prefixes that BIRD has received from Manx.
    fn routes(&self) -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        for protocol in ["manx4", "manx6"] {
            let answer = self.ask(&format!("show route protocol {protocol}"));
            let first = answer.lines().filter_map(|it| it.split_whitespace().next());
            all.extend(first.filter(|it| it.contains('/')).map(str::to_owned));
        }
        // BIRD lists them in another order.
        all.sort();
        all
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("bird.log")).unwrap_or_default()
    }

    /// Checks that BIRD logged no error. (It warns that both ends are in one namespace.)
    fn is_content(&self) {
        let log = self.log();
        let words = ["<ERR>", "<BUG>", "<WARN>", "<AUTH>", "nvalid", "alformed", "Error:"];
        let is_wrong = |line: &&str| words.iter().any(|it| line.contains(it));
        let is_of_namespace = |line: &&str| line.contains("is a local address of iface lo");
        let wrong = log.lines().filter(|it| is_wrong(it) && !is_of_namespace(it));
        assert_eq!(wrong.collect::<Vec<_>>(), [""; 0], "{log}");
    }
}

impl Drop for Bird {
    fn drop(&mut self) {
        // BIRD may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn run(folder: &Path, configuration: &str, options: &[&str]) -> std::io::Result<Child> {
    let file = write(folder, configuration);
    Command::new("bird")
        .args(["-f", "-c"])
        .arg(file)
        .arg("-s")
        .arg(folder.join("bird.ctl"))
        .arg("-P")
        .arg(folder.join("bird.pid"))
        .args(options)
        .stdout(Stdio::null())
        .spawn()
}

fn write(folder: &Path, configuration: &str) -> PathBuf {
    let (file, log) = (folder.join("bird.conf"), folder.join("bird.log"));
    fs::write(&file, format!("log \"{}\" all;\n{configuration}", log.display())).unwrap();
    file
}

/// A configuration of BIRD at `B` like that of one of Calico's nodes, with static routes. `more` goes to each session,
/// `export` to each exported route.
fn bird(system: u32, routes: &[&str], more: &str, export: &str) -> String {
    let mut text = format!(
        "router id {B};\ndebug protocols all;\nprotocol device {{}}\n\
         protocol direct {{ ipv4; ipv6; interface \"lo\"; }}\n\
         filter told {{ if source != RTS_STATIC then reject; {export} accept; }}\n"
    );
    for (family, here, there) in [(4, B, A), (6, B6, A6)] {
        let of_family = routes.iter().filter(|it| it.contains(':') == (family == 6));
        let mut statics = String::new();
        for route in of_family {
            write!(statics, " route {route} blackhole;").unwrap();
        }
        write!(
            text,
            "protocol static static{family} {{ ipv{family};{statics} }}\n\
             protocol bgp manx{family} {{ local {here} as {system}; neighbor {there} as 64512;\n\
             multihop; strict bind on; graceful restart on; graceful restart time 120; connect delay time 1;\n\
             connect retry time 1; error wait time 1,2; {more}\n\
             ipv{family} {{ import all; export filter told; next hop self; add paths on; }}; }}\n"
        )
        .unwrap();
    }
    text
}

/// Manx at `A`, with peers at `B` in this autonomous system.
fn manx(system: u32, blocks: &[&str], restarted: bool) -> Speaker {
    let of = |here, at| Peer { system, ..peer(here, at) };
    let speaker = speaker(&[A, A6]);
    let mut configuration = configuration(A, &[of(A, B), of(A6, B6)], blocks);
    configuration.restarted = restarted;
    speaker.configure(configuration);
    speaker
}

const BLOCKS: [&str; 3] = ["10.100.1.0/26", "10.100.2.0/26", "fd10:1::/122"];
/// A four-octet autonomous system.
const SYSTEM: u32 = 4_200_000_001;
const ROUTES: [&str; 3] = ["10.110.1.0/26", "10.110.2.0/26", "fd20::/122"];

fn of_bird(routes: &[&str]) -> Vec<String> {
    let next_hop = |it: &str| if it.contains(':') { B6 } else { B };
    routes.iter().map(|it| format!("{it} via {}", next_hop(it))).collect()
}

fn is_up(manx: &Speaker) -> bool {
    is_established(manx, B) && is_established(manx, B6)
}

#[test]
fn routes_of_both_families_are_exchanged_with_bird_and_follow_changes() {
    let test = "routes_of_both_families_are_exchanged_with_bird_and_follow_changes";
    in_namespace(|| {
        let Some(bird) = Bird::start(test, &bird(64512, &ROUTES, "", "")) else { return };
        let manx = manx(64512, &BLOCKS, false);
        wait_for("BIRD's routes", &of_bird(&ROUTES), || learned(&manx));
        wait_for("Manx' routes", &BLOCKS.map(str::to_owned).to_vec(), || bird.routes());
        for protocol in ["manx4", "manx6"] {
            for what in ["Got END-OF-RIB", "Sending END-OF-RIB"] {
                let line = format!("{protocol}: {what}");
                wait_for(&line, &true, || bird.log().contains(&line));
            }
        }
        // A route refresh changes nothing.
        let answer = bird.ask("reload in manx4");
        assert!(answer.contains("reloading"), "{answer}");
        wait_for("it asks", &true, || bird.log().contains("manx4: Sending ROUTE-REFRESH"));
        stays("the routes", &BLOCKS.map(str::to_owned).to_vec(), || bird.routes());
        assert_eq!([B, B6].map(|it| status(&manx, it).malformed), [0, 0]);
        manx.configure(configuration(A, &[peer(A, B), peer(A6, B6)], &BLOCKS[1..2]));
        wait_for("what is left", &vec![BLOCKS[1].to_owned()], || bird.routes());
        bird.is_content();
        // The message of RFC 9003 is tested, too.
        bird.ask("disable manx4 \"back at noon\"");
        let words = "the peer says Administrative Shutdown (6/2): \"back at noon\"";
        wait_for("BIRD's word", &true, || {
            status(&manx, B).last_error.as_deref() == Some(words)
                || status(&manx, B).state == SessionState::Connect
        });
        wait_for("no routes of IPv4", &of_bird(&ROUTES[2..]), || learned(&manx));
    });
}

/// RFC 4724: BIRD restarts.
#[test]
fn the_routes_of_a_bird_that_is_killed_and_comes_back_stay() {
    let test = "the_routes_of_a_bird_that_is_killed_and_comes_back_stay";
    in_namespace(|| {
        let Some(mut it) = Bird::start(test, &bird(64512, &ROUTES, "", "")) else { return };
        let manx = manx(64512, &BLOCKS, false);
        wait_for("BIRD's routes", &of_bird(&ROUTES), || learned(&manx));
        wait_for("Manx' routes", &BLOCKS.map(str::to_owned).to_vec(), || it.routes());
        it.kill();
        wait_for("the end", &false, || is_established(&manx, B) || is_established(&manx, B6));
        stays("BIRD's routes", &of_bird(&ROUTES), || learned(&manx));
        it.restart(&bird(64512, &ROUTES[1..], "", ""));
        // The route that BIRD no longer announces is removed when BIRD has sent all routes. The other routes are there all
        // the time.
        let left = of_bird(&ROUTES[1..]);
        wait_for("BIRD's routes", &left, || {
            let seen = learned(&manx);
            assert!(left.iter().all(|it| seen.contains(it)), "a gap: {seen:?}");
            seen
        });
        wait_for("Manx' routes", &BLOCKS.map(str::to_owned).to_vec(), || it.routes());
        wait_for("sessions", &true, || is_up(&manx));
    });
}

/// RFC 4724: Manx restarts.
#[test]
fn the_routes_of_a_manx_that_restarts_stay_at_bird() {
    let test = "the_routes_of_a_manx_that_restarts_stay_at_bird";
    in_namespace(|| {
        let Some(it) = Bird::start(test, &bird(64512, &ROUTES, "", "")) else { return };
        let first = manx(64512, &BLOCKS, false);
        let all = BLOCKS.map(str::to_owned).to_vec();
        wait_for("Manx' routes", &all, || it.routes());
        first.leave();
        let waits = "Neighbor graceful restart detected";
        wait_for("BIRD knows", &true, || it.log().matches(waits).count() == 2);
        stays("Manx' routes", &all, || it.routes());
        let second = manx(64512, &BLOCKS[1..], true);
        let left = all[1..].to_vec();
        wait_for("Manx' routes", &left, || {
            let seen = it.routes();
            assert!(left.iter().all(|it| seen.contains(it)), "a gap: {seen:?}\n{}", it.log());
            seen
        });
        wait_for("BIRD's routes", &of_bird(&ROUTES), || learned(&second));
        it.is_content();
    });
}

#[test]
fn bird_of_another_system_is_refused_with_a_reason_and_accepted_if_it_is_known() {
    let test = "bird_of_another_system_is_refused_with_a_reason_and_accepted_if_it_is_known";
    in_namespace(|| {
        let Some(it) = Bird::start(test, &bird(SYSTEM, &ROUTES, "", "")) else { return };
        let wrong = manx(64512, &BLOCKS, false);
        let words = "this node says Bad Peer AS (2/2): the peer is of AS 4200000001, and AS 64512 is configured";
        wait_for("the reason", &words.to_owned(), || {
            status(&wrong, B).last_error.unwrap_or_default()
        });
        wait_for("BIRD's reason", &true, || it.log().contains("manx4: Received: Bad peer AS"));
        drop(wrong);
        let manx = manx(SYSTEM, &BLOCKS, false);
        wait_for("BIRD's routes", &of_bird(&ROUTES), || learned(&manx));
        wait_for("Manx' routes", &BLOCKS.map(str::to_owned).to_vec(), || it.routes());
        let route = it.ask("show route all 10.100.1.0/26");
        for line in ["BGP.as_path: 64512", "BGP.next_hop: 10.0.0.1", "BGP.origin: IGP"] {
            assert!(route.contains(line), "{line}: {route}");
        }
    });
}

/// This holds whatever attributes BIRD sends, and however long its messages are.
#[test]
fn a_large_table_of_bird_with_all_attributes_arrives_by_long_messages() {
    let test = "a_large_table_of_bird_with_all_attributes_arrives_by_long_messages";
    in_namespace(|| {
        let all: Vec<String> =
            (0..8000).map(|it| format!("10.{}.{}.0/26", 112 + it / 256, it % 256)).collect();
        let routes: Vec<&str> = all.iter().map(String::as_str).collect();
        let export = "bgp_med = 7; bgp_community.add((64512, 1)); bgp_large_community.add((64512, 1, 2)); \
                      bgp_ext_community.add((rt, 64512, 3));";
        let text = bird(64512, &routes, "enable extended messages on;", export);
        let Some(bird) = Bird::start(test, &text) else { return };
        let manx = manx(64512, &BLOCKS, false);
        wait_for("all routes", &8000, || status(&manx, B).counts.received);
        let of_bird = status(&manx, B);
        assert_eq!((of_bird.malformed, of_bird.counts.refused), (0, 0));
        wait_for("Manx' routes", &BLOCKS.map(str::to_owned).to_vec(), || bird.routes());
        bird.is_content();
    });
}

/// One BIRD stops reading for a while, and then continues.
#[test]
fn a_bird_that_is_stopped_for_a_while_gets_what_it_has_missed() {
    let test = "a_bird_that_is_stopped_for_a_while_gets_what_it_has_missed";
    in_namespace(|| {
        let Some(bird) = Bird::start(test, &bird(64512, &ROUTES, "", "")) else { return };
        let manx = manx(64512, &BLOCKS, false);
        wait_for("Manx' routes", &BLOCKS.map(str::to_owned).to_vec(), || bird.routes());
        let pid = nix::unistd::Pid::from_raw(i32::try_from(bird.child.id()).unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP).unwrap();
        for at in 0..200u32 {
            let block = format!("10.101.{at}.0/26");
            manx.configure(configuration(A, &[peer(A, B), peer(A6, B6)], &[&block]));
            std::thread::sleep(Duration::from_millis(1));
        }
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGCONT).unwrap();
        wait_for("the last block", &vec!["10.101.199.0/26".to_owned()], || bird.routes());
        bird.is_content();
    });
}

/// Configures Manx at `A`. `change` is applied to its peers at `B`, which have a password if one is given.
fn protected(manx: &Speaker, password: Option<&str>, change: impl Fn(&mut Peer)) {
    let mut peers = [peer(A, B), peer(A6, B6)];
    for it in &mut peers {
        change(it);
        let (name, key) = ("bgp-secrets".to_owned(), "rack".to_owned());
        it.password = password.map(|_| SecretKey { name, key });
    }
    let mut configuration = configuration(A, &peers, &BLOCKS);
    if let Some(password) = password {
        let password = Password::new(password.as_bytes()).unwrap();
        configuration.passwords = peers.map(|it| (it.address, Ok(password.clone()))).into();
    }
    manx.configure(configuration);
}

/// RFC 2385, whichever end connects.
#[test]
fn bird_with_the_same_password_has_sessions_and_with_another_or_none_has_not() {
    let test = "bird_with_the_same_password_has_sessions_and_with_another_or_none_has_not";
    in_namespace(|| {
        let with = |more: &str| bird(64512, &ROUTES, more, "");
        let right = "password \"a b!\";";
        let Some(it) = Bird::start(test, &with(right)) else { return };
        let manx = speaker(&[A, A6]);
        for (of_bird, listens) in [("passive on;", false), ("", true), ("", false)] {
            it.configure(&with(&format!("{right} {of_bird}")));
            protected(&manx, Some("a b!"), |peer| peer.is_passive = listens);
            wait_for("sessions", &true, || is_up(&manx));
            wait_for("Manx' routes", &BLOCKS.map(str::to_owned).to_vec(), || it.routes());
        }
        it.is_content();
        for wrong in ["password \"other\";", ""] {
            it.configure(&with(wrong));
            wait_for("no session", &false, || {
                is_established(&manx, B) || is_established(&manx, B6)
            });
            let words = "no answer, as of a peer that has another password or none";
            wait_for("the reason", &true, || {
                status(&manx, B).last_error.is_some_and(|it| it.ends_with(words))
            });
            stays("no session", &false, || is_established(&manx, B) || is_established(&manx, B6));
        }
        protected(&manx, None, |_| {});
        wait_for("sessions without one", &true, || is_up(&manx));
    });
}

/// RFC 5082, whichever end connects.
#[test]
fn bird_with_ttl_security_has_sessions_and_without_has_not() {
    let test = "bird_with_ttl_security_has_sessions_and_without_has_not";
    in_namespace(|| {
        let with = |more: &str| bird(64512, &ROUTES, more, "");
        let secure = "multihop 2; ttl security on;";
        let Some(it) = Bird::start(test, &with(&format!("{secure} passive on;"))) else { return };
        let manx = speaker(&[A, A6]);
        // At first only one end requires it.
        protected(&manx, None, |peer| (peer.hops, peer.is_passive) = (None, false));
        wait_for("sessions while BIRD alone has it", &true, || is_up(&manx));
        for (of_bird, listens) in [("passive on;", false), ("", true), ("", false)] {
            it.configure(&with(&format!("{secure} {of_bird}")));
            protected(&manx, None, |peer| (peer.hops, peer.is_passive) = (Some(2), listens));
            wait_for("sessions", &true, || is_up(&manx));
            wait_for("Manx' routes", &BLOCKS.map(str::to_owned).to_vec(), || it.routes());
        }
        it.is_content();
        // With `multihop`, BIRD sends with this number of hops as TTL.
        it.configure(&with("multihop 2;"));
        protected(&manx, None, |peer| (peer.hops, peer.is_passive) = (Some(2), true));
        let words = "the peer's connection came with a TTL of 2, expected 254 or more: it is farther away than ttlSecurity says, or has no TTL security";
        wait_for("the reason", &words.to_owned(), || {
            status(&manx, B).last_error.unwrap_or_default()
        });
        stays("no session", &false, || is_established(&manx, B) || is_established(&manx, B6));
    });
}
