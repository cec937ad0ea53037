//! The changes of a world: devices are attached and detached, the nodes import the manifests as agents do, and tables
//! are published. Tables are published to all workers between two batches, or to one worker after the other during a
//! batch.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use manx_calculation::calc::{LocalPod, NextStep};
use manx_dataplane::tables::Tables;
use manx_dataplane::worker::Command;
use manx_objects::contents::{Changes, Contents};

use super::coverage::{Coverage, Event};
use super::epoch::Epoch;
use super::plan::{Change, PlannedPod};
use super::sabotage::Sabotage;
use super::services::{Lies, ServiceChange};
use super::world::World;

impl World {
    /// Publishes the first tables.
    pub fn open(&mut self, coverage: &mut Coverage) {
        self.settings.events().into_iter().flatten().for_each(|event| coverage.count(event));
        let is_small = self.plan.services.way_out.as_ref().is_some_and(|it| it.size() == 2);
        coverage.add(Event::FewPorts, is_small.into());
        self.write_services();
        self.fabric.read(&self.plan.manifests(true));
        for cluster in &mut self.clusters {
            cluster.clone_from(&self.fabric.cluster);
        }
        self.publish([NextStep::Tables; 2], false, false, coverage);
        let last = self.epochs.len() - 1;
        self.epochs.drain(..last);
    }

    /// Makes a random change. If `is_busy`, packets are on their way.
    pub fn change(&mut self, coverage: &mut Coverage, is_busy: bool) {
        if self.settings.terms.translates && self.generator.rng.bool() {
            return self.change_services(coverage, is_busy);
        }
        let rng = &mut self.generator.rng;
        let renewed = if is_busy && rng.bool() { self.pod_under_way() } else { None };
        let rng = &mut self.generator.rng;
        let (change, pods) = match renewed {
            Some(pod) => self.plan.renew(rng, pod),
            None => self.plan.change(rng),
        };
        self.history.changed(self.batches, change, &pods, is_busy);
        coverage.count(match change {
            Change::Policy => Event::PolicyChanged,
            Change::Labels => Event::Relabelled,
            Change::Addresses => Event::Moved,
            Change::Detached => Event::Detached,
            Change::Attached => Event::Attached,
            Change::Replaced => Event::Replaced,
            Change::Device => Event::Renewed,
            Change::Nothing | Change::Services(_) => Event::Republished,
        });
        if change == Change::Device {
            for pod in &pods {
                self.detach_device(*pod, coverage);
            }
        }
        self.follow(change, is_busy, coverage);
        self.generator.follow(&self.plan);
        if !is_busy {
            let last = self.epochs.len() - 1;
            self.epochs.drain(..last);
        }
    }

    /// A pod that has sent a packet of this batch.
    fn pod_under_way(&mut self) -> Option<usize> {
        let node = self.chance.usize(..2);
        let inputs = &self.node_batches[node].inputs;
        let ports = inputs.iter().filter_map(|it| self.devices[node].get(&it.sent.port));
        let pods: Vec<usize> = ports.map(|(pod, _)| *pod).collect();
        pods.get(self.chance.usize(..pods.len().max(1))).copied()
    }

    /// Makes a random change of the services. It is published as the agent does it, with an
    /// unchanged version of the tables.
    fn change_services(&mut self, coverage: &mut Coverage, is_busy: bool) {
        let change = Rc::make_mut(&mut self.plan.services).change(&mut self.generator.rng);
        self.history.changed(self.batches, Change::Services(change), &[], is_busy);
        coverage.count(match change {
            ServiceChange::Backends => Event::BackendsChanged,
            ServiceChange::Frontend => Event::FrontendChanged,
            ServiceChange::Gone => Event::BackendGone,
            ServiceChange::Back => Event::BackendBack,
        });
        self.write_services();
        for node in 0..2 {
            let services = self.fabric.services.clone();
            let tables = Tables { services, ..Tables::clone(&self.fabric.nodes[node].tables) };
            self.hand_over(node, Arc::new(tables), is_busy);
        }
        let before = Rc::clone(&self.epochs[self.epochs.len() - 1]);
        self.epochs.push(Rc::new(before.with_services_of(&self.plan)));
        self.generator.follow(&self.plan);
        if !is_busy {
            let last = self.epochs.len() - 1;
            self.epochs.drain(..last);
        }
    }

