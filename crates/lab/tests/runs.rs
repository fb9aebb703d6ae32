//! Runs each workload, tiny, as a user would, and checks the form of what comes out. Nothing here asserts
//! speed.

mod common;

use common::{RECORD_ENGINES, check_run, lab, notes, objects};
use serde_json::Value;

const ENGINES: &str = "vellum,lmdb";
const ENGINE_LIST: [&str; 2] = ["vellum", "lmdb"];

#[test]
fn lookups() {
    let folder = tempfile::tempdir().unwrap();
    for load in ["sequential", "random"] {
        let line = format!(
            "lookup --engines {ENGINES} --tuples 20k --pool 64MiB --seconds 0.2 --rounds 2 --threads 1,2 \
             --load {load}"
        );
        check_run(&objects(folder.path(), &line), "lookup", &ENGINE_LIST, &[1, 2], 2);
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn scans() {
    let folder = tempfile::tempdir().unwrap();
    for length in ["", "--length 100"] {
        let line = format!("scan --engines {ENGINES} --tuples 20_000 --seconds 0.2 --rounds 1 {length}");
        check_run(&objects(folder.path(), &line), "scan", &ENGINE_LIST, &[1], 1);
    }
}

#[test]
fn tables_of_other_keys_values_and_choices() {
    let folder = tempfile::tempdir().unwrap();
    let table = "--tuples 20k --keys url --values 20..400 --seconds 0.1 --rounds 1";
    for (workload, options) in [
        ("lookup", "--distribution zipf:0.99 --load random"),
        ("lookup", "--distribution zipf:0.5 --batch 64 --load bulk"),
        ("scan", ""),
        ("scan", "--length 20 --distribution zipf:0.99"),
        ("insert", "--order random"),
        ("insert", "--order sequential"),
        ("insert", "--order bulk"),
        ("churn", ""),
    ] {
        let line = format!("{workload} --engines {ENGINES} {table} {options}");
        check_run(&objects(folder.path(), &line), workload, &ENGINE_LIST, &[1], 1);
    }
    let refused = lab(folder.path(), &format!("lookup --engines raw {table}"));
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--keys u64"));
}

#[test]
fn the_same_tree_on_a_classic_pool_is_a_contestant() {
    let folder = tempfile::tempdir().unwrap();
    // In memory, and beyond it.
    for pool in ["64MiB", "1MiB"] {
        for (workload, options) in [
            ("lookup", "--load random --keys url"),
            ("lookup", "--batch 64"),
            ("lookup", "--batch 64 --updates 20 --load bulk"),
            ("scan", "--values 20..400"),
            ("scan", "--length 20"),
            ("range", "--length 20"),
            ("insert", "--order random"),
            ("insert", "--order bulk"),
            ("update", "--values 20..400 --keys url"),
            ("delete", "--load sequential"),
            ("churn", ""),
        ] {
            let line = format!(
                "{workload} --engines vellum,hash-table --tuples 20k --pool {pool} --seconds 0.1 --rounds 1 \
                 --threads 1,2 {options}"
            );
            let engines = ["vellum", "hash-table"];
            check_run(&objects(folder.path(), &line), workload, &engines, &[1, 2], 1);
        }
    }
    let refused = lab(folder.path(), "tpcc --engines hash-table --warehouses 1");
    assert_eq!(refused.status.code(), Some(1));
}

#[test]
fn reads_by_a_snapshot_are_compared_with_reads_outside_of_transactions() {
    let folder = tempfile::tempdir().unwrap();
    let engines = ["vellum", "vellum-tx"];
    // In memory, and beyond it.
    for pool in ["64MiB", "1MiB"] {
        for (workload, options) in [
            ("lookup", "--load random"),
            ("lookup", "--batch 64 --keys url --values 20..400"),
            ("lookup", "--durability deferred"),
            ("scan", "--values 20..2000"),
            ("scan", "--length 20"),
        ] {
            let line = format!(
                "{workload} --engines vellum,vellum-tx --tuples 20k --pool {pool} --seconds 0.1 --rounds 1 \
                 --threads 1,2 {options}"
            );
            let objects = objects(folder.path(), &line);
            check_run(&objects, workload, &engines, &[1, 2], 1);
            let said = notes(&objects).iter().any(|note| note.contains("reads by one transaction"));
            assert!(said, "{line}");
        }
    }
    for (line, cure) in [
        ("lookup --batch 64 --updates 20", "--updates"),
        ("insert", "vellum"),
        ("update", "vellum"),
        ("delete", "vellum"),
        ("churn", "vellum"),
    ] {
        let refused = lab(folder.path(), &format!("{line} --engines vellum-tx --tuples 1k --seconds 0.1"));
        assert_eq!(refused.status.code(), Some(1), "{line}");
        assert!(String::from_utf8_lossy(&refused.stderr).contains(cure), "{line}");
    }
}

#[test]
fn one_read_for_each_lookup_is_a_contestant() {
    let folder = tempfile::tempdir().unwrap();
    for (workload, options) in [("lookup", "--load random"), ("lookup", ""), ("scan", ""), ("insert", "")] {
        let line =
            format!("{workload} --engines raw,vellum --tuples 20k --seconds 0.1 --rounds 2 --threads 1,2");
        let objects = objects(folder.path(), &format!("{line} {options}"));
        check_run(&objects, workload, &["raw", "vellum"], &[1, 2], 2);
    }
    for workload in ["churn", "update", "delete"] {
        let refused = lab(folder.path(), &format!("{workload} --engines raw --tuples 1k"));
        assert_eq!(refused.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&refused.stderr).contains("nothing is changed or removed"));
    }
}

#[test]
fn inserts() {
    let folder = tempfile::tempdir().unwrap();
    for order in ["sequential", "random"] {
        let line =
            format!("insert --engines {ENGINES} --tuples 20k --rounds 3 --order {order} --threads 1,2");
        let objects = objects(folder.path(), &line);
        check_run(&objects, "insert", &ENGINE_LIST, &[1, 2], 3);
        let tuples = objects.iter().filter(|(_, object)| object["kind"] == "round");
        assert!(tuples.map(|(_, round)| &round["operations"]).all(|operations| operations == 20_000));
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left behind");
}

/// Runs vellum with `--check` and gives the data size in bytes and the pages evicted.
fn checked(line: &str) -> (u64, u64) {
    let folder = tempfile::tempdir().unwrap();
    let line = format!("{line} --engines vellum --seconds 0.2 --rounds 1 --check");
    let objects = objects(folder.path(), &line);
    let (_, statistics) = objects.iter().find(|(_, object)| object["kind"] == "statistics").unwrap();
    let counted = &statistics["statistics"];
    // Workloads on records count something about themselves, too.
    let evicted = &counted.get("engine").unwrap_or(counted)["pages_evicted"];
    (statistics["data_bytes"].as_u64().unwrap(), evicted.as_u64().unwrap())
}

#[test]
fn much_more_data_than_memory_stays_within_the_limit() {
    for line in ["lookup --threads 2", "insert --order sequential --threads 2"] {
        let (data_bytes, pages_evicted) = checked(&format!("{line} --tuples 1.2M --pool 4MiB"));
        // So much that the fixed allowance cannot hide a pool that does not evict.
        assert!(data_bytes > 2 * ((4 << 20) + (64 << 20)), "{line}: {data_bytes}");
        assert!(pages_evicted > 10_000, "{line}: {pages_evicted}");
    }
}

#[test]
fn every_workload_runs_with_more_data_than_pool() {
    for line in
        ["lookup --load random", "scan", "scan --length 10", "insert --order random --threads 2", "churn"]
    {
        let (data_bytes, pages_evicted) = checked(&format!("{line} --tuples 20k --pool 512KiB"));
        assert!(data_bytes > 4 * (512 << 10), "{line}: {data_bytes}");
        assert!(pages_evicted > 1000, "{line}: {pages_evicted}");
    }
}

#[test]
fn churn() {
    let folder = tempfile::tempdir().unwrap();
    let line = format!("churn --engines {ENGINES} --tuples 20k --rounds 2");
    let objects = objects(folder.path(), &line);
    check_run(&objects, "churn", &ENGINE_LIST, &[1], 2);
    for (_, statistics) in objects.iter().filter(|(_, object)| object["kind"] == "statistics") {
        assert!(statistics["data_bytes_loaded"].as_u64().unwrap() > 20_000 * 100);
        assert!(statistics["data_bytes"].as_u64() >= statistics["data_bytes_loaded"].as_u64());
    }
}

#[test]
fn both_ways_of_lmdb_to_write_do_the_same_work() {
    let folder = tempfile::tempdir().unwrap();
    for choice in ["yes", "no"] {
        let line = format!("insert --engines lmdb --tuples 20k --rounds 1 --lmdb-write-map {choice}");
        check_run(&objects(folder.path(), &line), "insert", &["lmdb"], &[1], 1);
    }
}

#[test]
fn tpcc() {
    let folder = tempfile::tempdir().unwrap();
    let line = format!("tpcc --engines {ENGINES} --warehouses 2 --seconds 0.3 --rounds 1 --threads 1,3");
    let objects = objects(folder.path(), &line);
    check_run(&objects, "tpcc", &ENGINE_LIST, &[1, 3], 1);
    for (engine, (_, statistics)) in
        ENGINE_LIST.iter().zip(objects.iter().filter(|(_, object)| object["kind"] == "statistics"))
    {
        let kinds = statistics["statistics"]["workload"].as_object().unwrap();
        assert_eq!((statistics["engine"].as_str(), kinds.len()), (Some(*engine), 5));
        let count: u64 = kinds.values().map(|kind| kind["count"].as_u64().unwrap()).sum();
        // The rounds and the warming up.
        let of_engine =
            |(_, object): &&(String, Value)| object["kind"] == "round" && object["engine"] == *engine;
        let rounds = objects.iter().filter(of_engine).map(|(_, round)| round["operations"].as_u64().unwrap());
        assert!(count > rounds.sum());
        let checked = |(_, object): &(String, Value)| {
            let text = object["text"].as_str().unwrap_or_default();
            text.starts_with(&format!("{engine}: checked at the end: conditions 1 to 10 and 12"))
        };
        assert!(objects.iter().any(checked), "{engine}");
    }
    assert_eq!(lab(folder.path(), "tpcc --engines raw --warehouses 1").status.code(), Some(1));
}

#[test]
fn many_clients_wait_for_commits_that_are_durable() {
    let folder = tempfile::tempdir().unwrap();
    let engines = ["vellum-tx", "lmdb", "redb", "fjall"];
    let line = format!(
        "tpcc --engines {} --durability synced --clients 8 --warehouses 1 --threads 1,2 --seconds 0.3 --rounds 1 --pool 256MiB",
        engines.join(",")
    );
    let objects = objects(folder.path(), &line);
    check_run(&objects, "tpcc", &engines, &[1, 2], 1);
    let notes = notes(&objects);
    for engine in engines {
        let checked = format!("{engine}: checked at the end: conditions 1 to 10 and 12");
        assert!(notes.iter().any(|note| note.starts_with(&checked)), "{engine}");
    }
    // Clients wait beside each other, so a sync is for several: most of those that wait when it begins, and some that come later.
    let mut of_engine = notes.iter().filter_map(|note| note.strip_prefix("vellum-tx: "));
    let note = of_engine.find(|note| note.contains(" bytes of log a transaction, ")).unwrap();
    let number = |before: &str, after: &str| -> f64 {
        let (_, rest) = note.split_once(before).unwrap_or_else(|| panic!("no {before:?} in {note}"));
        let (number, _) = rest.split_once(after).unwrap_or_else(|| panic!("no {after:?} in {note}"));
        number.parse().unwrap_or_else(|_| panic!("{number:?} is no number in {note}"))
    };
    let commits = number(" bytes of log a transaction, ", " commits a sync, ");
    assert!(commits > 1.0, "{note}");
    let share = number(" commits a sync, which acknowledged ", " of the ");
    assert!(0.0 < share && share <= 1.0, "{note}");
    let began_with = number(" of the ", " that waited when it began, ");
    // Two threads have eight clients each. Each commit is acknowledged once; records that a checkpoint waits for are few.
    assert!(0.0 < began_with && began_with <= 16.0 && share * began_with < 1.1 * commits, "{note}");
    let waiting = number(" that waited when it began, ", " clients of a thread waiting at a commit");
    assert!((1.0..=8.0).contains(&waiting), "{note}");
}

#[test]
fn many_clients_work_with_eight_times_as_much_data_as_memory() {
    let folder = tempfile::tempdir().unwrap();
    let engines = ["vellum-tx@synced", "vellum-tx@no-log"];
    let line = format!(
        "tpcc --engines {} --clients 64 --warehouses 1 --pool 11MiB --threads 1,2 --seconds 0.5 --rounds 1",
        engines.join(",")
    );
    let objects = objects(folder.path(), &line);
    check_run(&objects, "tpcc", &engines, &[1, 2], 1);
    for (_, statistics) in objects.iter().filter(|(_, object)| object["kind"] == "statistics") {
        assert!(statistics["data_bytes"].as_u64().unwrap() > 8 * (11 << 20), "{statistics}");
        assert!(
            statistics["statistics"]["engine"]["pages_evicted"].as_u64().unwrap() > 10_000,
            "{statistics}"
        );
    }
}

#[test]
fn an_engine_takes_part_with_several_durabilities() {
    let folder = tempfile::tempdir().unwrap();
    let engines =
        ["vellum-tx@buffered", "vellum-tx@synced", "redb", "fjall", "fjall@buffered", "lmdb@synced"];
    let line =
        format!("bank --engines {} --accounts 20 --seconds 0.2 --rounds 2 --threads 2", engines.join(","));
    let objects = objects(folder.path(), &line);
    check_run(&objects, "bank", &engines, &[2], 2);
    let notes = notes(&objects);
    for engine in engines {
        let checked = format!("{engine}: checked at the end: the sum of all accounts");
        assert!(notes.iter().any(|note| note.starts_with(&checked)), "{engine}");
    }
    assert!(notes.iter().any(|note| note.starts_with("lmdb@synced: each commit synced")));
}

#[test]
fn commits_are_compared_with_raw_writes() {
    let folder = tempfile::tempdir().unwrap();
    let methods = ["transactions", "log", "raw"];
    for rest in ["", "--record-bytes 5000"] {
        let line =
            format!("log --methods {} --threads 1,2 --seconds 0.1 --rounds 2 {rest}", methods.join(","));
        let objects = objects(folder.path(), &line);
        assert_eq!(objects.iter().filter(|(_, object)| object["kind"] == "round").count(), 3 * 2 * 2);
        let summaries = objects.iter().filter(|(_, object)| object["kind"] == "summary");
        assert!(
            summaries
                .map(|(_, summary)| summary["bytes_written"].as_u64().unwrap())
                .all(|bytes| bytes > 4096)
        );
    }
}

#[test]
fn bank_and_queue() {
    let folder = tempfile::tempdir().unwrap();
    let (engines, rest) = (["vellum", "vellum-tx", "lmdb"], "--seconds 0.3 --rounds 1 --threads 1,3");
    for (workload, settings) in
        [("bank", "--accounts 20"), ("queue", "--records 500"), ("queue", "--records 500 --snapshot")]
    {
        for isolation in ["snapshot", "serializable"] {
            let line = format!(
                "{workload} --engines {} {settings} --isolation {isolation} {rest}",
                engines.join(",")
            );
            check_run(&objects(folder.path(), &line), workload, &engines, &[1, 3], 1);
        }
    }
}

#[test]
fn tpcc_with_much_more_data_than_memory_stays_consistent_and_within_the_limit() {
    let (data_bytes, pages_evicted) = checked("tpcc --warehouses 1 --threads 2 --pool 2MiB");
    assert!(data_bytes > 64 << 20, "{data_bytes}");
    assert!(pages_evicted > 10_000, "{pages_evicted}");
}

#[test]
fn ycsb() {
    let folder = tempfile::tempdir().unwrap();
    for workload in ["a", "b", "c", "d", "e", "f"] {
        for options in ["", "--distribution uniform --fields 4 --field-bytes 500"] {
            let line = format!(
                "ycsb --workload {workload} --engines {ENGINES} --records 2k --seconds 0.05 --rounds 1 \
                 --threads 1,2 {options}"
            );
            let objects = objects(folder.path(), &line);
            check_run(&objects, &format!("ycsb_{workload}"), &ENGINE_LIST, &[1, 2], 1);
        }
    }
    let (_, pages_evicted) = checked("ycsb --workload a --records 20k --threads 2 --pool 1MiB");
    assert!(pages_evicted > 1000, "{pages_evicted}");
}

#[test]
fn ycsb_on_engines_of_single_records() {
    let folder = tempfile::tempdir().unwrap();
    let rest = "--records 2k --seconds 0.05 --rounds 1 --threads 1,2";
    let engines = RECORD_ENGINES.join(",");
    for options in ["--key-bytes 16 --value-bytes 200", "--distribution uniform"] {
        let line = format!("ycsb --workload all --engines {engines} {options} {rest}");
        let objects = objects(folder.path(), &line);
        assert!(
            notes(&objects).iter().any(|note| note.starts_with("ycsb_e is left out for pmem, pmem_variable"))
        );
        for workload in ["a", "b", "c", "d", "f"].map(|mix| format!("ycsb_{mix}")) {
            let of_workload = |(_, object): &&(String, Value)| object["workload"] == workload.as_str();
            let of_workload: Vec<_> = objects.iter().filter(of_workload).cloned().collect();
            check_run(&of_workload, &workload, &RECORD_ENGINES, &[1, 2], 1);
        }
        for engine in RECORD_ENGINES {
            let checked = format!("{engine}: checked at the end: all ");
            assert_eq!(
                notes(&objects).iter().filter(|note| note.starts_with(&checked)).count(),
                5,
                "{engine}"
            );
        }
    }
    // Beside an engine of tables, with the same records.
    let line = format!("ycsb --workload f --engines lmdb,papaya --key-bytes 16 --value-bytes 200 {rest}");
    check_run(&objects(folder.path(), &line), "ycsb_f", &["lmdb", "papaya"], &[1, 2], 1);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn what_an_engine_of_single_records_cannot_do_is_said() {
    let folder = tempfile::tempdir().unwrap();
    for (line, expected) in [
        ("--workload e --engines pmem", "ycsb_e scans records in the order of their keys, and pmem keep"),
        (
            "--workload a --engines dashmap --value-bytes 300",
            "use --key-bytes 8 or 16 with --value-bytes 200",
        ),
    ] {
        let output = lab(folder.path(), &format!("ycsb --records 1k --seconds 0.05 {line}"));
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && error.contains(expected), "{line}: {error}");
    }
    let output = lab(folder.path(), "tpcc --engines pmem");
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn single_records() {
    let folder = tempfile::tempdir().unwrap();
    for workload in ["put", "get", "update", "delete"] {
        let line = format!(
            "{workload} --engines {} --records 2k --seconds 0.05 --rounds 1 --threads 1,2",
            RECORD_ENGINES.join(",")
        );
        check_run(&objects(folder.path(), &line), workload, &RECORD_ENGINES, &[1, 2], 1);
    }
}

/// Engines that need features do the same work as the others.
#[cfg(any(feature = "sqlite", feature = "rocksdb"))]
#[test]
fn engines_behind_features() {
    let built = [
        #[cfg(feature = "sqlite")]
        "sqlite",
        #[cfg(feature = "rocksdb")]
        "rocksdb",
    ];
    for engine in built {
        let folder = tempfile::tempdir().unwrap();
        let rest = format!("--engines {engine} --seconds 0.3 --rounds 1 --threads 1,2");
        for (workload, options) in [
            ("tpcc", "--warehouses 1"),
            ("ycsb_a", "--workload a --records 2k"),
            ("ycsb_d", "--workload d --records 2k"),
            ("ycsb_e", "--workload e --records 2k"),
            ("lookup", "--tuples 20k"),
            ("scan", "--tuples 20k"),
            ("insert", "--tuples 20k"),
            ("range", "--tuples 20k --keys url --values 20..400"),
            ("update", "--tuples 20k --keys url --values 20..400"),
            ("delete", "--tuples 20k --keys url --values 20..400"),
            ("churn", "--tuples 20k"),
        ] {
            // Alone it is run on single records by these two.
            let is_single = engine == "rocksdb" && ["update", "delete"].contains(&workload);
            let (rest, engines) = if is_single {
                (rest.replace(engine, "rocksdb,vellum"), vec![engine, "vellum"])
            } else {
                (rest.clone(), vec![engine])
            };
            let command = workload.split('_').next().unwrap();
            let objects = objects(folder.path(), &format!("{command} {options} {rest}"));
            check_run(&objects, workload, &engines, &[1, 2], 1);
        }
        // With a single thread SQLite holds its locks.
        let line = format!("tpcc --engines {engine} --warehouses 1 --seconds 0.3 --rounds 1");
        check_run(&objects(folder.path(), &line), "tpcc", &[engine], &[1], 1);
        // Many clients, each of which waits until its commit is synced; and a snapshot beside them.
        let held = format!("{engine}@held");
        let line = format!(
            "tpcc --engines {engine},{held} --durability synced --clients 1,16 --warehouses 1 --seconds 0.3 --rounds 1"
        );
        check_run(&objects(folder.path(), &line), "tpcc", &[engine, &held], &[1, 1], 1);
    }
}

#[test]
fn evictions() {
    let folder = tempfile::tempdir().unwrap();
    let line = "evict --methods madvise --pool 64MiB --seconds 0.2 --rounds 2 --threads 1,2";
    check_run(&objects(folder.path(), line), "evict", &["madvise"], &[1, 2], 2);
    // Which of the others there are depends on the kernel; those that are missing are named.
    let objects = objects(folder.path(), "evict --pool 64MiB --seconds 0.05 --rounds 1");
    for method in ["madvise", "process_madvise", "exmap"] {
        let measured = objects.iter().any(|(_, o)| o["kind"] == "summary" && o["engine"] == method);
        let left_out = objects.iter().any(|(_, o)| {
            o["kind"] == "note" && o["text"].as_str().unwrap().starts_with(&format!("{method} is left out"))
        });
        assert!(measured != left_out, "{method}");
    }
}

#[test]
fn reads() {
    let folder = tempfile::tempdir().unwrap();
    let line = "io --size 64MiB --pool 4MiB --depth 16 --seconds 0.2 --rounds 2";
    let methods = ["blocking", "uring_fixed", "uring_pool", "sequential"];
    let first = objects(folder.path(), line);
    check_run(&first, "io", &methods, &[1], 2);
    // The file stays in the folder that was given, and the second run uses it.
    let second = objects(folder.path(), line);
    check_run(&second, "io", &methods, &[1], 2);
    let load = |objects: &[(String, Value)]| objects.last().unwrap().1["load_seconds"].as_f64().unwrap();
    assert!(load(&first) > 0.0 && load(&second) == 0.0);
}

#[test]
fn people_get_tables() {
    let folder = tempfile::tempdir().unwrap();
    let output =
        lab(folder.path(), "lookup --engines lmdb --tuples 1k --seconds 0.05 --rounds 1 --threads 1,2");
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    for word in ["engine", "ops/s", "p99.9", "lmdb 2 threads / lmdb 1 thread"] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn failures_have_exit_codes_and_reasons() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    let output = lab(&missing, "lookup --engines lmdb --tuples 1k");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("missing"));
    assert_eq!(lab(folder.path(), "lookup --engines none").status.code(), Some(2));
    assert_eq!(lab(folder.path(), "lookup --engines lmdb --check").status.code(), Some(1));
    assert_eq!(lab(folder.path(), "io --size 64KiB --seconds 0.05").status.code(), Some(1));
}

#[test]
fn the_manifest_is_one_object() {
    let folder = tempfile::tempdir().unwrap();
    let output = lab(folder.path(), "manifest");
    let manifest: Value = serde_json::from_slice(&output.stdout).unwrap();
    for field in ["cpu_model", "cpu_count", "memory_bytes", "kernel", "file_system", "date"] {
        assert!(!manifest[field].is_null() || field == "cpu_model", "{field}");
    }
}
