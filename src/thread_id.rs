//! The number of the calling thread, for records and log lines: names of threads are often absent,
//! and seldom unique.

use std::cell::Cell;

thread_local! {
    /// The process that asked, and the thread's number in it. A forked child has the memory of its
    /// parent, but its thread has another number.
    static KNOWN: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
}

/// The number of this thread. `process` is the id of this process.
///
/// On Linux it is the kernel's: the number in `/proc/<pid>/task`, `top -H` and gdb. Elsewhere it
/// counts the threads of this process that asked.
pub(crate) fn in_process(process: u32) -> u32 {
    let (known_in, known) = KNOWN.get();
    if known_in == process {
        return known;
    }
    let id = ask();
    KNOWN.set((process, id));
    id
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn ask() -> u32 {
    rustix::thread::gettid()
        .as_raw_nonzero()
        .get()
        .unsigned_abs()
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn ask() -> u32 {
    use std::sync::atomic::{AtomicU32, Ordering};
    static LAST: AtomicU32 = AtomicU32::new(0);
    LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
}