    /// Makes the table of services for the next tables.
    fn write_services(&mut self) {
        if let Some(table) = &mut self.fabric.services {
            let is_first = self.epochs[self.epochs.len() - 1].number == 0;
            let lies = Lies {
                gone: self.sabotage == Some(Sabotage::Backend) && !is_first,
                local: self.sabotage == Some(Sabotage::Local),
                choice: false,
            };
            self.plan.services.write(Arc::make_mut(table), lies);
        }
    }

    fn follow(&mut self, change: Change, is_busy: bool, coverage: &mut Coverage) {
        let followed = self.take_in(&self.plan.manifests(true));
        let mut in_place = followed.iter().any(|it| matches!(it, NextStep::Nothing(_)));
        let wanted = self.plan.planned_pods.clone();
        let gone = self.gone();
        if !gone.is_empty() {
            // A port may be reused only when no worker still uses tables in which it belongs to another pod. So tables
            // without these pods are published first.
            for pod in gone {
                self.detach_device(pod, coverage);
            }
            let devices = &self.devices;
            for (at, planned) in self.plan.planned_pods.iter_mut().enumerate() {
                let is_there = |it: &super::plan::Attachment| {
                    devices[planned.node].get(&it.port) == Some(&(at, it.number))
                };
                planned.attachment = planned.attachment.filter(is_there);
            }
            self.publish([NextStep::Tables; 2], in_place, is_busy, coverage);
            in_place = false;
            self.plan.planned_pods = wanted;
        }
        self.attach_devices(coverage);
        let follow_up = match (self.sabotage, change) {
            (Some(Sabotage::Stale), Change::Policy) => [NextStep::Nothing(0); 2],
            (_, Change::Policy | Change::Labels) => followed,
            _ => [NextStep::Tables; 2],
        };
        self.publish(follow_up, in_place, is_busy, coverage);
    }

    /// Makes the nodes import new manifests as agents do. Returns the next step of each.
    fn take_in(&mut self, manifests: &str) -> [NextStep; 2] {
        let contents = Contents::from_texts([("cluster.yaml", manifests)]);
        let before = &self.fabric.contents.objects;
        let keys = before.keys().chain(contents.objects.keys());
        let differs = keys.filter(|key| {
            before.get(*key).map(|it| &it.state) != contents.objects.get(*key).map(|it| &it.state)
        });
        let objects: BTreeMap<_, _> =
            differs.map(|key| (key.clone(), before.get(key).cloned())).collect();
        let changes = Changes::Objects(objects);
        let mut follow_ups = [NextStep::Import; 2];
        for (node, follow_up) in follow_ups.iter_mut().enumerate() {
            let at = &mut self.fabric.nodes[node];
            let image = Arc::clone(&at.tables.image);
            *follow_up =
                at.calculation.apply_delta(&image, &mut self.clusters[node], &contents, &changes);
        }
        if follow_ups.contains(&NextStep::Import) {
            self.fabric.read(manifests);
            for cluster in &mut self.clusters {
                cluster.clone_from(&self.fabric.cluster);
            }
            return [NextStep::Tables; 2];
        }
        self.fabric.contents = contents;
        follow_ups
    }

    /// The pods with devices at ports that are no longer theirs.
    fn gone(&self) -> Vec<usize> {
        let mut gone = Vec::new();
        for (node, devices) in self.devices.iter().enumerate() {
            for (port, (pod, number)) in devices {
                let PlannedPod { attachment, node: at, .. } = &self.plan.planned_pods[*pod];
                let is_there =
                    attachment.is_some_and(|it| (it.port, it.number) == (*port, *number));
                if !is_there || *at != node {
                    gone.push(*pod);
                }
            }
        }
        gone
    }

    fn detach_device(&mut self, pod: usize, coverage: &mut Coverage) {
        let node = self.plan.planned_pods[pod].node;
        let found = self.devices[node].iter().find(|(_, (at, _))| *at == pod);
        let Some(port) = found.map(|(port, _)| *port) else { return };
        // The packets that the device has already sent are collected first.
        self.collect(node, coverage);
        self.devices[node].remove(&port);
        self.fabric.nodes[node].send_command(|| Command::Detach(port, None));
        self.node_batches[node].is_incomplete = true;
    }

