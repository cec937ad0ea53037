//! A pod of another node that changes in the image that is in use, under a live flow and between new ones.

use std::sync::Arc;

use manx_dataplane::tables::Tables;
use manx_policy_compiler::compile::Compiler;
use manx_policy_compiler::compile::PodChange;
use manx_policy_compiler::model::{Direction, Endpoint, ObjectName};
use manx_tests::fabric::{Fabric, pod, policy};
use manx_tests::packet::{Tuple, UDP};
use manx_tests::shop::{B, FAR};

#[test]
fn flows_follow_a_pod_that_changes_without_new_tables() {
    let yaml = pod("shop/b", 0, "{app: b}", &[B])
        + &pod("shop/far", 1, "{app: a}", &[FAR])
        + &pod("shop/other", 1, "{app: c}", &["10.2.0.9"])
        + &policy(
            "shop/b",
            "{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {app: a}}}]}]}",
        );
    let mut fabric = Fabric::new(&yaml);
    let node = &mut fabric.nodes[0];
    let mut compiler = Compiler::new();
    let mut model = fabric.cluster.model.clone();
    let image = Arc::new(compiler.compile(&model, &node.locals.keys().cloned().collect()));
    let mut tables = Tables::clone(&node.tables);
    for (name, local) in &node.locals {
        let endpoint = tables.endpoints[local.index as usize].as_mut().unwrap();
        endpoint.ingress = image.chain(name, Direction::Ingress).unwrap();
        endpoint.egress = image.chain(name, Direction::Egress).unwrap();
    }
    tables.image = Arc::clone(&image);
    node.publish(tables);

    let tuple = Tuple::new(FAR, B, UDP, 53);
    assert_eq!(fabric.send("shop/far", &tuple.opening()).len(), 1);
    assert_eq!(fabric.send("shop/b", &tuple.answer()).len(), 1);
    let far = ObjectName::new("shop", "far");
    for (round, (app, passes)) in (1..).zip([("c", 0), ("a", 1), ("c", 0), ("a", 1)]) {
        let before = Arc::clone(&model.endpoints[&far]);
        let mut after = Endpoint::clone(&before);
        Arc::make_mut(&mut after.labels).insert("app".to_owned(), app.to_owned());
        model.endpoints.insert(far.clone(), Arc::new(after.clone()));
        let change = PodChange { name: &far, before: Some(&before), after: Some(&after) };
        assert!(compiler.update(&image, &model, change), "both labels have a class in the image");
        for packet in [tuple.data(b"more"), tuple.data(b"and more")] {
            assert_eq!(fabric.send("shop/far", &packet).len(), passes, "app: {app}");
        }
        assert_eq!(fabric.send("shop/b", &tuple.answer()).len(), passes, "app: {app}");
        for new in [round * 1000, round * 1000 + 1] {
            let opening = Tuple::new(FAR, B, UDP, new).opening();
            assert_eq!(fabric.send("shop/far", &opening).len(), passes, "app: {app}");
        }
    }
}
