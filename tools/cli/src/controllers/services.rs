//! Services of type `LoadBalancer`: when each is reconciled, and what is reported about it.
//!
//! A watch of Services says which have changed. A watch of `IPPools` says that all Services must be
//! checked again. A check of all Services at regular intervals (a sweep) finds what the watches
//! miss. The rules are those of `manx_block_ipam::services`.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant, SystemTime};

use manx_block_ipam::affinity::Owner;
use manx_block_ipam::assign;
use manx_block_ipam::block::Rest;
use manx_block_ipam::services::ledger::{Ledger, Subject, release_strays};
use manx_block_ipam::services::reconcile::{Reconciled, reconcile};
use manx_block_ipam::services::terms::Terms;
use manx_block_ipam::services::wish::{AssignIps, Service};
use manx_block_ipam::store::StoreError;
use manx_datastore::api_server::{Access, Writer};
use manx_datastore::{ObjectEvent, WriteError, Writes};
use manx_objects::object::Kind;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::pending::Pending;
use super::rounds::now;
use crate::ipam::cluster::Cluster;

/// The pause after a failure.
const AGAIN: Duration = Duration::from_secs(5);
/// The age after which pools and settings are read again.
const FRESH: Duration = Duration::from_secs(30);
/// The time between two checks of all Services that have addresses, or lack some.
const SWEEP: Duration = Duration::from_mins(5);
/// The most Services without an address that are tried again because another Service has released
/// one.
const TRIED: usize = 100;
/// The time after which a Service's problem is reported again, because the server forgets Events
/// after an hour.
const TOLD: Duration = Duration::from_mins(55);
/// The most problems that are remembered. If there are more, all are forgotten, and are reported
/// again.
const MOST_TOLD: usize = 10_000;

/// The settings.
#[derive(Debug, Clone, Copy)]
pub(super) struct Balancing {
    /// The option that overrides the cluster's setting.
    pub(super) assigns: Option<AssignIps>,
    /// The most addresses of a family for one namespace.
    pub(super) most: Option<usize>,
}

/// Assigns addresses to Services for as long as this process leads.
pub(super) async fn serve(
    access: &Access,
    balancing: Balancing,
    identity: &str,
    leads: &impl Fn() -> bool,
) {
    let mut failed = String::new();
    let mut said = Said::new(identity);
    loop {
        let ended = match Writer::open(access).await {
            Ok(writer) => {
                let cluster = Cluster::new(writer);
                let table = Table::default();
                let mut balancer = Balancer::new(&cluster, &table, balancing, &mut said);
                tokio::select! {
                    biased;
                    reason = watch_services(&cluster, &table) => reason,
                    reason = watch_pools(&cluster, &table) => reason,
                    reason = balancer.work(leads, &mut failed) => reason,
                }
            }
            Err(error) => error.to_string(),
        };
        if ended != failed {
            tracing::warn!(reason = ended, "Services of type LoadBalancer wait: trying again");
            failed = ended;
        }
        sleep(AGAIN).await;
    }
}

/// The state that the watches and the worker share.
#[derive(Default)]
struct Table {
    pending: RefCell<Pending>,
    /// The Services that have addresses.
    known: RefCell<BTreeSet<Subject>>,
    /// Whether pools have changed.
    is_stale: RefCell<bool>,
    told: Notify,
}

/// Watches Services. Returns the reason why it cannot continue.
async fn watch_services(cluster: &Cluster<Writer>, table: &Table) -> String {
    loop {
        let watched = cluster.writes().watch(Kind::Service.into(), |_, object| {
            let service = Service::read(object);
            let subject = Subject::from(&service);
            if service.is_balanced || table.known.borrow().contains(&subject) {
                table.pending.borrow_mut().put(subject);
                table.told.notify_one();
            }
        });
        if let Err(error) = watched.await {
            return format!("Services cannot be watched: {error}");
        }
    }
}

/// Watches pools. Returns the reason why it cannot continue.
async fn watch_pools(cluster: &Cluster<Writer>, table: &Table) -> String {
    loop {
        let watched = cluster.writes().watch(Kind::IpPool.into(), |_, _| {
            table.is_stale.replace(true);
            table.told.notify_one();
        });
        match watched.await {
            Ok(()) => {}
            // If the kind does not exist, there is no pool.
            Err(WriteError::NotServed(_)) => sleep(FRESH).await,
            Err(error) => return format!("IPPools cannot be watched: {error}"),
        }
    }
}

