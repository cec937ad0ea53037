//! The speaker's thread, in which sessions follow the configuration until the speaker ends.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use manx_bgp::peer::Peer;
use rustbgpd_wire::notification::cease_subcode;
use tokio::sync::watch;
use tokio::time::sleep_until;

use crate::configuration::Configuration;
use crate::listen::{Doors, Listener};
use crate::password::Password;
use crate::session::{Handle, Shared, Stop, start};

/// The time for which changes are collected before they are sent.
const TOGETHER: Duration = Duration::from_millis(10);

/// The orders to the thread.
#[derive(Debug, Default)]
pub(crate) struct Orders {
    pub(crate) configuration: Option<Arc<Configuration>>,
    /// The way in which the speaker should end. `None`: it should not end.
    pub(crate) end: Option<Stop>,
}

/// Runs until the orders require the end, or until their sender is dropped.
pub(crate) async fn run(
    listeners: Vec<Listener>,
    shared: Arc<Shared>,
    doors: Arc<Doors>,
    on_change: impl Fn() + Send + 'static,
    mut orders: watch::Receiver<Orders>,
) {
    let listeners: Vec<_> = listeners.into_iter().map(Arc::new).collect();
    for listener in &listeners {
        let (listener, doors) = (Arc::clone(listener), Arc::clone(&doors));
        tokio::spawn(async move { listener.accept(&doors).await });
    }
    let sessions = Arc::clone(&shared);
    tokio::spawn(async move {
        loop {
            sessions.routes.changed.notified().await;
            on_change();
            tokio::time::sleep(TOGETHER).await;
        }
    });
    let stale = Arc::clone(&shared);
    tokio::spawn(async move { expire(&stale).await });
    let mut sessions = Sessions {
        handles: BTreeMap::new(),
        passwords: BTreeSet::new(),
        configured: None,
        shared,
        listeners,
        doors,
    };
    while orders.changed().await.is_ok() {
        let (configuration, end) = {
            let orders = orders.borrow_and_update();
            (orders.configuration.clone(), orders.end)
        };
        if let Some(end) = end {
            return sessions.stop(|_| Some(end)).await;
        }
        if let Some(configuration) = configuration {
            sessions.follow(&configuration).await;
        }
    }
    sessions.stop(|_| Some(Stop::Leave)).await;
}

/// The sessions of all peers.
struct Sessions {
    handles: BTreeMap<IpAddr, Handle>,
    /// The peers whose password is set at the listening sockets.
    passwords: BTreeSet<IpAddr>,
    /// The configuration that is in effect.
    configured: Option<Configuration>,
    shared: Arc<Shared>,
    listeners: Vec<Arc<Listener>>,
    doors: Arc<Doors>,
}

impl Sessions {
    /// Ends the sessions of peers that are gone or differ, and begins those of new peers. Other sessions are not touched.
    async fn follow(&mut self, configuration: &Configuration) {
        let Configuration { table, restarted, .. } = configuration;
        let before = self.configured.take();
        let ends = |peer: IpAddr| {
            before.as_ref().is_some_and(|before| !before.keeps_session(peer, configuration))
        };
        let stop = |handle: &Handle| match table.peers.get(&handle.peer.address) {
            None => Some(Stop::Cease(cease_subcode::PEER_DECONFIGURED)),
            Some(_) if ends(handle.peer.address) => {
                Some(Stop::Cease(cease_subcode::OTHER_CONFIGURATION_CHANGE))
            }
            Some(_) => None,
        };
        self.stop(stop).await;
        self.configured = Some(configuration.clone());
        self.shared.routes.write(|it| it.configure(table));
        for (peer, password) in self.set_passwords(configuration) {
            let address = peer.address;
            let handle = start(peer, password, table.identifier, *restarted, &self.shared);
            self.handles.insert(address, handle);
        }
        self.open_doors();
        self.shared.routes.changed.notify_one();
    }

    /// Sets the passwords of peers at the listening sockets: of the configured peers that have no task yet. It first
    /// removes the passwords of former peers. Returns the peers without a task, each with its password or with the
    /// reason why there can be no session.
    fn set_passwords(
        &mut self,
        configuration: &Configuration,
    ) -> Vec<(Peer, Result<Option<Password>, String>)> {
        let Self { handles, passwords, listeners, doors, .. } = self;
        for peer in passwords.extract_if(.., |peer| !handles.contains_key(peer)) {
            for listener in listeners.iter() {
                if let Err(error) = listener.set_password(peer, None) {
                    tracing::warn!(%peer, error, "BGP: the peer's last password stays");
                }
            }
        }
        let peers = configuration.table.peers.values();
        let begin = peers.filter(|it| !handles.contains_key(&it.address)).map(|peer| {
            let set = |password: Option<&Password>| {
                let Some(password) = password else { return Ok(None) };
                passwords.insert(peer.address);
                let at = |it: &Arc<Listener>| it.set_password(peer.address, Some(password));
                listeners.iter().try_for_each(at)?;
                Ok(Some(password.clone()))
            };
            (peer.clone(), configuration.password(peer).and_then(set))
        });
        let begin = begin.collect();
        // Connections that wait in the kernel may have been begun with an earlier password, or with none. The doors are
        // still shut for these peers, so such connections are closed here.
        for listener in listeners.iter() {
            listener.take_waiting(doors);
        }
        begin
    }

    /// Ends sessions, and waits until their last messages are sent.
    async fn stop(&mut self, how: impl Fn(&Handle) -> Option<Stop>) {
        let ended = self.handles.extract_if(.., |_, handle| match how(handle) {
            Some(stop) => {
                handle.stop(stop);
                true
            }
            None => false,
        });
        let ended: Vec<Handle> = ended.map(|(_, handle)| handle).collect();
        self.open_doors();
        for handle in ended {
            handle.ended().await;
        }
    }

    fn open_doors(&self) {
        let doors = self.handles.iter().map(|(peer, it)| (*peer, it.accepted.clone()));
        self.doors.set(doors.collect());
    }
}

/// Removes stale paths when their time is over.
async fn expire(shared: &Shared) {
    loop {
        let next = shared.routes.write(|it| it.expire(shared.routes.now()));
        let changed = shared.routes.stale.notified();
        match next {
            Some(next) => tokio::select! {
                () = changed => {}
                () = sleep_until(shared.routes.instant(next)) => {}
            },
            None => changed.await,
        }
    }
}
