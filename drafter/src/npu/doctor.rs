//! What the NPU needs of this machine, looked at one by one.
//!
//! Everything is read below a root, `/` or that of a test; nothing here fails: what cannot be read is a
//! finding.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use formats::digest::sha256;
use serde::Serialize;
use xrt_sys::{Api, Device};

use super::files::Files;

/// The PCI numbers of the NPUs: AMD's, XDNA2's and XDNA1's.
const AMD: &str = "0x1022";
const XDNA2: &str = "0x17f0";
const XDNA1: &str = "0x1502";

/// The oldest Linux whose own driver works.
const LINUX: (u32, u32) = (6, 14);

/// What this program was tried with.
const TESTED: &str = "the shim compiles with the headers of XRT 2.21, 2.23 and 2.26; nothing has run on silicon \
                      yet. Driver, firmware and XRT must be of one release: a driver that asks for another \
                      protocol of the firmware does not start";

/// Folders of libraries, below the root.
const LIBRARIES: [&str; 6] = [
    "usr/lib/x86_64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/local/lib",
    "opt/xilinx/xrt/lib",
    "opt/xilinx/xrt/lib64",
];

/// How a thing was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    /// As it must be.
    Ok,
    /// The NPU cannot be used like this.
    Failed,
    /// It could not be found out, or does not matter here.
    Unknown,
}

/// One thing that was looked at.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Check {
    pub(crate) name: &'static str,
    pub(crate) status: Status,
    /// What was found.
    pub(crate) found: String,
    /// What to do where it failed.
    pub(crate) remedy: Option<String>,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, status: Status::Ok, found: found.into(), remedy: None }
    }

    fn unknown(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, status: Status::Unknown, found: found.into(), remedy: None }
    }

    /// With what to do about it.
    pub(crate) fn failed(
        name: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        let remedy = Some(remedy.into());
        Self { name, status: Status::Failed, found: found.into(), remedy }
    }
}

/// What a machine is looked at for.
#[derive(Debug)]
pub(crate) struct Machine {
    /// `/`, except in tests.
    pub(crate) root: PathBuf,
    /// Of this process.
    pub(crate) uid: u32,
    pub(crate) groups: Vec<u32>,
    pub(crate) files: Files,
    /// What a pair needs, and its name.
    pub(crate) need: Option<(u64, String)>,
}

impl Machine {
    /// Looks at everything.
    pub(crate) fn checks(&self) -> Vec<Check> {
        let mut checks = vec![self.linux(), self.driver()];
        let device = self.device();
        checks.extend(self.hardware(device.as_deref()));
        checks.extend([
            self.node(),
            self.firmware(device.as_deref()),
            self.memlock(),
            self.memory(),
        ]);
        checks.push(self.library(
            "xrt",
            "libxrt_coreutil.so.2",
            "install XRT, 2.21 to 2.26 (Ubuntu 26.04: libxrt2)",
        ));
        checks.push(self.library(
            "xrt_plugin",
            "libxrt_driver_xdna.so.2",
            "install XRT's plugin for the NPU, of the same release (Ubuntu 26.04: libxrt-npu2); without it XRT says \
             \"No such device with index '0'\"",
        ));
        checks.extend(self.shim());
        checks.push(self.image());
        checks.push(Check::unknown("tested", TESTED));
        checks.extend(kernels());
        checks
    }

    fn path(&self, below: &str) -> PathBuf {
        self.root.join(below)
    }

    fn read(&self, below: &str) -> Option<String> {
        read(&self.path(below))
    }

    fn linux(&self) -> Check {
        let Some(release) = self.read("proc/sys/kernel/osrelease") else {
            return Check::unknown("linux", "its version cannot be read");
        };
        let mut numbers = release.split(['.', '-']).map(|n| n.parse::<u32>().unwrap_or(0));
        let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        if version >= LINUX {
            return Check::ok("linux", release);
        }
        let remedy = "use Linux 6.14 or newer, or the driver of amd/xdna-driver on 6.10 or newer";
        Check::failed("linux", release, remedy)
    }