/// Reconciles Services over one connection.
struct Balancer<'a> {
    cluster: &'a Cluster<Writer>,
    table: &'a Table,
    balancing: Balancing,
    said: &'a mut Said,
    ledger: Ledger,
    terms: Option<(Instant, Terms)>,
    swept: Option<Instant>,
    /// The Services that do not have the addresses that they ask for.
    lacking: Pending,
    /// Whether an address was released since the lacking Services were last tried.
    was_released: bool,
}

impl<'a> Balancer<'a> {
    fn new(
        cluster: &'a Cluster<Writer>,
        table: &'a Table,
        balancing: Balancing,
        said: &'a mut Said,
    ) -> Self {
        Self {
            cluster,
            table,
            balancing,
            said,
            ledger: Ledger::default(),
            terms: None,
            swept: None,
            lacking: Pending::default(),
            was_released: false,
        }
    }

    /// Reconciles pending Services. Returns the reason why it cannot continue.
    async fn work(&mut self, leads: &impl Fn() -> bool, failed: &mut String) -> String {
        let labeled = self.cluster.store.label_affinities(&Owner::load_balancer()).await;
        if let Err(error) = labeled {
            return error.to_string();
        }
        loop {
            if !leads() {
                return std::future::pending().await;
            }
            if let Err(reason) = self.refresh().await {
                return reason;
            }
            failed.clear();
            let next = self.table.pending.borrow_mut().take();
            match next {
                Some(subject) => {
                    if let Err(reason) = self.reconcile(subject).await {
                        return reason;
                    }
                }
                None if std::mem::take(&mut self.was_released) => self.retry(TRIED),
                None => {
                    _ = timeout(FRESH, self.table.told.notified()).await;
                }
            }
        }
    }

    /// Reads pools and settings if they are old or pools have changed, and checks all Services if
    /// the time for that has come.
    async fn refresh(&mut self) -> Result<(), String> {
        let is_old = self.terms.as_ref().is_none_or(|(at, _)| at.elapsed() >= FRESH);
        let has_changed = self.table.is_stale.replace(false);
        if !is_old && !has_changed {
            return Ok(());
        }
        let Self { cluster, balancing: Balancing { assigns, most }, .. } = *self;
        let pools = cluster.pools().await.map_err(|error| error.to_string())?;
        let terms = Terms::read(&cluster.store, pools, assigns, most).await;
        let terms = terms.map_err(|error| error.to_string())?;
        let same = |before: &Terms| before.pools == terms.pools && before.assigns == terms.assigns;
        let differs = !self.terms.as_ref().is_some_and(|(_, before)| same(before));
        if differs || self.swept.is_none_or(|at| at.elapsed() >= SWEEP) {
            self.sweep(&terms).await.map_err(|error| error.to_string())?;
            self.swept = Some(Instant::now());
        }
        self.terms = Some((Instant::now(), terms));
        Ok(())
    }

    async fn sweep(&mut self, terms: &Terms) -> Result<(), assign::Error> {
        let Self { cluster, table, .. } = *self;
        self.ledger = Ledger::read(&cluster.store).await?;
        table.known.replace(self.ledger.subjects().collect());
        for subject in self.ledger.subjects() {
            table.pending.borrow_mut().put(subject);
        }
        self.retry(usize::MAX);
        let rest = Rest { now: now(), cooldown: terms.config.cooldown };
        for cidr in release_strays(&cluster.store, |block| terms.has_block(block), rest).await? {
            tracing::info!("release of block {cidr} of load balancers, which is in no pool: done");
        }
        Ok(())
    }

    /// Tries Services again that do not have the addresses that they ask for.
    fn retry(&mut self, most: usize) {
        for _ in 0..most {
            let Some(subject) = self.lacking.take() else { return };
            self.table.pending.borrow_mut().put(subject);
        }
    }

