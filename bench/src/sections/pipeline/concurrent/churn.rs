//! Pods of other nodes are added and removed, in place in the published image, while packets pass.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use manx_policy_compiler::compile::Compiler;
use manx_policy_compiler::compile::PodChange;
use manx_policy_compiler::image::Image;
use manx_policy_compiler::model::{AddressSet, Direction, Endpoint, Model, ObjectName};

use super::load::{CONTROL_CORE, Outcome, established, load, require_no_loss};
use crate::error::Failure;
use crate::host::cores::pin;
use crate::report::statistics::Pair;
use crate::sections::pipeline::node::{Node, Shape};

const PODS: u32 = 100_000;
const FLOWS: u32 = 100_000;
const CHANGES_PER_SECOND: u32 = 1000;

/// Measures packets while pods of other nodes are added and removed, in tables of 100,000 pods.
pub(super) fn measure(rounds: usize) -> Result<Outcome, Failure> {
    let mut node = Node::new(Shape::default())?;
    let stream = established(&mut node, FLOWS);
    let mut pods = Pods::add_to(&mut node)?;
    let (mut pairs, mut batches) = (Vec::new(), Vec::new());
    let (before, mut packets) = (node.transmitted().0, 0);
    for _ in 0..rounds {
        batches.clear();
        let (count, beside) = load(&mut node, &stream, &mut batches)?;
        packets += count;
        let stop = AtomicBool::new(false);
        let (count, manx) = std::thread::scope(|scope| {
            scope.spawn(|| pods.change_until(&stop));
            let passed = load(&mut node, &stream, &mut batches);
            stop.store(true, Ordering::Relaxed);
            passed
        })?;
        pairs.push(Pair { beside, manx });
        packets += count;
    }
    let lost = packets - (node.transmitted().0 - before);
    require_no_loss(&node, lost)?;
    let remark = format!(
        "{} changes in place of {PODS} pods, {CHANGES_PER_SECOND} a second, {} refused; {lost} of {packets} packets lost",
        pods.changes, pods.refused,
    );
    Ok(Outcome { pairs, remark })
}

/// The pods of other nodes, and the image in use.
struct Pods {
    model: Model,
    names: Vec<ObjectName>,
    compiler: Compiler,
    image: Arc<Image>,
    /// The number of changes so far.
    changes: u64,
    /// The number of changes that could not be stored in the image in place.
    refused: u64,
}

impl Pods {
    /// Adds the pods to the node's model, and publishes tables with an image of the model.
    fn add_to(node: &mut Node) -> Result<Self, Failure> {
        let mut model = node.cluster.model.clone();
        let names: Vec<ObjectName> =
            (0..PODS).map(|at| ObjectName::new("shop", format!("more-{at}"))).collect();
        for (at, name) in (0..).zip(&names) {
            model.endpoints.insert(name.clone(), Arc::new(pod(at)));
        }
        let mut compiler = Compiler::new();
        let image = Arc::new(compiler.compile(&model, &node.locals.keys().cloned().collect()));
        for (name, local) in &node.locals {
            if let Some(endpoint) = &mut node.tables.endpoints[local.index as usize] {
                let chain = |direction| image.chain(name, direction).ok_or("a pod without policy");
                endpoint.ingress = chain(Direction::Ingress)?;
                endpoint.egress = chain(Direction::Egress)?;
            }
        }
        node.tables.version += 1;
        node.tables.image = Arc::clone(&image);
        node.publish()?;
        Ok(Self { model, names, compiler, image, changes: 0, refused: 0 })
    }

    /// Changes [`CHANGES_PER_SECOND`] pods per second until `stop`.
    fn change_until(&mut self, stop: &AtomicBool) {
        pin(CONTROL_CORE);
        let began = Instant::now();
        let mut made = 0;
        while !stop.load(Ordering::Relaxed) {
            let due = began.elapsed().as_millis() as u64 * u64::from(CHANGES_PER_SECOND) / 1000;
            for _ in made..due {
                let followed = self.change();
                self.changes += 1;
                self.refused += u64::from(!followed);
            }
            made = due;
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Removes the next pod, or adds it again. Returns whether the change was stored in the image in place.
    fn change(&mut self) -> bool {
        let Self { model, compiler, image, .. } = self;
        let name = &self.names[(self.changes / 2) as usize % self.names.len()];
        let Some(pod) = model.endpoints.get(name).cloned() else { return false };
        // The removed pod is put back into the model at once. So the model is already right when the pod is added
        // again.
        if self.changes.is_multiple_of(2) {
            model.endpoints.remove(name);
            let removed = PodChange { name, before: Some(&pod), after: None };
            let followed = compiler.update(image, model, removed);
            model.endpoints.insert(name.clone(), pod);
            followed
        } else {
            compiler.update(image, model, PodChange { name, before: None, after: Some(&pod) })
        }
    }
}

/// The pod with this number. Half of the pods have the role that policies name.
fn pod(at: u32) -> Endpoint {
    let address = Ipv4Addr::from_bits(u32::from(Ipv4Addr::new(10, 140, 0, 0)) + at);
    let role = if at.is_multiple_of(2) { "server" } else { "other" };
    Endpoint {
        labels: Arc::new([("role".to_owned(), role.to_owned())].into()),
        addresses: AddressSet::from([IpAddr::V4(address)]),
        ..Endpoint::default()
    }
}
