//! Memory of this process, as Linux counts it.

use std::fs;

use serde::Serialize;

/// What is in memory; absent where the system does not say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Resident {
    /// Without a file behind it.
    pub(crate) anonymous_bytes: Option<u64>,
    /// Of mapped files.
    pub(crate) file_bytes: Option<u64>,
    /// The most that both ever were.
    pub(crate) peak_bytes: Option<u64>,
}

impl Resident {
    /// As it is now.
    pub(crate) fn now() -> Self {
        Self::of(&fs::read_to_string("/proc/self/status").unwrap_or_default())
    }

    /// Begins the peak anew, where the system allows it: the machine's limits were measured in memory
    /// that no model needs.
    pub(crate) fn forget_peak() {
        let _ = fs::write("/proc/self/clear_refs", "5");
    }

    /// Of the text of `/proc/PID/status`.
    fn of(status: &str) -> Self {
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            let kibibytes: u64 =
                line.trim_start_matches(':').split_whitespace().next()?.parse().ok()?;
            kibibytes.checked_mul(1024)
        };
        Self {
            anonymous_bytes: field("RssAnon"),
            file_bytes: field("RssFile"),
            peak_bytes: field("VmHWM"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_a_status() {
        let status =
            "Name:\tdrafter\nVmHWM:\t    300 kB\nRssAnon:\t     100 kB\nRssFile:\t     7 kB\n";
        let resident = Resident::of(status);
        assert_eq!(resident.anonymous_bytes, Some(102_400));
        assert_eq!(resident.file_bytes, Some(7168));
        assert_eq!(resident.peak_bytes, Some(307_200));
        assert_eq!(Resident::of(""), Resident::default());
    }
}
