//! What errors show of records and tables.

/// The table in conflicts about a table as a whole, whose key is its name. No table has this name.
pub(crate) const WHOLE_TABLE: &str = "";

/// What a conflict is about, and how it came about.
pub(crate) fn shown_conflict(table: &str, key: &[u8], committed: bool) -> String {
    let what = if table == WHOLE_TABLE { "created, changed, renamed or dropped" } else { "changed" };
    let how = if committed {
        format!("was {what} by a transaction that was committed after this one began")
    } else {
        format!("is being {what} by another transaction")
    };
    format!("{} {how}", shown_record(table, key))
}

/// A record, or a table as a whole, as shown in an error.
pub(crate) fn shown_record(table: &str, key: &[u8]) -> String {
    match table {
        WHOLE_TABLE if key.is_empty() => "a table".to_owned(),
        WHOLE_TABLE => format!("table {:?}", String::from_utf8_lossy(key)),
        table => format!("the record with the key \"{}\" of table {table:?}", shown_key(key)),
    }
}

/// A key or value of a table, as shown in an error.
pub(crate) fn shown_part(table: &str, what: &str, key: Option<&[u8]>) -> String {
    match (what, key) {
        ("key", Some(key)) => format!("the key \"{}\" of table {table:?}", shown_key(key)),
        (what, Some(key)) => format!("the {what} of the key \"{}\" of table {table:?}", shown_key(key)),
        (what, None) => format!("a {what} of table {table:?}"),
    }
}

/// How much of a long key or name is shown, in bytes: usually enough to identify it.
const LONGEST: usize = 100;

/// A name that no table has, as shown in an error.
pub(crate) fn shown_name(name: &str) -> String {
    let start = name.get(..name.floor_char_boundary(LONGEST)).unwrap_or(name);
    let dots = if start.len() < name.len() { "..." } else { "" };
    format!("{start:?}{dots}")
}

/// A key as shown in an error.
pub(crate) fn shown_key(key: &[u8]) -> String {
    let start = key.get(..LONGEST).unwrap_or(key);
    let dots = if start.len() < key.len() { "..." } else { "" };
    format!("{}{dots}", start.escape_ascii())
}
