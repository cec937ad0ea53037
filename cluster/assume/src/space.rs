//! The addresses and nets that the input names, and the ranges that are free.

use std::collections::BTreeSet;
use std::iter;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use manx_objects::State;
use manx_objects::contents::Contents;
use manx_objects::object::bgp::{BgpConfiguration, Remote};
use manx_objects::object::calico::{self, EntityRule};
use manx_objects::object::cluster::{ClusterMatch, ClusterNetworkPolicy, ClusterPeer};
use manx_objects::object::{IpBlock, NetworkPolicy, Object, Peer};

/// A net that a rule names.
#[derive(Debug)]
struct Named {
    net: IpNet,
    /// The parts of the net that the rule excludes.
    except: Vec<IpNet>,
}

impl Named {
    /// Returns whether the rule applies to no address of a range.
    fn leaves_out(&self, range: IpNet) -> bool {
        !overlap(self.net, range) || self.except.iter().any(|except| except.contains(&range))
    }

    /// Returns whether the rule applies to every address of a range.
    fn means_all_of(&self, range: IpNet) -> bool {
        self.net.contains(&range) && !self.except.iter().any(|except| overlap(*except, range))
    }
}

/// The objects for which a range is used.
#[derive(Debug, Clone, Copy)]
pub(crate) enum User {
    Nodes,
    Pods,
    Services,
}

/// The addresses and nets that the input names.
#[derive(Debug, Default)]
pub(crate) struct Space {
    addresses: BTreeSet<IpAddr>,
    /// The nets of nodes and pools, from which addresses are assigned.
    blocks: Vec<IpNet>,
    /// The blocks that were assigned to nodes during the completion.
    given: Vec<IpNet>,
    named: Vec<Named>,
}

impl Space {
    /// Returns the addresses and nets that these contents name.
    pub(crate) fn of(contents: &Contents) -> Self {
        let mut space = Self::default();
        for stored in contents.objects.values() {
            match &stored.state {
                State::Valid(object) => space.add(object),
                State::Invalid(invalid) => {
                    space.addresses.extend(invalid.reported.iter().chain(&invalid.annotated));
                }
            }
        }
        space
    }

    /// Marks an address as used. Returns whether it was free.
    pub(crate) fn take(&mut self, address: IpAddr) -> bool {
        self.addresses.insert(address)
    }

    /// Marks a range as used.
    pub(crate) fn take_block(&mut self, block: IpNet) {
        self.blocks.push(block);
        self.given.push(block);
    }

    /// Returns whether a rule names a net smaller than `block` that contains this address, so that the rule treats the
    /// address differently from others in the block.
    pub(crate) fn is_named_within(&self, block: IpNet, address: IpAddr) -> bool {
        let nets = self.named.iter().flat_map(|named| iter::once(&named.net).chain(&named.except));
        let mut within = nets.filter(|net| net.prefix_len() > block.prefix_len());
        within.any(|net| net.contains(&address))
    }

    /// Returns an unused private range. The first choice is a range to which no rule applies. The second is a range to
    /// which only rules for all addresses apply. The third is a range that no rule divides: each rule applies to all of
    /// the range or to none of it. In the third case, rules name all private ranges. Every pod or node then has an
    /// address to which these rules apply, so this range is as good as any other.
    pub(crate) fn free_range(&self, user: User, v4: bool) -> Option<IpNet> {
        let first = |may_lie_in: &dyn Fn(&Named, IpNet) -> bool| {
            let mut free = ranges(user, v4).filter(|range| self.is_unused(*range));
            free.find(|range| self.named.iter().all(|named| may_lie_in(named, *range)))
        };
        first(&|named, range| named.leaves_out(range))
            .or_else(|| {
                first(&|named, range| named.net.prefix_len() == 0 || named.leaves_out(range))
            })
            .or_else(|| first(&|named, range| named.means_all_of(range) || named.leaves_out(range)))
    }

    /// Returns a net that a rule names and that contains all of a range. Nets that contain all addresses of a family
    /// are ignored.
    pub(crate) fn named_around(&self, range: IpNet) -> Option<IpNet> {
        let smaller = self.named.iter().filter(|named| named.net.prefix_len() > 0);
        smaller.filter(|named| named.means_all_of(range)).map(|named| named.net).next()
    }

    /// Returns the first part of `outer` with this prefix length that is free. A free part contains no used address. It
    /// also overlaps no block that was assigned to a node, and no other block or named net that is smaller than
    /// `outer`. A net that contains all of `outer` does not matter, because it treats all parts alike.
    pub(crate) fn free_part(&self, outer: IpNet, prefix_len: u8) -> Option<IpNet> {
        let length = prefix_len.max(outer.prefix_len());
        outer.subnets(length).ok()?.take(1 << 16).find(|part| {
            let inside = |net: IpNet| net.prefix_len() > outer.prefix_len() && overlap(net, *part);
            let nets =
                self.named.iter().flat_map(|named| iter::once(&named.net).chain(&named.except));
            self.addresses_in(*part).next().is_none()
                && !self.given.iter().any(|given| overlap(*given, *part))
                && !self.blocks.iter().chain(nets).any(|net| inside(*net))
        })
    }

    /// Returns the used addresses that are in a net.
    pub(crate) fn addresses_in(&self, net: IpNet) -> impl Iterator<Item = IpAddr> {
        self.addresses.range(net.network()..=net.broadcast()).copied()
    }

    /// Returns whether no object has an address or a block in a range.
    fn is_unused(&self, range: IpNet) -> bool {
        self.addresses_in(range).next().is_none()
            && !self.blocks.iter().any(|block| overlap(*block, range))
    }

