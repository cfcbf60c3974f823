//! The chat template of a model: a program in the Jinja language that writes a prompt.
//!
//! It comes with the model's file, so it is run like any foreign program: it can read nothing but the
//! conversation, include no other file, and has limits.
//!
//! - Fuel, one unit per instruction and per 64 bytes made, which bounds time and size: a constant, and
//!   more for every value and byte of the conversation.
//! - A size of the source and of its tags ([`super::marks`]).
//! - A stack. Values that a template nests are dropped, printed and compared by recursion. Each level
//!   costs fuel, so a thread whose stack grows with the fuel is enough for what can be built.
//!
//! Settings are those of the `transformers` library: `trim_blocks`, `lstrip_blocks`, loop controls,
//! undefined variables print as nothing.

use std::error::Error as _;
use std::path::{Path, PathBuf};

use formats::gguf::File;
use formats::{Source, shown};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, ErrorKind};
use serde_json::Value as Json;

use super::chat::{Chat, Rendered};
use super::marks::{Marks, prepare};
use super::python::{self, Raised};
use super::tokenizer::Tokenizer;
use crate::Error;

const KEY: &str = "tokenizer.chat_template";
/// The longest source; those of the targets have about 10 kB.
const MAX_SOURCE_BYTES: usize = 1 << 20;
/// The deepest conversation, in JSON values inside one another.
const MAX_DEPTH: usize = 96;

/// Fuel of any conversation, more for each JSON value in it, and the bytes that give one more.
/// A template takes 10 to 20 for a value, and copies the text a few times.
const FUEL: u64 = 50_000;
const FUEL_PER_VALUE: u64 = 64;
const BYTES_PER_FUEL: u64 = 4;
const MAX_FUEL: u64 = 1_000_000;

/// Measured: below 640 bytes a level for printing, comparing and writing JSON. A level costs one fuel,
/// or half of one where a filter nests twice.
const STACK_BYTES_PER_FUEL: u64 = 1536;
/// Also what is needed to compile the longest chains that are let through.
const STACK_BYTES: usize = 64 << 20;

/// The names under which the engine has the two forms of the template.
const PLAIN: &str = "chat template";
const MARKED: &str = "marked chat template";

/// A compiled chat template, together with the special tokens of a tokenizer.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    marks: Marks,
    tokenizer: Tokenizer,
    path: PathBuf,
}

impl ChatTemplate {
    /// The template in `tokenizer.chat_template` of a GGUF.
    ///
    /// # Errors
    /// [`Error::Formats`] when there is none; as [`ChatTemplate::new`].
    pub fn from_gguf(file: &File, tokenizer: &Tokenizer) -> Result<Self, Error> {
        Self::new(file.require_str(KEY)?, file.source().path(), tokenizer)
    }

    /// The template that a file such as `chat_template.jinja` holds.
    ///
    /// # Errors
    /// [`Error::Formats`] when it is no UTF-8, or cannot be read; as [`ChatTemplate::new`].
    pub fn read(source: &Source, tokenizer: &Tokenizer) -> Result<Self, Error> {
        // One byte too many is enough to refuse it.
        let len = source.len().min(MAX_SOURCE_BYTES as u64 + 1);
        let text = String::from_utf8(source.read_vec(0, len)?);
        let text = text.map_err(|e| formats::Error::Structure {
            path: source.path().to_path_buf(),
            part: "the contents".into(),
            expected: "text in UTF-8".into(),
            found: format!("other bytes at byte {}", e.utf8_error().valid_up_to()),
            hint: None,
        });
        Self::new(&text?, source.path(), tokenizer)
    }

