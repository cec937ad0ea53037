//! Reconciles a Service: assigns the addresses that it requests, names them in its status, and releases addresses to which
//! it has no right.
//!
//! The laws depend on the order of reads and writes, which [`services`](super) describes.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use manx_datastore::{Revision, ServedKey, Writes};
use manx_objects::object::Kind;
use serde_json::{Value, json};

use super::ledger::{Held, Ledger, Subject, held};
use super::terms::Terms;
use super::wish::{Service, Wish, family};
use crate::affinity::Owner;
use crate::asked::AskedError;
use crate::assign::{Error, Request, assign, assign_named};
use crate::block::{Attributes, OF_SERVICE, Refused, Rest, Time, ToRelease};
use crate::objects::Objects;
use crate::pods::{labels, timestamp};
use crate::pool::{Family, Pool};
use crate::release::{ReleaseError, adopt, release, release_by_handle};
use crate::store::StoreError;

/// The maximum number of attempts while others change the same Service or its addresses.
const ATTEMPTS: usize = 10;

/// The result of reconciling a Service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reconciled {
    /// The addresses that the Service has now.
    pub has: Vec<IpAddr>,
    /// The addresses in `has` that the status did not name before.
    pub told: Vec<IpAddr>,
    /// The addresses that the Service does not have any more.
    pub released: Vec<IpAddr>,
    /// The reason why the Service does not have what it requests, if this is to be reported.
    pub trouble: Option<Trouble>,
    /// Whether the Service lacks an address, even if this is not reported. It may get one when pools or the addresses
    /// of other Services change.
    pub lacks: bool,
    /// The object's `metadata`, or `None` if the object does not exist any more.
    pub metadata: Option<Value>,
}

/// The reason why a Service does not get what it requests.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    #[error(transparent)]
    Asked(#[from] AskedError),
    #[error(
        "no {family} IPPool is for it: expected one with allowedUses [LoadBalancer] that is not disabled, is Automatic, and \
         whose namespaceSelector matches"
    )]
    NoPool { family: Family },
    #[error(
        "the pool {named:?} does not exist, has no {family} addresses, is disabled, has not allowedUses [LoadBalancer], or is \
         for other namespaces (namespaceSelector); expected the name or CIDR of one of: {}",
        list(.pools)
    )]
    UnknownPool {
        /// The name or CIDR in the request.
        named: String,
        family: Family,
        /// The pools that exist for the Service.
        pools: Vec<String>,
    },
    #[error(
        "address {0} lies in no IPPool that is for it: expected one with allowedUses [LoadBalancer] that is not disabled, and \
         whose namespaceSelector matches"
    )]
    Outside(IpAddr),
    #[error(
        "address {address} is named, and the Service has no {family} cluster IP (spec.ipFamilies): name another"
    )]
    OtherFamily { address: IpAddr, family: Family },
    #[error("address {address} is that of {owner}: name another")]
    OfNode {
        address: IpAddr,
        /// The owner of the address.
        owner: String,
    },
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error(
        "address {address} lies in block {block} of {owner}, not of load balancers: name another"
    )]
    OtherOwner {
        address: IpAddr,
        block: IpNet,
        /// The block's owner.
        owner: String,
    },
    #[error("no free address in {}: add an IPPool, or delete Services that need none", nets(.0))]
    Exhausted(Vec<IpNet>),
    #[error(
        "the Services of namespace {namespace} have {most} {family} addresses, as many as they may (--balancer-limit): delete \
         one that needs none"
    )]
    Most { namespace: String, most: usize, family: Family },
    #[error("{0}")]
    Other(String),
}

fn list(pools: &[String]) -> String {
    if pools.is_empty() { "none".to_owned() } else { pools.join(", ") }
}

