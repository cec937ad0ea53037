//! The thread: sessions follow the configuration, until the speaker ends.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use manx_bgp::table;
use rustbgpd_wire::notification::cease_subcode;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::sleep_until;

use crate::configuration::Configuration;
use crate::listen::{Doors, accept};
use crate::session::{Handle, Shared, Stop, start};

/// The time in which changes are told together.
const TOGETHER: Duration = Duration::from_millis(10);

/// What the thread is to do.
#[derive(Debug, Default)]
pub(crate) struct Orders {
    pub(crate) configuration: Option<Arc<Configuration>>,
    /// How it is to end.
    pub(crate) end: Option<Stop>,
}

/// Runs until it is to end, or until nobody can tell it any more.
pub(crate) async fn run(
    listeners: Vec<TcpListener>,
    shared: Arc<Shared>,
    doors: Arc<Doors>,
    on_change: impl Fn() + Send + 'static,
    mut orders: watch::Receiver<Orders>,
) {
    for listener in listeners {
        let doors = Arc::clone(&doors);
        tokio::spawn(async move { accept(listener, &doors).await });
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
    let mut sessions = Sessions { handles: BTreeMap::new(), configured: None, shared, doors };
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
    /// What the table was told last.
    configured: Option<table::Configuration>,
    shared: Arc<Shared>,
    doors: Arc<Doors>,
}

impl Sessions {
    /// Ends the sessions of peers that are gone or differ, and begins those of new ones. Others are not touched.
    async fn follow(&mut self, configuration: &Configuration) {
        let Configuration { table, restarted } = configuration;
        let before = self.configured.take();
        let asks_other = |peer: IpAddr| {
            before.as_ref().is_some_and(|before| {
                before.identifier != table.identifier || !before.asks_same_of(peer, table)
            })
        };
        let stop = |handle: &Handle| match table.peers.get(&handle.peer.address) {
            None => Some(Stop::Cease(cease_subcode::PEER_DECONFIGURED)),
            Some(_) if asks_other(handle.peer.address) => {
                Some(Stop::Cease(cease_subcode::OTHER_CONFIGURATION_CHANGE))
            }
            Some(_) => None,
        };
        self.stop(stop).await;
        self.configured = Some(table.clone());
        self.shared.routes.write(|it| it.configure(table));
        for (address, peer) in &table.peers {
            self.handles
                .entry(*address)
                .or_insert_with(|| start(peer.clone(), table.identifier, *restarted, &self.shared));
        }
        self.open_doors();
        self.shared.routes.changed.notify_one();
    }

    /// Ends sessions, and waits for their last words.
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
