//! Who holds a port, for the message that it is taken.

use std::fs;

/// The name of the program that listens on `port`, where the system tells.
pub(crate) fn owner(port: u16) -> Option<String> {
    let inode = ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .find_map(|table| listener(&fs::read_to_string(table).ok()?, port))?;
    let socket = format!("socket:[{inode}]");
    let processes = fs::read_dir("/proc").ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    for process in processes {
        // Those of other users cannot be looked into.
        let Ok(files) = fs::read_dir(process.join("fd")) else { continue };
        let holds = |entry: &fs::DirEntry| {
            fs::read_link(entry.path()).is_ok_and(|link| link.as_os_str() == socket.as_str())
        };
        if files.flatten().any(|entry| holds(&entry)) {
            return Some(fs::read_to_string(process.join("comm")).ok()?.trim().to_owned());
        }
    }
    None
}

/// The inode of the socket that listens on `port`, from a table of the kernel.
fn listener(table: &str, port: u16) -> Option<String> {
    const LISTENING: &str = "0A";
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (_, local) = fields.get(1)?.rsplit_once(':')?;
        let here = u16::from_str_radix(local, 16).ok()? == port && *fields.get(3)? == LISTENING;
        here.then(|| fields.get(9).map(|inode| (*inode).to_owned())).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_of_this_process_is_found() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let name = fs::read_to_string("/proc/self/comm").unwrap();
        assert_eq!(owner(port).as_deref(), Some(name.trim()));
    }
}
