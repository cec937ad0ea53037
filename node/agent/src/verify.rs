//! The proof of tables before they are published (`--verify-tables`).
//!
//! Refuted tables are never published: the earlier ones stay in force, and without earlier ones no packets pass. The
//! control thread does the proof. Requests wait for it, but packets do not.

use std::collections::BTreeSet;
use std::time::Instant;

use manx_policy_compiler::image::Image;
use manx_policy_compiler::model::ObjectName;

use crate::settings::Ipam;
use manx_analysis::explain::block_source;
use manx_analysis::proof::{Depth, prove};
use manx_api::{Verification, Verified};
use manx_objects::contents::Contents;
use manx_oracle::{BlockSource, Oracle};

/// The last tables that were proved or refuted.
#[derive(Debug)]
pub(super) struct Verifier {
    /// The place where the oracle reads nodes' blocks.
    blocks: BlockSource,
    /// The hash of the tables, the fingerprint of the objects, and the endpoints.
    last: Option<(u64, u64, BTreeSet<ObjectName>)>,
    verification: Verification,
}

impl Verifier {
    /// The verifier of a node whose pods' addresses come from this allocator. No tables are proved yet.
    pub(super) fn new(ipam: Ipam) -> Self {
        let (last, verification) = Default::default();
        Self { blocks: block_source(ipam), last, verification }
    }

    /// Whether the tables agree with the objects for these endpoints. A comparison is not repeated for the same tables and
    /// objects.
    pub(super) fn admits(
        &mut self,
        contents: &Contents,
        local: impl IntoIterator<Item = ObjectName>,
        image: &Image,
    ) -> bool {
        // Endpoints that only one of the two sides has are compared, too.
        let local = local.into_iter().chain(image.endpoints().cloned()).collect();
        let now = (image.canonical_hash(), contents.fingerprint, local);
        if self.last.as_ref() != Some(&now) {
            self.verification = verify(contents, self.blocks, &now.2, image);
            self.last = Some(now);
        }
        matches!(self.verification, Verification::Proved(_))
    }

    /// The result for the last tables.
    pub(super) fn verification(&self) -> &Verification {
        &self.verification
    }
}

fn verify(
    contents: &Contents,
    blocks: BlockSource,
    local: &BTreeSet<ObjectName>,
    image: &Image,
) -> Verification {
    let start = Instant::now();
    let oracle = Oracle::with_blocks(&contents.objects, blocks);
    match prove(&oracle, local, image, Depth::Distinct, |_, _| {}) {
        Ok(proof) => Verification::Proved(Verified {
            cells: proof.cells,
            questions: proof.questions,
            milliseconds: start.elapsed().as_millis() as u64,
        }),
        Err(refutation) => {
            let packet = format!("{} -> {}, {}", refutation.from, refutation.to, refutation.packet);
            tracing::error!(
                packet,
                endpoint = refutation.endpoint,
                direction = refutation.direction,
                tables = refutation.tables.why,
                objects = refutation.objects.why,
                "the tables are wrong about a packet and are not published; those before stay"
            );
            Verification::Refuted(refutation)
        }
    }
}

#[cfg(test)]
mod tests {
    use manx_policy_compiler::compile::Compiler;

    use super::*;
    use manx_calculation::import::import;

    const OBJECTS: &str = "
{apiVersion: v1, kind: Pod, metadata: {name: a, labels: {app: a}}, spec: {containers: [{name: c}]}, status: {podIP: 10.1.2.9}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: only-80}, spec: {podSelector: {}, ingress: [{ports: [{port: 80}]}]}}
";

    fn read(text: &str) -> Contents {
        Contents::from_texts([("objects.yaml", text)])
    }

    fn tables(contents: &Contents) -> (Vec<ObjectName>, Image) {
        let model = import(contents).model;
        let local: BTreeSet<ObjectName> = model.endpoints.keys().cloned().collect();
        let image = Compiler::new().compile(&model, &local);
        (local.into_iter().collect(), image)
    }

    #[test]
    fn only_tables_that_say_what_the_objects_say_are_admitted() {
        let mut verifier = Verifier::new(Ipam::HostLocal);
        assert!(matches!(verifier.verification(), Verification::Off));
        let contents = read(OBJECTS);
        let (local, right) = tables(&contents);
        assert!(verifier.admits(&contents, local.clone(), &right));
        assert!(matches!(verifier.verification(), Verification::Proved(_)));

        let (_, wrong) = tables(&read(&OBJECTS.replace("port: 80}", "port: 81}")));
        for _ in 0..2 {
            assert!(!verifier.admits(&contents, local.clone(), &wrong));
        }
        let Verification::Refuted(refutation) = verifier.verification() else { panic!() };
        assert_eq!((refutation.ports.map(|ports| ports.1), refutation.fragment), (Some(80), false));
        assert!(verifier.admits(&contents, local, &right));
    }

    #[test]
    fn tables_that_lack_an_endpoint_are_wrong() {
        let contents = read(OBJECTS);
        let (local, _) = tables(&contents);
        assert!(!Verifier::new(Ipam::HostLocal).admits(&contents, local, &Image::default()));
    }

    #[test]
    fn the_same_tables_are_wrong_for_other_objects() {
        let contents = read(OBJECTS);
        let (local, image) = tables(&contents);
        let mut verifier = Verifier::new(Ipam::HostLocal);
        assert!(verifier.admits(&contents, local.clone(), &image));
        let changed = read(&OBJECTS.replace("port: 80}", "port: 81}"));
        assert!(!verifier.admits(&changed, local, &image));
    }
}
