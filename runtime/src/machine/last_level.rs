//! The size of the last-level cache.

use std::fs;
use std::path::Path;

/// Sizes that are believed: a server's cache may be shared by many machines like this one, and what is
/// measured past it must fit into memory.
const BELIEVED: std::ops::RangeInclusive<usize> = 16 << 20..=512 << 20;

/// Where nothing is known.
const USUAL: usize = 64 << 20;

/// Bytes of the largest cache that Linux reports for the first core, at least 16 MiB and at most
/// 512 MiB; 64 MiB where it reports none.
#[must_use]
pub fn last_level_cache() -> usize {
    largest(Path::new("/sys/devices/system/cpu/cpu0/cache")).unwrap_or(USUAL)
}

fn largest(folder: &Path) -> Option<usize> {
    let sizes = (0..8).filter_map(|index| {
        let size = fs::read_to_string(folder.join(format!("index{index}/size"))).ok()?;
        let kib: usize = size.trim().strip_suffix('K')?.parse().ok()?;
        kib.checked_mul(1 << 10)
    });
    Some(sizes.max()?.clamp(*BELIEVED.start(), *BELIEVED.end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_counts_and_nonsense_does_not() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(largest(folder.path()), None);
        for (index, size) in
            ["48K\n", "32768K\n", "2048K\n", "99999999999999999999K", "none"].iter().enumerate()
        {
            let cache = folder.path().join(format!("index{index}"));
            fs::create_dir(&cache).unwrap();
            fs::write(cache.join("size"), size).unwrap();
        }
        assert_eq!(largest(folder.path()), Some(32 << 20));
        fs::write(folder.path().join("index0/size"), "9999999K").unwrap();
        assert_eq!(largest(folder.path()), Some(512 << 20));
        assert!(BELIEVED.contains(&last_level_cache()));
    }
}
