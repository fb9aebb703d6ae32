//! What the command line of `lab ycsb` comes to.

use super::{Cli, Command};
use crate::Result;
use crate::config::{AnyEngineName, YcsbSettings};
#[cfg(feature = "rocksdb")]
use crate::config::{EngineName, RecordEngineName};
use crate::run::coordinator::Job;
use crate::run::ycsb::Plan;
use clap::Parser;

fn parsed(line: &str) -> Option<YcsbSettings> {
    match Cli::try_parse_from(format!("lab ycsb {line}").split_ascii_whitespace()).ok()?.command {
        Command::Ycsb { ycsb, .. } => Some(ycsb.settings()),
        _ => None,
    }
}

/// The names of workloads, each with those of its engines.
type Contests = Vec<(&'static str, String)>;

/// The workloads with their engines, and the remarks.
fn planned(line: &str) -> Result<(Contests, Vec<String>)> {
    let Plan { contests, notes } = parsed(line).unwrap().plan()?;
    let named = |(job, engines): (Job, Vec<AnyEngineName>)| {
        let engines = engines.iter().map(|engine| engine.as_str()).collect::<Vec<_>>().join(",");
        (job.name(), engines)
    };
    Ok((contests.into_iter().map(named).collect(), notes))
}

#[test]
fn all_workloads_leave_out_what_needs_an_order_where_there_is_none() {
    let names = |line: &str| planned(line).unwrap().0.into_iter().map(|(mix, _)| mix).collect::<Vec<_>>();
    let all = ["ycsb_a", "ycsb_b", "ycsb_c", "ycsb_d", "ycsb_e", "ycsb_f"];
    assert_eq!(names("--workload all"), all);
    assert!(planned("--workload all").unwrap().1.is_empty());
    let without = ["ycsb_a", "ycsb_b", "ycsb_c", "ycsb_d", "ycsb_f"];
    assert_eq!(names("--workload all --engines pmem,dashmap"), without);
    let (contests, notes) = planned("--workload all --engines pmem,vellum,papaya").unwrap();
    assert_eq!(contests[3], ("ycsb_d", "pmem,vellum,papaya".to_owned()));
    assert_eq!(contests[4], ("ycsb_e", "vellum".to_owned()));
    assert_eq!(notes.len(), 1);
    assert!(notes[0].starts_with("ycsb_e is left out for pmem, papaya:"), "{notes:?}");
}

#[test]
fn what_needs_an_order_is_refused_where_it_was_asked_for_by_name() {
    for line in ["--workload e", "--workload a,E", "--workload all,e"] {
        let error =
            planned(&format!("{line} --engines vellum,pmem_variable,dashmap")).unwrap_err().to_string();
        for word in ["ycsb_e", "pmem_variable, dashmap", "--workload all"] {
            assert!(error.contains(word), "{word}: {error}");
        }
        assert!(planned(&format!("{line} --engines vellum,lmdb")).is_ok());
    }
}

#[test]
fn workloads_are_run_once_in_the_order_in_which_they_are_named() {
    let names = |line: &str| planned(line).unwrap().0.into_iter().map(|(mix, _)| mix).collect::<Vec<_>>();
    assert_eq!(names("--workload c,A,c"), ["ycsb_c", "ycsb_a"]);
    assert_eq!(names("--workload f,all").first(), Some(&"ycsb_f"));
    assert_eq!(names("--workload f,all").len(), 6);
}

#[test]
fn records_have_whole_fields() {
    for (line, fine) in [
        ("", true),
        ("--value-bytes 200", true),
        ("--value-bytes 200 --fields 25", true),
        ("--value-bytes 200 --fields 26", false),
        ("--value-bytes 200 --fields 40", false),
        ("--value-bytes 8", false),
        ("--value-bytes 8 --fields 1", true),
    ] {
        let planned = planned(&format!("--workload a {line}"));
        assert_eq!(planned.is_ok(), fine, "{line}");
        assert!(planned.err().is_none_or(|error| error.to_string().contains("--fields")), "{line}");
    }
}

#[test]
fn nonsense_is_refused() {
    for line in [
        "",
        "--workload g",
        "--workload a --field-bytes 7",
        "--workload a --key-bytes 12",
        "--workload a --value-bytes 200 --field-bytes 20",
        "--workload a --engines raw",
        "--workload a --engines pmem,oracle",
    ] {
        assert!(parsed(line).is_none(), "{line}");
    }
}

#[cfg(feature = "rocksdb")]
#[test]
fn rocksdb_syncs_beside_engines_of_single_records_or_if_told_to() {
    let tables = AnyEngineName::Tables(EngineName::Rocksdb);
    let synced = AnyEngineName::Records(RecordEngineName::Rocksdb);
    for (line, expected) in [
        ("--engines vellum,rocksdb", tables),
        ("--engines vellum,rocksdb --rocksdb-sync yes", synced),
        ("--engines pmem,rocksdb", synced),
        ("--engines pmem,rocksdb --rocksdb-sync no", tables),
    ] {
        assert_eq!(parsed(&format!("--workload a {line}")).unwrap().names()[1], expected, "{line}");
    }
    assert!(planned("--workload e --engines vellum,rocksdb --rocksdb-sync yes").is_ok());
}
