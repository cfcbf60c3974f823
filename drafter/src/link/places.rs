//! Where links and packed weights are kept and where models are looked for, as the environment says.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Folders of this user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Places {
    /// The folder of links; none where the user has no home.
    pub(crate) links: Option<PathBuf>,
    /// The folder of packed weights; none where the user has no home.
    pub(crate) packs: Option<PathBuf>,
    /// Where models are looked for, first to last.
    pub(crate) models: Vec<Place>,
}

/// A folder of models.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// Whose folder it is.
    pub(crate) owner: &'static str,
    pub(crate) dir: PathBuf,
}

impl Places {
    /// Of an environment.
    ///
    /// Our own: `$TERNARIZE_MODEL_DIRS` (a list) and `$XDG_DATA_HOME/drafter/models`. Hugging Face's
    /// cache: `$HF_HUB_CACHE`, `$HF_HOME/hub`, `$XDG_CACHE_HOME/huggingface/hub`,
    /// `~/.cache/huggingface/hub`. Then the folders of llama.cpp, LM Studio, OpenFlowLM and FastFlowLM.
    pub(crate) fn of(get: impl Fn(&str) -> Option<OsString>) -> Self {
        let get = |name: &str| get(name).filter(|value| !value.is_empty());
        let path = |name: &str| get(name).map(PathBuf::from);
        // The base directory specification: a relative path is to be ignored.
        let xdg = |name: &str| path(name).filter(|path| path.is_absolute());
        let home = path("HOME");
        let under_home = |below: &str| home.as_ref().map(|home| home.join(below));
        let data = xdg("XDG_DATA_HOME").or_else(|| under_home(".local/share"));
        let cache = xdg("XDG_CACHE_HOME").or_else(|| under_home(".cache"));
        let config = xdg("XDG_CONFIG_HOME").or_else(|| under_home(".config"));
        let in_dir = |dir: &Option<PathBuf>, below: &str| dir.as_ref().map(|dir| dir.join(below));

        let mut models = Vec::new();
        let mut add = |owner, dir: Option<PathBuf>| {
            if let Some(dir) = dir
                && !models.iter().any(|place: &Place| place.dir == dir)
            {
                models.push(Place { owner, dir });
            }
        };
        let ours = get("TERNARIZE_MODEL_DIRS");
        for dir in ours.iter().flat_map(std::env::split_paths) {
            add("drafter", Some(dir).filter(|dir| !dir.as_os_str().is_empty()));
        }
        add("drafter", in_dir(&data, "drafter/models"));
        add("Hugging Face", path("HF_HUB_CACHE"));
        add("Hugging Face", in_dir(&path("HF_HOME"), "hub"));
        add("Hugging Face", in_dir(&cache, "huggingface/hub"));
        add("Hugging Face", under_home(".cache/huggingface/hub"));
        add("llama.cpp", path("LLAMA_CACHE"));
        add("llama.cpp", in_dir(&cache, "llama.cpp"));
        add("LM Studio", under_home(".lmstudio/models"));
        add("LM Studio", under_home(".cache/lm-studio/models"));
        add("OpenFlowLM", path("OFLM_MODEL_PATH"));
        add("OpenFlowLM", in_dir(&config, "oflm"));
        add("FastFlowLM", path("FLM_MODEL_PATH"));
        add("FastFlowLM", in_dir(&config, "flm"));
        add("FastFlowLM", under_home(".flm"));
        Self {
            links: in_dir(&data, "drafter/links"),
            packs: in_dir(&cache, "drafter/packs"),
            models,
        }
    }

    /// Of this process.
    pub(crate) fn of_process() -> Self {
        Self::of(|name| std::env::var_os(name))
    }

    /// Those folders that are there.
    pub(crate) fn existing(&self) -> impl Iterator<Item = &Place> {
        self.models.iter().filter(|place| Path::is_dir(&place.dir))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(vars: &[(&str, &str)]) -> Places {
        Places::of(|name| {
            vars.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
        })
    }

    fn dirs(places: &Places) -> Vec<&str> {
        places.models.iter().map(|place| place.dir.to_str().unwrap()).collect()
    }

    #[test]
    fn a_home_is_enough() {
        let places = of(&[("HOME", "/h")]);
        assert_eq!(places.links, Some("/h/.local/share/drafter/links".into()));
        assert_eq!(places.packs, Some("/h/.cache/drafter/packs".into()));
        assert_eq!(
            dirs(&places),
            [
                "/h/.local/share/drafter/models",
                "/h/.cache/huggingface/hub",
                "/h/.cache/llama.cpp",
                "/h/.lmstudio/models",
                "/h/.cache/lm-studio/models",
                "/h/.config/oflm",
                "/h/.config/flm",
                "/h/.flm",
            ]
        );
    }

    #[test]
    fn variables_come_first_and_relative_ones_of_xdg_do_not_count() {
        let places = of(&[
            ("HOME", "/h"),
            ("TERNARIZE_MODEL_DIRS", "/a::/b"),
            ("HF_HUB_CACHE", "/hub"),
            ("HF_HOME", "/hf"),
            ("XDG_CACHE_HOME", "relative"),
            ("XDG_DATA_HOME", "/data"),
            ("OFLM_MODEL_PATH", "/oflm"),
            ("FLM_MODEL_PATH", ""),
        ]);
        assert_eq!(places.links, Some("/data/drafter/links".into()));
        let dirs = dirs(&places);
        assert_eq!(
            dirs[..6],
            ["/a", "/b", "/data/drafter/models", "/hub", "/hf/hub", "/h/.cache/huggingface/hub"]
        );
        assert!(dirs.contains(&"/oflm") && !dirs.contains(&""));
    }

    #[test]
    fn without_a_home_nothing_is_made_up() {
        assert_eq!(of(&[]), Places { links: None, packs: None, models: Vec::new() });
    }
}
