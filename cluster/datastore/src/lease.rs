//! A Lease of Kubernetes (`coordination.k8s.io`). It ensures that at most one of several processes leads.
//!
//! The leader writes the Lease at regular intervals. Other processes take the Lease if the holder has not written it
//! for the duration that the Lease contains. They measure this with their own clocks, from the time when they have seen
//! a write, so the clocks need not agree. The leader measures from the time before it sent its last write, and stops
//! leading [`Terms::renew`] after that. This is earlier than any other process may take the Lease.
//!
//! Source: `client-go/tools/leaderelection` of Kubernetes.

use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use crate::served::{ServedKey, ServedKind};
use crate::writes::{WriteError, Writes};

/// The times of a Lease. The default values are those of Kubernetes' own controllers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// The time for which others wait if the holder does not write.
    pub duration: Duration,
    /// The time for which the holder leads after a write. It is shorter than the duration.
    pub renew: Duration,
    /// The pause between two attempts.
    pub retry: Duration,
}

impl Default for Terms {
    fn default() -> Self {
        let [duration, renew, retry] = [15, 10, 2].map(Duration::from_secs);
        Self { duration, renew, retry }
    }
}

/// A process that leads or wants to lead.
#[derive(Debug)]
pub struct Candidate {
    key: ServedKey,
    /// The identity of the process. A restarted process has another identity.
    identity: String,
    terms: Terms,
    /// The last content of the Lease, and the time when this content was first seen.
    seen: Option<(Value, Instant)>,
    until: Option<Instant>,
}

impl Candidate {
    pub fn new(namespace: &str, name: &str, identity: String, terms: Terms) -> Self {
        let key = ServedKey::new(ServedKind::Lease, namespace, name);
        Self { key, identity, terms, seen: None, until: None }
    }

    /// Returns the time until which this process leads, or `None` if it does not have the Lease.
    pub const fn until(&self) -> Option<Instant> {
        self.until
    }

