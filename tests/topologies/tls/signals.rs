//! Signals that a program handles interrupt no call, through TLS either.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{mem, ptr, thread};

use libc::c_int;

use super::{SOON, TlsServer, build, builder};
use crate::support::Child;
use crate::support::child::{Role, report};

#[test]
fn signals_interrupt_no_call() {
    let server = TlsServer::start();
    let ca = server.authority.file();
    let mut child = Child::spawn("tls_signalled", &[&server.url(), ca.to_str().unwrap()]);
    let signals: u64 = child.expect("signals", 4 * SOON).parse().unwrap();
    assert!(signals > 100, "{signals}");
    child.join();
}

/// A child that locks and waits while signals come all the time. Every error ends it.
pub(crate) const SIGNALLED: (&str, Role) = ("tls_signalled", |args| {
    handle(libc::SIGALRM);
    each_millisecond();
    let ca = std::fs::read(&args[1]).unwrap();
    let ours = build(builder(&args[0]).tls_ca(&ca));
    let other = build(builder(&args[0]).tls_ca(&ca));
    for turn in 0..200 {
        let name = format!("k{}", turn % 2);
        let guard = ours.try_lock(&name).unwrap().expect("it is free");
        guard.renew().unwrap();
        other.inspect(&name).unwrap();
        let waiter = other.enqueue(&name).unwrap();
        guard.unlock().unwrap();
        waiter.wait().unwrap().unlock().unwrap();
    }
    assert_eq!(ours.list("*").filter(|info| info.is_err()).count(), 0);
    report(format_args!("signals {}", SIGNALS.load(Ordering::Relaxed)));
});

static SIGNALS: AtomicU64 = AtomicU64::new(0);

extern "C" fn count(_signal: c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
}

fn handle(signal: c_int) {
    // SAFETY: all zeroes is a valid sigaction, and the handler does only what is async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = count as *const () as usize;
        assert_eq!(
            libc::sigaction(signal, &raw const action, ptr::null_mut()),
            0
        );
    }
}

/// Sends a signal to each thread but its own, each millisecond.
fn each_millisecond() {
    thread::spawn(|| {
        // SAFETY: the call takes nothing.
        let own = unsafe { libc::gettid() };
        loop {
            for task in std::fs::read_dir("/proc/self/task").unwrap() {
                let name = task.unwrap().file_name();
                let id: libc::pid_t = name.to_str().unwrap().parse().unwrap();
                if id != own {
                    // SAFETY: no pointers. If the thread has ended, the call only fails.
                    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), id, libc::SIGALRM) };
                }
            }
            // Time itself is under test: signals come in the middle of calls.
            thread::sleep(Duration::from_millis(1));
        }
    });
}
