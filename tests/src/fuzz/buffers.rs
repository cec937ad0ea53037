//! The check that all buffers are back in their pools at the end of a world.

use std::net::IpAddr;

use manx_dataplane::packet::Capabilities;
use manx_dataplane::worker::Command;

use super::batch::Violation;
use super::coverage::{Coverage, Event};
use super::read::FlowTuple;
use super::world::World;
use super::writer;

impl World {
    /// Checks that no buffer is lost: each worker must be able to cut a super-packet into as many
    /// segments as it has buffers.
    pub fn check_buffers(&mut self, coverage: &mut Coverage) -> Result<(), Box<Violation>> {
        for node in 0..2 {
            self.census_of(node, coverage)?;
        }
        Ok(())
    }

    fn census_of(&mut self, node: usize, coverage: &mut Coverage) -> Result<(), Box<Violation>> {
        // A pod that is not valid can send nothing.
        let epoch = &self.epochs[0];
        let speaks = |address: &&IpAddr| {
            let itself = FlowTuple::echo(**address, **address, 1);
            address.is_ipv4() && epoch.allows(node, &itself)
        };
        let found = self.devices[node].iter().find_map(|(port, (planned, _))| {
            self.plan.planned_pods[*planned].addresses.iter().find(speaks).map(|own| (*port, *own))
        });
        let Some((port, own)) = found else { return Ok(()) };
        let at = &mut self.fabric.nodes[node];
        at.send_command(|| Command::Detach(port, None));
        at.attach(port, Capabilities::default());
        let buffers = self.settings.sizes.buffers;
        let (bytes, offload) = writer::super_packet_of(own, buffers, 500);
        for worker in 0..self.settings.workers {
            self.fabric.nodes[node].wires[&port].inject_at(worker, &bytes, offload);
            self.run(node);
            let wire = &self.fabric.nodes[node].wires[&port];
            let came_out = std::iter::from_fn(|| wire.collect()).count();
            if came_out != buffers {
                let law = format!(
                    "a pod's super-packet to itself, of {buffers} segments, came out as {came_out}: worker {worker} has no longer all of its {buffers} buffers"
                );
                return Err(Box::new(Violation { law, node, output: None, input: None }));
            }
            coverage.count(Event::BuffersChecked);
        }
        Ok(())
    }
}
