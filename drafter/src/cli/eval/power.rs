//! What the machine runs on.

use std::fs;
use std::path::Path;

/// `mains` or `battery`, by what Linux says of its supplies; nothing where it says nothing.
pub(crate) fn source() -> Option<&'static str> {
    of(Path::new("/sys/class/power_supply"))
}

fn of(dir: &Path) -> Option<&'static str> {
    let read = |path: &Path| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let mut found = None;
    for supply in fs::read_dir(dir).ok()?.filter_map(|entry| Some(entry.ok()?.path())) {
        if read(&supply.join("type")).as_deref() != Some("Mains") {
            continue;
        }
        if read(&supply.join("online")).as_deref() == Some("1") {
            return Some("mains");
        }
        found = Some("battery");
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_supply_that_is_plugged_in_is_mains() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(of(dir.path()), None);
        let supply = |name: &str, ty: &str, online: &str| {
            let path = dir.path().join(name);
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("type"), ty).unwrap();
            fs::write(path.join("online"), online).unwrap();
        };
        supply("BAT0", "Battery\n", "1\n");
        assert_eq!(of(dir.path()), None);
        supply("AC", "Mains\n", "0\n");
        assert_eq!(of(dir.path()), Some("battery"));
        supply("AC2", "Mains\n", "1\n");
        assert_eq!(of(dir.path()), Some("mains"));
    }
}