    /// Compiles `template`; `path` names its file in messages.
    ///
    /// # Errors
    /// [`Error::Template`] when it is longer than 1 MiB, no template, or larger than a template is;
    /// [`Error::Thread`].
    pub fn new(template: &str, path: &Path, tokenizer: &Tokenizer) -> Result<Self, Error> {
        let refused = |line, fault| Error::Template { path: path.to_path_buf(), line, fault };
        if template.len() > MAX_SOURCE_BYTES {
            return Err(refused(1, format!("longer than {MAX_SOURCE_BYTES} bytes")));
        }
        let prepared =
            prepare(template, tokenizer).map_err(|found| refused(found.line, found.fault))?;
        let mut environment = Environment::new();
        // A minimal syntax is one that the engine takes.
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|e| fault(&e, path))?);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        python::install(&mut environment);
        let environment = with_stack(STACK_BYTES, move || {
            for (name, source) in [(PLAIN, prepared.plain), (MARKED, prepared.marked)] {
                environment.add_template_owned(name, source).map_err(|e| fault(&e, path))?;
            }
            Ok::<_, Error>(environment)
        })?;
        Ok(Self {
            environment: environment?,
            marks: prepared.marks,
            tokenizer: tokenizer.clone(),
            path: path.to_path_buf(),
        })
    }

    /// The prompt of a conversation. It is rendered on a thread of its own, which ends before this
    /// returns; the same conversation always gives the same prompt.
    ///
    /// # Errors
    /// [`Error::Conversation`] when the template refuses it (`raise_exception`), or it is nested too
    /// deeply; [`Error::Template`] when the template fails, or does more than it may;
    /// [`Error::ControlText`] when special tokens in the conversation change what the template does so
    /// that its own cannot be told from them; [`Error::Thread`].
    pub fn render(&self, chat: &Chat) -> Result<Rendered, Error> {
        let variables = chat.variables();
        let mut census = Census::default();
        census.count(&variables, 0)?;
        let fuel = census.fuel();
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(fuel));
        environment.add_function("strftime_now", python::strftime_now(chat.local_time));
        let escaped = self.marks.escape(&variables);
        let [plain, marked] = with_stack(stack_bytes(fuel), || {
            [(PLAIN, &variables), (MARKED, &escaped)]
                .map(|(name, variables)| self.render_one(&environment, name, variables))
        })?;
        let plain = plain?;
        // An error of this form alone is a difference, too.
        let (text, specials) = self.marks.resolve(&marked.map_err(|_| self.control_text())?);
        if text != plain {
            return Err(self.control_text());
        }
        let explained = self.tokenizer.find_specials(&text).eq(specials.iter().cloned())
            || has_special(&variables, &self.tokenizer);
        if !explained {
            return Err(self.control_text());
        }
        Ok(Rendered::new(text, specials))
    }

    /// Nothing of the engine leaves this function: its values, and errors that hold some, are dropped
    /// on the stack that was made for them.
    fn render_one(
        &self,
        environment: &Environment<'_>,
        name: &str,
        variables: &Json,
    ) -> Result<String, Error> {
        let template = environment.get_template(name);
        let variables = minijinja::Value::from(Serde(variables));
        template.and_then(|t| t.render(variables)).map_err(|e| fault(&e, &self.path))
    }

    fn control_text(&self) -> Error {
        Error::ControlText { path: self.path.clone() }
    }
}

/// How large a conversation is.
#[derive(Default)]
struct Census {
    values: u64,
    bytes: u64,
}

impl Census {
    fn count(&mut self, value: &Json, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            let message = format!("more than {MAX_DEPTH} values inside one another");
            return Err(Error::Conversation { line: 0, message });
        }
        self.values += 1;
        match value {
            Json::String(text) => self.bytes += text.len() as u64,
            Json::Array(values) => {
                for value in values {
                    self.count(value, depth + 1)?;
                }
            }
            Json::Object(fields) => {
                for (key, value) in fields {
                    self.bytes += key.len() as u64;
                    self.count(value, depth + 1)?;
                }
            }
            Json::Null | Json::Bool(_) | Json::Number(_) => {}
        }
        Ok(())
    }

    fn fuel(&self) -> u64 {
        let fuel = FUEL + self.values * FUEL_PER_VALUE + self.bytes / BYTES_PER_FUEL;
        fuel.min(MAX_FUEL)
    }
}

/// Whether a special token stands in a string of the conversation.
fn has_special(value: &Json, tokenizer: &Tokenizer) -> bool {
    let found = |text: &str| tokenizer.find_specials(text).next().is_some();
    match value {
        Json::String(text) => found(text),
        Json::Array(values) => values.iter().any(|value| has_special(value, tokenizer)),
        Json::Object(fields) => {
            fields.iter().any(|(key, value)| found(key) || has_special(value, tokenizer))
        }
        Json::Null | Json::Bool(_) | Json::Number(_) => false,
    }
}

fn stack_bytes(fuel: u64) -> usize {
    usize::try_from(fuel * STACK_BYTES_PER_FUEL).unwrap_or(usize::MAX / 2) + STACK_BYTES
}

/// Runs `work` on a thread with a stack of `bytes`. Of the stack, only what is touched takes memory.
fn with_stack<T: Send>(bytes: usize, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("chat template".into()).stack_size(bytes);
        let thread = thread.spawn_scoped(scope, work).map_err(|source| Error::Thread { source })?;
        thread.join().map_err(|panic| std::panic::resume_unwind(panic))
    })
}

/// The engine's error as one of this crate.
fn fault(error: &minijinja::Error, path: &Path) -> Error {
    let line = error.line().unwrap_or(0);
    let mut source = error.source();
    while let Some(inner) = source {
        if let Some(Raised(message)) = inner.downcast_ref() {
            return Error::Conversation { line, message: shown(message) };
        }
        source = inner.source();
    }
    let what = match error.kind() {
        ErrorKind::OutOfFuel => "it takes more steps than a template may".to_owned(),
        kind => match error.detail() {
            Some(detail) => format!("{kind}: {detail}"),
            None => kind.to_string(),
        },
    };
    Error::Template { path: path.to_path_buf(), line, fault: shown(&what) }
}
