//! Each workload on a table of tuples with each kind of key, with all engines that are always built in. What is read must be
//! what was written: the workloads compare it, and a run fails if it is not.

mod common;

use common::{check_run, lab, notes, objects};
use serde_json::Value;

/// The workloads, with what makes them so.
const WORKLOADS: [(&str, &str); 8] = [
    ("lookup", "--load random"),
    ("lookup", "--batch 16"),
    ("scan", "--load bulk"),
    ("range", "--length 5"),
    ("insert", "--order random"),
    ("update", ""),
    ("delete", ""),
    ("churn", ""),
];

const ENGINES: [&str; 5] = ["vellum", "lmdb", "redb", "fjall", "bf-tree"];

/// Runs a workload on a small table and checks the form of what comes out.
fn run(engines: &[&str], workload: &str, options: &str) -> Vec<(String, Value)> {
    let folder = tempfile::tempdir().unwrap();
    let line = format!(
        "{workload} --engines {} --tuples 3k --seconds 0.02 --rounds 1 --threads 1,2 {options}",
        engines.join(",")
    );
    let objects = objects(folder.path(), &line);
    check_run(&objects, workload, engines, &[1, 2], 1);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left behind");
    objects
}

#[test]
fn every_workload_runs_with_every_kind_of_key() {
    // The others see bytes, of one length or of several.
    let few = ["vellum"];
    for (keys, engines) in [
        ("u64", &ENGINES[..]),
        ("url", &ENGINES),
        ("email", &few),
        ("uuid", &few),
        ("composite", &few),
        ("ycsb", &few),
    ] {
        for (workload, options) in WORKLOADS {
            run(engines, workload, &format!("{options} --keys {keys} --values 20..400 --pool 64MiB"));
        }
    }
}

#[test]
fn keys_of_the_machines_own_files() {
    for keys in ["path", "word"] {
        // Each process looks for them.
        for (workload, options) in
            [("lookup", "--load random"), ("range", ""), ("update", ""), ("delete", "")]
        {
            run(&["vellum"], workload, &format!("{options} --keys {keys} --values 20..400 --pool 64MiB"));
        }
    }
}

#[test]
fn tuples_may_be_chosen_in_other_ways_where_any_are_chosen() {
    for distribution in ["zipf:0.99", "latest"] {
        for (workload, options) in [
            ("lookup", ""),
            ("lookup", "--batch 16"),
            ("range", ""),
            ("scan", "--length 5"),
            ("update", ""),
            ("churn", ""),
        ] {
            let options = format!("{options} --keys email --values 20..400 --pool 64MiB");
            run(&["vellum", "bf-tree"], workload, &format!("{options} --distribution {distribution}"));
        }
    }
    let folder = tempfile::tempdir().unwrap();
    for (line, why) in [
        ("insert", "inserts each tuple once"),
        ("delete --engines vellum", "deletes each tuple once"),
        ("scan", "lab range"),
    ] {
        let refused = lab(folder.path(), &format!("{line} --tuples 1k --distribution zipf:0.99"));
        let error = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(1) && error.contains(why), "{line}: {error}");
    }
}

#[test]
fn every_workload_runs_with_more_data_than_memory() {
    for (workload, options) in WORKLOADS {
        // The data is some ten times as large.
        let options = format!("{options} --tuples 30k --keys url --values 100..500 --pool 1MiB");
        let folder = tempfile::tempdir().unwrap();
        let engines = ["vellum", "bf-tree"];
        let line = format!(
            "{workload} --engines {} --seconds 0.1 --rounds 1 --threads 2 {options}",
            engines.join(",")
        );
        check_run(&objects(folder.path(), &line), workload, &engines, &[2], 1);
    }
}

#[test]
fn ranges_are_counted_as_such_and_are_those_of_a_scan() {
    let per_second = |objects: &[(String, Value)]| {
        let (_, summary) = objects.iter().find(|(_, object)| object["kind"] == "summary").unwrap();
        (summary["ops_per_second"].as_f64().unwrap(), summary["p50_ns"].as_f64().unwrap())
    };
    let line = "--load sequential --length 1000";
    let (tuples, of_tuples) = per_second(&run(&["vellum"], "scan", line));
    let (ranges, of_ranges) = per_second(&run(&["vellum"], "range", line));
    // A range of a thousand is a thousand tuples, or at the end of the table fewer; the machine may be busy in between.
    assert!(tuples > 100.0 * ranges, "{tuples} tuples/s, {ranges} ranges/s");
    assert!(of_tuples < 50.0 * of_ranges && of_ranges < 50.0 * of_tuples, "both latencies are of one range");
}

#[test]
fn what_the_bf_tree_cannot_do_is_said() {
    let folder = tempfile::tempdir().unwrap();
    for (line, why) in [
        ("lookup --values 20..20000", "choose smaller --values"),
        ("update --values 16300 --keys url", "choose smaller --values"),
        ("lookup --pool 4KiB", "a larger --pool"),
        ("insert --durability synced", "--durability no-log"),
        ("lookup --batch 16 --updates 20", "only vellum updates in batches"),
        ("tpcc --warehouses 1", "no records"),
        ("bank", "no records"),
    ] {
        let rest = if line.contains("tpcc") || line.contains("bank") { "" } else { "--tuples 1k" };
        let refused =
            lab(folder.path(), &format!("{line} --engines bf-tree {rest} --seconds 0.05 --rounds 1"));
        let error = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(1) && error.contains(why), "{line}: {error}");
    }
    assert_eq!(lab(folder.path(), "ycsb --workload a --engines bf-tree").status.code(), Some(2));
    // Larger records have larger pages.
    let objects = run(&["bf-tree"], "update", "--values 1000..6000 --pool 64MiB");
    assert!(notes(&objects).iter().any(|note| note.contains("pages of 16.0 KiB")), "{:?}", notes(&objects));
}

#[test]
fn single_records_and_tables_are_not_mixed() {
    let folder = tempfile::tempdir().unwrap();
    for (line, why) in [
        ("update --engines pmem,vellum", "vellum keeps tables"),
        ("get --engines pmem --keys url", "--keys"),
        ("put --engines dashmap --values 20..400", "--values"),
        ("delete --engines vellum --key-bytes 8", "--key-bytes"),
    ] {
        let refused = lab(folder.path(), &format!("{line} --records 1k --seconds 0.05"));
        let error = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(1) && error.contains(why), "{line}: {error}");
    }
    for (command, workload) in [("put", "insert"), ("get", "lookup")] {
        let line =
            format!("{command} --engines vellum,lmdb --records 3k --keys url --seconds 0.05 --rounds 1");
        check_run(&objects(folder.path(), &line), workload, &["vellum", "lmdb"], &[1], 1);
    }
}
