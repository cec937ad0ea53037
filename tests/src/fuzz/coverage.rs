//! The coverage of a run, and the minimum that it must reach.

use std::fmt;

use manx_dataplane::drop_reason::DropReason;

/// Declares an enum with a text for each variant, and a list of all variants.
macro_rules! listed {
    ($(#[$doc:meta])* $name:ident { $($variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($variant,)* }

        impl $name {
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            pub const fn text(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }
    };
}

listed! {
    /// The kinds of generated packets.
    Kind {
        Opening = "a connection's first packet",
        Conversation = "a packet of a connection",
        Partial = "with a partial checksum",
        Options = "with IPv4 options or IPv6 extension headers",
        SuperPacket = "a super-packet",
        Train = "one of several segments that belong together",
        Large = "longer than a link takes",
        Fragment = "a fragment",
        LateFragment = "a fragment long after its first one",
        OddFragment = "a fragment that overlaps, is tiny or has no place in the packet",
        ShortLived = "with few hops left",
        Query = "a query of ICMP, or its answer",
        Message = "another message of ICMP",
        Error = "an ICMP error about a connection",
        FalseError = "an ICMP error about nothing, or from the wrong side",
        OtherProtocol = "of a protocol without ports",
        Itself = "of a pod to itself",
        Spoofed = "from another's address",
        PodTunnel = "a tunnel packet of a pod",
        Tunnelled = "from the other node's tunnel",
        FalseTunnel = "from a false tunnel",
        Unmarked = "out of a tunnel, with a partial checksum that is not marked",
        Nowhere = "to an address without a pod, or one that is never forwarded",
        Transit = "between addresses of no pod",
        Mutated = "with bits, bytes, lengths or its end changed",
        FalseOffload = "with a false virtio header",
        Noise = "noise",
        Flood = "one of many of a connection, read by one worker",
        Carried = "sent by one node to the other",
        Stranger = "from a stranger to a port of a node's",
    }
}

listed! {
    /// The events of packets, and the events between packets.
    Event {
        ToPod = "went to a pod",
        ToNode = "went to the node",
        ToWorld = "went to the world",
        ToTunnel = "went into the tunnel",
        FromPod = "came from a pod and went on",
        FromNode = "came from the node and went on",
        FromWorld = "came from the world and went on",
        FromTunnel = "came out of the tunnel and went on",
        Allowed = "policy allows it",
        Reply = "it answers what policy allows, and is not allowed by itself",
        Related = "it is an error about what policy allows",
        LaterFragment = "it follows its first fragment",
        Kept = "its connection outlives its policy",
        Tcp4 = "TCP over IPv4 went on",
        Tcp6 = "TCP over IPv6 went on",
        Udp4 = "UDP over IPv4 went on",
        Udp6 = "UDP over IPv6 went on",
        Sctp4 = "SCTP over IPv4 went on",
        Sctp6 = "SCTP over IPv6 went on",
        Icmp4 = "ICMP went on",
        Icmp6 = "ICMPv6 went on",
        Other4 = "another protocol over IPv4 went on",
        Other6 = "another protocol over IPv6 went on",
        SuperTcp4 = "a super-packet of TCP over IPv4 went on, whole or in segments",
        SuperTcp6 = "a super-packet of TCP over IPv6 went on, whole or in segments",
        SuperUdp = "a super-packet of UDP went on, whole or in segments",
        WholeSuper = "a super-packet went on as it was",
        Segmented = "a segment was made",
        Fragmented = "a fragment was made",
        Coalesced = "segments were put together",
        TooBig = "its sender was told that it is too big",
        TimeExceeded = "its sender was told that its hops are used up",
        Unreachable = "its sender was told that its destination is unreachable",
        Translated = "it was translated",
        TranslatedBack = "it was translated back",
        TranslatedFragment = "a fragment was translated",
        TranslatedError = "an error about a translated packet was translated",
        Left = "it left for the world with the node's address",
        CameBack = "it came back from the world to a port of the way out",
        ByNodePort = "a node port led it to a backend",
        ByNodePortBack = "it came back from a node port",
        Visited = "the other node had led its sender to a pod",
        VisitAnswered = "it went back to a client whom the other node had led",
        ByAnotherNode = "its connection's packets have come by both nodes",
        ChosenAnew = "its connection got another backend",
        Hairpin = "a pod reached itself by a service",
        OtherPort = "its source port was taken, and it got another one",
        Refused = "its sender was told that nobody is there",
        HandedOff = "it was handed off to another worker",
        Portless = "it was handed off, and its port had gone",
        Evicted = "a live flow was evicted",
        SureOpening = "it had to arrive, and did: the first of a connection",
        SureTalk = "it had to arrive, and did: of a known connection",
        SureReply = "it had to arrive, and did: an answer that is not allowed by itself",
        SureError = "it had to arrive, and did: an error about a known connection",
        SureItself = "it had to arrive, and did: of a pod to itself",
        SureTranslatedOpening = "it had to arrive, and did: the first of a connection to a service",
        SureTranslated = "it had to arrive, and did: of a known connection to a service",
        SureTranslatedReply = "it had to arrive, and did: a service's answer",
        SureTranslatedError = "it had to arrive, and did: an error about a known connection to a service",
        SureMoved = "it had to arrive, and did: of a connection that came by another node before",
        SureLeft = "it had to arrive, and did: the first of a connection to the world",
        SureLeaving = "it had to arrive, and did: of a known connection to the world",
        SureComingBack = "it had to arrive, and did: an answer from the world",
        OneWorker = "a world of one worker on each node",
        TwoWorkers = "a world of two workers on each node",
        ThreeWorkers = "a world of three workers on each node",
        Ipip = "a world with IPIP",
        Vxlan = "a world with VXLAN",
        Strict = "a world in which TCP begins with a SYN",
        Keeps = "a world in which established connections are kept",
        Translates = "a world with services that the nodes translate",
        HasPorts = "a world with node ports and a way out",
        FewPorts = "a world whose way out has two ports",
        Straddled = "tables changed under way",
        BeforeTables = "it came before the first tables",
        InPlace = "the tables in use followed a change",
        Republished = "other tables were published",
        PolicyChanged = "a policy came or went",
        Relabelled = "pods changed their labels",
        Moved = "pods changed their addresses",
        Detached = "a pod's port was taken away",
        Attached = "a pod came",
        Replaced = "a pod came in the place of another",
        Renewed = "a pod got another device",
        BackendsChanged = "a service got other backends",
        FrontendChanged = "a port of a service came or went",
        BackendGone = "an address of backends went",
        BackendBack = "an address of backends came back",
        NextAgent = "another agent went on with a node's flows",
        Restored = "a flow was restored",
        Jumped = "time jumped",
        BuffersChecked = "all buffers were there",
    }
}

/// Drop reasons that do not occur here: no node has a kube-proxy.
const NOT_HERE: [DropReason; 4] = [
    DropReason::ServiceUntranslated,
    DropReason::ServiceSource,
    DropReason::ServiceExcess,
    DropReason::ServiceWithoutFlow,
];

/// Drop reasons that only worlds with services have.
const DROPS_OF_SERVICES: [DropReason; 9] = [
    DropReason::NotOurs,
    DropReason::UnknownPort,
    DropReason::NoFreePort,
    DropReason::ServiceSourceRanges,
    DropReason::ServiceWithoutPort,
    DropReason::ServiceWithoutBackend,
    DropReason::BackendGone,
    DropReason::ConnectionTaken,
    DropReason::SctpFragment,
];

/// Events that only worlds with services have.
const EVENTS_OF_SERVICES: [Event; 30] = [
    Event::ByAnotherNode,
    Event::SureMoved,
    Event::Left,
    Event::CameBack,
    Event::ByNodePort,
    Event::ByNodePortBack,
    Event::Visited,
    Event::VisitAnswered,
    Event::SureLeft,
    Event::SureLeaving,
    Event::SureComingBack,
    Event::HasPorts,
    Event::FewPorts,
    Event::Translated,
    Event::TranslatedBack,
    Event::TranslatedFragment,
    Event::TranslatedError,
    Event::ChosenAnew,
    Event::Hairpin,
    Event::OtherPort,
    Event::Refused,
    Event::SureTranslatedOpening,
    Event::SureTranslated,
    Event::SureTranslatedReply,
    Event::SureTranslatedError,
    Event::Translates,
    Event::BackendsChanged,
    Event::FrontendChanged,
    Event::BackendGone,
    Event::BackendBack,
];

/// Kinds that must not come out, or come out only by chance.
const NEVER_OUT: [Kind; 2] = [Kind::PodTunnel, Kind::Noise];

/// See the module.
#[derive(Clone)]
pub struct Coverage {
    pub generated: Vec<u64>,
    pub came_out: Vec<u64>,
    pub events: Vec<u64>,
    pub drops: Vec<u64>,
    pub packets: u64,
    pub worlds: u64,
    /// A hash of everything that came out, in order. Two equal runs have the same hash.
    pub digest: u64,
}

impl Default for Coverage {
    fn default() -> Self {
        let kinds = vec![0; Kind::ALL.len()];
        Self {
            generated: kinds.clone(),
            came_out: kinds,
            events: vec![0; Event::ALL.len()],
            drops: vec![0; DropReason::ALL.len()],
            packets: 0,
            worlds: 0,
            digest: 0,
        }
    }
}

impl Coverage {
    pub fn count(&mut self, event: Event) {
        self.add(event, 1);
    }

    pub fn add(&mut self, event: Event, times: u64) {
        self.events[event as usize] += times;
    }

    /// The events and kinds that a run should cover and that occurred less often than `least`.
    /// Those of services count only if the run has worlds `with_services`.
    pub fn lacks(&self, least: u64, with_services: bool) -> Vec<String> {
        let occurs = |kind: &Kind| with_services || *kind != Kind::Stranger;
        let kinds = Kind::ALL.iter().zip(&self.generated).filter(|(kind, _)| occurs(kind));
        let kinds = kinds.map(|(it, count)| (it.text(), *count));
        let came_out = Kind::ALL.iter().zip(&self.came_out);
        let came_out = came_out
            .filter(|(kind, _)| !NEVER_OUT.contains(kind) && occurs(kind))
            .map(|(it, count)| (it.text(), *count));
        let events = Event::ALL.iter().zip(&self.events);
        let events = events
            .filter(|(it, _)| with_services || !EVENTS_OF_SERVICES.contains(it))
            .map(|(it, count)| (it.text(), *count));
        let drops = DropReason::ALL.iter().zip(&self.drops);
        let drops = drops
            .filter(|(reason, _)| !NOT_HERE.contains(reason))
            .filter(|(reason, _)| with_services || !DROPS_OF_SERVICES.contains(reason))
            .map(|(reason, count)| (reason.name(), *count));
        kinds
            .chain(came_out)
            .chain(events)
            .chain(drops)
            .filter(|(_, count)| *count < least)
            .map(|(text, count)| format!("{count} of {least}: {text}"))
            .collect()
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} packets in {} worlds", self.packets, self.worlds)?;
        writeln!(f, "\nkind: generated, of these came out")?;
        for (at, kind) in Kind::ALL.iter().enumerate() {
            let (generated, came_out) = (self.generated[at], self.came_out[at]);
            writeln!(f, "{generated:>12} {came_out:>12}  {}", kind.text())?;
        }
        writeln!(f, "\nwhat happened")?;
        for (at, event) in Event::ALL.iter().enumerate() {
            writeln!(f, "{:>12}  {}", self.events[at], event.text())?;
        }
        writeln!(f, "\ndropped")?;
        for (at, reason) in DropReason::ALL.iter().enumerate() {
            writeln!(f, "{:>12}  {}", self.drops[at], reason.name())?;
        }
        writeln!(f, "\ndigest of what came out: {:016x}", self.digest)
    }
}
