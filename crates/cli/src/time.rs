//! Parsing and printing of times, in UTC.

use std::time::{Duration, SystemTime};
pub use vellum::shown_time as shown;

/// Reads a time: `2026-11-23T06:00:00Z`, with or without a fraction, or seconds since 1970.
pub fn parse(text: &str) -> Result<SystemTime, String> {
    let wrong = || "it is not a time; write it like 2026-11-23T06:00:00Z or 1795413600.5".to_owned();
    let since = match text.strip_suffix(['Z', 'z']) {
        Some(text) => civil(text),
        None => seconds(text),
    };
    since.and_then(|since| SystemTime::UNIX_EPOCH.checked_add(since)).ok_or_else(wrong)
}

/// Seconds and a fraction.
fn seconds(text: &str) -> Option<Duration> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if fraction.len() > 9 || !fraction.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let nanoseconds = format!("{fraction:0<9}").parse().ok()?;
    Some(Duration::new(whole.parse().ok()?, nanoseconds))
}

/// A date and a time of day.
fn civil(text: &str) -> Option<Duration> {
    let (date, time) = text.split_once(['T', 't', ' '])?;
    let numbers = |text: &str, separator| {
        text.split(separator).map(|part| part.parse().ok()).collect::<Option<Vec<u64>>>()
    };
    let [year, month, day] = numbers(date, '-')?[..] else { return None };
    let (clock, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let [hour, minute, second] = numbers(clock, ':')?[..] else { return None };
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let days_of = |year, month| match month {
        2 => 28 + u64::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    let is_right = (1970..10_000).contains(&year)
        && (1..=12).contains(&month)
        && (1..=days_of(year, month)).contains(&day)
        && hour < 24
        && minute < 60
        && second < 60;
    if !is_right {
        return None;
    }
    let years: u64 = (1970..year).map(|year| 365 + u64::from(is_leap(year))).sum();
    let months: u64 = (1..month).map(|month| days_of(year, month)).sum();
    let whole = (((years + months + day - 1) * 24 + hour) * 60 + minute) * 60 + second;
    Some(Duration::from_secs(whole) + seconds(&format!("0.{fraction}"))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_come_back_and_wrong_ones_are_refused() {
        for (text, seconds) in [
            ("1970-01-01T00:00:00Z", 0.0),
            ("2026-11-23T06:00:00Z", 1_795_413_600.0),
            ("2024-02-29T23:59:59.5Z", 1_709_251_199.5),
            ("1795413600.25", 1_795_413_600.25),
        ] {
            let time = parse(text).unwrap();
            let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap();
            assert!((since.as_secs_f64() - seconds).abs() < 1e-6, "{text}");
            assert_eq!(parse(&shown(time)).unwrap(), time, "{text}");
        }
        for wrong in ["", "now", "2026-11-23", "2026-13-01T00:00:00Z", "2025-02-29T00:00:00Z", "-1", "1.x"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
