//! The tools a request offers, as far as an answer needs them: names, and the types of parameters.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::fields::{Fields, wrong};

/// What a parameter's raw text is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Typed {
    /// Text, also where nothing is said.
    String,
    /// JSON; text where it is none.
    Json,
}

impl Typed {
    /// The types that a schema names, in `type` and in alternatives.
    fn of(schema: &Value) -> Self {
        let mut names = Vec::new();
        collect(schema, &mut names, 0);
        if names.is_empty() || names.contains(&"string") { Self::String } else { Self::Json }
    }

    /// The value of a text.
    pub(crate) fn read(&self, text: &str) -> Value {
        match self {
            Self::String => Value::from(text),
            Self::Json => match text.trim() {
                // As Python writes them.
                "True" => Value::Bool(true),
                "False" => Value::Bool(false),
                "None" => Value::Null,
                trimmed => serde_json::from_str(trimmed).unwrap_or_else(|_| Value::from(text)),
            },
        }
    }
}

fn collect<'a>(schema: &'a Value, names: &mut Vec<&'a str>, depth: usize) {
    match &schema["type"] {
        Value::String(name) => names.push(name),
        Value::Array(all) => names.extend(all.iter().filter_map(Value::as_str)),
        _ => {}
    }
    if schema["enum"].as_array().is_some_and(|all| all.iter().any(Value::is_string)) {
        names.push("string");
    }
    for key in ["anyOf", "oneOf", "allOf"] {
        if depth < 4
            && let Some(all) = schema[key].as_array()
        {
            all.iter().for_each(|schema| collect(schema, names, depth + 1));
        }
    }
}

/// Tools by name.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tools(BTreeMap<String, BTreeMap<String, Typed>>);

impl Tools {
    /// Reads the `tools` of a request.
    pub(crate) fn read(tools: &[Value]) -> Result<Self, ApiError> {
        let mut all = BTreeMap::new();
        for (i, tool) in tools.iter().enumerate() {
            let path = format!("tools[{i}]");
            let fields = Fields::inside(tool, &path)?;
            fields.lacks("type", |kind| kind == "function")?;
            let path = format!("tools[{i}].function");
            let function = Fields::inside(&tool["function"], &path)?;
            let Some(name) = function.string("name")?.filter(|name| !name.is_empty()) else {
                return Err(wrong(&function.name("name"), "a name", &Value::Null));
            };
            let empty = Map::new();
            let parameters = function.object("parameters")?.unwrap_or(&empty);
            let properties = parameters.get("properties").and_then(Value::as_object);
            let typed = properties.unwrap_or(&empty).iter();
            let typed = typed.map(|(key, schema)| (key.clone(), Typed::of(schema))).collect();
            all.insert(name.to_owned(), typed);
        }
        Ok(Self(all))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The type of a function's parameter.
    pub(crate) fn typed(&self, function: &str, key: &str) -> Typed {
        let known = self.0.get(function).and_then(|parameters| parameters.get(key));
        known.cloned().unwrap_or(Typed::String)
    }
}
