//! Something that is tried until it works.

/// Why it does not work, as of the last try.
#[derive(Debug, Default)]
pub(super) struct Fault(Option<String>);

impl Fault {
    /// What came of a try. A reason is logged when it is new, not each time.
    pub(super) fn settle<T>(&mut self, tried: Result<T, String>) -> Option<T> {
        match tried {
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

    /// The reason, if it does not work.
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
            assert_eq!(fault.settle::<()>(Err(reason.to_owned())), None);
            assert_eq!(fault.message(), Some(reason));
        }
        assert_eq!(fault.settle(Ok(1)), Some(1));
        assert_eq!(fault.message(), None);
    }
}
