//! Text around a target: prompts to ids, ids to text, stop tokens.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use formats::Source;
use formats::gguf::File;
use runtime::text::{
    Chat, ChatTemplate, Controls, Detokenizer, JsonFile, StopSources, Tokenizer, stop_set,
};
use serde_json::{Value, json};

use super::args::{OnOff, PromptArgs};
use super::exit::Input;
use super::prompt::Prompt;

/// What a target's files say about text. A GGUF without tokenizer runs on ids only.
#[derive(Debug)]
pub(crate) struct Text {
    path: PathBuf,
    tokenizer: Option<Tokenizer>,
    template: Option<ChatTemplate>,
    stops: BTreeSet<u32>,
}
