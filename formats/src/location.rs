//! Paths in JSON documents.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A path in a JSON document: text where it is UTF-8, bytes where it is not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum Stored {
    Text(String),
    Bytes(Vec<u8>),
}

/// An absolute path that keeps every byte on its way through JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Stored", into = "Stored")]
pub struct Location(pub PathBuf);

impl From<Stored> for Location {
    fn from(stored: Stored) -> Self {
        Self(match stored {
            Stored::Text(text) => text.into(),
            Stored::Bytes(bytes) => OsString::from_vec(bytes).into(),
        })
    }
}

impl From<Location> for Stored {
    fn from(Location(path): Location) -> Self {
        match path.into_os_string().into_string() {
            Ok(text) => Self::Text(text),
            Err(bytes) => Self::Bytes(bytes.as_bytes().to_vec()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_path_survives_json() {
        for bytes in [&b"/m/\xc5\xbdeljko \xf0\x9f\x99\x82"[..], b"/m/\xff\xfe"] {
            let location = Location(OsString::from_vec(bytes.to_vec()).into());
            let text = serde_json::to_string(&location).unwrap();
            assert_eq!(serde_json::from_str::<Location>(&text).unwrap(), location);
        }
    }
}
