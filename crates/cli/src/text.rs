//! Bytes as text, and back.
//!
//! The escaped form is meant for people: text stays as it is, and everything else (bytes that are not UTF-8, control
//! characters, invisible characters) becomes `\n`, `\r`, `\t` or `\xNN` for each byte. A backslash becomes `\\`, so
//! [`Form::decode`] restores exactly the bytes that were escaped.

use crate::failure::{Code, Failure, Result};
use memchr::memchr;
use std::{
    ffi::OsStr,
    io::{self, Write},
    os::unix::ffi::OsStrExt as _,
};

/// How bytes are written as text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// Text, with escapes.
    Escaped,
    /// Two hexadecimal digits a byte.
    Hex,
    /// As they are.
    Raw,
}

impl Form {
    /// The bytes that an argument represents. `what` names it in errors.
    pub fn decode(self, argument: &OsStr, what: &str) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut decoder = Decoder::new(self, &mut bytes, usize::MAX);
        let decoded = decoder.write(argument.as_bytes()).and_then(|()| decoder.finish());
        decoded.map(|()| bytes).map_err(|error| match error {
            DecodeError::Wrong(why) => Failure::usage(format!("{what} {argument:?} cannot be read: {why}")),
            DecodeError::TooLong | DecodeError::OutOfMemory => {
                Failure::new(Code::Full, format!("there is not enough memory for {what}"))
            }
        })
    }

    /// The text that represents some bytes.
    pub fn encode(self, bytes: &[u8]) -> Vec<u8> {
        let mut text = Vec::with_capacity(bytes.len());
        let mut encoder = Encoder::new(&mut text, self, Target::Plain);
        // Writing to a vector cannot fail.
        let _ = encoder.write(bytes).and_then(|()| encoder.finish());
        text
    }
}

/// Bytes in the escaped form.
pub fn escaped(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&Form::Escaped.encode(bytes)).into_owned()
}

/// The name of a table or heap in a message: as arguments take it, in quotes.
pub fn named(name: &str) -> String {
    format!("\"{}\"", escaped(name.as_bytes()))
}

/// The name of a table in an argument: with escapes, as results show it.
///
/// # Errors
/// Why it is none.
pub fn table_name(argument: &str) -> Result<String, String> {
    let mut bytes = Vec::new();
    let mut decoder = Decoder::new(Form::Escaped, &mut bytes, usize::MAX);
    decoder.write(argument.as_bytes()).and_then(|()| decoder.finish()).map_err(|error| match error {
        // That option is for keys and values.
        DecodeError::Wrong(why) => why.trim_end_matches(", or use --raw").to_owned(),
        DecodeError::TooLong | DecodeError::OutOfMemory => "there is not enough memory for it".to_owned(),
    })?;
    String::from_utf8(bytes).map_err(|_| "the name of a table is text in UTF-8".to_owned())
}

/// Where encoded text goes, which determines what else has to be escaped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// The text is used unchanged.
    Plain,
    /// The inside of a JSON string.
    Json,
    /// A terminal, for reading: line breaks, tabs and backslashes stay as they are, so the text cannot be decoded.
    Terminal,
}

/// Encodes bytes that come in parts.
pub struct Encoder<W: Write> {
    out: W,
    form: Form,
    target: Target,
    /// The beginning of a character that the next part may complete; at most three bytes.
    carry: Vec<u8>,
}

impl<W: Write> Encoder<W> {
    /// An encoder that writes to `out`.
    pub fn new(out: W, form: Form, target: Target) -> Self {
        Self { out, form, target, carry: Vec::new() }
    }