fn nets(nets: &[IpNet]) -> String {
    nets.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// The reason why an address could not be assigned.
enum Failed {
    /// A temporary failure. The same request may succeed later.
    Passing(Error),
    Trouble(Trouble),
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Self {
        Self::Passing(error.into())
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        match error {
            Error::Store(_) | Error::Contended => Self::Passing(error),
            Error::Refused(refused) => Self::Trouble(refused.into()),
            Error::NoPoolAround(address) => Self::Trouble(Trouble::Outside(address)),
            Error::OtherOwner { address, block, owner } => {
                Self::Trouble(Trouble::OtherOwner { address, block, owner })
            }
            Error::Exhausted { pools, .. } => Self::Trouble(Trouble::Exhausted(pools)),
            Error::BlockLimit { .. } | Error::Overlaps(..) => {
                Self::Trouble(Trouble::Other(error.to_string()))
            }
        }
    }
}

impl Subject {
    /// Returns the Service of an object.
    pub fn of(object: &Value) -> Self {
        Self::from(&Service::read(object))
    }
}

impl From<&Service> for Subject {
    fn from(Service { namespace, name, handle, .. }: &Service) -> Self {
        Self { namespace: namespace.clone(), name: name.clone(), handle: handle.clone() }
    }
}

/// Reconciles a Service, and records in the ledger the addresses that it then has.
///
/// # Errors
/// Returns an error if the store does not answer, a record cannot be read, or other writers always come first. The
/// caller should try again later.
pub async fn reconcile<W: Writes + Sync>(
    objects: &Objects<W>,
    subject: &Subject,
    terms: &Terms,
    ledger: &mut Ledger,
    now: Time,
) -> Result<Reconciled, Error> {
    for _ in 0..ATTEMPTS {
        let reconciler = Reconciler { objects, subject, terms, ledger, now };
        match reconciler.reconcile().await {
            Err(Error::Store(StoreError::Conflict)) => {}
            Err(error) => return Err(error),
            Ok(reconciled) => {
                let known: Vec<IpNet> = ledger.blocks_of(subject).collect();
                let has = held(objects, &subject.handle, known).await?;
                let addresses = has.iter().map(|held| held.address).collect();
                ledger.note(subject, has);
                return Ok(Reconciled { has: addresses, ..reconciled });
            }
        }
    }
    Err(Error::Contended)
}

/// The addresses that a Service of this controller keeps.
#[derive(Default)]
struct Kept {
    keeps: Vec<IpAddr>,
    trouble: Option<Trouble>,
    lacks: bool,
}

/// One attempt to reconcile a Service. It fails with [`StoreError::Conflict`] if another writer comes first.
struct Reconciler<'a, W> {
    objects: &'a Objects<W>,
    subject: &'a Subject,
    terms: &'a Terms,
    ledger: &'a Ledger,
    now: Time,
}

