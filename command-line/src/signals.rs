//! Ctrl-C and friends: the first asks the run to stop and clean up, the second ends the program at
//! once. A file that grows past the user's limit is an error like a full disk, not the end of the
//! program.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;

/// The exit code of the signal that arrived; 0 while none has.
static RECEIVED: LazyLock<Arc<AtomicUsize>> = LazyLock::new(Arc::default);

/// Installs the handlers.
///
/// # Errors
/// What the system says.
pub fn install() -> io::Result<()> {
    let again = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        let code = 128 + signal;
        // In this order: the conditional exit sees the flag of an earlier signal only.
        flag::register_conditional_shutdown(signal, code, Arc::clone(&again))?;
        flag::register(signal, Arc::clone(&again))?;
        flag::register_usize(signal, Arc::clone(&RECEIVED), code as usize)?;
    }
    // With a handler there, the system call fails instead.
    flag::register(SIGXFSZ, Arc::default())?;
    Ok(())
}

/// Whether a signal asked for the end.
#[must_use]
pub fn received() -> bool {
    code().is_some()
}

/// The exit code of the signal that asked for the end.
pub(crate) fn code() -> Option<u8> {
    match RECEIVED.load(Ordering::Relaxed) {
        0 => None,
        code => Some(code as u8),
    }
}
