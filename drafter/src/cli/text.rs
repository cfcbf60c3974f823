//! Text around a target: prompts to ids, ids to text, stop tokens.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use formats::digest::sha256;
use formats::gguf::File;
use formats::{Source, shown_path};
use runtime::Error;
use runtime::text::{
    Chat, ChatTemplate, Controls, Detokenizer, JsonFile, Message, SamplingDefaults, StopSources,
    Tokenizer, stop_set,
};

use super::args::{OnOff, PromptArgs};
use super::exit::Input;
use super::prompt::Prompt;

/// What a target's files say about text. A GGUF without tokenizer runs on ids only.
#[derive(Debug)]
pub(crate) struct Text {
    path: PathBuf,
    tokenizer: Option<Tokenizer>,
    template: Option<Result<ChatTemplate, String>>,
    /// SHA-256 of the template's source.
    template_sha256: Option<String>,
    stops: BTreeSet<u32>,
    defaults: SamplingDefaults,
}

/// What a server needs of a [`Text`].
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) tokenizer: Tokenizer,
    pub(crate) template: Result<ChatTemplate, String>,
    pub(crate) stops: BTreeSet<u32>,
    pub(crate) defaults: SamplingDefaults,
}

impl Text {
    /// Of a GGUF, or of a pack's folder. `vocab`: the target's number of tokens.
    pub(crate) fn load(target: &Path, vocab: usize) -> anyhow::Result<Self> {
        if target.is_dir() { Self::of_folder(target, vocab) } else { Self::of_gguf(target) }
    }

    fn of_gguf(path: &Path) -> anyhow::Result<Self> {
        let file = File::open(Source::open(path)?)?;
        let mut text = Self::without(path);
        if file.get("tokenizer.ggml.model").is_some() {
            let tokenizer = Tokenizer::from_gguf(&file)?;
            let sources = StopSources { gguf: Some(&file), ..StopSources::default() };
            text.stops = stop_set(&tokenizer, &sources)?;
            text.defaults = SamplingDefaults::from_gguf(&file)?;
            if file.get("tokenizer.chat_template").is_some() {
                text.template_sha256 = file.require_str("tokenizer.chat_template").ok().map(sha256);
                text.set_template(ChatTemplate::from_gguf(&file, &tokenizer));
            }
            text.tokenizer = Some(tokenizer);
        }
        Ok(text)
    }

    fn of_folder(dir: &Path, vocab: usize) -> anyhow::Result<Self> {
        let there = |name: &str| Some(dir.join(name)).filter(|path| path.exists());
        let json = |name: &str| -> Result<Option<JsonFile>, Error> {
            let Some(path) = there(name) else { return Ok(None) };
            Ok(Some(JsonFile::read(&Source::open(path)?)?))
        };
        let mut text = Self::without(dir);
        let Some(path) = there("tokenizer.json") else { return Ok(text) };
        let tokenizer = Tokenizer::from_tokenizer_json(&path, vocab)?;
        let (config, generation) = (json("config.json")?, json("generation_config.json")?);
        let sources = StopSources {
            gguf: None,
            generation_config: generation.as_ref(),
            config: config.as_ref(),
        };
        text.stops = stop_set(&tokenizer, &sources)?;
        if let Some(generation) = &generation {
            text.defaults = SamplingDefaults::from_generation_config(generation)?;
        }
        if let Some(path) = there("chat_template.jinja") {
            let source = Source::open(path)?;
            text.template_sha256 = Some(sha256(source.read_vec(0, source.len())?));
            text.set_template(ChatTemplate::read(&source, &tokenizer));
        }
        text.tokenizer = Some(tokenizer);
        Ok(text)
    }

    fn without(path: &Path) -> Self {
        Self {
            path: path.to_path_buf(),
            tokenizer: None,
            template: None,
            template_sha256: None,
            stops: BTreeSet::new(),
            defaults: SamplingDefaults::default(),
        }
    }

    /// A template that cannot be used is no harm until a chat is asked for.
    fn set_template(&mut self, template: Result<ChatTemplate, Error>) {
        self.template = Some(template.map_err(|e| e.to_string()));
    }

