//! Numbers as people write them: `10M`, `10_000_000`, `64MiB`, `0.2`.

use crate::config::{Skew, ValueSizes};
use std::time::Duration;

/// Reads one size of values, or two with `..` between them, both included.
///
/// # Errors
/// What is wrong with the text.
pub fn value_sizes(text: &str) -> Result<ValueSizes, String> {
    let one = |text: &str| match text.trim().parse::<usize>() {
        Ok(bytes) if ValueSizes::BOUNDS.contains(&bytes) => Ok(bytes),
        Ok(_) => Err(format!(
            "a value must have {} to {} bytes",
            ValueSizes::BOUNDS.start(),
            ValueSizes::BOUNDS.end()
        )),
        Err(_) => Err(format!("{text:?} is no number of bytes; write 120, or 40..300")),
    };
    match text.split_once("..") {
        None => one(text).map(ValueSizes::one),
        Some((min, max)) => match (one(min)?, one(max)?) {
            (min, max) if min <= max => Ok(ValueSizes { min, max }),
            _ => Err("the smaller size comes first, as in 40..300".to_owned()),
        },
    }
}

/// Reads how tuples are chosen: `uniform`, `latest`, or `zipf:0.99`.
///
/// # Errors
/// What is wrong with the text.
pub fn skew(text: &str) -> Result<Skew, String> {
    match text {
        "uniform" => return Ok(Skew::Uniform),
        "latest" => return Ok(Skew::Latest),
        _ => {}
    }
    match text.strip_prefix("zipf:").map(str::parse::<f64>) {
        Some(Ok(theta)) if theta > 0.0 && theta < 1.0 => Ok(Skew::Zipfian(theta)),
        Some(_) => Err("the exponent must be between 0 and 1, as in zipf:0.99".to_owned()),
        None => Err(format!("{text:?} is neither uniform, nor latest, nor zipf:EXPONENT, such as zipf:0.99")),
    }
}

/// Reads a count: digits with `_` between them, a decimal point, and `k`, `M` or `G` for powers of 1000.
///
/// # Errors
/// What is wrong with the text, if it is no whole positive number that fits 63 bits.
pub fn count(text: &str) -> Result<u64, String> {
    let cleaned = text.replace('_', "");
    let (digits, factor) = match cleaned.char_indices().last() {
        Some((at, 'k' | 'K')) => (&cleaned[..at], 1_000u64),
        Some((at, 'm' | 'M')) => (&cleaned[..at], 1_000_000),
        Some((at, 'g' | 'G')) => (&cleaned[..at], 1_000_000_000),
        _ => (cleaned.as_str(), 1),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let wrong = || format!("{text:?} is not a count: write 10000000, 10_000_000, 10M or 2.5k");
    let all_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !all_digits(whole) || !all_digits(fraction) || (digits.ends_with('.')) {
        return Err(wrong());
    }
    let mut value = whole.parse::<u64>().ok().and_then(|n| n.checked_mul(factor)).ok_or_else(wrong)?;
    let mut unit = factor;
    for digit in fraction.bytes() {
        if !unit.is_multiple_of(10) {
            return Err(wrong());
        }
        unit /= 10;
        value = value.checked_add(u64::from(digit - b'0') * unit).ok_or_else(wrong)?;
    }
    match value {
        0 => Err("it must be at least 1".to_owned()),
        _ if value > i64::MAX as u64 => Err(wrong()),
        _ => Ok(value),
    }
}

/// Reads a size in bytes: `64MiB`, `8GiB`, `4096`, `1_000_000`.
///
/// # Errors
/// What is wrong with the text.
pub fn size(text: &str) -> Result<u64, String> {
    let bytes = text
        .replace('_', "")
        .parse::<bytesize::ByteSize>()
        .map_err(|error| format!("{text:?} is not a size such as 64MiB: {error}"))?
        .as_u64();
    if bytes == 0 { Err("it must be at least 1 byte".to_owned()) } else { Ok(bytes) }
}

/// Reads a time in seconds, with fractions, between a millisecond and a day.
///
/// # Errors
/// What is wrong with the text.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("{text:?} is not a number of seconds"))?;
    if !(0.001..=86_400.0).contains(&seconds) {
        return Err("it must be between 0.001 and 86400".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts() {
        assert_eq!(count("1"), Ok(1));
        assert_eq!(count("10M"), Ok(10_000_000));
        assert_eq!(count("10_000_000"), Ok(10_000_000));
        assert_eq!(count("20k"), Ok(20_000));
        assert_eq!(count("2.5K"), Ok(2_500));
        assert_eq!(count("1.25G"), Ok(1_250_000_000));
        for bad in ["", "M", "0", "0.0k", "-1", "1.5", "1.", ".5M", "10MB", "1e6", "1.0001k", "99999999999G"]
        {
            assert!(count(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes() {
        assert_eq!(size("64MiB"), Ok(64 << 20));
        assert_eq!(size("1GiB"), Ok(1 << 30));
        assert_eq!(size("4096"), Ok(4096));
        assert_eq!(size("1_000"), Ok(1000));
        for bad in ["", "0", "MiB", "64 apples", "-1"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_of_values_and_choices_of_tuples() {
        assert_eq!(value_sizes("120"), Ok(ValueSizes::one(120)));
        assert_eq!(value_sizes("40..300"), Ok(ValueSizes { min: 40, max: 300 }));
        for bad in ["", "7", "40..", "..40", "300..40", "8..2000000", "forty"] {
            assert!(value_sizes(bad).is_err(), "{bad}");
        }
        assert_eq!(skew("uniform"), Ok(Skew::Uniform));
        assert_eq!(skew("latest"), Ok(Skew::Latest));
        assert_eq!(skew("zipf:0.99"), Ok(Skew::Zipfian(0.99)));
        for bad in ["", "zipf", "zipf:", "zipf:1", "zipf:0", "zipf:-1", "zipf:NaN", "zipfian"] {
            assert!(skew(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times() {
        assert_eq!(seconds("0.2"), Ok(Duration::from_millis(200)));
        assert_eq!(seconds("3"), Ok(Duration::from_secs(3)));
        for bad in ["0", "-1", "NaN", "inf", "3s", ""] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