    /// Encodes the next bytes.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self.form {
            Form::Raw => self.out.write_all(bytes),
            Form::Hex => bytes.iter().try_for_each(|byte| write!(self.out, "{byte:02x}")),
            Form::Escaped if self.carry.is_empty() => self.escape(bytes),
            Form::Escaped => {
                let mut joined = std::mem::take(&mut self.carry);
                joined.extend_from_slice(bytes);
                self.escape(&joined)
            }
        }
    }

    /// Encodes the bytes that were held back.
    pub fn finish(mut self) -> io::Result<()> {
        let rest = std::mem::take(&mut self.carry);
        rest.iter().try_for_each(|byte| self.escape_byte(*byte))
    }

    fn escape(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut rest = bytes;
        loop {
            let error = match std::str::from_utf8(rest) {
                Ok(text) => return self.escape_text(text),
                Err(error) => error,
            };
            let (valid, broken) = rest.split_at(error.valid_up_to());
            self.escape_text(std::str::from_utf8(valid).unwrap_or_default())?;
            let Some(length) = error.error_len() else {
                self.carry = broken.to_vec();
                return Ok(());
            };
            let (broken, behind) = broken.split_at(length);
            broken.iter().try_for_each(|byte| self.escape_byte(*byte))?;
            rest = behind;
        }
    }

    fn escape_text(&mut self, text: &str) -> io::Result<()> {
        let mut plain_from = 0;
        for (at, character) in text.char_indices() {
            if self.stays(character) {
                continue;
            }
            let (plain, end) = (text.get(plain_from..at).unwrap_or_default(), at + character.len_utf8());
            self.out.write_all(plain.as_bytes())?;
            match character {
                '\\' => self.write_escape(b'\\')?,
                '\n' => self.write_escape(b'n')?,
                '\r' => self.write_escape(b'r')?,
                '\t' => self.write_escape(b't')?,
                '"' => self.out.write_all(b"\\\"")?,
                other => {
                    let mut buffer = [0; 4];
                    other.encode_utf8(&mut buffer).bytes().try_for_each(|byte| self.escape_byte(byte))?;
                }
            }
            plain_from = end;
        }
        self.out.write_all(text.get(plain_from..).unwrap_or_default().as_bytes())
    }

    /// Whether a character needs no escape.
    fn stays(&self, character: char) -> bool {
        match character {
            '\\' => self.target == Target::Terminal,
            '"' => self.target != Target::Json,
            '\n' | '\t' => self.target == Target::Terminal,
            ' '..='~' => true,
            other => is_visible(other),
        }
    }

    fn backslash(&mut self) -> io::Result<()> {
        self.out.write_all(if self.target == Target::Json { b"\\\\" } else { b"\\" })
    }

    fn write_escape(&mut self, letter: u8) -> io::Result<()> {
        self.backslash()?;
        if letter == b'\\' { self.backslash() } else { self.out.write_all(&[letter]) }
    }

    fn escape_byte(&mut self, byte: u8) -> io::Result<()> {
        self.backslash()?;
        write!(self.out, "x{byte:02x}")
    }
}

/// Whether a non-ASCII character is visible. The standard library decides this: it escapes invisible characters, and at
/// the beginning of a string also those that would combine with the quote before them.
fn is_visible(character: char) -> bool {
    if character.is_ascii() {
        return false;
    }
    let mut buffer = [b'a', 0, 0, 0, 0];
    let Some(rest) = buffer.get_mut(1..) else { return false };
    let length = character.encode_utf8(rest).len();
    let text = buffer.get(..=length).and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default();
    text.escape_debug().count() == 2
}

/// Why text was not decoded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DecodeError {
    /// It is not text of this form.
    Wrong(String),
    /// It stands for more bytes than are allowed.
    TooLong,
    /// The system has no memory for the bytes.
    OutOfMemory,
}

/// Decodes text that comes in parts.
pub struct Decoder<'b> {
    form: Form,
    bytes: &'b mut Vec<u8>,
    /// How many bytes there may be.
    most: usize,
    /// The length of the text so far.
    at: usize,
    /// The beginning of an escape, or of two hexadecimal digits, that the next part completes; at most three bytes.
    held: Vec<u8>,
}

/// What text begins with.
enum Unit {
    /// This byte, written as this many.
    Byte(u8, usize),
    /// Nothing yet: there must be more text.
    Incomplete,
    /// Nothing that the form allows.
    Wrong,
}

impl<'b> Decoder<'b> {
    /// A decoder that appends at most `most` bytes to `bytes`.
    pub fn new(form: Form, bytes: &'b mut Vec<u8>, most: usize) -> Self {
        Self { form, bytes, most, at: 0, held: Vec::new() }
    }

    /// Decodes the next text.
    pub fn write(&mut self, text: &[u8]) -> Result<(), DecodeError> {
        let mut rest = text.iter();
        while !self.held.is_empty()
            && let Some(next) = rest.next()
        {
            let mut unit = std::mem::take(&mut self.held);
            unit.push(*next);
            self.decode(&unit)?;
        }
        self.decode(rest.as_slice())
    }

