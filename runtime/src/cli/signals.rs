//! Ctrl-C and friends: the first asks the run to stop after the current pass, the second ends the
//! program at once.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// The exit code of the signal that arrived; 0 while none has.
pub(crate) static RECEIVED: LazyLock<Arc<AtomicUsize>> = LazyLock::new(Arc::default);

/// Installs the handlers.
pub(crate) fn install() -> io::Result<()> {
    let again = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        let code = 128 + signal;
        // In this order: the conditional exit sees the flag of an earlier signal only.
        flag::register_conditional_shutdown(signal, code, Arc::clone(&again))?;
        flag::register(signal, Arc::clone(&again))?;
        flag::register_usize(signal, Arc::clone(&RECEIVED), code as usize)?;
    }
    Ok(())
}

/// Whether a signal asked for the end.
pub(crate) fn received() -> bool {
    RECEIVED.load(Ordering::Relaxed) != 0
}
