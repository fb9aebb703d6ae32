//! What was measured: each CSV in docs/results has the columns that its README describes, every cell is filled as
//! it should be, and docs/performance.md links to it.

use super::Source;

const FOLDER: &str = "docs/results/";
const DOCUMENT: &str = "docs/performance.md";
const COLUMNS: [&str; 8] = ["date", "machine", "commit", "command", "contender", "metric", "value", "unit"];

/// Problems of the results.
pub fn check(sources: &[Source]) -> Vec<String> {
    let document = sources.iter().find(|source| source.path == DOCUMENT);
    let mut problems = Vec::new();
    for source in sources.iter().filter(|source| source.path.ends_with(".csv")) {
        let link = source.path.strip_prefix("docs/").unwrap_or(&source.path);
        if source.path.starts_with(FOLDER)
            && !document.is_some_and(|document| document.text.contains(&format!("({link})")))
        {
            problems.push(format!("{}: {DOCUMENT} does not link to it", source.path));
        }
        if source.text.lines().next() != Some(&COLUMNS.join(",")) {
            problems.push(format!("{}: its first line must be {}", source.path, COLUMNS.join(",")));
        }
        for (number, line) in source.text.lines().enumerate().skip(1) {
            if let Err(problem) = row(line) {
                problems.push(format!("{}:{}: {problem}", source.path, number + 1));
            }
        }
    }
    problems
}

fn row(line: &str) -> Result<(), String> {
    let cells = cells(line).ok_or("a quotation mark is not closed, or stands within a cell")?;
    let [date, machine, commit, command, contender, metric, value, unit] = cells.as_slice() else {
        return Err(format!("{} cells instead of {}", cells.len(), COLUMNS.len()));
    };
    if [machine, command, contender, metric, unit].iter().any(|cell| cell.trim().is_empty()) {
        return Err("an empty cell".to_owned());
    }
    let is_day = date.len() == 10
        && date.bytes().enumerate().all(|(at, byte)| match at {
            4 | 7 => byte == b'-',
            _ => byte.is_ascii_digit(),
        });
    if !is_day {
        return Err(format!("the date {date:?} is not of the form 2026-11-22"));
    }
    if commit.len() < 7 || !commit.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(format!("{commit:?} is no commit"));
    }
    if !value.parse::<f64>().is_ok_and(f64::is_finite) {
        return Err(format!("the value {value:?} is no number"));
    }
    Ok(())
}

/// The cells of a line; one that contains a comma stands in quotation marks, which are doubled within it.
fn cells(line: &str) -> Option<Vec<String>> {
    let mut cells = Vec::new();
    let mut rest = line;
    loop {
        let mut cell = String::new();
        if let Some(mut quoted) = rest.strip_prefix('"') {
            loop {
                let (part, after) = quoted.split_once('"')?;
                cell.push_str(part);
                let Some(again) = after.strip_prefix('"') else {
                    rest = after;
                    break;
                };
                cell.push('"');
                quoted = again;
            }
        } else {
            let end = rest.find(',').unwrap_or(rest.len());
            cell.push_str(&rest[..end]);
            rest = &rest[end..];
            if cell.contains('"') {
                return None;
            }
        }
        cells.push(cell);
        if rest.is_empty() {
            return Some(cells);
        }
        rest = rest.strip_prefix(',')?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str =
        "2026-11-22,vm-2c,a0f3994,\"lab lookup --engines a,b\",vellum,\"get, 1 thread\",1.5e6,1/s";

    fn problems(rows: &str, document: &str) -> Vec<String> {
        let csv =
            Source { path: "docs/results/a.csv".into(), text: format!("{}\n{rows}\n", COLUMNS.join(",")) };
        check(&[csv, Source { path: DOCUMENT.into(), text: document.into() }])
    }

    #[test]
    fn cells_are_parted_at_commas_outside_quotation_marks() {
        assert_eq!(cells("a,\"b,\"\"c\"\"\",,d").unwrap(), ["a", "b,\"c\"", "", "d"]);
        assert_eq!(cells("a,").unwrap(), ["a", ""]);
        for bad in ["\"a", "\"a\"b,c", "a\"b\",c"] {
            assert!(cells(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn each_bad_row_is_reported() {
        let link = "[a](results/a.csv)";
        assert!(problems(GOOD, link).is_empty());
        for (from, to) in [
            ("2026-11-22", "22.11.2026"),
            ("a0f3994", "yesterday"),
            ("1.5e6", "1.5 M"),
            ("1.5e6", "NaN"),
            (",1/s", ","),
            (",1/s", ""),
            (",1/s", ",1/s,x"),
            ("lab lookup --engines a,b\"", "lab"),
        ] {
            let rows = format!("{GOOD}\n{}", GOOD.replace(from, to));
            let found = problems(&rows, link);
            assert_eq!(found.len(), 1, "{to}: {found:?}");
            assert!(found[0].starts_with("docs/results/a.csv:3:"), "{found:?}");
        }
    }

    #[test]
    fn the_columns_and_the_link_are_there() {
        assert_eq!(problems(GOOD, "").len(), 1);
        let csv = Source { path: "docs/results/a.csv".into(), text: "date,value\n".into() };
        let document = Source { path: DOCUMENT.into(), text: "[a](results/a.csv)".into() };
        assert_eq!(check(&[csv, document]).len(), 1);
    }
}