    /// Makes sure that the text is complete.
    pub fn finish(self) -> Result<(), DecodeError> {
        let length = self.at + self.held.len();
        match (self.form, self.held.as_slice()) {
            (_, []) => Ok(()),
            (Form::Hex, _) => Err(DecodeError::Wrong(format!(
                "it has {length} hexadecimal digits, and each byte takes two"
            ))),
            (_, held) => Err(DecodeError::Wrong(wrong_escape(self.at, held))),
        }
    }

    fn decode(&mut self, text: &[u8]) -> Result<(), DecodeError> {
        let mut rest = text;
        while !rest.is_empty() {
            let plain = match self.form {
                Form::Raw => rest.len(),
                Form::Escaped => memchr(b'\\', rest).unwrap_or(rest.len()),
                Form::Hex => 0,
            };
            let (plain, behind) = rest.split_at(plain);
            self.push(plain)?;
            self.at += plain.len();
            rest = match self.form.unit(behind) {
                _ if behind.is_empty() => behind,
                Unit::Byte(byte, length) => {
                    self.push(&[byte])?;
                    self.at += length;
                    behind.get(length..).unwrap_or_default()
                }
                Unit::Incomplete => {
                    self.held = behind.to_vec();
                    return Ok(());
                }
                Unit::Wrong if self.form == Form::Hex => {
                    let why = "it is not made of hexadecimal digits (0-9, a-f)";
                    return Err(DecodeError::Wrong(why.to_owned()));
                }
                Unit::Wrong => return Err(DecodeError::Wrong(wrong_escape(self.at, behind))),
            };
        }
        Ok(())
    }

