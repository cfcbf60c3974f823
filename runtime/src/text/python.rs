//! Where templates rely on Python: its whitespace, its JSON, and three functions that the
//! `transformers` library gives them.

use std::fmt;

use minijinja::value::{Kwargs, Value, from_args};
use minijinja::{Environment, Error, ErrorKind, State};

/// What `raise_exception` was called with, as the source of an engine's error.
#[derive(Debug)]
pub(super) struct Raised(pub(super) String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

/// Gives an environment what templates of models call.
pub(super) fn install(environment: &mut Environment<'_>) {
    environment.set_unknown_method_callback(method);
    environment.add_filter("tojson", tojson);
    environment.add_filter("trim", trim);
    environment.add_function("raise_exception", raise_exception);
}

fn raise_exception(message: &Value) -> Result<Value, Error> {
    let message = message.to_string();
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

/// The function `strftime_now` of one rendering. `local_time`: seconds since 1970.
pub(super) fn strftime_now(
    local_time: Option<i64>,
) -> impl Fn(&str) -> Result<String, Error> + Send + Sync + 'static {
    move |format| {
        let fault = |message: String| Error::new(ErrorKind::InvalidOperation, message);
        let seconds = local_time.ok_or_else(|| fault("no time was given".into()))?;
        let time = jiff::Timestamp::from_second(seconds).map_err(|e| fault(e.to_string()))?;
        // The seconds are local already, so their calendar is that of UTC.
        let time = time.to_zoned(jiff::tz::TimeZone::UTC).datetime();
        jiff::fmt::strtime::format(format, time).map_err(|e| fault(e.to_string()))
    }
}

/// Python's `str.isspace`: Unicode's White_Space and the four information separators.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// The filter `trim`, which is Python's `str.strip`.
fn trim(text: &Value, chars: Option<&str>) -> String {
    let text = text.to_string();
    match chars {
        Some(chars) => text.trim_matches(|c| chars.contains(c)).to_owned(),
        None => text.trim_matches(is_space).to_owned(),
    }
}

/// Methods of Python's types.
fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if let (Some(text), []) = (value.as_str(), args) {
        match name {
            "strip" => return Ok(text.trim_matches(is_space).into()),
            "lstrip" => return Ok(text.trim_start_matches(is_space).into()),
            "rstrip" => return Ok(text.trim_end_matches(is_space).into()),
            _ => {}
        }
    }
    if let (Some(text), "removeprefix" | "removesuffix") = (value.as_str(), name) {
        let (affix,): (&str,) = from_args(args)?;
        let cut = if name == "removeprefix" {
            text.strip_prefix(affix)
        } else {
            text.strip_suffix(affix)
        };
        return Ok(cut.unwrap_or(text).into());
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
}

/// The filter `tojson` of `transformers`: `json.dumps(value, ensure_ascii=False, indent=indent)`.
/// The engine's own filter escapes four characters for HTML.
#[expect(clippy::needless_pass_by_value, reason = "the engine hands arguments over")]
fn tojson(state: &State<'_, '_>, value: &Value, args: Kwargs) -> Result<Value, Error> {
    let indent: Option<Value> = args.get("indent")?;
    if args.get::<Option<bool>>("ensure_ascii")? == Some(true) {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            "tojson: ensure_ascii is not supported",
        ));
    }
    args.assert_all_used()?;
    let json =
        minijinja::filters::tojson(value, indent, Kwargs::from_iter([] as [(&str, Value); 0]))?;
    let json = json.as_str().map(unescape_html).unwrap_or_default();
    state.consume_fuel(json.len() as u64 / 64)?;
    Ok(json.into())
}

/// Undoes `\u003c`, `\u003e`, `\u0026` and `\u0027`. A backslash that a string has itself is doubled
/// in JSON, so it is no such beginning.
fn unescape_html(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    let mut rest = json;
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        out.push_str(before);
        let plain = [("\\u003c", '<'), ("\\u003e", '>'), ("\\u0026", '&'), ("\\u0027", '\'')];
        if let Some((code, c)) = plain.iter().find(|(code, _)| escape.starts_with(code)) {
            out.push(*c);
            rest = &escape[code.len()..];
        } else {
            // Both are ASCII: the engine escapes nothing else.
            let len = escape.len().min(2);
            out.push_str(&escape[..len]);
            rest = &escape[len..];
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str, variables: serde_json::Value) -> String {
        let mut environment = Environment::new();
        install(&mut environment);
        environment.add_function("strftime_now", strftime_now(Some(86_400 * 366 + 3661)));
        environment.render_str(source, Value::from(minijinja::value::Serde(variables))).unwrap()
    }

    #[test]
    fn json_is_pythons() {
        let x =
            serde_json::json!({"a": ["<b>&'\"\\u003c", "ö\n\u{1}", null, true, 1, 1.5], "c": {}});
        let expected = r#"{"a": ["<b>&'\"\\u003c", "ö\n\u0001", null, true, 1, 1.5], "c": {}}"#;
        assert_eq!(render("{{ x | tojson }}", serde_json::json!({ "x": x })), expected);
        let pretty = render("{{ [1] | tojson(indent=2) }}", serde_json::Value::Null);
        assert_eq!(pretty, "[\n  1\n]");
    }

    #[test]
    fn whitespace_is_pythons() {
        let x = serde_json::json!({ "x": "\u{1c}\u{3000} a\u{1f}\u{85}\u{200b}" });
        assert_eq!(render("{{ x | trim }}", x.clone()), "a\u{1f}\u{85}\u{200b}");
        assert_eq!(render("{{ x.strip() }}", x.clone()), "a\u{1f}\u{85}\u{200b}");
        assert_eq!(render("{{ x.lstrip() }}", x.clone()), "a\u{1f}\u{85}\u{200b}");
        assert_eq!(render("{{ ' a\n\n'.rstrip('\n') }}", x.clone()), " a");
        assert_eq!(render("{{ 'xaxx' | trim('x') }}{{ 'ab'.removeprefix('a') }}", x), "ab");
    }

    #[test]
    fn the_date_is_the_callers() {
        let text = render("{{ strftime_now('%d %B %Y, %H:%M') }}", serde_json::Value::Null);
        assert_eq!(text, "02 January 1971, 01:01");
    }
}
