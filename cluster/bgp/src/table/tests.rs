mod next_hops;

use std::net::Ipv4Addr;

use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use manx_objects::contents::Contents;
use manx_objects::object::bgp::{Advertisement, Community};

use super::learned::PART;
use super::*;
use crate::export::{Exports, Priorities, Route};
use crate::filter::Filters;
use crate::path::{Opaque, Origin, Segment};
use crate::peer::{NextHopMode, PeerType};

const OWN_SYSTEM: u32 = 64512;
const LIMIT: usize = 4;

fn address(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, last))
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

/// The peers: a reflector's client, an internal peer that is none, and two peers of other systems. One more peer gets the
/// same announcements as the first, and one the same as the fourth.
fn peer(last: u8) -> Peer {
    let system = match last {
        1 | 2 | 5 => OWN_SYSTEM,
        other => 65000 + u32::from(other),
    };
    Peer {
        address: address(last),
        port: 179,
        kind: PeerType::Global,
        name: format!("peer-{last}"),
        system,
        own_system: OWN_SYSTEM,
        source: None,
        is_node: matches!(last, 1 | 2 | 5),
        is_passive: false,
        reflected_as: matches!(last, 1 | 5).then_some(Ipv4Addr::new(1, 1, 1, 1)),
        next_hop: if matches!(last, 4 | 6) { NextHopMode::Keep } else { NextHopMode::Auto },
        own_system_allowed: 0,
        filters: Vec::new(),
        password: None,
        hops: None,
        restart_time: Duration::from_mins(2),
        hold_time: Duration::from_mins(4),
    }
}

const PREFIXES: [&str; 7] = [
    "10.65.0.0/26",
    "10.65.0.7/32",
    "10.65.0.64/26",
    "10.65.1.0/26",
    "10.66.0.0/26",
    "192.0.2.0/24",
    "0.0.0.0/0",
];

fn advertisements() -> Vec<Advertisement> {
    let communities = vec![Community::Standard(7), Community::Large([1, 2, 3])];
    vec![Advertisement { cidr: net("10.65.0.0/25"), communities }]
}

fn configuration(own: &[&str], exported: bool) -> Configuration {
    Configuration {
        identifier: Ipv4Addr::new(10, 0, 0, 9),
        cluster: Some(Ipv4Addr::new(1, 1, 1, 1)),
        addresses: BTreeSet::from([address(9)]),
        peers: (1..=6).map(|it| (address(it), peer(it))).collect(),
        exports: Exports {
            own: own.iter().map(|it| (net(it), OwnRoute::Block)).collect(),
            pools: BTreeMap::from([(net("10.65.0.0/16"), true), (net("10.66.0.0/16"), exported)]),
            reflected: vec![net("192.0.2.0/24")],
            links: vec![net("10.0.0.0/30")],
            advertisements: if exported { advertisements() } else { Vec::new() },
            priorities: Priorities { v4: if exported { 1024 } else { 512 }, v6: 1024 },
        },
        prefixes: LIMIT,
        prefixes_of_node: LIMIT,
        filters: BTreeMap::new(),
    }
}

#[derive(Debug, Clone)]
enum Event {
    Configure(Configuration),
    Open(IpAddr, bool),
    Update(IpAddr, Update),
    EndOfRib(IpAddr),
    Close(IpAddr, Option<u64>),
    Refresh(IpAddr),
    /// This many seconds pass.
    Wait(u64),
    Take(IpAddr, usize),
}

fn peers() -> impl Strategy<Value = IpAddr> {
    (1..=6u8).prop_map(address)
}

fn prefixes() -> impl Strategy<Value = Vec<IpNet>> {
    subsequence(PREFIXES.to_vec(), 0..4).prop_map(|all| all.into_iter().map(net).collect())
}

fn attributes() -> impl Strategy<Value = Attributes> {
    let systems = prop::collection::vec(select(vec![65003, 65004, 65005, OWN_SYSTEM]), 0..3);
    let communities = subsequence(vec![1, 0xffff_ff01, 0xffff_ff02], 0..2);
    let clusters = subsequence(vec![Ipv4Addr::new(1, 1, 1, 1), Ipv4Addr::new(2, 2, 2, 2)], 0..2);
    (
        systems,
        1..=10u8,
        prop::option::of(0..2u32),
        prop::option::of(100..102u32),
        communities,
        clusters,
        prop::option::of(8..10u8),
    )
        .prop_map(|(systems, hop, med, local_pref, communities, clusters, originator)| {
            Attributes {
                origin: Origin::Igp,
                as_path: vec![Segment::Sequence(systems)],
                med,
                local_pref,
                communities,
                clusters,
                originator: originator.map(|it| Ipv4Addr::new(10, 0, 0, it)),
                ..Attributes::of_own(address(hop))
            }
        })
}

