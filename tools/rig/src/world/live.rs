//! The live manifests: a JSON file for each object. The agents watch these files.
//!
//! The rig acts as the scheduler, the kubelet and a controller: it writes `spec.nodeName` and, when
//! a pod is attached, `status.podIPs` and the `EndpointSlices` of the services that select the pod
//! ([`super::slices`]).

use std::fs;
use std::path::Path;

use manx_linux::whole_file;
use manx_objects::object::ObjectKey;
use serde_json::Value as Json;

use crate::plan::input::InputError;
use crate::plan::objects::{Objects, file_name};

impl Objects {
    /// Writes each object into a separate file, each file atomically.
    pub fn write(&self, folder: &Path) -> Result<(), InputError> {
        self.0.iter().try_for_each(|(id, object)| write(folder, id, object))
    }

    /// Reads the files of [`Objects::write`].
    pub fn read(folder: &Path) -> Result<Self, InputError> {
        let mut objects = Vec::new();
        for entry in fs::read_dir(folder).map_err(InputError::at(folder))? {
            let path = entry.map_err(InputError::at(folder))?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                let text = fs::read(&path).map_err(InputError::at(&path))?;
                let object: Json = serde_json::from_slice(&text)
                    .map_err(|error| InputError::at(&path)(error.into()))?;
                objects.push(object);
            }
        }
        Ok(Self::from_json(&objects))
    }
}

/// Writes one object's file. A reader sees the old file or the new one.
pub fn write(folder: &Path, id: &ObjectKey, object: &Json) -> Result<(), InputError> {
    let path = folder.join(file_name(id));
    whole_file::replace(&path, format!("{object:#}\n").as_bytes()).map_err(InputError::at(&path))
}

/// Removes one object's file.
pub fn remove(folder: &Path, id: &ObjectKey) -> Result<(), InputError> {
    let path = folder.join(file_name(id));
    fs::remove_file(&path).map_err(InputError::at(&path))
}
