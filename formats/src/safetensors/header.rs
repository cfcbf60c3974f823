//! The JSON of a header, read strictly.
//!
//! An ordinary map deserializer keeps the last of two equal keys, so two readers
//! can see two different files in the same bytes. The visitors here see every
//! key, and refuse repeats. They have a fixed depth and know every field, so
//! nesting made by a file is refused where it starts and never followed. They also
//! count: what is over a limit is refused before it takes memory.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::{Dtype, MAX_DIMS, MAX_ENTRIES};

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
    /// The type, or what stands there instead.
    pub(super) dtype: Result<Dtype, Box<str>>,
    pub(super) shape: Dims,
    pub(super) begin: u64,
    pub(super) end: u64,
}

/// Dimensions, kept up to the limit and counted beyond it.
#[derive(Debug)]
pub(super) struct Dims {
    pub(super) kept: Vec<u64>,
    pub(super) count: usize,
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
        .map_err(|e| Malformed { key, message: e.to_string() })
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
            } else if entries.len() == MAX_ENTRIES {
                *self.key = None;
                return Err(A::Error::custom(format!("more than {MAX_ENTRIES} tensors")));
            } else {
                let entry = map.next_value()?;
                entries.extend(self.key.take().map(|name| (name, entry)));
            }
        }
        Ok(Header { metadata: metadata.unwrap_or_default(), entries })
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
                "dtype" => {
                    let name = map.next_value::<String>()?;
                    let parsed = Dtype::parse(&name).ok_or_else(|| name.into_boxed_str());
                    dtype.replace(parsed).is_some()
                }
                "shape" => shape.replace(map.next_value::<Dims>()?).is_some(),
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

impl<'de> Deserialize<'de> for Dims {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct DimsVisitor;

        impl<'de> Visitor<'de> for DimsVisitor {
            type Value = Dims;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of dimensions")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Dims, A::Error> {
                let mut kept = Vec::new();
                while kept.len() < MAX_DIMS {
                    match list.next_element()? {
                        Some(dim) => kept.push(dim),
                        None => break,
                    }
                }
                let mut count = kept.len();
                while list.next_element::<IgnoredAny>()?.is_some() {
                    count += 1;
                }
                kept.shrink_to_fit();
                Ok(Dims { kept, count })
            }
        }

        deserializer.deserialize_seq(DimsVisitor)
    }
}

/// A JSON object whose keys do not repeat and are not too many.
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
                    if out.len() == MAX_ENTRIES {
                        return Err(A::Error::custom(format!("more than {MAX_ENTRIES} keys")));
                    }
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
