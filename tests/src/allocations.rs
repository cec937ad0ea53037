//! A counting allocator, for a test binary that uses it as its `#[global_allocator]`.
#![expect(unsafe_code, reason = "an allocator that counts is an allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    /// The allocations of this thread since it started to count; `None` if it does not count.
    static COUNT: Cell<Option<Allocated>> = const { Cell::new(None) };
}

/// The bytes that all threads have allocated so far.
static BYTES: AtomicU64 = AtomicU64::new(0);

/// A count of allocations, including freed ones.
#[derive(Debug, Clone, Copy, Default)]
pub struct Allocated {
    /// The number of allocations.
    pub times: u64,
    /// The sum of their bytes.
    pub bytes: u64,
}

/// The counting allocator.
#[derive(Debug)]
pub struct Counting;

fn count(bytes: usize) {
    BYTES.fetch_add(bytes as u64, Ordering::Relaxed);
    let more = |it: Allocated| Allocated { times: it.times + 1, bytes: it.bytes + bytes as u64 };
    // In a thread that is ending, the counter no longer exists, and nothing has to be counted.
    let _ = COUNT.try_with(|count| count.set(count.get().map(more)));
}

// SAFETY: every call goes to the system's allocator with the same arguments; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller keeps `alloc_zeroed`'s contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: the caller keeps `realloc`'s contract, and `pointer` came from the system's allocator.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps `dealloc`'s contract, and `pointer` came from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Counts this thread's allocations during `work`.
pub fn allocations(work: impl FnOnce()) -> Allocated {
    COUNT.set(Some(Allocated::default()));
    work();
    COUNT.take().unwrap()
}

/// Counts the bytes that all threads allocate during `work`. The process must do nothing else
/// meanwhile.
pub fn bytes_of_all_threads(work: impl FnOnce()) -> u64 {
    let before = BYTES.load(Ordering::Relaxed);
    work();
    BYTES.load(Ordering::Relaxed) - before
}
