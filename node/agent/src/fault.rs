//! The fault of an action that is repeated until it succeeds.

/// The reason why the last attempt failed, if it did.
#[derive(Debug, Default)]
pub(super) struct Fault(Option<String>);

impl Fault {
    /// Records the result of an attempt. A reason is logged only when it is new.
    pub(super) fn record<T>(&mut self, attempt: Result<T, String>) -> Option<T> {
        match attempt {
            Ok(value) => {
                self.0 = None;
                Some(value)
            }
            Err(reason) => {
                if self.0.as_ref() != Some(&reason) {
                    tracing::error!("{reason}");
                }
                self.0 = Some(reason);
                None
            }
        }
    }

    /// The reason why the last attempt failed.
    pub(super) fn message(&self) -> Option<&str> {
        self.0.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_stands_until_a_try_works() {
        let mut fault = Fault::default();
        assert_eq!(fault.message(), None);
        for reason in ["in use", "in use", "refused"] {
            assert_eq!(fault.record::<()>(Err(reason.to_owned())), None);
            assert_eq!(fault.message(), Some(reason));
        }
        assert_eq!(fault.record(Ok(1)), Some(1));
        assert_eq!(fault.message(), None);
    }
}