    fn push(&mut self, bytes: &[u8]) -> Result<(), DecodeError> {
        let (there, capacity) = (self.bytes.len(), self.bytes.capacity());
        let length = there.saturating_add(bytes.len());
        if length > self.most {
            return Err(DecodeError::TooLong);
        }
        if length > capacity {
            // Twice as much each time, but not more than there may be.
            let wanted = capacity.saturating_mul(2).max(64).min(self.most).max(length);
            self.bytes.try_reserve_exact(wanted - there).map_err(|_| DecodeError::OutOfMemory)?;
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }
}

impl Form {
    /// What text begins with that is not plain.
    fn unit(self, text: &[u8]) -> Unit {
        let byte = |digits: (u8, u8), length| match (hex_value(digits.0), hex_value(digits.1)) {
            (Some(high), Some(low)) => Unit::Byte(high << 4 | low, length),
            _ => Unit::Wrong,
        };
        match (self, text) {
            (Self::Hex, [high, low, ..]) => byte((*high, *low), 2),
            (Self::Hex, [digit]) if hex_value(*digit).is_none() => Unit::Wrong,
            (Self::Escaped, [_, b'\\', ..]) => Unit::Byte(b'\\', 2),
            (Self::Escaped, [_, b'n', ..]) => Unit::Byte(b'\n', 2),
            (Self::Escaped, [_, b'r', ..]) => Unit::Byte(b'\r', 2),
            (Self::Escaped, [_, b't', ..]) => Unit::Byte(b'\t', 2),
            (Self::Escaped, [_, b'0', ..]) => Unit::Byte(0, 2),
            (Self::Escaped, [_, b'x', high, low, ..]) => byte((*high, *low), 4),
            (Self::Escaped, [_, b'x', ..] | [_] | []) | (Self::Hex, _) => Unit::Incomplete,
            _ => Unit::Wrong,
        }
    }
}

/// What is wrong with an escape at a place of the text.
fn wrong_escape(at: usize, escape: &[u8]) -> String {
    let found = match escape {
        [_, b'x', ..] => return format!("\\x at byte {at} needs two hexadecimal digits behind it"),
        [_, letter, ..] => format!("\\{} at byte {at} is not an escape", escaped(&[*letter])),
        _ => "it ends in a single backslash".to_owned(),
    };
    format!("{found}; write \\\\ for a backslash, \\xNN for any byte, \\n, \\r, \\t or \\0, or use --raw")
}

fn hex_value(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(parts: &[&[u8]]) -> String {
        let mut out = b"\"".to_vec();
        let mut encoder = Encoder::new(&mut out, Form::Escaped, Target::Json);
        parts.iter().for_each(|part| encoder.write(part).unwrap());
        encoder.finish().unwrap();
        out.push(b'"');
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn every_byte_and_every_pair_of_bytes_comes_back() {
        let all: Vec<u8> = (0..=255).collect();
        let pairs = (0..=u16::MAX).map(|pair| pair.to_be_bytes().to_vec());
        for bytes in pairs.chain([all, Vec::new(), "Grüße, 世界 👋\u{200b}\u{301}".into()]) {
            for form in [Form::Escaped, Form::Hex, Form::Raw] {
                let text = form.encode(&bytes);
                assert_eq!(form.decode(OsStr::from_bytes(&text), "the key").unwrap(), bytes, "{form:?}");
            }
            let text = Form::Escaped.encode(&bytes);
            assert!(std::str::from_utf8(&text).is_ok_and(|text| !text.contains(char::is_control)));
        }
    }

    #[test]
    fn text_stays_text() {
        assert_eq!(escaped("doc/größe.txt".as_bytes()), "doc/größe.txt");
        assert_eq!(escaped(b"a\tb\nc\\d\r\0\xff"), r"a\tb\nc\\d\r\x00\xff");
        assert_eq!(escaped("\u{202e}".as_bytes()), r"\xe2\x80\xae", "text that runs backwards is shown");
        assert_eq!(escaped("\u{1b}[31m".as_bytes()), r"\x1b[31m");
    }

    #[test]
    fn characters_may_be_divided_among_parts() {
        let text = "aü世👋z".as_bytes();
        for cut in 0..=text.len() {
            for second in cut..=text.len() {
                let parts = [&text[..cut], &text[cut..second], &text[second..]];
                assert_eq!(json(&parts), "\"aü世👋z\"");
            }
        }
        assert_eq!(json(&[b"a\xe4", b"\xb8"]), r#""a\\xe4\\xb8""#, "a character that is never completed");
    }

    #[test]
    fn json_strings_hold_the_escaped_form() {
        let bytes: Vec<u8> = (0..=255).chain(*b"\"\\\"").collect();
        let inside: String = serde_json::from_str(&json(&[&bytes])).unwrap();
        assert_eq!(inside, escaped(&bytes));
    }

    #[test]
    fn text_may_come_in_parts_and_stand_for_so_many_bytes_at_most() {
        let decode = |form, parts: [&[u8]; 3], most| {
            let mut bytes = Vec::new();
            let mut decoder = Decoder::new(form, &mut bytes, most);
            parts.iter().try_for_each(|part| decoder.write(part))?;
            decoder.finish().map(|()| bytes)
        };
        for (form, text, bytes) in [
            (Form::Escaped, &br"a\\x41\x41\x42\nb"[..], &b"a\\x41AB\nb"[..]),
            (Form::Hex, b"00ff61", b"\x00\xffa"),
            (Form::Raw, br"\a", br"\a"),
        ] {
            for cut in 0..=text.len() {
                for second in cut..=text.len() {
                    let parts = [&text[..cut], &text[cut..second], &text[second..]];
                    assert_eq!(decode(form, parts, bytes.len()).as_deref(), Ok(bytes));
                    assert_eq!(decode(form, parts, bytes.len() - 1), Err(DecodeError::TooLong));
                }
            }
        }
        for (text, at) in [(&br"aaa\x4"[..], 3), (br"aaaa\xg0", 4)] {
            let (first, second) = text.split_at(5);
            let Err(DecodeError::Wrong(why)) = decode(Form::Escaped, [first, second, b""], 100) else {
                panic!("{}", text.escape_ascii());
            };
            assert!(why.contains(&format!("at byte {at} ")), "{why}");
        }
    }

    #[test]
    fn wrong_escapes_are_refused_and_explained() {
        let refused = |form: Form, text: &str| form.decode(OsStr::new(text), "the key").unwrap_err().message;
        assert!(refused(Form::Escaped, r"a\q").contains(r"\q at byte 1 is not an escape"));
        assert!(refused(Form::Escaped, r"a\").contains("single backslash"));
        assert!(refused(Form::Escaped, r"\x4").contains("two hexadecimal digits"));
        assert!(refused(Form::Escaped, r"\xg0").contains("two hexadecimal digits"));
        assert!(refused(Form::Hex, "abc").contains("3 hexadecimal digits"));
        assert!(refused(Form::Hex, "zz").contains("not made of hexadecimal digits"));
    }
}