fn events() -> impl Strategy<Value = Event> {
    let own = subsequence(PREFIXES[..3].to_vec(), 0..3);
    let update = (prefixes(), prefixes(), attributes()).prop_map(|(withdrawn, announced, of)| {
        let attributes = (!announced.is_empty()).then(|| Arc::new(of));
        Update { withdrawn, announced, attributes }
    });
    prop_oneof![
        1 => (own, any::<bool>()).prop_map(|(own, out)| Event::Configure(configuration(&own, out))),
        3 => (peers(), any::<bool>()).prop_map(|(peer, keeps)| Event::Open(peer, keeps)),
        8 => (peers(), update).prop_map(|(peer, update)| Event::Update(peer, update)),
        1 => peers().prop_map(Event::EndOfRib),
        1 => (peers(), prop::option::of(1..9u64)).prop_map(|(peer, retain)| Event::Close(peer, retain)),
        1 => peers().prop_map(Event::Refresh),
        1 => (1..9u64).prop_map(Event::Wait),
        4 => (peers(), 1..4usize).prop_map(|(peer, prefixes)| Event::Take(peer, prefixes)),
    ]
}

/// A model of the table, which uses only sets and maps.
#[derive(Default)]
struct Model {
    configuration: Option<Configuration>,
    now: Duration,
    sessions: BTreeMap<IpAddr, Opened>,
    paths: BTreeMap<(IpAddr, IpNet), Path>,
    stale_until: BTreeMap<IpAddr, Duration>,
    /// The routes that each peer has, according to the messages that it got.
    announced: BTreeMap<IpAddr, BTreeMap<IpNet, Attributes>>,
}

impl Model {
    fn paths_of(&self, prefix: IpNet) -> Vec<Path> {
        let of = self.paths.iter().filter(|((_, of), _)| *of == prefix);
        of.map(|(_, path)| path.clone()).collect()
    }

    fn forget(&mut self, peer: IpAddr, stale_alone: bool) {
        self.paths.retain(|(of, _), path| *of != peer || (stale_alone && !path.is_stale));
        self.stale_until.remove(&peer);
    }

    /// Whether this node may use a peer's path.
    fn is_usable(peer: &Peer, attributes: &Attributes) -> bool {
        !attributes.systems().any(|it| it == OWN_SYSTEM)
            && attributes.next_hop != address(9)
            && (!peer.is_internal()
                || attributes.originator != Some(Ipv4Addr::new(10, 0, 0, 9))
                    && !attributes.clusters.contains(&Ipv4Addr::new(1, 1, 1, 1)))
    }

    /// The routes that a peer should have after it has got all messages.
    fn should_hold(&self, to: IpAddr) -> BTreeMap<IpNet, Attributes> {
        let configuration = self.configuration.as_ref().unwrap();
        let all: BTreeSet<IpNet> = PREFIXES.iter().map(|it| net(it)).collect();
        let advertised = all.into_iter().filter_map(|prefix| {
            let paths = self.paths_of(prefix);
            let route = if let Some(own) = configuration.exports.own.get(&prefix) {
                Route::Own(*own)
            } else {
                let best = *decision::used(&paths).first()?;
                Route::Learned(best, &configuration.peers[&best.peer])
            };
            let peer = &configuration.peers[&to];
            let peer = (peer, &Filters::default());
            let announced =
                export::advertised(&configuration.exports, (prefix, route), peer, address(9));
            Some((prefix, announced?))
        });
        advertised.collect()
    }
}

