//! Ctrl-C and friends: the first asks the run to stop and clean up, the second
//! ends the program at once. A file that grows past the user's limit is an error
//! like a full disk, not the end of the program.

use std::io;
use std::sync::Arc;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
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
    // With a handler there, the system call fails instead.
    flag::register(SIGXFSZ, Arc::default())?;
    Ok(())
}
