//! The folder of links: one JSON file each, replaced as a whole or not at all.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::Context as _;
use command_line::exit::Usage;
use formats::{Location, shown_path};
use serde::{Deserialize, Serialize};

use super::files::Known;
use crate::cli::exit::Input;

/// Version of the layout of links.
const SCHEMA: u32 = 1;

/// The file that holds the name of the default link; no link's file, since it has no extension.
const DEFAULT: &str = "default";

/// How the name of a file begins that is not whole yet.
const UNFINISHED: &str = ".link-";

/// Nobody writes a link for so long.
const LEFT: Duration = Duration::from_secs(600);

/// The largest link file that is read.
const MAX_BYTES: u64 = 1 << 20;

/// The name of a link: 1 to 64 of `a-z 0-9 . _ -`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Name(String);

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c);
        if text.is_empty() || text.len() > 64 || !text.chars().all(legal) {
            return Err("expected 1 to 64 of the characters a-z, 0-9, `.`, `_` and `-`".into());
        }
        Ok(Self(text.into()))
    }
}

impl TryFrom<String> for Name {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl Name {
    /// A name for the drafter at `path`: of the file, or of its folder where the file has a name that
    /// says nothing.
    pub(crate) fn for_drafter(path: &Path) -> Self {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        let stem = path.file_stem().unwrap_or_default();
        let folder = path.parent().and_then(Path::file_name).unwrap_or_default();
        let chosen = if ["model", "drafter"].iter().any(|s| stem == *s) { folder } else { stem };
        let text: String = chosen
            .to_string_lossy()
            .to_lowercase()
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' })
            .collect();
        // A leading `-` would make it an option of a command line.
        let text: String = text.trim_matches('-').chars().take(64).collect();
        text.parse().unwrap_or_else(|_| Self("drafter".into()))
    }

    /// As text.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// A linked pair.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Link {
    pub(crate) schema: u32,
    pub(crate) name: Name,
    pub(crate) target: Model,
    pub(crate) drafter: Model,
    /// The drafter's configuration, where it is not found beside it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) drafter_config: Option<Location>,
    pub(crate) facts: Facts,
}

/// One model of a pair.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Model {
    /// What is opened: a file or a folder.
    pub(crate) path: Location,
    /// All files that belong to it.
    pub(crate) files: Vec<Known>,
}

/// What the pair agreed on when it was linked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Facts {
    pub(crate) hidden_size: usize,
    pub(crate) vocab_size: usize,
    pub(crate) target_layers: usize,
    pub(crate) target_layer_ids: Vec<usize>,
    pub(crate) block_size: usize,
    pub(crate) context_length: usize,
    /// Whether the target's file has a tokenizer and a chat template.
    pub(crate) tokenizer: bool,
    pub(crate) chat_template: bool,
}

impl Link {
    /// A link of this version.
    pub(crate) fn new(
        name: Name,
        target: Model,
        drafter: Model,
        config: Option<PathBuf>,
        facts: Facts,
    ) -> Self {
        let drafter_config = config.map(Location);
        Self { schema: SCHEMA, name, target, drafter, drafter_config, facts }
    }

    /// Refuses a pair whose files changed.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        self.target.files.iter().chain(&self.drafter.files).try_for_each(Known::check)
    }
}

/// The folder.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    dir: PathBuf,
}

impl Store {
    /// In this folder, which need not be there yet.
    pub(crate) fn in_dir(dir: Option<PathBuf>) -> anyhow::Result<Self> {
        let dir = dir.ok_or_else(|| {
            Usage("links have no place: neither HOME nor XDG_DATA_HOME is set".into())
        })?;
        Ok(Self { dir })
    }

    fn path(&self, name: &Name) -> PathBuf {
        self.dir.join(format!("{}.json", name.as_str()))
    }

    /// The names of all links.
    pub(crate) fn names(&self) -> anyhow::Result<BTreeSet<Name>> {
        let listed = match fs::read_dir(&self.dir) {
            Ok(listed) => listed,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
            Err(error) => return Err(unreadable(&self.dir, &error).into()),
        };
        let mut names = BTreeSet::new();
        for entry in listed {
            let entry = entry.map_err(|e| unreadable(&self.dir, &e))?;
            let file = entry.file_name();
            let name = file.to_str().and_then(|file| file.strip_suffix(".json"));
            names.extend(name.and_then(|name| name.parse().ok()));
        }
        Ok(names)
    }

