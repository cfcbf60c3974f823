//! Matching the names in a file against the model's.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use super::{Codebooks, TensorSpec, specs};
use crate::Error;
use crate::dflash2::config::{ARCHITECTURE, Config};
use crate::error::shown;

/// Prefixes that wrappers put before every name; any stack of them is removed.
const PREFIXES: [&str; 3] = ["model.", "draft_model.", "_orig_mod."];

/// Tensors that a drafter borrows from its target. Own copies are not read.
const BORROWED: [&str; 2] = ["embed_tokens.weight", "lm_head.weight"];

const CODEBOOKS: [&str; 2] =
    ["candidate_selector.predecessor_codebook", "candidate_selector.successor_codebook"];

/// Names of older GGUF files, `(old, new)`, below `blk.N.` or at the top.
const OLD_GGUF_NAMES: [(&str, &str); 7] = [
    ("selector.hidden_proj.weight", "selector_hidden.weight"),
    ("selector.pred_codebook", "selector_predecessor.weight"),
    ("selector.succ_codebook", "selector_successor.weight"),
    ("attn_conv.base", "attn_conv_base"),
    ("attn_conv.proj.weight", "attn_conv_proj.weight"),
    ("ffn_conv.base", "ffn_conv_base"),
    ("ffn_conv.proj.weight", "ffn_conv_proj.weight"),
];

/// Names of an error message are cut after this many.
const LISTED: usize = 24;

/// A file whose names are exactly those of the model.
#[derive(Debug)]
pub struct Resolved {
    /// Spelling of the codebooks in the file.
    pub codebooks: Codebooks,
    /// In the order of [`specs`]: the tensor, and its name in the file.
    pub tensors: Vec<(TensorSpec, String)>,
    /// What was normalised or skipped, one sentence each.
    pub notes: Vec<String>,
}

/// Matches the names of a checkpoint against the model.
///
/// # Errors
/// [`Error::Names`], listing the names: un-merged LoRA weights, prefixes on some
/// tensors only, doubled prefixes, a DFlash 1 checkpoint, MLX-quantized tensors,
/// codebooks in two spellings, and missing or unknown tensors.
pub fn resolve<'a>(
    path: &Path,
    config: &Config,
    names: impl Iterator<Item = &'a str>,
) -> Result<Resolved, Error> {
    let all: Vec<&str> = names.collect();
    let mut notes = Vec::new();
    refuse_lora(path, &all)?;

    let (borrowed, all): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|name| BORROWED.contains(&bare(name)));
    for name in borrowed {
        notes.push(format!(
            "`{}` is not read: a DFlash 2 drafter borrows the target's",
            shown(name)
        ));
    }

    let prefix = common_prefix(path, &all)?;
    if !prefix.is_empty() {
        notes.push(format!("the prefix `{prefix}` of every name is removed"));
    }
    refuse_doubled(path, &all, prefix.len())?;
    let mut found = HashMap::with_capacity(all.len());
    for name in all {
        if found.insert(&name[prefix.len()..], name).is_some() {
            return Err(error(path, "the same tensor twice", [name], None));
        }
    }

    refuse_mlx(path, &found)?;
    let codebooks = spelling(path, &found)?;
    if codebooks == Codebooks::Weight {
        notes
            .push(format!("the codebooks are spelled `{}.weight` and read as `{0}`", CODEBOOKS[0]));
    }
    let tensors =
        matched(path, specs(config, codebooks), |spec| &spec.name, found, &parts_of_checkpoint)?;
    Ok(Resolved { codebooks, tensors, notes })
}

/// Matches the names of a drafter GGUF against the model. The nested names of
/// older files are read as today's.
///
/// # Errors
/// [`Error::Names`] for missing and unknown tensors, and for two names of one tensor.
pub fn resolve_gguf<'a>(
    path: &Path,
    config: &Config,
    names: impl Iterator<Item = &'a str>,
) -> Result<Resolved, Error> {
    let mut notes = Vec::new();
    let mut today: Vec<(String, &str)> = Vec::new();
    for name in names {
        if let Some(new) = today_in_gguf(name) {
            notes.push(format!("`{name}` is an older name, read as `{new}`"));
            today.push((new, name));
        } else {
            today.push((name.to_owned(), name));
        }
    }
    let mut found = HashMap::with_capacity(today.len());
    for (new, name) in &today {
        if let Some(other) = found.insert(new.as_str(), *name) {
            return Err(error(path, "two names of one tensor", [other, name], None));
        }
    }
    let tensors = matched(
        path,
        specs(config, Codebooks::Bare),
        |spec| &spec.gguf_name,
        found,
        &parts_of_gguf,
    )?;
    Ok(Resolved { codebooks: Codebooks::Bare, tensors, notes })
}

