//! Work that a program does once at an API server before it ends. It reads and writes single objects, or reads all
//! objects of some kinds.

use std::sync::Arc;

use manx_objects::contents::Contents;
use manx_objects::object::Kind;

use super::access::Access;
use super::reading;
use super::resource::Resource;
use super::writer::Writer;
use crate::error::SourceError;
use crate::followed::{Event, Objects};
use crate::served::ServedKind;
use crate::writes::{WriteError, Writes};

/// The server's name in sentences.
const SERVER: &str = "the API server";

/// Opens a writer and runs `work` with it.
///
/// # Errors
/// Returns an error if no setting names a server, or if `work` fails.
pub fn run_with_writer<T, E: From<SourceError>>(
    access: &Access,
    work: impl AsyncFnOnce(Writer) -> Result<T, E>,
) -> Result<T, E> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| SourceError::Client {
        server: SERVER.to_owned(),
        reason: error.to_string(),
    })?;
    runtime.block_on(async { work(Writer::open(access).await?).await })
}

/// Reads all objects of these kinds, as agents read them. If the server does not serve a kind, there are no objects of
/// this kind.
///
/// # Errors
/// Returns an error if the server does not answer or refuses the request.
pub async fn read_kinds(writes: &impl Writes, kinds: &[Kind]) -> Result<Contents, WriteError> {
    let server: Arc<str> = SERVER.into();
    let mut objects = Objects::new(SERVER, kinds);
    for kind in kinds.iter().copied() {
        let served = ServedKind::from(kind);
        let readings = match writes.api_version(served).await {
            Ok(api_version) => {
                let name = served.name_in(api_version);
                let resource = Resource { kind: name, api_version, path: String::new() };
                let all = writes.list(served, "").await?.into_iter();
                all.map(|(_, object, _)| reading::read(&server, kind, &resource, object)).collect()
            }
            Err(WriteError::NotServed(_)) => Vec::new(),
            Err(error) => return Err(error),
        };
        objects.apply([Event::Listed { kind, readings }]);
    }
    Ok(Arc::unwrap_or_clone(objects.contents))
}

#[cfg(test)]
mod tests {
    use manx_objects::object::Object;
    use serde_json::json;

    use super::*;
    use crate::memory::MemoryWrites;
    use crate::served::ServedKey;

    #[test]
    fn objects_are_read_as_agents_read_them() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let server = MemoryWrites::new("crd.projectcalico.org/v1");
        let pod = ServedKey::new(Kind::Pod, "web", "a");
        server.put(pod, json!({ "spec": { "nodeName": "n1" }, "status": { "podIP": "10.0.0.1" } }));
        let wrong = ServedKey::new(Kind::IpPool, "", "p");
        server.put(wrong, json!({ "spec": { "cidr": "ten" } }));
        server.stop_serving(Kind::Node.into());
        let kinds = [Kind::Pod, Kind::IpPool, Kind::Node];
        let contents = runtime.block_on(read_kinds(&server, &kinds)).unwrap();
        assert!(contents.in_sync);
        assert_eq!(contents.objects.len(), 2);
        let (key, pod) = contents.all_valid().next().unwrap();
        assert_eq!(key.to_string(), "Pod web/a");
        assert!(matches!(pod, Object::Pod(pod) if pod.node_name.as_deref() == Some("n1")));
        assert_eq!(contents.problems.len(), 1);
    }
}
