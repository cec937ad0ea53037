//! Joins a second thread, so that two functions run at once.

use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, scope};

/// The number of members from which on a cluster is worth a second thread.
pub(crate) const LARGE_CLUSTER: usize = 2_048;

/// Runs both functions and returns both results. The second function runs on its own thread if `is_worth_it`. If the
/// system provides no thread, they run one after the other.
pub(crate) fn join<A, B: Send>(
    is_worth_it: bool,
    first: impl FnOnce() -> A,
    second: impl Fn() -> B + Sync,
) -> (A, B) {
    if is_worth_it {
        return join_by(Builder::new(), first, second);
    }
    let first = first();
    (first, second())
}

/// Like [`join`], for a second function that needs exclusive access to a value.
pub(crate) fn join_with<A, B: Send, S: Send>(
    is_worth_it: bool,
    first: impl FnOnce() -> A,
    own: &mut S,
    second: impl Fn(&mut S) -> B + Sync,
) -> (A, B) {
    let own = Mutex::new(own);
    join(is_worth_it, first, || second(&mut own.lock().unwrap_or_else(PoisonError::into_inner)))
}

fn join_by<A, B: Send>(
    builder: Builder,
    first: impl FnOnce() -> A,
    second: impl Fn() -> B + Sync,
) -> (A, B) {
    scope(|scope| {
        let thread = builder.spawn_scoped(scope, &second);
        let first = first();
        let second = match thread {
            // A panic continues as if one thread had run both functions.
            Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(_) => second(),
        };
        (first, second)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_are_done_where_there_is_a_thread_and_where_there_is_none() {
        let here = std::thread::current().id();
        let place = || std::thread::current().id();
        assert_eq!(join(false, || 1, place), (1, here));
        let (one, there) = join(true, || 1, place);
        assert!(one == 1 && there != here);
        // No system has that much memory for a stack.
        let none = Builder::new().stack_size(1 << 60);
        assert_eq!(join_by(none, || 1, place), (1, here));
        for is_worth_it in [false, true] {
            let mut own = 1;
            assert_eq!(
                join_with(is_worth_it, || 1, &mut own, |own| std::mem::replace(own, 2)),
                (1, 1)
            );
            assert_eq!(own, 2);
        }
    }
}