    fn add(&mut self, object: &Object) {
        match object {
            Object::Node(node) => {
                self.blocks.extend(&node.pod_cidrs);
                self.addresses.extend(node.internal_ips.iter().chain(&node.external_ips));
                self.addresses.extend(node.calico_address.map(|net| net.addr()));
            }
            Object::Pod(pod) => {
                self.addresses.extend(pod.every_address());
                self.addresses.extend(pod.host_ip);
            }
            Object::Service(service) => self.addresses.extend(&service.addresses),
            Object::EndpointSlice(slice) => self.addresses.extend(&slice.addresses),
            Object::Endpoints(endpoints) => {
                self.addresses.extend(endpoints.slices.iter().flat_map(|it| &it.addresses));
            }
            Object::HostEndpoint(host) => self.addresses.extend(&host.expected_ips),
            Object::IpPool(pool) => self.blocks.push(pool.cidr),
            Object::ServiceCidr(ranges) => self.blocks.extend(&ranges.cidrs),
            Object::NetworkSet(set) => self.name(&set.nets, &[]),
            Object::NetworkPolicy(policy) => self.add_nets_of_policy(policy),
            Object::ClusterNetworkPolicy(policy) => self.add_nets_of_cluster_policy(policy),
            Object::CalicoPolicy(policy) => self.add_rules(&[&policy.ingress, &policy.egress]),
            Object::Profile(profile) => self.add_rules(&[&profile.ingress, &profile.egress]),
            Object::FelixConfiguration(felix) => {
                let failsafe = felix.failsafe_inbound.iter().chain(&felix.failsafe_outbound);
                for net in failsafe.flatten().filter_map(|port| port.net) {
                    self.name(&[net], &[]);
                }
            }
            Object::BlockAffinity(affinity) => self.blocks.push(affinity.cidr),
            Object::BgpConfiguration(configuration) => {
                let BgpConfiguration { cluster_ips, external_ips, load_balancer_ips, .. } =
                    &**configuration;
                let all = [cluster_ips, external_ips, load_balancer_ips];
                self.blocks.extend(all.into_iter().flatten());
            }
            Object::BgpPeer(peer) => {
                if let Remote::Address { address, .. } = peer.remote {
                    self.addresses.insert(address);
                }
            }
            Object::BgpFilter(_)
            | Object::Namespace(_)
            | Object::ServiceAccount(_)
            | Object::Workload(_)
            | Object::Tier(_) => {}
        }
    }

    /// Adds the nets that the rules of a NetworkPolicy of Kubernetes name.
    fn add_nets_of_policy(&mut self, policy: &NetworkPolicy) {
        let rules = policy.ingress.iter().chain(&policy.egress).flatten();
        for peer in rules.flat_map(|rule| rule.peers.iter().flatten()) {
            if let Peer::IpBlock(IpBlock { cidr, except }) = peer {
                self.name(&[*cidr], except);
            }
        }
    }

    /// Adds the nets that the rules of a ClusterNetworkPolicy name.
    fn add_nets_of_cluster_policy(&mut self, policy: &ClusterNetworkPolicy) {
        for rule in policy.ingress.iter().chain(&policy.egress) {
            let ClusterMatch::Of { peers, .. } = &rule.matches else { continue };
            for peer in peers {
                if let ClusterPeer::Networks(nets) = peer {
                    self.name(nets, &[]);
                }
            }
        }
    }

    /// Adds the nets that rules of Calico name.
    fn add_rules(&mut self, rules: &[&Vec<calico::Rule>]) {
        for rule in rules.iter().copied().flatten() {
            for EntityRule { nets, not_nets, .. } in [&rule.source, &rule.destination] {
                self.name(nets, not_nets);
            }
        }
    }

    fn name(&mut self, nets: &[IpNet], except: &[IpNet]) {
        let named = nets.iter().map(|net| Named { net: net.trunc(), except: except.to_vec() });
        self.named.extend(named);
    }
}

fn overlap(a: IpNet, b: IpNet) -> bool {
    a.contains(&b) || b.contains(&a)
}

/// Returns private ranges in the order in which they are tried. Common ranges come first. For IPv4, each range has
/// 65,536 addresses (RFC 1918, RFC 6598, RFC 2544). For IPv6, each is a /48 of unique local addresses (RFC 4193).
fn ranges(user: User, v4: bool) -> Box<dyn Iterator<Item = IpNet>> {
    if v4 {
        let net = |[a, b]: [u8; 2]| Ipv4Net::new(Ipv4Addr::new(a, b, 0, 0), 16).ok().map(IpNet::V4);
        let usual = match user {
            User::Nodes => [[172, 18], [172, 19]],
            User::Pods => [[10, 244], [10, 42]],
            User::Services => [[10, 96], [10, 43]],
        };
        let ten = (0..=255).rev().map(|b| [10, b]);
        let others = (16..32).map(|b| [172, b]).chain([[192, 168]]);
        let shared = (64..128).map(|b| [100, b]).chain([[198, 18], [198, 19]]);
        Box::new(usual.into_iter().chain(ten).chain(others).chain(shared).filter_map(net))
    } else {
        let net = |number: u16| {
            let network = Ipv6Addr::new(0xfd00, 0x10, 0x244 + number, 0, 0, 0, 0, 0);
            Ipv6Net::new(network, 48).ok().map(IpNet::V6)
        };
        Box::new((0..0x1000).filter_map(net))
    }
}
