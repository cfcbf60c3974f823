//! Bytes as characters: the alphabet in which a byte-level vocabulary is written.
//!
//! The 188 printable bytes of Latin-1 stand for themselves; the others, in ascending order, are the
//! characters from U+0100 on. A space is `Ġ` (U+0120), a line feed `Ċ` (U+010A). The rule is GPT-2's.

/// The character of each byte.
pub(super) const CHARS: [char; 256] = chars();

const fn chars() -> [char; 256] {
    let mut out = ['\0'; 256];
    let mut next = 0;
    let mut byte = 0;
    while byte < 256 {
        out[byte] = if stands_for_itself(byte as u8) {
            byte as u8 as char
        } else {
            next += 1;
            // U+0100 to U+0143: two bytes of UTF-8, no surrogates.
            match char::from_u32(0xff + next) {
                Some(c) => c,
                None => '\0',
            }
        };
        byte += 1;
    }
    out
}

const fn stands_for_itself(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff)
}

/// The byte of a character, if it is one of the alphabet.
pub(super) fn byte_of(c: char) -> Option<u8> {
    let code = c as u32;
    match code {
        // The 68 others: 0x00-0x20, 0x7f-0xa0, 0xad.
        0x100..=0x120 => Some((code - 0x100) as u8),
        0x121..=0x142 => Some((code - 0x121 + 0x7f) as u8),
        0x143 => Some(0xad),
        _ => u8::try_from(code).ok().filter(|byte| stands_for_itself(*byte)),
    }
}

/// Whether a byte occurs in UTF-8 at all.
pub(super) fn is_in_utf8(byte: u8) -> bool {
    !matches!(byte, 0xc0 | 0xc1 | 0xf5..=0xff)
}

/// Appends the characters of `text`'s bytes.
pub(super) fn push(text: &str, out: &mut String) {
    out.extend(text.bytes().map(|byte| CHARS[usize::from(byte)]));
}

/// The bytes that a token stands for. A token with a character outside the alphabet stands for its own
/// UTF-8, as in the ByteLevel decoder of the `tokenizers` library.
pub(super) fn bytes(token: &str) -> Vec<u8> {
    let bytes: Option<Vec<u8>> = token.chars().map(byte_of).collect();
    bytes.unwrap_or_else(|| token.as_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_one_character() {
        for byte in 0..=255 {
            assert_eq!(byte_of(CHARS[usize::from(byte)]), Some(byte), "{byte:#x}");
        }
        let distinct: std::collections::BTreeSet<_> = CHARS.iter().collect();
        assert_eq!(distinct.len(), 256);
        assert_eq!((CHARS[0x20], CHARS[0x0a], CHARS[0x7f]), ('Ġ', 'Ċ', 'ġ'));
        assert!(
            ['\0', ' ', '\u{a0}', '\u{ad}', '\u{144}', '語'].iter().all(|c| byte_of(*c).is_none())
        );
    }

    #[test]
    fn tokens_of_other_characters_stand_for_themselves() {
        assert_eq!(bytes("Ġa"), b" a");
        assert_eq!(bytes("a b"), b"a b");
        assert_eq!(bytes("語"), "語".as_bytes());
    }
}
