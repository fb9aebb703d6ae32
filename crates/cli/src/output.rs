//! Results: lines, tables and JSON objects on standard output.

use crate::failure::{Failure, Result};
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use std::{
    fmt::Display,
    io::{self, BufWriter, IsTerminal as _, Stdout, Write},
    path::Path,
};

/// Standard output, buffered. Call [`finish`](Self::finish) at the end.
pub struct Output(BufWriter<Stdout>);

impl Output {
    /// Standard output.
    pub fn new() -> Self {
        Self(BufWriter::with_capacity(64 << 10, io::stdout()))
    }

    /// Whether it is a terminal.
    pub fn is_terminal() -> bool {
        io::stdout().is_terminal()
    }

    /// Writes a line.
    pub fn line(&mut self, line: impl Display) -> Result {
        writeln!(self.0, "{line}").map_err(|error| Failure::output(&error))
    }

    /// Writes an object on its own line.
    pub fn json(&mut self, object: &impl Serialize) -> Result {
        let line = serde_json::to_string(object).map_err(|error| Failure::output(&error.into()))?;
        self.line(line)
    }

    /// Flushes everything.
    pub fn finish(mut self) -> Result {
        self.0.flush().map_err(|error| Failure::output(&error))
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// A table of text without lines. All columns after the first `left` are aligned to the right.
pub fn columns(header: &[&str], left: usize) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    if !header.is_empty() {
        table.set_header(header);
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        if index >= left {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// A table as text, without spaces at the ends of its lines.
pub fn render(table: &Table) -> String {
    let lines: Vec<String> = table.to_string().lines().map(|line| line.trim_end().to_owned()).collect();
    lines.join("\n")
}

/// A word as it has to be written for a shell: unchanged, or in quotes.
pub fn shell_word(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./=+:,@%".contains(&byte);
    if !word.is_empty() && word.bytes().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// A path as a shell word that no command mistakes for an option.
pub fn shell_path(path: &Path) -> String {
    let path = path.to_string_lossy();
    shell_word(&if path.starts_with('-') { format!("./{path}") } else { path.into_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_the_shell_where_they_must_be() {
        assert_eq!(shell_word("doc/a-b_c.txt"), "doc/a-b_c.txt");
        assert_eq!(shell_word("two words"), "'two words'");
        assert_eq!(shell_word("it's"), r"'it'\''s'");
        assert_eq!(shell_word(r"\xff"), r"'\xff'");
        assert_eq!(shell_word("~user"), "'~user'");
        assert_eq!(shell_word(""), "''");
        assert_eq!(shell_path(Path::new("-my db")), "'./-my db'");
    }
}