    fn driver(&self) -> Check {
        if !self.path("sys/module/amdxdna").exists() {
            let remedy = "load it: modprobe amdxdna (in Linux since 6.14; on other machines there is \
                          no such device)";
            return Check::failed("driver", "amdxdna is not loaded", remedy);
        }
        let version = self.read("sys/module/amdxdna/version");
        Check::ok(
            "driver",
            version.map_or("amdxdna".into(), |version| format!("amdxdna {version}")),
        )
    }

    /// The folder of the first NPU in sysfs.
    fn device(&self) -> Option<PathBuf> {
        let mut entries: Vec<_> =
            fs::read_dir(self.path("sys/class/accel")).ok()?.flatten().map(|e| e.path()).collect();
        entries.sort();
        entries.into_iter().map(|path| path.join("device")).find(|device| {
            let is = |file: &str, values: &[&str]| {
                read(&device.join(file)).is_some_and(|value| values.contains(&value.as_str()))
            };
            is("vendor", &[AMD]) && is("device", &[XDNA1, XDNA2])
        })
    }

    fn hardware(&self, device: Option<&Path>) -> Vec<Check> {
        let Some(device) = device else {
            let remedy = "an NPU of the XDNA2 generation is needed (Ryzen AI 300 and later), enabled \
                          in the firmware settings; a container needs /sys of its host";
            return vec![Check::failed("device", "no NPU in /sys/class/accel", remedy)];
        };
        let id = read(&device.join("device")).unwrap_or_default();
        let name = read(&device.join("vbnv")).unwrap_or_else(|| "NPU".into());
        let revision = read(&device.join("revision")).unwrap_or_else(|| "unknown".into());
        let found = format!("{name}, PCI {id}, revision {revision}");
        if id == XDNA1 {
            let remedy = "the image is for XDNA2; use --device cpu";
            return vec![
                Check::failed("device", found, remedy),
                Check::failed("columns", "4", "the image has 8 columns; use --device cpu"),
            ];
        }
        vec![Check::ok("device", found), Check::ok("columns", "8 (all XDNA2 devices have 8)")]
    }

    fn node(&self) -> Check {
        const NAME: &str = "node";
        let path = self.path("dev/accel/accel0");
        let meta = match fs::metadata(&path) {
            Ok(meta) => meta,
            Err(e) => {
                let remedy = "load the driver; in a container pass the device: --device \
                              /dev/accel/accel0 --group-add with the number of its group";
                return Check::failed(NAME, format!("/dev/accel/accel0: {e}"), remedy);
            }
        };
        let (mode, uid, gid) = (meta.mode(), meta.uid(), meta.gid());
        let group = self.group(gid).unwrap_or_else(|| gid.to_string());
        let found = format!("/dev/accel/accel0, mode {:03o}, group {group}", mode & 0o777);
        let shift = if uid == self.uid {
            6
        } else if self.groups.contains(&gid) {
            3
        } else {
            0
        };
        if self.uid == 0 || mode >> shift & 0o6 == 0o6 {
            return Check::ok(NAME, found);
        }
        let remedy = if mode & 0o060 == 0o060 {
            format!(
                "it exists and is not accessible: usermod -aG {group} with your name, then log in \
                 again; in a container: --group-add {gid}. Root is not needed"
            )
        } else {
            "it exists and is not accessible: give a group access with a udev rule, \
             SUBSYSTEM==\"accel\", GROUP=\"render\", MODE=\"0660\""
                .to_owned()
        };
        Check::failed(NAME, format!("{found}: no access"), remedy)
    }

    /// The name of a group.
    fn group(&self, gid: u32) -> Option<String> {
        let groups = self.read("etc/group")?;
        let line = groups.lines().find(|line| line.split(':').nth(2) == Some(&gid.to_string()))?;
        line.split(':').next().map(str::to_owned)
    }

