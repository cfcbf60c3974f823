//! What all readers of JSON files share.

/// The text of a JSON file without the byte order mark that some editors put
/// before it.
#[must_use]
pub fn without_bom(json: &[u8]) -> &[u8] {
    json.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(json)
}