    async fn reconcile(&mut self, subject: Subject) -> Result<(), String> {
        let Self { cluster, table, .. } = *self;
        let Some((_, terms)) = &self.terms else { return Ok(()) };
        let reconciled = reconcile(&cluster.store, &subject, terms, &mut self.ledger, now()).await;
        let Subject { namespace, name, .. } = &subject;
        let reconciled = match reconciled {
            Ok(reconciled) => reconciled,
            Err(assign::Error::Store(StoreError::Unreachable(reason))) => return Err(reason),
            Err(error) => {
                // The failure concerns only this Service, so the others continue.
                tracing::warn!(reason = %error, "Service {namespace}/{name} is tried again later");
                self.lacking.put(subject);
                return Ok(());
            }
        };
        let Reconciled { told, released, lacks, .. } = &reconciled;
        if !told.is_empty() {
            tracing::info!("Service {namespace}/{name} has {} now", list(told));
        }
        if !released.is_empty() {
            tracing::info!("release of {} of Service {namespace}/{name}: done", list(released));
        }
        self.was_released |= !released.is_empty();
        self.said.tell(cluster.writes(), &subject, &reconciled).await;
        if self.ledger.knows(&subject) {
            table.known.borrow_mut().insert(subject.clone());
        } else {
            table.known.borrow_mut().remove(&subject);
        }
        if *lacks {
            self.lacking.put(subject);
        }
        Ok(())
    }
}

/// The problems that were reported.
struct Said {
    identity: String,
    troubles: BTreeMap<Subject, (String, Instant)>,
}

impl Said {
    fn new(identity: &str) -> Self {
        Self { identity: identity.to_owned(), troubles: BTreeMap::new() }
    }

    /// The text about a Service's problem, if it must be reported now.
    fn next(&mut self, subject: &Subject, reconciled: &Reconciled, now: Instant) -> Option<String> {
        let Some(trouble) = &reconciled.trouble else {
            self.troubles.remove(subject);
            return None;
        };
        let note = match &reconciled.has[..] {
            [] => format!("gets no address: {trouble}"),
            has => format!("has {}, and not what it asks for: {trouble}", list(has)),
        };
        let before = self.troubles.get(subject);
        if before.is_some_and(|(said, at)| *said == note && now.duration_since(*at) < TOLD) {
            return None;
        }
        if self.troubles.len() >= MOST_TOLD {
            self.troubles.clear();
        }
        self.troubles.insert(subject.clone(), (note.clone(), now));
        Some(note)
    }

    /// Reports a Service's problem, in the log and by an Event.
    async fn tell(&mut self, writes: &impl Writes, subject: &Subject, reconciled: &Reconciled) {
        let Some(metadata) = &reconciled.metadata else {
            self.troubles.remove(subject);
            return;
        };
        let Some(note) = self.next(subject, reconciled, Instant::now()) else { return };
        let Subject { namespace, name, .. } = subject;
        tracing::warn!("Service {namespace}/{name} {note}");
        let event = ObjectEvent {
            of: ("v1", "Service"),
            metadata,
            by: &self.identity,
            action: "Assign",
            reason: "NoAddress",
            note: &note,
            is_warning: true,
            occurrence: 0,
        };
        if let Err(error) = event.write(writes, SystemTime::now()).await {
            tracing::warn!(reason = %error, "the Event about Service {namespace}/{name} is not written");
        }
    }
}

fn list(addresses: &[IpAddr]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use manx_block_ipam::services::reconcile::Trouble;

    use super::*;

    #[test]
    fn a_trouble_is_told_once_and_again_when_it_changes_or_its_event_is_forgotten() {
        let subject = |name: &str| Subject {
            namespace: "shop".to_owned(),
            name: name.to_owned(),
            handle: "lb-1".to_owned(),
        };
        let web = subject("web");
        let with = |trouble: Option<&str>, has: &[&str]| Reconciled {
            trouble: trouble.map(|text| Trouble::Other(text.to_owned())),
            has: has.iter().map(|it| it.parse().unwrap()).collect(),
            ..Reconciled::default()
        };
        let mut said = Said::new("n1");
        let start = Instant::now();
        let mut next = |reconciled: &Reconciled, at| said.next(&web, reconciled, start + at);
        let full = with(Some("full"), &[]);
        assert_eq!(next(&full, Duration::ZERO).as_deref(), Some("gets no address: full"));
        assert_eq!(next(&full, TOLD / 2), None);
        assert!(next(&full, TOLD).is_some());
        let keeps = with(Some("taken"), &["192.0.2.1"]);
        let expected = "has 192.0.2.1, and not what it asks for: taken";
        assert_eq!(next(&keeps, TOLD).as_deref(), Some(expected));
        assert_eq!(next(&with(None, &[]), TOLD), None);
        assert!(next(&keeps, TOLD).is_some());
        for at in 0..2 * MOST_TOLD {
            said.next(&subject(&at.to_string()), &full, start);
        }
        assert!(said.troubles.len() <= MOST_TOLD);
    }
}