    fn firmware(&self, device: Option<&Path>) -> Check {
        let version = device.and_then(|device| read(&device.join("fw_version")));
        match version {
            Some(version) => Check::ok("firmware", version),
            // An old driver does not tell.
            None => Check::unknown("firmware", "its version cannot be read"),
        }
    }

    fn memlock(&self) -> Check {
        const NAME: &str = "memlock";
        let limits = self.read("proc/self/limits").unwrap_or_default();
        let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
        let mut numbers = line.unwrap_or_default().split_whitespace();
        let (Some(soft), Some(hard)) = (numbers.next(), numbers.next()) else {
            return Check::unknown(NAME, "the limit cannot be read");
        };
        let have = format!("soft {soft}, hard {hard} (bytes)");
        // The soft limit is raised to the hard one when the NPU is opened.
        let hard = if hard == "unlimited" { u64::MAX } else { hard.parse().unwrap_or(0) };
        let (need, of) = match &self.need {
            Some((need, name)) => (*need, format!("`{name}` needs {need}")),
            None => (64 << 20, "67108864 are needed before any model".to_owned()),
        };
        let found = format!("{have}; {of}");
        if hard >= need {
            return Check::ok(NAME, found);
        }
        let remedy = "allow more: a line `* - memlock unlimited` in a file of \
                      /etc/security/limits.d, then log in again; for a service LimitMEMLOCK=infinity; \
                      in a container --ulimit memlock=-1. sudo and desktop sessions may not apply \
                      limits.d";
        Check::failed(NAME, found, remedy)
    }

    fn memory(&self) -> Check {
        const NAME: &str = "memory";
        let info = self.read("proc/meminfo").unwrap_or_default();
        let available = info.lines().find_map(|line| {
            line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok()
        });
        let Some(available) = available.map(|kb| kb.saturating_mul(1024)) else {
            return Check::unknown(NAME, "what is available cannot be read");
        };
        match &self.need {
            Some((need, name)) if *need > available => Check::failed(
                NAME,
                format!("{available} bytes available; `{name}` needs {need}, all of them locked"),
                "end other programs, or use --device cpu",
            ),
            _ => Check::ok(NAME, format!("{available} bytes available")),
        }
    }

    fn library(&self, name: &'static str, file: &str, remedy: &str) -> Check {
        let mut paths = LIBRARIES.iter().map(|folder| self.path(folder).join(file));
        let Some(path) = paths.find(|path| path.exists()) else {
            return Check::failed(name, format!("no {file}"), remedy);
        };
        // A symbolic link tells the release.
        let target = fs::canonicalize(&path).unwrap_or(path);
        Check::ok(name, target.to_string_lossy().into_owned())
    }

    /// The shim, and what XRT finds through it: the driver may be there and XRT's plugin not.
    fn shim(&self) -> [Check; 2] {
        const NAME: &str = "shim";
        const DEVICE: &str = "xrt_device";
        let unknown = Check::unknown(DEVICE, "XRT cannot be asked without the shim");
        let remedy = "compile it where XRT's headers are: g++ -std=c++17 -O2 -fPIC -shared \
                      drafter_xrt.cpp -lxrt_coreutil -o libdrafter_xrt.so (docs/npu.md)";
        let path = match self.files.shim() {
            Ok(path) => path,
            Err(found) => return [Check::failed(NAME, found, remedy), unknown],
        };
        let api = match Api::open(&path) {
            Ok(api) => api,
            Err(e) => return [Check::failed(NAME, e.to_string(), remedy), unknown],
        };
        let device = Device::open(&api, 0).and_then(|device| {
            let (name, address) = (device.name()?, device.address()?);
            Ok(format!("{name} at {address}, XRT {}", device.xrt_version()?))
        });
        let device = match device {
            Ok(found) => Check::ok(DEVICE, found),
            Err(e) => Check::failed(
                DEVICE,
                e.to_string(),
                "where the driver has the device and XRT does not, its plugin for the NPU is missing (Ubuntu \
                 26.04: libxrt-npu2), or plugin, driver and firmware are not of one release",
            ),
        };
        [Check::ok(NAME, path.to_string_lossy()), device]
    }

