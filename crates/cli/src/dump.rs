//! The format of a dump: a whole database as lines of text, which `vellum dump` writes and `vellum load --dump` reads.
//!
//! The first line is [`FIRST`]. Each table begins with a line of five tab-separated fields: `!table`, its name, the
//! types of its keys and values, and `plain` or `versions`. Its entries follow in key order, each on a line with the
//! key, a tab and the value. The last line, `!end` with the numbers of tables and entries, shows that the dump is
//! complete. Names, keys and values are escaped; a key that begins with an exclamation mark is escaped so that its line
//! does not.

use crate::text::{Form, escaped};
use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _};
use vellum::TableOptions;

/// The first line.
pub const FIRST: &str = "!vellum dump 1";

/// The line that begins a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableLine {
    pub name: String,
    /// The types of keys and values.
    pub types: (String, String),
    pub is_plain: bool,
}

impl TableLine {
    /// The options for creating the table.
    pub fn options(&self) -> TableOptions {
        TableOptions::default().versions(!self.is_plain).types(&self.types.0, &self.types.1)
    }

    fn decode(fields: &[&[u8]]) -> Option<Self> {
        let [name, key_type, value_type, kind] = fields else { return None };
        let text = |field: &[u8]| {
            let bytes = Form::Escaped.decode(OsStr::from_bytes(field), "").ok()?;
            String::from_utf8(bytes).ok()
        };
        let is_plain = match *kind {
            b"plain" => true,
            b"versions" => false,
            _ => return None,
        };
        Some(Self { name: text(name)?, types: (text(key_type)?, text(value_type)?), is_plain })
    }
}

impl std::fmt::Display for TableLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [name, key_type, value_type] =
            [&self.name, &self.types.0, &self.types.1].map(|text| escaped(text.as_bytes()));
        let kind = if self.is_plain { "plain" } else { "versions" };
        write!(f, "!table\t{name}\t{key_type}\t{value_type}\t{kind}")
    }
}

/// The last line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EndLine {
    pub tables: u64,
    pub entries: u64,
}

impl std::fmt::Display for EndLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "!end\t{}\t{}", self.tables, self.entries)
    }
}

/// A line after the first that is not an entry.
#[derive(PartialEq, Eq, Debug)]
pub enum Line {
    Table(TableLine),
    End(EndLine),
}

impl Line {
    /// Parses a line; none if it is not such a line.
    pub fn of(line: &[u8]) -> Option<Self> {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b'\t').collect();
        let number = |field: &[u8]| str::from_utf8(field).ok()?.parse().ok();
        match &fields[..] {
            [b"!table", table @ ..] => TableLine::decode(table).map(Self::Table),
            [b"!end", tables, entries] => {
                Some(Self::End(EndLine { tables: number(tables)?, entries: number(entries)? }))
            }
            _ => None,
        }
    }
}

/// What begins a line that is not an entry.
pub const MARK: u8 = b'!';

/// A key as written at the beginning of a line.
pub fn key(key: &[u8]) -> Vec<u8> {
    let text = Form::Escaped.encode(key);
    match text.strip_prefix(b"!") {
        Some(rest) => [b"\\x21", rest].concat(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_they_were_written() {
        for (name, is_plain) in [("main", false), ("a\tb\n", true), ("!table", false)] {
            let table =
                TableLine { name: name.into(), types: ("(str, u64)".into(), "[u8]".into()), is_plain };
            assert_eq!(Line::of(table.to_string().as_bytes()), Some(Line::Table(table)));
        }
        let end = EndLine { tables: 3, entries: 1 << 40 };
        assert_eq!(Line::of(end.to_string().as_bytes()), Some(Line::End(end)));
        for bytes in [&b""[..], b"a", b"!", b"!end", b"!!", b"\t\n", &[0xff, 0]] {
            let text = key(bytes);
            assert!(text.first() != Some(&MARK) && !text.contains(&b'\t'), "{}", text.escape_ascii());
            assert_eq!(Form::Escaped.decode(OsStr::from_bytes(&text), "").unwrap(), bytes);
        }
        for wrong in [
            &b"!table\ta\tb"[..],
            b"!table\ta\tb\tc\twhat",
            b"!end\t1",
            b"!end\t1\tx",
            b"!what\tvalue",
            b"key",
            b"a\tb\tc",
        ] {
            assert_eq!(Line::of(wrong), None, "{}", wrong.escape_ascii());
        }
    }
}
