//! Sizes and counts, as people write and read them.

use bytesize::ByteSize;

/// Reads a size in bytes: `4096`, `64MiB`, `1_000_000`, `1.5GiB`.
pub fn parse(text: &str) -> Result<u64, String> {
    let wrong = |why: &str| format!("{why}; write a size such as 4096, 64MiB or 1GiB");
    let cleaned = text.trim().replace('_', "");
    if cleaned.starts_with('-') {
        return Err(wrong("a size cannot be negative"));
    }
    match cleaned.parse::<ByteSize>() {
        Ok(size) if size.as_u64() == 0 => Err(wrong("a size must be at least 1 byte")),
        Ok(size) => Ok(size.as_u64()),
        Err(_) => Err(wrong("it is not a size")),
    }
}

/// A size with its unit: `64.0 MiB`.
pub fn bytes(bytes: u64) -> String {
    ByteSize(bytes).display().iec().to_string()
}

/// A number with its digits in groups of three: `46,670`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// A number and the noun that goes with it: `1 file`, `2 files`.
pub fn counted(number: u64, singular: &str, plural: &str) -> String {
    format!("{} {}", count(number), if number == 1 { singular } else { plural })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_and_without_units() {
        assert_eq!(parse("4096"), Ok(4096));
        assert_eq!(parse("64MiB"), Ok(64 << 20));
        assert_eq!(parse("64 mib"), Ok(64 << 20));
        assert_eq!(parse("1.5GiB"), Ok(3 << 29));
        assert_eq!(parse("2MB"), Ok(2_000_000));
        assert_eq!(parse("1_000"), Ok(1000));
    }

    #[test]
    fn what_is_no_size_is_refused_with_an_example() {
        for text in ["", "much", "-1", "0", "64 elephants", "MiB", "1e400", "NaN", "inf"] {
            let why = parse(text).unwrap_err();
            assert!(why.contains("64MiB"), "{text}: {why}");
        }
    }

    #[test]
    fn digits_are_grouped() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1000), "1,000");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(counted(1, "file", "files"), "1 file");
        assert_eq!(bytes(64 << 20), "64.0 MiB");
    }
}
