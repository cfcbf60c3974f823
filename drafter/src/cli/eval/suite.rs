//! Suites: prompts by class.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use formats::shown_path;
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::cli::args::OnOff;
use crate::cli::exit::Input;
use crate::cli::prompt::{self, Entry};
use crate::cli::text::Text;

/// The built-in suite: the held-out prompts of the shipped pair.
const FIXTURE: (&str, &str) =
    ("fixture", include_str!("../../../../tests/fixtures/pair/prompts.jsonl"));

/// Tokens of the vocabulary that its ids belong to.
const FIXTURE_VOCAB: usize = 1536;

/// The class of prompts that name none.
const NO_CLASS: &str = "all prompts";

/// A prompt of a suite.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SuitePrompt {
    /// Index into [`Suites::classes`].
    pub(crate) class: usize,
    pub(crate) name: Option<String>,
    pub(crate) ids: Vec<u32>,
}

/// All prompts, and the classes they are counted in.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Suites {
    pub(crate) names: Vec<String>,
    pub(crate) classes: Vec<String>,
    pub(crate) prompts: Vec<SuitePrompt>,
    /// Of what the target is given.
    pub(crate) sha256: String,
}

/// What a document says of the prompts.
#[derive(Debug, Serialize)]
pub(crate) struct Described<'a> {
    pub(crate) suites: &'a [String],
    pub(crate) prompts: usize,
    pub(crate) classes: Vec<Class<'a>>,
    pub(crate) prompts_sha256: &'a str,
}

#[derive(Debug, Serialize)]
pub(crate) struct Class<'a> {
    pub(crate) class: &'a str,
    pub(crate) prompts: usize,
}

/// Entries of one suite.
struct Read {
    name: String,
    entries: Vec<Entry>,
}

fn read(suite: &Path, vocab: usize) -> anyhow::Result<Read> {
    if suite == Path::new(FIXTURE.0) && !suite.exists() {
        if vocab != FIXTURE_VOCAB {
            return Err(Input(format!(
                "suite `{}`: its ids are those of the target in tests/fixtures/pair: expected a \
                 vocabulary of {FIXTURE_VOCAB}, found {vocab}; give your own prompts with --suite \
                 FILE.jsonl",
                FIXTURE.0
            ))
            .into());
        }
        let entries = prompt::entries(FIXTURE.1.as_bytes(), suite)?;
        return Ok(Read { name: FIXTURE.0.into(), entries });
    }
    if !suite.exists() && suite.components().count() == 1 && suite.extension().is_none() {
        let name = shown_path(suite);
        let message =
            format!("suite `{name}`: no such file; the built-in suite is `{}`", FIXTURE.0);
        return Err(Input(message).into());
    }
    let name = suite.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    Ok(Read { name, entries: prompt::read_entries(suite)? })
}

impl Suites {
    /// Reads the suites and encodes their prompts for the target of `text`. Where there are several,
    /// a class is named after its suite too.
    pub(crate) fn load(
        paths: &[PathBuf],
        text: &Text,
        vocab: usize,
        think: Option<OnOff>,
        limit: Option<usize>,
    ) -> anyhow::Result<Self> {
        let default = [PathBuf::from(FIXTURE.0)];
        let paths = if paths.is_empty() { &default[..] } else { paths };
        let read: Vec<Read> = paths.iter().map(|p| read(p, vocab)).collect::<Result<_, _>>()?;
        let mut suites = Self {
            names: Vec::new(),
            classes: Vec::new(),
            prompts: Vec::new(),
            sha256: String::new(),
        };
        let mut hasher = Sha256::new();
        for Read { name, entries } in &read {
            for (n, entry) in entries.iter().enumerate() {
                let at = || format!("prompt {} of suite `{name}`", n + 1);
                let label = entry.class.as_deref().unwrap_or(NO_CLASS);
                let label = if read.len() > 1 { format!("{name}/{label}") } else { label.into() };
                let class = suites.class(&label);
                let before = suites.prompts.iter().filter(|p| p.class == class).count();
                if limit.is_some_and(|limit| before >= limit) {
                    continue;
                }
                let ids = text.encode_as(&entry.prompt, think).with_context(at)?;
                if ids.is_empty() {
                    return Err(Input(format!("{}: expected tokens, found none", at())).into());
                }
                if let Some(id) = ids.iter().find(|id| **id as usize >= vocab) {
                    let message = format!("{}: id {id}: the vocabulary has {vocab} tokens", at());
                    return Err(Input(message).into());
                }
                hasher.update(label.as_bytes());
                hasher.update([0]);
                hasher.update((ids.len() as u64).to_le_bytes());
                ids.iter().for_each(|id| hasher.update(id.to_le_bytes()));
                suites.prompts.push(SuitePrompt { class, name: entry.name.clone(), ids });
            }
            suites.names.push(name.clone());
        }
        suites.sha256 = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(suites)
    }

    /// The index of a class, a new one where there is none of this name.
    fn class(&mut self, label: &str) -> usize {
        self.classes.iter().position(|class| class == label).unwrap_or_else(|| {
            self.classes.push(label.to_owned());
            self.classes.len() - 1
        })
    }

    pub(crate) fn described(&self) -> Described<'_> {
        let of = |class: usize| self.prompts.iter().filter(|p| p.class == class).count();
        let classes = self.classes.iter().enumerate();
        Described {
            suites: &self.names,
            prompts: self.prompts.len(),
            classes: classes.map(|(n, class)| Class { class, prompts: of(n) }).collect(),
            prompts_sha256: &self.sha256,
        }
    }

    /// The class of each prompt.
    pub(crate) fn class_of(&self) -> Vec<usize> {
        self.prompts.iter().map(|prompt| prompt.class).collect()
    }
}