/// Applies an event to the table and to the model.
fn step(table: &mut Table, model: &mut Model, event: Event) {
    match event {
        Event::Configure(configuration) => {
            table.configure(&configuration);
            model.configuration = Some(configuration);
        }
        Event::Open(peer, keeps_routes) => {
            if model.sessions.contains_key(&peer) {
                return;
            }
            let identifier = match peer {
                IpAddr::V4(it) => it,
                IpAddr::V6(_) => unreachable!(),
            };
            let opened = Opened { identifier, here: address(9), keeps_routes, now: model.now };
            table.opened(peer, opened);
            model.sessions.insert(peer, opened);
            model.announced.insert(peer, BTreeMap::new());
            if !keeps_routes {
                model.forget(peer, true);
            } else if let Some(until) = model.stale_until.get_mut(&peer) {
                *until = model.now + STALE_AFTER_RETURN;
            }
        }
        Event::Update(peer, update) => update_both(table, model, peer, update),
        Event::EndOfRib(peer) => {
            table.end_of_rib(peer);
            model.forget(peer, true);
        }
        Event::Close(peer, retain) => {
            close_both(table, model, peer, retain.map(Duration::from_secs));
        }
        Event::Refresh(peer) => table.refresh(peer),
        Event::Wait(seconds) => {
            model.now += Duration::from_secs(seconds);
            let next = table.expire(model.now);
            let over = model.stale_until.iter().filter(|(_, until)| **until <= model.now);
            for peer in over.map(|(peer, _)| *peer).collect::<Vec<_>>() {
                model.forget(peer, true);
            }
            assert_eq!(next, model.stale_until.values().min().copied());
        }
        Event::Take(peer, prefixes) => {
            take(table, model, peer, prefixes);
        }
    }
}

fn update_both(table: &mut Table, model: &mut Model, peer: IpAddr, update: Update) {
    let Some(opened) = model.sessions.get(&peer).copied() else {
        assert_eq!(table.updated(peer, update), Ok(()), "without a session nothing is taken");
        return;
    };
    let of = model.configuration.as_ref().unwrap().peers[&peer].clone();
    let result = table.updated(peer, update.clone());
    for prefix in update.withdrawn {
        model.paths.remove(&(peer, prefix));
    }
    for prefix in update.announced {
        let mut attributes = Attributes::clone(update.attributes.as_ref().unwrap());
        if !of.is_internal() {
            (attributes.local_pref, attributes.originator) = (None, None);
            attributes.clusters.clear();
        }
        if !Model::is_usable(&of, &attributes) {
            model.paths.remove(&(peer, prefix));
            continue;
        }
        let held = model.paths.keys().filter(|(it, _)| *it == peer).count();
        if held >= LIMIT && !model.paths.contains_key(&(peer, prefix)) {
            assert_eq!(result, Err(TooManyPrefixes { limit: LIMIT }));
            close_both(table, model, peer, None);
            return;
        }
        let path = Path {
            peer,
            identifier: opened.identifier,
            is_internal: of.is_internal(),
            is_stale: false,
            attributes: Arc::new(attributes),
        };
        model.paths.insert((peer, prefix), path);
    }
    assert_eq!(result, Ok(()));
}

fn close_both(table: &mut Table, model: &mut Model, peer: IpAddr, retain: Option<Duration>) {
    table.closed(peer, retain, model.now);
    model.sessions.remove(&peer);
    model.announced.remove(&peer);
    model.forget(peer, retain.is_some());
    for ((of, _), path) in &mut model.paths {
        path.is_stale |= *of == peer;
    }
    if let Some(retain) = retain {
        model.stale_until.insert(peer, model.now + retain);
    }
}

/// Gives a peer its next messages. Returns whether there were any.
fn take(table: &mut Table, model: &mut Model, peer: IpAddr, prefixes: usize) -> bool {
    let messages = table.take_messages(peer, prefixes);
    for message in &messages {
        let Message::Update(Update { withdrawn, announced, attributes }) = message else {
            continue;
        };
        let held = model.announced.get_mut(&peer).unwrap();
        assert!(withdrawn.len() + announced.len() <= prefixes);
        for prefix in withdrawn {
            assert!(held.remove(prefix).is_some(), "{prefix} is withdrawn, and {peer} has it not");
        }
        for prefix in announced {
            held.insert(*prefix, Attributes::clone(attributes.as_ref().unwrap()));
        }
    }
    !messages.is_empty()
}