impl<W: Writes + Sync> Reconciler<'_, W> {
    fn rest(&self) -> Rest {
        Rest { now: self.now, cooldown: self.terms.config.cooldown }
    }

    fn key(&self) -> ServedKey {
        ServedKey::new(Kind::Service, &self.subject.namespace, &self.subject.name)
    }

    async fn reconcile(self) -> Result<Reconciled, Error> {
        let Self { objects, subject, .. } = self;
        let found = objects.writes().get(&self.key()).await.map_err(StoreError::from)?;
        let held = held(objects, &subject.handle, self.ledger.blocks_of(subject)).await?;
        let read = |(object, revision): (Value, Revision)| {
            (Service::read(&object), object["metadata"].clone(), revision)
        };
        let found = found.map(read).filter(|(service, ..)| service.handle == subject.handle);
        let Some((service, metadata, revision)) = found else {
            // Another Service may have its name now, but no other Service ever gets its uid.
            return Ok(Reconciled {
                released: self.release_all(&held).await?,
                ..Reconciled::default()
            });
        };
        let Kept { mut keeps, trouble, lacks } = if service.is_ours(self.terms.assigns) {
            self.keep(&service, &held).await?
        } else {
            Kept::default()
        };
        keeps.sort_unstable();
        let ingress = self.ingress(&service, &keeps, &held);
        let named = addresses(&service.ingress);
        let told = keeps.iter().copied().filter(|address| !named.contains(address)).collect();
        if ingress != service.ingress {
            let fields = json!({ "loadBalancer": { "ingress": ingress } });
            let written = objects.writes().write_status(&self.key(), &revision, fields).await;
            written.map_err(StoreError::from)?;
        }
        let surplus = held.iter().filter(|held| !keeps.contains(&held.address));
        let released = self.release_each(surplus).await?;
        let metadata = Some(metadata);
        Ok(Reconciled { told, released, trouble, lacks, metadata, ..Reconciled::default() })
    }

    /// Returns the addresses that a Service of this controller keeps, and the reason why it lacks others. A release
    /// that is in progress cannot remove any of the addresses that it keeps.
    ///
    /// # Errors
    /// Returns [`StoreError::Conflict`] if an address was assigned now. The next attempt finds it among the Service's
    /// addresses.
    async fn keep(&self, service: &Service, held: &[Held]) -> Result<Kept, Error> {
        let named = addresses(&service.ingress);
        let mut keeps = Vec::new();
        let mut trouble = None;
        let wish = possible_wish(service).unwrap_or_else(|why| {
            trouble = Some(why);
            Wish { families: vec![Family::V4, Family::V6], ..Wish::default() }
        });
        // If the request is not valid, the Service keeps what it has and gets nothing new.
        let is_none = trouble.is_some();
        let mut lacks = is_none;
        let mut families = wish.families.clone();
        if !wish.addresses.is_empty() {
            families = wish.addresses.iter().copied().map(family).collect();
        }
        for of in families {
            let of_family = || held.iter().filter(move |held| family(held.address) == of);
            let best = |it: &&Held| (!named.contains(&it.address), it.address);
            let fits = |held: &&Held| is_none || self.fits(held.address, &wish);
            let mut kept = of_family().filter(fits).min_by_key(best);
            if kept.is_none() && !is_none {
                match self.give(service, &wish, of, &named).await {
                    // The next attempt will find this address among the Service's addresses.
                    Ok(address) => match of_family().find(|held| held.address == address) {
                        None => return Err(StoreError::Conflict.into()),
                        had => kept = had,
                    },
                    Err(Failed::Passing(error)) => return Err(error),
                    Err(Failed::Trouble(why)) => {
                        lacks = true;
                        // The Service keeps its current address until it gets another one.
                        let has_pool = |it: &&Held| self.terms.pool_around(it.address).is_some();
                        kept = of_family().filter(has_pool).min_by_key(best);
                        trouble = self.worse(trouble, why, service);
                    }
                }
            }
            if let Some(Held { address, block, .. }) = kept {
                if !named.contains(address)
                    && !adopt(self.objects, *block, *address, &self.subject.handle).await?
                {
                    return Err(StoreError::Conflict.into());
                }
                keeps.push(*address);
            }
        }
        Ok(Kept { keeps, trouble, lacks })
    }

    /// Returns the problem to report: `before` if there is one, and otherwise `why`. A missing pool is not reported if
    /// the cluster has no pool for load balancers at all and the Service does not request this controller.
    fn worse(&self, before: Option<Trouble>, why: Trouble, service: &Service) -> Option<Trouble> {
        let is_no_concern = matches!(why, Trouble::NoPool { .. })
            && self.terms.pools.is_empty()
            && !service.names_us();
        before.or_else(|| (!is_no_concern).then_some(why))
    }

    /// Returns whether a Service may keep an address that it has. A pool that was disabled, or that is now for other
    /// namespaces, assigns no new addresses but takes none away.
    fn fits(&self, address: IpAddr, wish: &Wish) -> bool {
        let Some(pool) = self.terms.pool_around(address) else { return false };
        if !wish.addresses.is_empty() {
            return wish.addresses.contains(&address);
        }
        match wish.pools_of(family(address)) {
            Some(names) => names.iter().any(|name| is_named(pool, name)),
            None => !pool.is_manual,
        }
    }

    /// Assigns an address of a family to a Service.
    async fn give(
        &self,
        service: &Service,
        wish: &Wish,
        of: Family,
        named: &[IpAddr],
    ) -> Result<IpAddr, Failed> {
        let Self { objects, subject, terms, .. } = self;
        let wished = wish.addresses.iter().copied().find(|address| family(*address) == of);
        if let Some(address) = wished
            && let Some(owner) = terms.taken.get(&address)
        {
            let owner = owner.clone();
            return Err(Failed::Trouble(Trouble::OfNode { address, owner }));
        }
        let serving = self.serving().await?;
        if let Some(most) = terms.most
            && self.ledger.number_of_others(subject, of) >= most
        {
            let namespace = subject.namespace.clone();
            return Err(Failed::Trouble(Trouble::Most { namespace, most, family: of }));
        }
        let attributes = Attributes::from([
            ("namespace".to_owned(), service.namespace.clone()),
            ("service".to_owned(), service.name.clone()),
            ("type".to_owned(), OF_SERVICE.to_owned()),
            ("timestamp".to_owned(), timestamp(self.now)),
        ]);
        let mut reserved = terms.reserved.clone();
        reserved.extend(terms.taken.keys().copied().map(IpNet::from));
        let request = Request {
            owner: &Owner::load_balancer(),
            handle: &subject.handle,
            attributes: &attributes,
            reserved: &reserved,
            config: &terms.config,
            now: self.now,
        };
        if let Some(address) = wished {
            assign_named(*objects, &serving, address, request).await?;
            return Ok(address);
        }
        let pools = pools(&serving, of, wish)?;
        // The status of a Service may name an address that another controller assigned, or whose record is lost. This
        // address is tried first.
        let before = named.iter().copied().find(|it| {
            family(*it) == of
                && pools.iter().any(|pool| pool.cidr.contains(it))
                && !reserved.iter().any(|net| net.contains(it))
        });
        if let Some(address) = before {
            let of_pools: Vec<Pool> = pools.iter().map(|pool| (*pool).clone()).collect();
            match assign_named(*objects, &of_pools, address, request).await.map_err(Failed::from) {
                Ok(()) => return Ok(address),
                Err(Failed::Passing(error)) => return Err(error.into()),
                // Another user has the address.
                Err(Failed::Trouble(_)) => {}
            }
        }
        Ok(assign(*objects, &pools, request).await?)
    }

    /// Returns the pools that may serve the Service: they are enabled and match its namespace. This also applies to
    /// pools that the Service names, because the author of a Service may name any pool.
    async fn serving(&self) -> Result<Vec<Pool>, StoreError> {
        let enabled = self.terms.pools.iter().filter(|pool| !pool.is_disabled);
        let mut serving: Vec<Pool> = enabled.cloned().collect();
        if serving.iter().any(|pool| pool.namespaces.is_some()) {
            let namespace = &self.subject.namespace;
            let found = self.objects.object(Kind::Namespace, "", namespace).await?;
            let labels = labels(&found.unwrap_or_default());
            serving.retain(|pool| pool.namespaces.as_ref().is_none_or(|it| it.matches(&labels)));
        }
        Ok(serving)
    }

    /// Returns the entries that `status.loadBalancer.ingress` must have.
    ///
    /// If the Service keeps no address, the entries of other controllers stay. Entries are removed if the Service had
    /// their address here; for a Service of this controller, also if their address is in a pool for load balancers,
    /// because it then belongs to no Service or to another one.
    fn ingress(&self, service: &Service, keeps: &[IpAddr], held: &[Held]) -> Vec<Value> {
        let is_ours = service.is_ours(self.terms.assigns);
        let stays = |entry: &&Value| match address_of(entry) {
            Some(address) if keeps.contains(&address) => true,
            Some(address) if held.iter().any(|held| held.address == address) => false,
            Some(address) if is_ours && self.terms.pool_around(address).is_some() => false,
            _ => keeps.is_empty(),
        };
        let mut entries: Vec<Value> = service.ingress.iter().filter(stays).cloned().collect();
        let there = addresses(&entries);
        let missing = keeps.iter().filter(|address| !there.contains(address));
        entries.extend(missing.map(|address| json!({ "ip": address.to_string() })));
        entries
    }

    /// Releases all addresses of a Service that does not exist any more. A write of an earlier leader that is still in
    /// progress fails after this.
    async fn release_all(&self, held: &[Held]) -> Result<Vec<IpAddr>, Error> {
        let handle = &self.subject.handle;
        let mut released = release_by_handle(self.objects, handle, self.rest()).await?;
        // A handle that was deleted by hand does not count these addresses.
        let uncounted = held.iter().filter(|it| !released.contains(&it.address));
        released.extend(self.release_each(uncounted).await?);
        Ok(released)
    }

    /// Releases addresses, if their allocations have not changed since they were read.
    async fn release_each(
        &self,
        surplus: impl IntoIterator<Item = &Held>,
    ) -> Result<Vec<IpAddr>, Error> {
        let mut blocks = BTreeMap::<IpNet, Vec<ToRelease>>::new();
        for Held { address, block, sequence } in surplus {
            let handle = Some(self.subject.handle.clone());
            let to_release = ToRelease { address: *address, handle, sequence: Some(*sequence) };
            blocks.entry(*block).or_default().push(to_release);
        }
        let mut released = Vec::new();
        for (cidr, addresses) in blocks {
            match release(self.objects, cidr, &addresses, self.rest()).await {
                Ok(more) => released.extend(more),
                Err(ReleaseError::Outdated(_)) => return Err(StoreError::Conflict.into()),
                Err(ReleaseError::Failed(error)) => return Err(error),
            }
        }
        Ok(released)
    }
}

