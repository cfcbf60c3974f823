//! The JSON of a header, read strictly.
//!
//! An ordinary map deserializer keeps the last of two equal keys, so two readers
//! can see two different files in the same bytes. The visitors here see every
//! key, and refuse repeats. They have a fixed depth and know every field, so
//! nesting made by a file is refused where it starts and never followed.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};

/// What a header says, before any of it is believed.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) metadata: BTreeMap<String, String>,
    /// In the order of the text; names may repeat.
    pub(super) entries: Vec<(String, Entry)>,
}

/// One tensor's entry.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) dtype: String,
    pub(super) shape: Vec<u64>,
    pub(super) begin: u64,
    pub(super) end: u64,
}

/// Why the text is no header, and under which top-level key that showed.
#[derive(Debug)]
pub(super) struct Malformed {
    pub(super) key: Option<String>,
    pub(super) message: String,
}

/// Key of the file's own string map.
pub(super) const METADATA: &str = "__metadata__";

/// Parses the JSON text of a header.
pub(super) fn parse(json: &[u8]) -> Result<Header, Malformed> {
    let mut key = None;
    let mut text = serde_json::Deserializer::from_slice(json);
    text.deserialize_map(HeaderVisitor { key: &mut key })
        .and_then(|header| text.end().map(|()| header))
        .map_err(|e| Malformed {
            key,
            message: e.to_string(),
        })
}

struct HeaderVisitor<'a> {
    /// The key whose value is being read.
    key: &'a mut Option<String>,
}

impl<'de> Visitor<'de> for HeaderVisitor<'_> {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensor entries")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        let mut metadata = None;
        let mut entries = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            *self.key = Some(key);
            if self.key.as_deref() == Some(METADATA) {
                let UniqueMap(strings) = map.next_value()?;
                if metadata.replace(strings).is_some() {
                    return Err(A::Error::custom("the key a second time"));
                }
                *self.key = None;
            } else {
                let entry = map.next_value()?;
                entries.extend(self.key.take().map(|name| (name, entry)));
            }
        }
        Ok(Header {
            metadata: metadata.unwrap_or_default(),
            entries,
        })
    }
}

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(EntryVisitor)
    }
}

struct EntryVisitor;

impl<'de> Visitor<'de> for EntryVisitor {
    type Value = Entry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of `dtype`, `shape` and `data_offsets`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entry, A::Error> {
        const FIELDS: &[&str] = &["dtype", "shape", "data_offsets"];
        let (mut dtype, mut shape, mut offsets) = (None, None, None);
        while let Some(field) = map.next_key::<String>()? {
            let repeated = match field.as_str() {
                "dtype" => dtype.replace(map.next_value::<String>()?).is_some(),
                "shape" => shape.replace(map.next_value::<Vec<u64>>()?).is_some(),
                "data_offsets" => offsets.replace(map.next_value::<(u64, u64)>()?).is_some(),
                _ => return Err(A::Error::unknown_field(&field, FIELDS)),
            };
            if repeated {
                return Err(A::Error::custom(format!("field `{field}` a second time")));
            }
        }
        let (begin, end) = offsets.ok_or_else(|| A::Error::missing_field("data_offsets"))?;
        Ok(Entry {
            dtype: dtype.ok_or_else(|| A::Error::missing_field("dtype"))?,
            shape: shape.ok_or_else(|| A::Error::missing_field("shape"))?,
            begin,
            end,
        })
    }
}

/// A JSON object whose keys do not repeat.
#[derive(Debug, Default)]
pub(super) struct UniqueMap<V>(pub(super) BTreeMap<String, V>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for UniqueMap<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct UniqueVisitor<V>(PhantomData<V>);

        impl<'de, V: Deserialize<'de>> Visitor<'de> for UniqueVisitor<V> {
            type Value = UniqueMap<V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut out = BTreeMap::new();
                while let Some((key, value)) = map.next_entry::<String, V>()? {
                    if out.contains_key(&key) {
                        return Err(A::Error::custom(format!("key `{key}` a second time")));
                    }
                    out.insert(key, value);
                }
                Ok(UniqueMap(out))
            }
        }

        deserializer.deserialize_map(UniqueVisitor(PhantomData))
    }
}