/// Gives all peers all of their messages.
fn drain(table: &mut Table, model: &mut Model) {
    let mut rounds = 0;
    loop {
        let woken = table.take_woken();
        let sessions: Vec<IpAddr> =
            woken.into_iter().filter(|it| model.sessions.contains_key(it)).collect();
        if sessions.is_empty() {
            return;
        }
        for peer in sessions {
            while take(table, model, peer, 2) {}
        }
        rounds += 1;
        assert!(rounds < 10, "peers are woken for nothing");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    /// The laws of the module.
    #[test]
    fn the_table_holds_what_was_told_and_tells_what_follows(
        events in prop::collection::vec(events(), 0..60)
    ) {
        let (mut table, mut model) = (Table::new(), Model::default());
        step(&mut table, &mut model, Event::Configure(configuration(&PREFIXES[..1], true)));
        for event in events {
            step(&mut table, &mut model, event);
            let used: BTreeMap<IpNet, Vec<IpAddr>> = table
                .learned(|_| true)
                .map(|(prefix, routes)| (prefix, routes.into_iter().map(|it| it.peer).collect()))
                .collect();
            let mut all: Vec<(IpNet, Vec<Learned>)> = table.learned(|_| true).collect();
            all.sort_by_key(|(prefix, _)| *prefix);
            for most in [0, 1, usize::MAX] {
                let mut counts = [0; 2];
                let is_among = |(prefix, _): &&(IpNet, Vec<Learned>)| {
                    let count = &mut counts[usize::from(prefix.addr().is_ipv6())];
                    *count += 1;
                    *count <= most
                };
                let first: Vec<_> = all.iter().filter(is_among).cloned().collect();
                let mut found = Default::default();
                prop_assert_eq!(table.first_prefixes(most, PART, &mut found), None);
                table.first_prefixes(most, 0, &mut found);
                let found = found.into_iter().flatten();
                prop_assert_eq!(table.routes_of(found).collect::<Vec<_>>(), first);
            }
            let own = &model.configuration.as_ref().unwrap().exports.own;
            for prefix in PREFIXES.iter().map(|it| net(it)).filter(|it| !own.contains_key(it)) {
                let paths = model.paths_of(prefix);
                let expected: Vec<IpAddr> = decision::used(&paths).iter().map(|it| it.peer).collect();
                prop_assert_eq!(used.get(&prefix).cloned().unwrap_or_default(), expected);
            }
            for peer in (1..=6).map(address) {
                let received = model.paths.keys().filter(|(it, _)| *it == peer).count();
                prop_assert!(received <= LIMIT);
                prop_assert_eq!(table.counts(peer).received, received);
            }
        }
        drain(&mut table, &mut model);
        for peer in model.sessions.keys() {
            prop_assert_eq!(&model.announced[peer], &model.should_hold(*peer), "{}", peer);
            prop_assert_eq!(table.counts(*peer).announced, model.announced[peer].len());
        }
    }
}

/// A table with sessions of all peers, and its model.
fn established() -> (Table, Model) {
    let (mut table, mut model) = (Table::new(), Model::default());
    step(&mut table, &mut model, Event::Configure(configuration(&PREFIXES[..1], true)));
    for peer in (1..=6).map(address) {
        step(&mut table, &mut model, Event::Open(peer, false));
    }
    (table, model)
}

/// Announces one prefix with a path through `systems`, whose next hop is the peer.
fn announce(table: &mut Table, model: &mut Model, peer: IpAddr, prefix: &str, systems: &[u32]) {
    let attributes = Attributes {
        as_path: vec![Segment::Sequence(systems.to_vec())],
        ..Attributes::of_own(peer)
    };
    let attributes = Some(Arc::new(attributes));
    let update = Update { announced: vec![net(prefix)], attributes, ..Update::default() };
    step(table, model, Event::Update(peer, update));
}

#[test]
fn a_block_is_told_to_all_with_the_attributes_of_calico() {
    let (mut table, mut model) = established();
    drain(&mut table, &mut model);
    let block = net("10.65.0.0/26");
    let internal = &model.announced[&address(2)][&block];
    assert_eq!((internal.local_pref, internal.path_length()), (Some(2_147_482_623), 0));
    assert_eq!(internal.next_hop, address(9));
    let external = &model.announced[&address(3)][&block];
    assert_eq!(external.local_pref, None);
    assert_eq!(external.as_path, [Segment::Sequence(vec![OWN_SYSTEM])]);
}

#[test]
fn a_reflector_passes_on_between_a_client_and_others_alone() {
    let (mut table, mut model) = established();
    announce(&mut table, &mut model, address(2), "10.65.1.0/26", &[]);
    announce(&mut table, &mut model, address(1), "10.66.0.0/26", &[]);
    announce(&mut table, &mut model, address(3), "10.65.0.64/26", &[65003]);
    announce(&mut table, &mut model, address(3), "192.0.2.0/24", &[65003]);
    drain(&mut table, &mut model);
    let to_client = &model.announced[&address(1)];
    let reflected = &to_client[&net("10.65.1.0/26")];
    assert_eq!(reflected.originator, Some(Ipv4Addr::new(10, 0, 0, 2)));
    assert_eq!(reflected.clusters, [Ipv4Addr::new(1, 1, 1, 1)]);
    assert_eq!(reflected.next_hop, address(2), "as it came");
    assert!(to_client.contains_key(&net("192.0.2.0/24")), "a range that reflectors pass on");
    let to_other = &model.announced[&address(2)];
    assert!(to_other.contains_key(&net("10.66.0.0/26")), "of a client");
    assert!(to_other.contains_key(&net("192.0.2.0/24")), "the same, whoever it is");
    assert_eq!(to_other[&net("10.65.0.64/26")].local_pref, Some(100));
    let to_external = &model.announced[&address(4)];
    assert_eq!(to_external[&net("10.65.1.0/26")].next_hop, address(2), "keep");
    let back = &model.announced[&address(3)];
    assert!(!back.contains_key(&net("10.65.0.64/26")), "it is the peer's own");
}

#[test]
fn another_system_is_told_of_what_others_have_where_it_reaches_them_by_itself() {
    let (mut table, mut model) = established();
    announce(&mut table, &mut model, address(2), "10.65.1.0/26", &[]);
    announce(&mut table, &mut model, address(1), "10.66.0.0/26", &[]);
    let mut elsewhere = configuration(&PREFIXES[..1], true);
    drain(&mut table, &mut model);
    let announced = &model.announced[&address(3)];
    assert_eq!(announced[&net("10.65.1.0/26")].next_hop, address(2), "on one link with both");
    assert_eq!(announced[&net("10.66.0.0/26")].next_hop, address(1));
    elsewhere.exports.links = vec![net("10.0.0.2/31")];
    step(&mut table, &mut model, Event::Configure(elsewhere));
    drain(&mut table, &mut model);
    let announced: Vec<String> =
        model.announced[&address(3)].keys().map(ToString::to_string).collect();
    assert_eq!(
        announced,
        ["10.65.0.0/26", "10.65.1.0/26"],
        "the node forwards nothing for another"
    );
}

#[test]
fn filters_decide_what_is_taken_and_what_is_told_before_the_pools_do() {
    let filter = "apiVersion: projectcalico.org/v3\nkind: BGPFilter\nmetadata: {name: some}\nspec:\n  \
         exportV4: [{cidr: 10.65.0.0/26, matchOperator: Equal, action: Reject},\n             \
         {cidr: 192.0.2.0/24, matchOperator: Equal, action: Accept}]\n  \
         importV4: [{cidr: 10.66.0.0/16, matchOperator: In, action: Reject}]\n";
    let contents = Contents::from_texts([("filter.yaml", filter)]);
    let (filters, problems) = Filters::new(&contents, &["some".to_owned()], "rack");
    assert!(problems.is_empty(), "{problems:?}");
    let mut filtered = configuration(&PREFIXES[..1], true);
    filtered.filters = BTreeMap::from([(address(3), filters)]);
    let (mut table, mut model) = (Table::new(), Model::default());
    step(&mut table, &mut model, Event::Configure(filtered.clone()));
    for peer in [2, 3] {
        step(&mut table, &mut model, Event::Open(address(peer), false));
    }
    announce(&mut table, &mut model, address(2), "192.0.2.0/24", &[]);
    announce(&mut table, &mut model, address(2), "10.66.0.0/26", &[]);
    let attributes = Some(Arc::new(Attributes::of_own(address(3))));
    let update = Update { announced: vec![net("10.66.0.0/26")], attributes, ..Update::default() };
    table.updated(address(3), update).unwrap();
    assert_eq!(table.counts(address(3)), Counts { received: 0, refused: 1, announced: 0 });
    let mut held = BTreeSet::new();
    for message in table.take_messages(address(3), 100) {
        if let Message::Update(update) = message {
            held.extend(update.announced);
        }
    }
    assert_eq!(held, BTreeSet::from([net("10.66.0.0/26"), net("192.0.2.0/24")]));
    assert!(!filtered.asks_same_of(address(3), &configuration(&PREFIXES[..1], true)));
}

#[test]
fn an_address_in_a_block_of_this_node_is_told_to_nobody() {
    let (mut table, mut model) = established();
    announce(&mut table, &mut model, address(3), "10.65.0.7/32", &[65003]);
    drain(&mut table, &mut model);
    assert!(model.announced.values().all(|held| !held.contains_key(&net("10.65.0.7/32"))));
}

#[test]
fn a_peer_that_tells_long_attributes_is_stopped_before_it_has_told_many_prefixes() {
    let (mut table, _) = established();
    let tell = |table: &mut Table, prefix: &str, length: usize| {
        let opaque = vec![Opaque { flags: 0xc0, code: 99, value: vec![0; length] }];
        let attributes = Attributes { opaque, ..Attributes::of_own(address(1)) };
        let attributes = Some(Arc::new(attributes));
        let update = Update { announced: vec![net(prefix)], attributes, ..Update::default() };
        table.updated(address(1), update)
    };
    for _ in 0..10 {
        assert_eq!(tell(&mut table, "10.65.1.0/26", LIMIT * WEIGHT), Ok(()), "it is one prefix");
    }
    let too_many = Err(TooManyPrefixes { limit: LIMIT });
    assert_eq!(tell(&mut table, "10.66.0.0/26", 1), too_many);
    let withdrawn = Update { withdrawn: vec![net("10.65.1.0/26")], ..Update::default() };
    table.updated(address(1), withdrawn).unwrap();
    assert_eq!(tell(&mut table, "10.66.0.0/26", 1), Ok(()));
}

#[test]
fn nothing_leads_where_no_host_is() {
    let hop = |text: &str| Some(text.parse().unwrap());
    let cases = [
        ("192.0.2.0/24", hop("10.0.0.1"), true),
        ("0.0.0.0/0", hop("10.0.0.1"), true),
        ("::/0", hop("fd00::1"), true),
        ("192.0.2.0/24", hop("fd00::1"), false),
        ("192.0.2.0/24", hop("0.0.0.0"), false),
        ("192.0.2.0/24", hop("127.0.0.1"), false),
        ("192.0.2.0/24", hop("224.0.0.1"), false),
        ("192.0.2.0/24", None, false),
        ("127.0.0.0/8", hop("10.0.0.1"), false),
        ("0.0.0.0/8", hop("10.0.0.1"), false),
        ("169.254.0.0/16", hop("10.0.0.1"), false),
        ("224.0.0.0/4", hop("10.0.0.1"), false),
        ("fe80::/64", hop("fd00::1"), false),
        ("ff00::/8", hop("fd00::1"), false),
        ("fd00::/64", hop("fe80::1"), false),
    ];
    for (prefix, next_hop, expected) in cases {
        assert_eq!(is_routable(net(prefix), next_hop), expected, "{prefix} by {next_hop:?}");
    }
}

#[test]
fn what_is_told_again_after_a_restart_stays_and_all_else_goes_at_the_end_of_rib() {
    let (mut table, mut model) = established();
    let peer = address(3);
    let prefixes = |it: &Table| {
        let learned = it.learned(|_| true).map(|(prefix, _)| prefix.to_string());
        learned.collect::<Vec<_>>()
    };
    announce(&mut table, &mut model, peer, "10.65.1.0/26", &[65003]);
    announce(&mut table, &mut model, peer, "10.66.0.0/26", &[65003]);
    step(&mut table, &mut model, Event::Close(peer, Some(120)));
    assert_eq!(prefixes(&table), ["10.65.1.0/26", "10.66.0.0/26"], "they are kept");
    step(&mut table, &mut model, Event::Open(peer, true));
    announce(&mut table, &mut model, peer, "10.65.1.0/26", &[65003]);
    step(&mut table, &mut model, Event::EndOfRib(peer));
    assert_eq!(prefixes(&table), ["10.65.1.0/26"]);
    step(&mut table, &mut model, Event::Wait(3600));
    assert_eq!(prefixes(&table), ["10.65.1.0/26"]);
    drain(&mut table, &mut model);
    assert_eq!(&model.announced[&address(1)], &model.should_hold(address(1)));
}