    /// The link of this name.
    pub(crate) fn load(&self, name: &Name) -> anyhow::Result<Link> {
        let path = self.path(name);
        let bytes = match read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(self.unknown(name));
            }
            other => other.map_err(|e| unreadable(&path, &e))?,
        };
        let link: Link = serde_json::from_slice(&bytes)
            .map_err(|e| Input(format!("`{}`: no link: {e}", shown_path(&path))))?;
        if link.schema != SCHEMA || link.name != *name {
            return Err(Input(format!(
                "`{}`: expected a link of schema {SCHEMA} called `{}`, found schema {} and `{}`",
                shown_path(&path),
                name.as_str(),
                link.schema,
                link.name.as_str()
            ))
            .into());
        }
        Ok(link)
    }

    fn unknown(&self, name: &Name) -> anyhow::Error {
        let names = self.names().unwrap_or_default();
        let known: Vec<&str> = names.iter().map(Name::as_str).collect();
        let known = if known.is_empty() { "none".into() } else { known.join(", ") };
        Usage(format!("no link is called `{}`; there are: {known}", name.as_str())).into()
    }

    /// Refuses a name that is taken, unless it is to be `replace`d.
    pub(crate) fn refuse_taken(&self, name: &Name, replace: bool) -> anyhow::Result<()> {
        if !replace && self.names()?.contains(name) {
            return Err(taken(name).into());
        }
        Ok(())
    }

    /// Keeps a link. One of the same name is replaced only if `replace` says so.
    pub(crate) fn save(&self, link: &Link, replace: bool) -> anyhow::Result<()> {
        let mut text = serde_json::to_vec_pretty(link)?;
        text.push(b'\n');
        self.write(&self.path(&link.name), &text, replace).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => taken(&link.name).into(),
            _ => anyhow::Error::new(error).context(self.writing()),
        })
    }

    /// Removes a link, and the default if it is that.
    pub(crate) fn remove(&self, name: &Name) -> anyhow::Result<()> {
        match fs::remove_file(self.path(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(self.unknown(name)),
            other => other.with_context(|| self.writing())?,
        }
        if self.chosen()?.as_ref() == Some(name) {
            fs::remove_file(self.dir.join(DEFAULT)).with_context(|| self.writing())?;
        }
        Ok(())
    }

    /// The default: the one that was chosen, or the only one.
    pub(crate) fn default(&self) -> anyhow::Result<Option<Name>> {
        let names = self.names()?;
        if let Some(name) = self.chosen()?.filter(|name| names.contains(name)) {
            return Ok(Some(name));
        }
        let mut names = names.into_iter();
        Ok(names.next().filter(|_| names.next().is_none()))
    }

    fn chosen(&self) -> anyhow::Result<Option<Name>> {
        let path = self.dir.join(DEFAULT);
        match read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(unreadable(&path, &error).into()),
            Ok(bytes) => Ok(String::from_utf8(bytes).ok().and_then(|s| s.trim().parse().ok())),
        }
    }

    /// Makes a link the default.
    pub(crate) fn choose(&self, name: &Name) -> anyhow::Result<()> {
        self.load(name)?;
        let text = format!("{}\n", name.as_str());
        self.write(&self.dir.join(DEFAULT), text.as_bytes(), true).with_context(|| self.writing())
    }

    /// Removes what programs left that were killed while they wrote.
    fn sweep(&self) {
        let Ok(listed) = fs::read_dir(&self.dir) else { return };
        for entry in listed.flatten() {
            let unfinished = entry.file_name().as_bytes().starts_with(UNFINISHED.as_bytes());
            let modified = entry.metadata().and_then(|meta| meta.modified()).ok();
            let age = modified.and_then(|modified| modified.elapsed().ok());
            if unfinished && age.is_some_and(|age| age > LEFT) {
                // Whoever cannot remove it can still write beside it.
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    fn writing(&self) -> String {
        format!("writing to `{}`", shown_path(&self.dir))
    }

    fn write(&self, path: &Path, bytes: &[u8], replace: bool) -> io::Result<()> {
        fs::create_dir_all(&self.dir)?;
        self.sweep();
        let mut file = tempfile::Builder::new().prefix(UNFINISHED).tempfile_in(&self.dir)?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        if replace {
            file.persist(path)?;
        } else {
            file.persist_noclobber(path)?;
        }
        File::open(&self.dir)?.sync_all()
    }
}

fn taken(name: &Name) -> Usage {
    let name = name.as_str();
    Usage(format!(
        "a link is called `{name}` already; --force replaces it, --name gives another name"
    ))
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    use std::io::Read as _;
    // Opening a pipe would wait for somebody to write.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn unreadable(path: &Path, error: &io::Error) -> Input {
    Input(format!("`{}`: {error}", shown_path(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(name: &str) -> Link {
        let model = |path: &str| Model { path: Location(path.into()), files: Vec::new() };
        let facts = Facts {
            hidden_size: 256,
            vocab_size: 64,
            target_layers: 6,
            target_layer_ids: vec![1, 3],
            block_size: 8,
            context_length: 4096,
            tokenizer: true,
            chat_template: false,
        };
        Link::new(name.parse().unwrap(), model("/t"), model("/d"), None, facts)
    }

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    #[test]
    fn names_are_narrow() {
        for good in ["a", "bonsai-2.27b_x", "..", &"x".repeat(64)] {
            assert!(good.parse::<Name>().is_ok(), "{good}");
        }
        for bad in ["", "A", "a b", "a/b", "é", "a\n", &"x".repeat(65)] {
            assert!(bad.parse::<Name>().is_err(), "{bad:?}");
        }
        for (path, expected) in [
            ("/m/My Drafter.q4nx", "my-drafter"),
            ("/m/r3/model.q4nx", "r3"),
            ("/m/r3", "r3"),
            ("/", "drafter"),
            ("/m/Željko.gguf", "eljko"),
            ("/m/日本.q4nx", "drafter"),
        ] {
            assert_eq!(Name::for_drafter(Path::new(path)), name(expected), "{path}");
        }
    }

    #[test]
    fn links_come_back_as_they_were_saved() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::in_dir(Some(dir.path().join("a/links"))).unwrap();
        assert_eq!(store.names().unwrap().len(), 0);
        assert_eq!(store.default().unwrap(), None);
        store.save(&link("one"), false).unwrap();
        assert_eq!(store.load(&name("one")).unwrap(), link("one"));
        assert_eq!(store.default().unwrap(), Some(name("one")));
        let error = store.save(&link("one"), false).unwrap_err().to_string();
        assert!(error.contains("--force"), "{error}");
        store.save(&link("one"), true).unwrap();

        store.save(&link(".."), false).unwrap();
        assert_eq!(store.default().unwrap(), None);
        store.choose(&name("..")).unwrap();
        assert_eq!(store.default().unwrap(), Some(name("..")));
        store.remove(&name("..")).unwrap();
        assert_eq!(store.default().unwrap(), Some(name("one")));
        let error = store.remove(&name("..")).unwrap_err().to_string();
        assert!(error.contains("there are: one"), "{error}");
        // Nothing else was left behind.
        assert_eq!(fs::read_dir(dir.path().join("a/links")).unwrap().count(), 1);
    }

    #[test]
    fn a_damaged_link_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::in_dir(Some(dir.path().to_path_buf())).unwrap();
        store.save(&link("one"), false).unwrap();
        fs::copy(dir.path().join("one.json"), dir.path().join("two.json")).unwrap();
        let error = store.load(&name("two")).unwrap_err().to_string();
        assert!(error.contains("two.json") && error.contains("`one`"), "{error}");
        fs::write(dir.path().join("one.json"), "{").unwrap();
        let error = store.load(&name("one")).unwrap_err().to_string();
        assert!(error.contains("one.json"), "{error}");
        assert_eq!(store.names().unwrap().len(), 2);
    }
}