    /// Gives devices to all pods that should have one and do not.
    pub(super) fn attach_devices(&mut self, coverage: &mut Coverage) {
        for at in 0..self.plan.planned_pods.len() {
            let PlannedPod { node, attachment, device, .. } = self.plan.planned_pods[at];
            let Some(attachment) = attachment else { continue };
            if self.devices[node].contains_key(&attachment.port) {
                continue;
            }
            self.collect(node, coverage);
            self.fabric.nodes[node].attach_with(attachment.port, device.takes, device.queue);
            self.devices[node].insert(attachment.port, (at, attachment.number));
        }
    }

    /// Publishes the tables that `follow_ups` requires, and adds the new epoch. `in_place`: at least one node has
    /// already changed pods in the tables in use.
    fn publish(
        &mut self,
        follow_ups: [NextStep; 2],
        in_place: bool,
        is_busy: bool,
        coverage: &mut Coverage,
    ) {
        let mut versions = self.epochs[self.epochs.len() - 1].versions;
        self.place_pods();
        for node in 0..2 {
            if let NextStep::Nothing(pods) = follow_ups[node] {
                coverage.add(Event::InPlace, pods);
                continue;
            }
            coverage.count(Event::Republished);
            std::mem::swap(&mut self.fabric.cluster, &mut self.clusters[node]);
            let tables = self.fabric.tables(node);
            std::mem::swap(&mut self.fabric.cluster, &mut self.clusters[node]);
            versions[node] = self.hand_over_tables(node, tables, is_busy);
        }
        let before = Rc::clone(&self.epochs[self.epochs.len() - 1]);
        let whole = self.plan.hidden.map(|_| {
            let whole = self.plan.manifests(false);
            Contents::from_texts([("cluster.yaml", &*whole)])
        });
        let contents = whole.as_ref().unwrap_or(&self.fabric.contents);
        let epoch = Epoch::new(&self.plan, before.number + 1, versions, contents);
        if in_place {
            self.epochs.push(Rc::new(before.with_policy_of(&epoch, contents)));
        }
        self.epochs.push(Rc::new(epoch));
    }

    /// Writes the places of the pods into the fabric.
    fn place_pods(&mut self) {
        for node in 0..2 {
            let planned_pods = self.plan.planned_pods.iter().filter(|planned| planned.node == node);
            let local = |planned: &PlannedPod| {
                let attachment = planned.attachment?;
                let local = LocalPod {
                    index: attachment.index,
                    attachment: attachment.number,
                    port: attachment.port,
                    host: None,
                    addresses: planned.addresses.clone(),
                    mtu: planned.device.mtu,
                };
                Some((planned.name.clone(), local))
            };
            self.fabric.nodes[node].locals = planned_pods.filter_map(local).collect();
        }
    }

    /// Publishes tables to a node's workers; returns their version.
    fn hand_over_tables(&mut self, node: usize, mut tables: Tables, is_busy: bool) -> u64 {
        tables.version = tables.version.max(self.fabric.nodes[node].tables.version + 1);
        let version = tables.version;
        self.hand_over(node, Arc::new(tables), is_busy);
        version
    }

    /// Publishes tables to a node's workers, with the version that they have.
    fn hand_over(&mut self, node: usize, mut tables: Arc<Tables>, is_busy: bool) {
        if self.sabotage == Some(Sabotage::Choice)
            && node == 1
            && let Some(services) = &mut Arc::make_mut(&mut tables).services
        {
            let lies = Lies { choice: true, ..Lies::default() };
            self.plan.services.write(Arc::make_mut(services), lies);
        }
        let at = &mut self.fabric.nodes[node];
        at.tables = Arc::clone(&tables);
        let workers = at.workers();
        let first = self.chance.usize(..workers);
        for worker in first..first + workers {
            let command = Command::Publish(Arc::clone(&tables));
            self.fabric.nodes[node].send_command_to(worker, command);
            if is_busy {
                self.some_turns();
            }
        }
    }
}
