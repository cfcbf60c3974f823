//! Where the shim over XRT and the image of the array are looked for.

use std::fs;
use std::path::{Path, PathBuf};

use formats::shown_path;

/// The file name of the shim.
pub(crate) const SHIM: &str = "libdrafter_xrt.so";
/// The file name of the image.
pub(crate) const IMAGE: &str = "drafter-npu2.xclbin";

/// What was given on the command line, and the folders that are searched.
#[derive(Debug, Clone, Default)]
pub(crate) struct Files {
    pub(crate) shim: Option<PathBuf>,
    pub(crate) image: Option<PathBuf>,
    pub(crate) folders: Vec<PathBuf>,
}

impl Files {
    /// With the folders of this process: that of the program, and `npu` beside the links.
    pub(crate) fn of_process(
        shim: Option<&Path>,
        image: Option<&Path>,
        links: Option<&Path>,
    ) -> Self {
        let program = std::env::current_exe().ok();
        let beside = program.as_deref().and_then(Path::parent).map(Path::to_path_buf);
        let data = links.and_then(Path::parent).map(|data| data.join("npu"));
        let folders = beside.into_iter().chain(data).collect();
        Self { shim: shim.map(Path::to_path_buf), image: image.map(Path::to_path_buf), folders }
    }

    /// The shim, or where it was looked for.
    pub(crate) fn shim(&self) -> Result<PathBuf, String> {
        self.find(self.shim.as_deref(), SHIM, "--xrt-shim")
    }

    /// The image, or where it was looked for.
    pub(crate) fn image(&self) -> Result<PathBuf, String> {
        self.find(self.image.as_deref(), IMAGE, "--npu-image")
    }

    fn find(&self, given: Option<&Path>, name: &str, option: &str) -> Result<PathBuf, String> {
        if let Some(path) = given {
            return match fs::metadata(path) {
                Ok(_) => Ok(path.to_path_buf()),
                Err(e) => Err(format!("{option}: `{}`: {e}", shown_path(path))),
            };
        }
        let mut places = self.folders.iter().map(|folder| folder.join(name));
        places.find(|path| path.exists()).ok_or_else(|| {
            let looked: Vec<_> =
                self.folders.iter().map(|folder| format!("`{}`", shown_path(folder))).collect();
            let looked =
                if looked.is_empty() { "nowhere".to_owned() } else { looked.join(" and ") };
            format!("no `{name}`: looked in {looked}; {option} names another")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_place_counts_and_all_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let folders = vec![dir.path().join("a"), dir.path().join("b")];
        folders.iter().for_each(|folder| fs::create_dir(folder).unwrap());
        let files = Files { folders: folders.clone(), ..Files::default() };
        let error = files.image().unwrap_err();
        assert!(error.contains("/a` and `") && error.contains("--npu-image"), "{error}");
        for folder in folders.iter().rev() {
            fs::write(folder.join(IMAGE), "").unwrap();
            assert_eq!(files.image().unwrap(), folder.join(IMAGE));
        }
        let given = Files { image: Some(dir.path().join("other")), ..files };
        assert!(given.image().unwrap_err().contains("other"));
    }
}