    fn image(&self) -> Check {
        const NAME: &str = "image";
        let remedy = "make it with the vendor's compiler (docs/npu.md), or use --device cpu";
        let path = match self.files.image() {
            Ok(path) => path,
            Err(found) => return Check::failed(NAME, found, remedy),
        };
        match fs::read(&path) {
            Ok(bytes) => {
                let found = format!("{}, SHA-256 {}", path.to_string_lossy(), sha256(&bytes));
                if bytes.starts_with(b"xclbin2\0") {
                    Check::ok(NAME, found)
                } else {
                    Check::failed(NAME, format!("{found}: no xclbin"), remedy)
                }
            }
            Err(e) => Check::failed(NAME, format!("{}: {e}", path.to_string_lossy()), remedy),
        }
    }
}

/// The sources of the kernels that this program was built with.
fn kernels() -> Vec<Check> {
    const SOURCES: [(&str, &[u8]); 3] = [
        ("ternary_matmul.cc", include_bytes!("../../../aie-kernels/kernels/ternary_matmul.cc")),
        (
            "hadamard_quantize.cc",
            include_bytes!("../../../aie-kernels/kernels/hadamard_quantize.cc"),
        ),
        ("layout.h", include_bytes!("../../../aie-kernels/kernels/layout.h")),
    ];
    let check = |(name, bytes): &(&str, &[u8])| {
        Check::ok("kernel", format!("{name}, SHA-256 {}", sha256(bytes)))
    };
    SOURCES.iter().map(check).collect()
}