/// Today's GGUF name of an older one.
pub(in crate::dflash2) fn today_in_gguf(name: &str) -> Option<String> {
    let below = name
        .strip_prefix("blk.")
        .and_then(|rest| rest.split_once('.'))
        .map_or(name, |(_, below)| below);
    let (_, new) = OLD_GGUF_NAMES.iter().find(|(old, _)| *old == below)?;
    Some(format!("{}{new}", &name[..name.len() - below.len()]))
}

/// The name without any documented prefix.
fn bare(mut name: &str) -> &str {
    while let Some(rest) = PREFIXES.iter().find_map(|p| name.strip_prefix(p)) {
        name = rest;
    }
    name
}

fn refuse_lora(path: &Path, names: &[&str]) -> Result<(), Error> {
    let lora = names.iter().copied().filter(|name| {
        name.contains("lora_A") || name.contains("lora_B") || name.contains(".base_layer.")
    });
    refuse_any(
        path,
        "un-merged LoRA weights",
        lora,
        "merge the adapter into its base model first (in PEFT: `merge_and_unload`)",
    )
}

/// The stack of documented prefixes that all names carry.
fn common_prefix<'a>(path: &Path, names: &[&'a str]) -> Result<&'a str, Error> {
    let Some(first) = names.first() else {
        return Ok("");
    };
    let prefix = &first[..first.len() - bare(first).len()];
    let mut different = names
        .iter()
        .copied()
        .filter(|name| &name[..name.len() - bare(name).len()] != prefix)
        .peekable();
    let problem = if prefix.is_empty() {
        "a prefix on these tensors, but not on all".to_owned()
    } else {
        format!("`{prefix}` is the prefix of some tensors, but not of these")
    };
    if different.peek().is_some() {
        return Err(error(path, &problem, different, None));
    }
    Ok(prefix)
}

fn refuse_doubled(path: &Path, names: &[&str], skip: usize) -> Result<(), Error> {
    let doubled = names.iter().copied().filter(|name| {
        name[skip..].strip_prefix("layers.").is_some_and(|rest| rest.contains(".layers."))
    });
    refuse_any(
        path,
        "tensors whose prefix was added twice",
        doubled,
        "the tool that renamed them ran twice; take the names before that",
    )
}

fn refuse_mlx(path: &Path, found: &HashMap<&str, &str>) -> Result<(), Error> {
    let mut parts: Vec<&str> = found
        .keys()
        .copied()
        .filter(|name| name.ends_with(".scales") || name.ends_with(".biases"))
        .collect();
    parts.sort_unstable();
    let codebook = parts.iter().any(|name| CODEBOOKS.iter().any(|c| name.starts_with(c)));
    let problem = if codebook { "an MLX-quantized codebook" } else { "MLX-quantized matrices" };
    refuse_any(
        path,
        problem,
        parts.into_iter(),
        "use the float checkpoint, or dequantize this one first",
    )
}

fn spelling(path: &Path, found: &HashMap<&str, &str>) -> Result<Codebooks, Error> {
    let weight = CODEBOOKS.map(|c| format!("{c}.weight"));
    let has_bare = CODEBOOKS.map(|c| found.contains_key(c));
    let has_weight = [0, 1].map(|i| found.contains_key(weight[i].as_str()));
    for i in [0, 1] {
        if has_bare[i] && has_weight[i] {
            let names = [CODEBOOKS[i], weight[i].as_str()];
            return Err(error(path, "a codebook in both spellings", names, None));
        }
    }
    match (has_bare, has_weight) {
        ([true, _], [_, true]) | ([_, true], [true, _]) => {
            let names = [0, 1].map(|i| if has_bare[i] { CODEBOOKS[i] } else { &weight[i] });
            Err(error(path, "the two codebooks in different spellings", names, None))
        }
        (_, [false, false]) => Ok(Codebooks::Bare),
        _ => Ok(Codebooks::Weight),
    }
}

/// Which of the two additions of DFlash 2 a name belongs to.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    Backbone,
    Convolution,
    Selector,
}

fn parts_of_checkpoint(name: &str) -> Part {
    if name.contains("candidate_selector.") {
        Part::Selector
    } else if name.contains("attention_conv.") || name.contains("mlp_conv.") {
        Part::Convolution
    } else {
        Part::Backbone
    }
}

