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
pub struct Output {
    to: BufWriter<Stdout>,
    /// Whether the command goes on if the reader has gone, because its exit code tells more than what it prints.
    outlives_reader: bool,
    reader_has_gone: bool,
}

impl Output {
    /// Standard output.
    pub fn new() -> Self {
        let to = BufWriter::with_capacity(64 << 10, io::stdout());
        Self { to, outlives_reader: false, reader_has_gone: false }
    }

    /// Standard output, for a command that ends in a [verdict](crate::failure::verdict): if the reader has closed it,
    /// only [`finish`](Self::finish) fails.
    pub fn before_verdict() -> Self {
        Self { outlives_reader: true, ..Self::new() }
    }

    /// Whether it is a terminal.
    pub fn is_terminal() -> bool {
        io::stdout().is_terminal()
    }

    /// Writes a line.
    pub fn line(&mut self, line: impl Display) -> Result {
        writeln!(self, "{line}").map_err(|error| Failure::output(&error))
    }

    /// Writes an object on its own line.
    pub fn json(&mut self, object: &impl Serialize) -> Result {
        let line = serde_json::to_string(object).map_err(|error| Failure::output(&error.into()))?;
        self.line(line)
    }

    /// Flushes everything.
    pub fn finish(mut self) -> Result {
        self.flush().map_err(|error| Failure::output(&error))?;
        let gone = io::Error::from(io::ErrorKind::BrokenPipe);
        if self.reader_has_gone { Err(Failure::output(&gone)) } else { Ok(()) }
    }
}

impl Output {
    /// The outcome of a write, or `done` if it failed because the reader has gone and the command goes on.
    fn unless_gone<T>(&mut self, outcome: io::Result<T>, done: T) -> io::Result<T> {
        match outcome {
            Err(error) if self.outlives_reader && error.kind() == io::ErrorKind::BrokenPipe => {
                self.reader_has_gone = true;
                Ok(done)
            }
            outcome => outcome,
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.reader_has_gone {
            return Ok(bytes.len());
        }
        let written = self.to.write(bytes);
        self.unless_gone(written, bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.reader_has_gone {
            return Ok(());
        }
        let flushed = self.to.flush();
        self.unless_gone(flushed, ())
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
