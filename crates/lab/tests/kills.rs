//! TPC-C whose process is killed: its consistency conditions hold in what recovery makes of it.

use serde_json::Value;
use std::process::Command;

#[test]
fn the_conditions_of_tpcc_hold_after_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let rounds = std::env::var("VELLUM_ROUNDS").unwrap_or_else(|_| "1".to_owned());
    for durability in ["buffered", "deferred"] {
        let output = Command::new(env!("CARGO_BIN_EXE_lab"))
            .args([
                "tpcc",
                "--kill",
                "--warehouses",
                "1",
                "--threads",
                "2",
                "--seconds",
                "1",
                "--pool",
                "64MiB",
            ])
            .args(["--checkpoint-log", "8MiB", "--json", "--durability", durability, "--rounds", &rounds])
            .arg("--dir")
            .arg(folder.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{durability}: {}", String::from_utf8_lossy(&output.stderr));
        let output = String::from_utf8(output.stdout).unwrap();
        let objects = output.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let kills: Vec<Value> = objects.filter(|object| object["kind"] == "kill").collect();
        assert_eq!(kills.len(), rounds.parse::<usize>().unwrap(), "{output}");
        assert!(kills.iter().all(|kill| kill["log_records"].as_u64() > Some(0)), "{output}");
        println!("{durability}: {kills:?}");
    }
}
