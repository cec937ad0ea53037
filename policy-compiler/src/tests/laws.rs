//! Laws over generated models.

use proptest::prelude::*;

use super::generate::{model, some_local};
use crate::compile::Compiler;
use crate::model::*;
use crate::prove::{Depth, prove, prove_by};
use crate::reference::Reference;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn compiled_equals_reference_in_every_cell(model in model()) {
        let local = some_local(&model);
        let image = Compiler::new().compile(&model, &local);
        let reference = Reference::new(&model);
        let every = prove_by(&reference, &local, &image, Depth::Every, |_, _| {});
        if let Err(counterexample) = every {
            prop_assert!(false, "{counterexample}\n{model:#?}");
        }
        prop_assert!(prove(&model, &local, &image).is_ok());
    }

    #[test]
    fn a_chain_judged_rule_by_rule_equals_the_reference(model in model()) {
        let local = some_local(&model);
        let image = Compiler::with_budget(0).compile(&model, &local);
        prop_assert_eq!(image.counts().linear, image.counts().chains);
        if let Err(counterexample) = prove(&model, &local, &image) {
            prop_assert!(false, "{counterexample}\n{model:#?}");
        }
    }

    #[test]
    fn an_image_made_after_others_equals_the_reference(before in model(), model in model()) {
        let local = some_local(&model);
        let mut compiler = Compiler::new();
        compiler.compile(&before, &some_local(&before));
        let image = compiler.compile(&model, &local);
        if let Err(counterexample) = prove(&model, &local, &image) {
            prop_assert!(false, "{counterexample}\n{before:#?}\n{model:#?}");
        }
    }

    #[test]
    fn history_leaves_no_trace_in_hash_and_revisions(before in model(), model in model()) {
        let local = some_local(&model);
        let mut compiler = Compiler::new();
        compiler.compile(&before, &some_local(&before));
        let (late, fresh) = (compiler.compile(&model, &local), Compiler::new().compile(&model, &local));
        prop_assert_eq!(late.canonical_hash(), fresh.canonical_hash());
        for name in &local {
            prop_assert_eq!(late.revision(name), fresh.revision(name));
        }
    }

    #[test]
    fn numbers_that_nobody_gave_out_are_denied(
        model in model(),
        chain in prop_oneof![0u32..40, any::<u32>()],
        local in prop_oneof![0u32..40, any::<u32>()],
        peer in prop_oneof![0u32..40, any::<u32>()],
        path in prop_oneof![0u32..40, any::<u32>()],
    ) {
        use crate::image::{ChainId, Identity, PathId};
        let image = Compiler::new().compile(&model, &some_local(&model));
        let (chain, local, peer) = (ChainId(chain), Identity(local), Identity(peer));
        let transport = Transport::ports(Protocol::Tcp, 49_152, 80);
        let identities = 1..=image.counts().identities as u32;
        let known = image.describe(chain).is_some() && identities.contains(&peer.0);
        let judged = image.path(image.classify(chain, local, peer, transport));
        if !known {
            prop_assert_eq!(judged.verdict, Verdict::Deny);
        }
        if path as usize >= image.counts().paths {
            prop_assert_eq!(image.path(PathId(path)).verdict, Verdict::Deny);
        }
    }
}
