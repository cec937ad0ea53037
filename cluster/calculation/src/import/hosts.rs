//! The objects that host endpoints depend on: their profiles, and Felix's settings for the node.

use std::collections::BTreeMap;
use std::sync::Arc;

use manx_policy_compiler::model::{Failsafe, Labels};

use super::{Cluster, WayOut, calico, member};
use manx_objects::contents::Contents;
use manx_objects::object::calico::EndpointToHost;
use manx_objects::object::{Kind, Object, ObjectKey};

impl Cluster {
    /// Adds the labels of profiles to host endpoints, even if the rules of a profile are not known. Built-in profiles
    /// need no object, and objects with their names do not change them.
    pub(super) fn apply_host_profiles(&mut self, contents: &Contents) {
        // All host endpoints share one copy of each profile's labels.
        let mut labels: BTreeMap<&str, Arc<Labels>> = BTreeMap::new();
        for (key, stored) in contents.of_kind(Kind::Profile) {
            if let Some(Object::Profile(profile)) = stored.state.valid()
                && !profile.labels.is_empty()
            {
                labels.insert(&key.name, Arc::new(profile.labels.to_map()));
            }
        }
        for host in self.model.host_endpoints.values_mut() {
            let of_profile = |name: &String| labels.get(name.as_str()).cloned();
            let inherited: Vec<_> = host.profiles.iter().filter_map(of_profile).collect();
            if !inherited.is_empty() {
                Arc::make_mut(host).inherited = inherited;
            }
        }
        let named = self.model.host_endpoints.values().flat_map(|host| &host.profiles);
        let built_in: Vec<_> = named
            .filter_map(|name| Some((name.clone(), calico::built_in_profile(name, &self.model)?)))
            .collect();
        self.model.profiles.extend(built_in);
    }

    /// Applies Felix's configuration. A setting comes from `node.NAME` if that object has it, and otherwise from
    /// `default`. An invalid configuration might set Drop, so it counts as Drop. It might also name an address for
    /// masqueraded packets, so no other address is used for them. It does not close any of Calico's failsafe ports.
    pub fn apply_felix_configuration(&mut self, contents: &Contents, node: Option<&str>) {
        let mut configurations = Vec::new();
        for name in
            node.map(|node| format!("node.{node}")).into_iter().chain([String::from("default")])
        {
            let key = ObjectKey::new(Kind::FelixConfiguration, "", &name);
            let Some(stored) = contents.objects.get(&key) else { continue };
            match stored.state.valid() {
                Some(Object::FelixConfiguration(felix)) => configurations.push(Some(&**felix)),
                Some(_) => {}
                None => configurations.push(None),
            }
        }
        let told: Vec<_> = configurations.iter().copied().flatten().collect();
        let to_host = told.iter().find_map(|felix| felix.endpoint_to_host);
        self.drops_to_node =
            configurations.contains(&None) || to_host == Some(EndpointToHost::Drop);
        self.way_out = WayOut::new(&configurations);
        self.model.failsafe = Failsafe::default();
        for felix in told.iter().rev() {
            member::failsafe(felix, &mut self.model.failsafe);
        }
    }
}
