//! Runs what the lab measures of transactions, tiny: by clients, in several settings, with a snapshot held, without true
//! conflicts, and after a kill; and how much is written for what is changed. Nothing here asserts speed.

mod common;

use common::{RECORD_ENGINES, check_run, lab, notes, objects};
use serde_json::Value;

/// The statistics of each contestant, in their order.
fn statistics(objects: &[(String, Value)]) -> Vec<&Value> {
    objects.iter().map(|(_, object)| object).filter(|object| object["kind"] == "statistics").collect()
}

#[test]
fn latencies_are_measured_for_each_number_of_clients() {
    let folder = tempfile::tempdir().unwrap();
    let engines = ["vellum-tx", "lmdb"];
    let line = format!(
        "tpcc --engines {} --durability synced --clients 1,4 --warehouses 1 --seconds 0.3 --rounds 1 --pool 256MiB",
        engines.join(",")
    );
    let objects = objects(folder.path(), &line);
    check_run(&objects, "tpcc", &engines, &[1, 1], 1);
    let summaries = objects.iter().filter(|(_, object)| object["kind"] == "summary");
    let clients: Vec<_> = summaries.map(|(_, summary)| summary["clients"].as_u64().unwrap()).collect();
    assert_eq!(clients, [1, 4, 1, 4]);
    let ratios = objects.iter().filter(|(_, object)| object["kind"] == "ratio").map(|(_, ratio)| ratio);
    assert!(
        ratios.clone().all(|ratio| ratio["p99"].as_f64() > Some(0.0) && ratio["p999"].as_f64() > Some(0.0))
    );
    assert!(ratios.clone().any(|ratio| ratio["of_clients"] == 4 && ratio["to_clients"] == 1));
}

#[test]
fn one_engine_takes_part_with_several_settings() {
    let folder = tempfile::tempdir().unwrap();
    let engines = [
        "vellum-tx",
        "vellum-tx@archive",
        "vellum-tx@held",
        "vellum-tx@serializable+checkpoint=1MiB",
        "vellum-tx@no-log+held",
        "vellum-tx@checkpoint=none",
    ];
    let line = format!(
        "transactions --engines {} --durability deferred --records 20k --reads 1 --updates 4 --threads 2 --seconds 0.4 --rounds 2",
        engines.join(",")
    );
    let objects = objects(folder.path(), &line);
    check_run(&objects, "transactions", &engines, &[2], 2);
    let (statistics, notes) = (statistics(&objects), notes(&objects));
    for (engine, statistics) in engines.iter().zip(&statistics) {
        let (counted, writing) = (&statistics["statistics"]["engine"], &statistics["writing"]);
        assert_eq!(counted["log_archived_to"].is_u64(), engine.ends_with("@archive"), "{engine}: {counted}");
        assert_eq!(
            writing["checkpoints"].as_u64() > Some(0),
            engine.ends_with("1MiB"),
            "{engine}: {writing}"
        );
        // Each operation changes four values of 120 bytes.
        assert_eq!(writing["changed_bytes"].as_u64().unwrap(), writing["operations"].as_u64().unwrap() * 480);
        let log = writing["parts"]["log"].as_u64();
        assert!(if engine.contains("no-log") {
            log.is_none()
        } else {
            log > writing["changed_bytes"].as_u64()
        });
        let held =
            notes.iter().filter(|note| note.starts_with(&format!("{engine}: a snapshot was held for ")));
        let versions = held.map(|note| note.split_once("and kept ").unwrap().1.split(' ').next().unwrap());
        let versions: Vec<u64> = versions.map(|count| count.parse().unwrap()).collect();
        assert_eq!(versions.len(), usize::from(engine.contains("held")), "{engine}");
        assert!(versions.iter().all(|count| *count > 0), "{engine}: {versions:?}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left behind");
    for (settings, expected) in [
        ("fast", "\"fast\" is none of no-log, deferred"),
        ("synced+", "\"\" is none of"),
        ("checkpoint=9x", "9x"),
    ] {
        let refused = lab(folder.path(), &format!("transactions --engines vellum-tx@{settings}"));
        let error = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(2) && error.contains(expected), "{settings}: {error}");
    }
    assert_eq!(lab(folder.path(), "lookup --engines vellum@held --tuples 1k").status.code(), Some(1));
}