fn read(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    /// A machine on which all is well.
    fn machine(dir: &Path) -> Machine {
        let file = |path: &str, text: &str| {
            let path = dir.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        file("proc/sys/kernel/osrelease", "6.17.0-5-generic\n");
        file("proc/self/limits", "Max locked memory         8388608   unlimited   bytes\n");
        file("proc/meminfo", "MemTotal: 32000000 kB\nMemAvailable:   20000000 kB\n");
        file("sys/module/amdxdna/version", "0.6\n");
        for (name, value) in [
            ("vendor", "0x1022"),
            ("device", "0x17f0"),
            ("revision", "0x10"),
            ("vbnv", "RyzenAI-npu4"),
            ("fw_version", "1.1.2.64"),
        ] {
            file(&format!("sys/class/accel/accel0/device/{name}"), value);
        }
        file("dev/accel/accel0", "");
        let node = dir.join("dev/accel/accel0");
        fs::set_permissions(&node, fs::Permissions::from_mode(0o660)).unwrap();
        let gid = fs::metadata(node).unwrap().gid();
        file("etc/group", &format!("other:x:4242:\nrender:x:{gid}:\n"));
        for name in ["libxrt_coreutil.so.2", "libxrt_driver_xdna.so.2"] {
            file(&format!("usr/lib/x86_64-linux-gnu/{name}.21.75"), "");
            let name = dir.join("usr/lib/x86_64-linux-gnu").join(name);
            symlink(format!("{}.21.75", name.display()), name).unwrap();
        }
        file("npu/drafter-npu2.xclbin", "xclbin2\0...");
        let files = Files { folders: vec![dir.join("npu")], ..Files::default() };
        let need = Some((7_500_000_000, "bonsai".to_owned()));
        Machine { root: dir.to_path_buf(), uid: 12345, groups: vec![gid], files, need }
    }

    fn of<'a>(checks: &'a [Check], name: &str) -> &'a Check {
        checks.iter().find(|check| check.name == name).unwrap()
    }

    #[test]
    fn a_machine_in_order_lacks_only_the_shim() {
        let dir = tempfile::tempdir().unwrap();
        let checks = machine(dir.path()).checks();
        let failed: Vec<_> = checks.iter().filter(|c| c.status == Status::Failed).collect();
        assert_eq!(failed.len(), 1, "{failed:?}");
        assert!(failed[0].name == "shim" && failed[0].found.contains("libdrafter_xrt.so"));
        assert!(checks.iter().all(|c| (c.status == Status::Failed) == c.remedy.is_some()));
        assert!(of(&checks, "xrt").found.ends_with("libxrt_coreutil.so.2.21.75"));
        assert!(of(&checks, "memlock").found.contains("`bonsai` needs 7500000000"));
        assert!(of(&checks, "device").found.contains("RyzenAI-npu4"));
        assert_eq!(of(&checks, "firmware").found, "1.1.2.64");
        assert!(of(&checks, "image").found.contains("SHA-256"));
    }

    #[test]
    fn every_finding_has_its_remedy() {
        type Harm = fn(&Path, &mut Machine);
        let remove = |dir: &Path, below: &str| {
            let path = dir.join(below);
            if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.unwrap();
        };
        let cases: [(&str, Harm, &str); 13] = [
            (
                "linux",
                |d, _| fs::write(d.join("proc/sys/kernel/osrelease"), "6.8.0-31").unwrap(),
                "6.14",
            ),
            ("driver", |_, _| {}, "modprobe amdxdna"),
            ("device", |_, _| {}, "XDNA2"),
            (
                "columns",
                |d, _| {
                    fs::write(d.join("sys/class/accel/accel0/device/device"), "0x1502").unwrap();
                },
                "--device cpu",
            ),
            // It exists, and nobody may use it.
            (
                "node",
                |d, _| {
                    let mode = fs::Permissions::from_mode(0o000);
                    fs::set_permissions(d.join("dev/accel/accel0"), mode).unwrap();
                },
                "it exists and is not accessible: give a group access",
            ),
            // This user is in no group that may use it.
            ("node", |_, m| m.groups.clear(), "usermod -aG render"),
            (
                "memlock",
                |d, _| {
                    let text = "Max locked memory   8388608   67108864   bytes";
                    fs::write(d.join("proc/self/limits"), text).unwrap();
                },
                "limits.d",
            ),
            ("memory", |_, m| m.need = Some((1 << 50, "large".into())), "end other programs"),
            ("xrt", |_, _| {}, "libxrt2"),
            ("xrt_plugin", |_, _| {}, "libxrt-npu2"),
            ("shim", |_, _| {}, "g++"),
            ("image", |_, m| m.files.folders.clear(), "docs/npu.md"),
            (
                "image",
                |d, _| fs::write(d.join("npu/drafter-npu2.xclbin"), "ELF").unwrap(),
                "docs/npu.md",
            ),
        ];
        for (name, harm, remedy) in cases {
            let dir = tempfile::tempdir().unwrap();
            let mut machine = machine(dir.path());
            match name {
                "driver" => remove(dir.path(), "sys/module/amdxdna"),
                "device" => remove(dir.path(), "sys/class/accel"),
                "xrt" => remove(dir.path(), "usr/lib/x86_64-linux-gnu/libxrt_coreutil.so.2"),
                "xrt_plugin" => {
                    remove(dir.path(), "usr/lib/x86_64-linux-gnu/libxrt_driver_xdna.so.2");
                }
                _ => {}
            }
            harm(dir.path(), &mut machine);
            let checks = machine.checks();
            let check = of(&checks, name);
            assert_eq!(check.status, Status::Failed, "{name}: {}", check.found);
            assert!(check.remedy.as_ref().unwrap().contains(remedy), "{check:?}");
        }
    }

    #[test]
    fn nothing_is_fatal_on_an_empty_machine() {
        let dir = tempfile::tempdir().unwrap();
        let (files, groups) = (Files::default(), Vec::new());
        let machine = Machine { root: dir.path().into(), uid: 1, groups, files, need: None };
        let checks = machine.checks();
        assert_eq!(of(&checks, "firmware").status, Status::Unknown);
        assert_eq!(of(&checks, "node").status, Status::Failed);
    }
}
