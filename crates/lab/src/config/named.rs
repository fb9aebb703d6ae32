//! Things that are chosen by name.

/// Something that is chosen by name.
pub trait Named: Copy + PartialEq + Send + Sync + 'static {
    /// All that there are: each with its name, and what it is, in words.
    const ALL: &'static [(Self, &'static str, &'static str)];

    /// Its name.
    fn as_str(self) -> &'static str {
        Self::ALL.iter().find(|(value, ..)| *value == self).map_or("", |(_, name, _)| name)
    }
}