#[test]
fn who_uses_other_records_of_the_same_leaves_is_not_aborted() {
    let folder = tempfile::tempdir().unwrap();
    let engines = ["vellum-tx@serializable", "vellum-tx@snapshot", "vellum", "lmdb"];
    let line = format!(
        "transactions --disjoint --engines {} --records 1k --threads 1,4 --seconds 0.4 --rounds 1 --durability deferred",
        engines.join(",")
    );
    let objects = objects(folder.path(), &line);
    check_run(&objects, "transactions", &engines, &[1, 4], 1);
    for (engine, statistics) in engines.iter().zip(statistics(&objects)) {
        let counted = &statistics["statistics"]["workload"];
        assert!(counted["transactions"].as_u64() > Some(0), "{engine}: {counted}");
        assert_eq!(counted["conflicts"], 0, "{engine}: {counted}");
    }
    // Where they want the same records they are, or the test above would say nothing.
    let line = "transactions --engines vellum-tx --records 4 --updates 3 --threads 4 --seconds 0.5 --rounds 1 --durability synced";
    let objects = self::objects(folder.path(), line);
    let counted = &statistics(&objects)[0]["statistics"]["workload"];
    assert!(counted["conflicts"].as_u64() > Some(0), "{counted}");
}

#[test]
fn what_is_written_is_compared_with_what_is_changed() {
    let folder = tempfile::tempdir().unwrap();
    let engines = ["vellum", "lmdb"];
    for (command, changed) in [("insert", 8 + 120), ("churn", 8 + 8 + 120)] {
        let line = format!("{command} --engines {} --tuples 20k --rounds 2", engines.join(","));
        let objects = objects(folder.path(), &line);
        for (engine, statistics) in engines.iter().zip(statistics(&objects)) {
            let writing = &statistics["writing"];
            assert_eq!(writing["changed_bytes"], 2 * 20_000 * changed, "{command} {engine}");
            let written = ["written_bytes", "closing_bytes"].map(|field| writing[field].as_u64().unwrap());
            assert!(written.iter().sum::<u64>() > 20_000 * 100, "{command} {engine}: {writing}");
            let remark =
                format!("{engine}: {:.2} bytes written", written[0] as f64 / (40_000 * changed) as f64);
            assert!(notes(&objects).iter().any(|note| note.starts_with(&remark)), "{command}: {remark}");
        }
    }
    // Engines of single records have transactions of one operation.
    let line =
        format!("ycsb --workload a --engines {} --records 2k --seconds 0.05 --rounds 1", RECORD_ENGINES[0]);
    assert!(statistics(&objects(folder.path(), &line))[0]["writing"]["changed_bytes"].as_u64() > Some(0));
}

#[test]
fn recovery_is_measured_by_the_size_of_the_log() {
    let folder = tempfile::tempdir().unwrap();
    for (line, logs) in [
        ("--records 20k --log 2MiB,6MiB --pool 64MiB,1MiB --threads 2", vec![2, 6, 2, 6]),
        ("--warehouses 1 --log 3MiB --pool 256MiB --cold", vec![3]),
    ] {
        let objects = objects(folder.path(), &format!("recovery {line} --rounds 1"));
        let of_kind = |kind: &str| objects.iter().filter(|(_, object)| object["kind"] == kind).count();
        assert_eq!((of_kind("recovery"), of_kind("recovery_summary")), (logs.len(), logs.len()));
        let summaries = objects.iter().filter(|(_, object)| object["kind"] == "recovery_summary");
        for ((_, summary), log) in summaries.zip(logs) {
            assert!(summary["log_bytes"].as_u64() >= Some(log << 20), "{log} MiB: {summary}");
            assert!(summary["log_records"].as_u64() > Some(1000), "{summary}");
            for figure in [
                "open_seconds",
                "redone_seconds",
                "processor_seconds",
                "mib_per_second",
                "clean_open_seconds",
            ] {
                assert!(summary[figure].as_f64() > Some(0.0), "{figure}: {summary}");
            }
        }
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left behind");
}