    /// Takes or renews the Lease. Returns whether this process now has the Lease.
    ///
    /// # Errors
    /// Returns an error if the server does not answer or refuses the write.
    pub async fn attempt<W: Writes>(&mut self, writes: &W) -> Result<bool, WriteError> {
        let sent = Instant::now();
        let found = writes.get(&self.key).await?;
        let lease = found.as_ref().map(|(lease, _)| &lease["spec"]);
        let Some(fields) = self.next(lease, Instant::now(), SystemTime::now()) else {
            self.until = None;
            return Ok(false);
        };
        match self.write(writes, found, fields).await {
            Ok(()) => {
                self.until = Some(sent + self.terms.renew);
                Ok(true)
            }
            Err(WriteError::Conflict | WriteError::Gone) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Gives the Lease back if this process has it, so that another process does not have to wait.
    ///
    /// # Errors
    /// Returns an error if the server does not answer or refuses the write. Other processes then wait for the duration.
    pub async fn give_back<W: Writes>(&mut self, writes: &W) -> Result<(), WriteError> {
        self.until = None;
        let found = writes.get(&self.key).await?;
        match &found {
            Some((lease, _)) if lease["spec"]["holderIdentity"] == *self.identity => {
                let now = time(SystemTime::now());
                let fields =
                    json!({ "holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": now });
                match self.write(writes, found, fields).await {
                    Err(WriteError::Conflict | WriteError::Gone) => Ok(()),
                    written => written,
                }
            }
            _ => Ok(()),
        }
    }

    /// Returns the fields with which this process takes or keeps the Lease, or `None` if another process has it.
    fn next(&mut self, found: Option<&Value>, now: Instant, wall: SystemTime) -> Option<Value> {
        let wall = time(wall);
        let duration = self.terms.duration;
        let mut fields = json!({
            "holderIdentity": self.identity,
            "leaseDurationSeconds": duration.as_secs(),
            "renewTime": wall,
        });
        let mut transitions = 0;
        if let Some(found) = found {
            let since = match &self.seen {
                Some((seen, since)) if seen == found => *since,
                _ => now,
            };
            self.seen = Some((found.clone(), since));
            let holder = found["holderIdentity"].as_str().unwrap_or_default();
            if holder == self.identity {
                return Some(fields);
            }
            let theirs = found["leaseDurationSeconds"].as_u64().map(Duration::from_secs);
            let patience = theirs.map_or(duration, |theirs| theirs.max(duration));
            if !holder.is_empty() && now.saturating_duration_since(since) < patience {
                return None;
            }
            transitions = found["leaseTransitions"].as_u64().unwrap_or_default() + 1;
        }
        fields["acquireTime"] = wall.into();
        fields["leaseTransitions"] = transitions.into();
        Some(fields)
    }

    async fn write<W: Writes>(
        &self,
        writes: &W,
        found: Option<(Value, crate::Revision)>,
        fields: Value,
    ) -> Result<(), WriteError> {
        let Some((mut lease, revision)) = found else {
            return writes.create(&self.key, json!({ "spec": fields })).await.map(drop);
        };
        if let Value::Object(fields) = fields {
            for (field, value) in fields {
                lease["spec"][field.as_str()] = value;
            }
        }
        writes.compare_and_swap(&self.key, &revision, lease).await.map(drop)
    }
}

/// Returns a time in the form of Kubernetes' `MicroTime`.
fn time(time: SystemTime) -> String {
    humantime::format_rfc3339_micros(time).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api_server::fake::Fake;
    use crate::api_server::{Access, Writer};

    fn candidate(name: &str) -> Candidate {
        Candidate::new("kube-system", "manx-controllers", name.to_owned(), Terms::default())
    }

    fn merged(found: Option<&Value>, fields: &Value) -> Value {
        let mut lease = found.cloned().unwrap_or_else(|| json!({}));
        for (field, value) in fields.as_object().unwrap() {
            lease[field.as_str()] = value.clone();
        }
        lease
    }

    #[test]
    fn a_lease_is_taken_when_its_holder_has_not_written_for_the_duration() {
        let (mut one, mut other) = (candidate("one"), candidate("other"));
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let wall = SystemTime::UNIX_EPOCH + Duration::from_micros(1_764_378_123_000_001);
        let lease = merged(None, &one.next(None, start, wall).unwrap());
        assert_eq!(
            lease,
            json!({
                "holderIdentity": "one", "leaseDurationSeconds": 15, "leaseTransitions": 0,
                "acquireTime": "2025-11-29T01:02:03.000001Z",
                "renewTime": "2025-11-29T01:02:03.000001Z",
            })
        );
        // The time at which the other process has seen a write matters, not the time in the Lease.
        assert_eq!(other.next(Some(&lease), after(100), wall), None);
        let later = wall + Duration::from_secs(2);
        let renewed = one.next(Some(&lease), after(102), later).unwrap();
        let renewed = merged(Some(&lease), &renewed);
        assert_eq!(renewed["acquireTime"], lease["acquireTime"]);
        assert_eq!(renewed["renewTime"], "2025-11-29T01:02:05.000001Z");
        assert_eq!(other.next(Some(&renewed), after(114), wall), None);
        assert_eq!(other.next(Some(&renewed), after(128), wall), None);
        let taken = merged(Some(&renewed), &other.next(Some(&renewed), after(129), wall).unwrap());
        assert_eq!(
            (&taken["holderIdentity"], &taken["leaseTransitions"]),
            (&json!("other"), &json!(1))
        );
        assert_eq!(one.next(Some(&taken), after(130), wall), None);
        // If the holder has a longer duration, the other process waits for that duration.
        let mut longer = taken.clone();
        longer["leaseDurationSeconds"] = 60.into();
        assert_eq!(one.next(Some(&longer), after(131), wall), None);
        assert_eq!(one.next(Some(&longer), after(190), wall), None);
        assert!(one.next(Some(&longer), after(191), wall).is_some());
    }

    #[test]
    fn one_of_two_leads_and_gives_the_lease_back() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(async {
            let server = Fake::start();
            server.world().serve_in("coordination.k8s.io/v1", "Lease", "leases");
            let endpoint = Some(format!("http://{}", server.address));
            let writer = Writer::open(&Access { endpoint, ..Access::default() }).await.unwrap();
            let (mut one, mut other) = (candidate("one"), candidate("other"));
            let before = Instant::now();
            assert!(one.attempt(&writer).await.unwrap());
            let until = one.until().unwrap();
            assert!(until >= before + one.terms.renew && until <= Instant::now() + one.terms.renew);
            assert!(!other.attempt(&writer).await.unwrap());
            assert_eq!(other.until(), None);
            assert!(one.attempt(&writer).await.unwrap());
            other.give_back(&writer).await.unwrap();
            assert!(!other.attempt(&writer).await.unwrap(), "it was not its own");
            one.give_back(&writer).await.unwrap();
            assert_eq!(one.until(), None);
            assert!(other.attempt(&writer).await.unwrap());
            assert!(!one.attempt(&writer).await.unwrap());
            let (lease, _) = writer.get(&one.key).await.unwrap().unwrap();
            assert_eq!(lease["spec"]["leaseTransitions"], 1);
            assert_eq!(lease["metadata"]["namespace"], "kube-system");
        });
    }
}
