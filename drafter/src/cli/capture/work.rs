//! The units of a capture: prompts, or windows of text.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use command_line::exit::Usage;
use formats::calib::{Texts, Units};
use formats::digest::of_files;
use formats::{Source, shown_path};

use super::args::CaptureArgs;
use crate::cli::args::OnOff;
use crate::cli::exit::Input;
use crate::cli::prompt::{self, Prompt};
use crate::cli::text::Text;

/// Tokens at the beginning of a window that are context only, as a prompt is.
const LEAD: usize = 32;

/// Longest text that is read from one file.
const MAX_BYTES: u64 = 1 << 30;

/// What is run as a whole or not at all.
#[derive(Debug)]
pub(super) struct Unit {
    /// The prompt, or the window.
    pub(super) ids: Vec<u32>,
    /// Tokens that are not gone over; nothing where the target answers.
    pub(super) lead: Option<usize>,
    /// Most positions.
    pub(super) positions: u64,
}

/// All units, and what they are known by.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) units: Vec<Unit>,
    /// Without units.
    pub(super) texts: Texts,
}

impl Work {
    pub(super) fn read(args: &CaptureArgs, text: &Text, draft_max: usize) -> anyhow::Result<Self> {
        let files: Vec<PathBuf> =
            args.texts.prompts.iter().chain(&args.texts.text).cloned().collect();
        let sources = files.iter().map(Source::open).collect::<Result<Vec<_>, _>>()?;
        let sha256 = of_files(&sources, &mut |_| true)?.unwrap_or_default();
        let mut with_template = false;
        let (kind, mut units) = match &args.texts.prompts {
            Some(path) => {
                let prompts = prompt::read_file(path)?;
                let n = prompts.len();
                with_template = prompts.iter().any(|p| matches!(p, Prompt::Messages(_)));
                let unit = |(i, prompt): (usize, &Prompt)| -> anyhow::Result<Unit> {
                    let here = || format!("prompt {} of {n}", i + 1);
                    let ids = text.encode_as(prompt, args.think).with_context(here)?;
                    if ids.is_empty() {
                        return Err(Input(format!("{}: it is empty", here())).into());
                    }
                    Ok(Unit { ids, lead: None, positions: args.max_tokens - 1 })
                };
                ("prompts", prompts.iter().enumerate().map(unit).collect::<anyhow::Result<_>>()?)
            }
            None => ("text", windows(args, text, &sources)?),
        };
        if args.think.is_some() && !with_template {
            return Err(Usage("--think is for answers to messages".into()).into());
        }
        let n_units = units.len() as u64;
        for (i, unit) in units.iter_mut().enumerate() {
            // An even share of the positions, the same whoever runs the unit.
            if let Some(all) = args.positions {
                let share = all / n_units + u64::from((i as u64) < all % n_units);
                unit.positions = unit.positions.min(share);
                if let Some(lead) = unit.lead {
                    unit.ids.truncate(lead + 1 + usize::try_from(share).unwrap_or(usize::MAX));
                }
            }
        }
        let texts = Texts {
            kind: kind.into(),
            sha256,
            template_sha256: text.template_sha256().filter(|_| with_template).map(Into::into),
            think: args.think.map(|think| think == OnOff::On),
            decoding: decoding(args),
            draft_max,
            max_tokens: args.max_tokens,
            max_positions: args.positions,
            n_units,
            units: Units::default(),
            positions: 0,
            rounds: 0,
            context_rows: 0,
        };
        Ok(Self { units, texts })
    }
}

/// The texts of the files in windows that do not overlap.
fn windows(args: &CaptureArgs, text: &Text, files: &[Source]) -> anyhow::Result<Vec<Unit>> {
    let mut units = Vec::new();
    for file in files {
        if file.len() > MAX_BYTES {
            let found = file.len();
            let path = shown_path(file.path());
            let message = format!("`{path}`: expected at most {MAX_BYTES} bytes, found {found}");
            return Err(Input(message).into());
        }
        let content = decoded(file.path(), file.read_vec(0, file.len())?)?;
        let ids = text.encode_plain(&Prompt::Text(content))?;
        let max_tokens = usize::try_from(args.max_tokens).unwrap_or(usize::MAX);
        let windows = ids.chunks(LEAD.saturating_add(max_tokens)).filter(|w| w.len() > LEAD + 1);
        units.extend(windows.map(|window| Unit {
            ids: window.to_vec(),
            lead: Some(LEAD),
            positions: (window.len() - LEAD - 1) as u64,
        }));
    }
    if units.is_empty() {
        let path = shown_path(files[0].path());
        let message = format!("`{path}`: expected a text of more than {} tokens", LEAD + 1);
        return Err(Input(message).into());
    }
    Ok(units)
}

fn decoded(path: &Path, bytes: Vec<u8>) -> Result<String, Input> {
    String::from_utf8(bytes).map_err(|error| {
        let (path, at) = (shown_path(path), error.utf8_error().valid_up_to());
        Input(format!("`{path}`: expected UTF-8, found another byte at {at}"))
    })
}

/// How tokens are chosen, in a few words.
fn decoding(args: &CaptureArgs) -> String {
    if args.texts.prompts.is_none() {
        return "given".into();
    }
    let sampling = args.sampling.sampling();
    let mut text = if sampling.temperature == 0.0 {
        "greedy".to_owned()
    } else {
        format!(
            "temperature {}, top-k {}, top-p {}, min-p {}, seed {}, drafts {:?}",
            sampling.temperature,
            sampling.top_k,
            sampling.top_p,
            sampling.min_p,
            sampling.seed,
            args.sampling.coupling(),
        )
    };
    if args.ignore_eos {
        text += ", past stops";
    }
    text
}
