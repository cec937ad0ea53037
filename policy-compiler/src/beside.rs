//! Two things done at once.

/// With fewer than so many members of a cluster a thread of its own is not worth while for them.
pub(crate) const MEMBERS: usize = 2_048;

/// Does both, the second on a thread of its own if that is worth while, and hands over what they give.
pub(crate) fn both<A, B: Send>(
    is_worth_it: bool,
    first: impl FnOnce() -> A,
    second: impl FnOnce() -> B + Send,
) -> (A, B) {
    if !is_worth_it {
        let first = first();
        return (first, second());
    }
    std::thread::scope(|scope| {
        let second = scope.spawn(second);
        let first = first();
        // A panic goes on as it does where one thread does both.
        (first, second.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}
