//! Any JSON value whose objects name each key once.
//!
//! The JSON library keeps the last of several values of a key. For keys that
//! decide results that would be a guess, so such a file is refused.

use std::collections::HashSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// Proof that a text was looked through; it holds nothing.
pub(super) struct Keys;

impl<'de> Deserialize<'de> for Keys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Keys)
    }
}

impl<'de> Visitor<'de> for Keys {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self, A::Error> {
        while list.next_element::<Keys>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
        let mut seen = HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            map.next_value::<Keys>()?;
            if !seen.insert(key.clone()) {
                return Err(A::Error::custom(format_args!("key `{key}` a second time")));
            }
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_may_stand_once_in_each_object() {
        let once = r#"{"a": [1, -1, 0.5, null, true, "x", {"a": {}}], "b": {"a": 1}}"#;
        assert!(serde_json::from_str::<Keys>(once).is_ok());
        for twice in [r#"{"a": 1, "a": 1}"#, r#"{"x": {"a": 1, "b": 2, "a": 3}}"#] {
            let error = serde_json::from_str::<Keys>(twice).err().unwrap().to_string();
            assert!(error.contains("key `a` a second time"), "{error}");
        }
    }
}