fn parts_of_gguf(name: &str) -> Part {
    if name.starts_with("selector_") {
        Part::Selector
    } else if name.contains("_conv_") {
        Part::Convolution
    } else {
        Part::Backbone
    }
}

/// Pairs every spec with its name in the file, both ways without remainder.
fn matched(
    path: &Path,
    specs: Vec<TensorSpec>,
    name_of: impl Fn(&TensorSpec) -> &String,
    mut found: HashMap<&str, &str>,
    part_of: &dyn Fn(&str) -> Part,
) -> Result<Vec<(TensorSpec, String)>, Error> {
    let n_found = found.len();
    let has = |part| found.keys().any(|name| part_of(name) == part);
    let (convolution, selector) = (has(Part::Convolution), has(Part::Selector));

    let mut tensors = Vec::with_capacity(specs.len());
    let mut missing = Vec::new();
    for spec in specs {
        match found.remove(name_of(&spec).as_str()) {
            Some(name) => {
                let name = name.to_owned();
                tensors.push((spec, name));
            }
            None => missing.push(spec),
        }
    }
    if missing.is_empty() && found.is_empty() {
        return Ok(tensors);
    }

    let backbone_complete =
        found.is_empty() && missing.iter().all(|s| part_of(name_of(s)) != Part::Backbone);
    let missing_names = missing.iter().map(|spec| name_of(spec).as_str());
    if backbone_complete && !convolution && !selector {
        let problem =
            format!("this is a DFlash 1 drafter; need {ARCHITECTURE}: {n_found} tensors, without");
        return Err(error(path, &problem, missing_names, None));
    }
    if convolution != selector && found.is_empty() {
        let problem = if selector {
            "a partial DFlash 2 drafter, the selector without the convolutions: missing"
        } else {
            "a partial DFlash 2 drafter, the convolutions without the selector: missing"
        };
        return Err(error(path, problem, missing_names, None));
    }
    let unknown: BTreeSet<&str> = found.keys().copied().collect();
    let known: Vec<&str> = tensors
        .iter()
        .map(|(spec, _)| name_of(spec).as_str())
        .chain(missing.iter().map(|spec| name_of(spec).as_str()))
        .collect();
    Err(mismatch(path, missing_names.collect(), unknown, &known))
}

/// The error for missing and unknown names, with the nearest name as a hint.
fn mismatch(path: &Path, missing: Vec<&str>, unknown: BTreeSet<&str>, known: &[&str]) -> Error {
    let hint = unknown.iter().take(LISTED).find_map(|name| {
        let candidates = if missing.is_empty() { known } else { &missing };
        nearest(name, candidates).map(|near| format!("`{}` is nearest to `{near}`", shown(name)))
    });
    match (missing.is_empty(), unknown.is_empty()) {
        (false, true) => error(path, &counted("missing", missing.len()), missing, hint),
        (true, _) => error(path, &counted("unknown", unknown.len()), unknown, hint),
        (false, false) => {
            let problem =
                format!("{} missing and {} unknown tensors", missing.len(), unknown.len());
            let half = LISTED / 2;
            let names = missing
                .iter()
                .take(half)
                .map(|name| format!("missing `{name}`"))
                .chain(unknown.iter().take(half).map(|name| format!("unknown `{}`", shown(name))))
                .collect();
            Error::Names { path: path.to_path_buf(), problem, names, hint }
        }
    }
}

fn counted(what: &str, n: usize) -> String {
    format!("{n} {what} tensor{}", if n == 1 { "" } else { "s" })
}

/// The known name that a mistyped one most likely stands for.
fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let name = shown(name);
    known
        .iter()
        .map(|k| (strsim::jaro_winkler(&name, k), *k))
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .filter(|(similarity, _)| *similarity > 0.8)
        .map(|(_, k)| k)
}

fn refuse_any<'a>(
    path: &Path,
    problem: &str,
    names: impl Iterator<Item = &'a str>,
    hint: &str,
) -> Result<(), Error> {
    let mut names = names.peekable();
    if names.peek().is_none() {
        return Ok(());
    }
    Err(error(path, problem, names, Some(hint.into())))
}

fn error<'a>(
    path: &Path,
    problem: &str,
    names: impl IntoIterator<Item = &'a str>,
    hint: Option<String>,
) -> Error {
    let mut names = names.into_iter();
    let mut listed: Vec<_> =
        names.by_ref().take(LISTED).map(|name| format!("`{}`", shown(name))).collect();
    match names.count() {
        0 => {}
        more => listed.push(format!("and {more} more")),
    }
    Error::Names { path: path.to_path_buf(), problem: problem.into(), names: listed, hint }
}
