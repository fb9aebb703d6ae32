//! Paths as messages show them.

use std::{
    fmt::{self, Write as _},
    path::Path,
};

/// How many characters of a long path are shown at each of its ends.
const END_CHARACTERS: usize = 100;

/// A path for display: control characters are escaped, so that a name cannot control a terminal, and the middle of a
/// very long path is left out.
pub fn shown(path: &Path) -> impl fmt::Display + '_ {
    ShownPath(path)
}

struct ShownPath<'p>(&'p Path);

impl fmt::Display for ShownPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string_lossy();
        let count = text.chars().count();
        let is_long = count > 3 * END_CHARACTERS;
        for (index, character) in text.chars().enumerate() {
            if is_long && index == END_CHARACTERS {
                f.write_str("...")?;
            }
            if is_long && (END_CHARACTERS..count - END_CHARACTERS).contains(&index) {
                continue;
            }
            match character {
                character if character.is_control() => write!(f, "{}", character.escape_default())?,
                character => f.write_char(character)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_shown_as_they_are_unless_they_are_long_or_command_the_terminal() {
        let show = |text: &str| shown(Path::new(text)).to_string();
        assert_eq!(show("dir/größe 1.txt"), "dir/größe 1.txt");
        assert_eq!(show("a\u{1b}[31m\nb"), "a\\u{1b}[31m\\nb");
        let long = show(&format!("/begin/{}/end", "x/".repeat(2000)));
        assert!(long.len() < 250 && long.starts_with("/begin/x/") && long.ends_with("x//end"), "{long}");
        assert_eq!(show(&"ü".repeat(300)), "ü".repeat(300));
        assert_eq!(show(&"ü".repeat(301)), format!("{0}...{0}", "ü".repeat(100)));
    }
}