    /// All of it; refuses a target without tokenizer.
    pub(crate) fn into_parts(self) -> Result<Parts, Input> {
        let none = self.lacks("tokenizer");
        let template =
            self.template.unwrap_or_else(|| Err("the target has no chat template".into()));
        let tokenizer = self.tokenizer.ok_or(none)?;
        Ok(Parts { tokenizer, template, stops: self.stops, defaults: self.defaults })
    }

    /// Whether text can be read.
    pub(crate) fn has_tokenizer(&self) -> bool {
        self.tokenizer.is_some()
    }

    /// Whether chats can be rendered.
    pub(crate) fn has_template(&self) -> bool {
        matches!(self.template, Some(Ok(_)))
    }

    /// The SHA-256 of the chat template's source, where there is one.
    pub(crate) fn template_sha256(&self) -> Option<&str> {
        self.template_sha256.as_deref()
    }

    /// The tokens that end an answer.
    pub(crate) fn stops(&self) -> &BTreeSet<u32> {
        &self.stops
    }

    /// The ids of a prompt as it stands, or as a chat.
    pub(crate) fn encode(&self, prompt: &Prompt, args: &PromptArgs) -> anyhow::Result<Vec<u32>> {
        let Prompt::Text(text) = prompt else { return self.encode_plain(prompt) };
        if !args.chat {
            return self.encode_plain(prompt);
        }
        let system = args.system.as_deref().map(|text| Message::new("system", text));
        let messages = system.into_iter().chain([Message::new("user", text.as_str())]).collect();
        self.encode_as(&Prompt::Messages(messages), args.think)
    }

    /// The ids of a prompt as it stands; of messages, as a chat.
    pub(crate) fn encode_plain(&self, prompt: &Prompt) -> anyhow::Result<Vec<u32>> {
        self.encode_as(prompt, None)
    }

    /// As [`Text::encode_plain`]; `think` says whether the model thinks first, in a chat.
    pub(crate) fn encode_as(
        &self,
        prompt: &Prompt,
        think: Option<OnOff>,
    ) -> anyhow::Result<Vec<u32>> {
        match prompt {
            Prompt::Ids(ids) => Ok(ids.clone()),
            Prompt::Text(text) => Ok(self.tokenizer()?.encode(text)),
            Prompt::Messages(messages) => self.encode_chat(&Chat {
                enable_thinking: think.map(|think| think == OnOff::On),
                ..Chat::new(messages.clone())
            }),
        }
    }

    fn encode_chat(&self, chat: &Chat) -> anyhow::Result<Vec<u32>> {
        let tokenizer = self.tokenizer()?;
        let template = match &self.template {
            Some(Ok(template)) => template,
            Some(Err(error)) => return Err(Input(error.clone()).into()),
            None => return Err(self.lacks("chat template").into()),
        };
        Ok(tokenizer.encode_rendered(&template.render(chat)?))
    }

    fn tokenizer(&self) -> Result<&Tokenizer, Input> {
        self.tokenizer.as_ref().ok_or_else(|| self.lacks("tokenizer; use --ids"))
    }

    fn lacks(&self, what: &str) -> Input {
        Input(format!("`{}`: the target has no {what}", shown_path(&self.path)))
    }

    /// Turns ids into text as they come; none without a tokenizer.
    pub(crate) fn streamer(&self, special: bool) -> Option<Streamer> {
        let controls = if special { Controls::Shown } else { Controls::Hidden };
        let detokenizer = self.tokenizer.as_ref()?.detokenizer(controls);
        Some(Streamer { detokenizer, text: String::new() })
    }
}

/// Text so far.
#[derive(Debug)]
pub(crate) struct Streamer {
    detokenizer: Detokenizer,
    text: String,
}

impl Streamer {
    /// The text that `id` completes.
    pub(crate) fn push(&mut self, id: u32) -> Result<String, Error> {
        let piece = self.detokenizer.push(id)?;
        self.text.push_str(&piece);
        Ok(piece)
    }

    /// What was held back because a character was not whole.
    pub(crate) fn finish(&mut self) -> String {
        let rest = self.detokenizer.flush();
        self.text.push_str(&rest);
        rest
    }

    /// All of it.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}