/// Returns the request of a Service, if the request is possible.
fn possible_wish(service: &Service) -> Result<Wish, Trouble> {
    let wish = service.wish()?;
    let of_other = wish.addresses.iter().find(|it| !wish.families.contains(&family(**it)));
    match of_other {
        Some(it) => Err(Trouble::OtherFamily { address: *it, family: family(*it) }),
        None => Ok(wish),
    }
}

/// Returns the pools of a family from which a Service gets an address, in order of preference.
fn pools<'a>(serving: &'a [Pool], of: Family, wish: &Wish) -> Result<Vec<&'a Pool>, Failed> {
    let of_family = || serving.iter().filter(|pool| Family::of(pool.cidr) == of);
    let Some(names) = wish.pools_of(of) else {
        let automatic: Vec<&Pool> = of_family().filter(|pool| !pool.is_manual).collect();
        let none = Failed::Trouble(Trouble::NoPool { family: of });
        return if automatic.is_empty() { Err(none) } else { Ok(automatic) };
    };
    let find = |name: &String| {
        of_family().find(|pool| is_named(pool, name)).ok_or_else(|| {
            Failed::Trouble(Trouble::UnknownPool {
                named: name.clone(),
                family: of,
                pools: of_family().map(|pool| format!("{} ({})", pool.name, pool.cidr)).collect(),
            })
        })
    };
    names.iter().map(find).collect()
}

/// Returns whether a text is the name or the CIDR of a pool.
fn is_named(pool: &Pool, text: &str) -> bool {
    pool.name == text || text.parse::<IpNet>().is_ok_and(|net| net == pool.cidr)
}

fn address_of(entry: &Value) -> Option<IpAddr> {
    entry["ip"].as_str()?.parse().ok()
}

fn addresses(ingress: &[Value]) -> Vec<IpAddr> {
    ingress.iter().filter_map(address_of).collect()
}
