//! The run `lab ycsb`: which engines do which workloads, and as what.

use crate::Result;
use crate::cli::{EngineSettings, RunArguments};
use crate::coordinator::{self, Job};
#[cfg(feature = "rocksdb")]
use crate::engines::Choice;
use crate::engines::records::RecordEngineName;
use crate::engines::{AnyEngineName, EngineName};
use crate::parse;
use crate::protocol::Workload;
use crate::report::Reporter;
use crate::workloads::ycsb::{Distribution, Mix};
use clap::builder::{PossibleValue, PossibleValuesParser, RangedU64ValueParser};
use clap::{Args, ValueEnum};
use std::sync::LazyLock;

/// The smallest field, in bytes.
const FIELD_BYTES_MIN: usize = 8;

/// What `lab ycsb` has.
#[derive(Clone, Debug, Args)]
pub struct YcsbArguments {
    /// The workloads, one after the other, each of which loads anew
    #[arg(long, value_enum, ignore_case = true, value_delimiter = ',', required = true)]
    pub workload: Vec<MixName>,
    /// The engines, in the order of their turns; ratios are of the first to the others
    #[arg(long, value_enum, value_delimiter = ',', default_value = "vellum,lmdb")]
    pub engines: Vec<AnyEngineName>,
    /// Which records are used how often; by default the latest in D, zipfian otherwise
    #[arg(long, value_enum)]
    pub distribution: Option<Distribution>,
    /// Records that are loaded
    #[arg(long, default_value = "1M", value_parser = parse::count)]
    pub records: u64,
    /// The size of each key: 8 or 16
    #[arg(long, default_value = "8", value_parser = PossibleValuesParser::new(["8", "16"]))]
    pub key_bytes: String,
    /// Fields of a record
    #[arg(long, default_value = "10", value_parser = RangedU64ValueParser::<usize>::new().range(1..=1000))]
    pub fields: usize,
    /// The size of each field
    #[arg(long, default_value = "100", value_parser = RangedU64ValueParser::<usize>::new().range(FIELD_BYTES_MIN as u64..=1 << 20))]
    pub field_bytes: usize,
    /// The size of each value, which is a whole record, instead of --field-bytes; dashmap and papaya, where sizes must
    /// be known when the lab is built, have 200 and 1000 bytes, and 8 with keys of 8
    #[arg(long, conflicts_with = "field_bytes", value_parser = RangedU64ValueParser::<usize>::new().range(8..=1 << 20))]
    pub value_bytes: Option<usize>,
    /// The longest scan of E, in records
    #[arg(long, default_value = "100", value_parser = clap::value_parser!(u64).range(1..))]
    pub scan_max: u64,
    /// Whether RocksDB keeps a log and syncs each write, as in `lab put`; auto: if an engine of single records takes part
    #[cfg(feature = "rocksdb")]
    #[arg(long, value_enum, default_value = "auto")]
    pub rocksdb_sync: Choice,
}

/// A workload by name, or all of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MixName {
    /// This one.
    One(Mix),
    /// All of them.
    All,
}

impl ValueEnum for MixName {
    fn value_variants<'a>() -> &'a [Self] {
        static ALL: LazyLock<Vec<MixName>> = LazyLock::new(|| {
            Mix::value_variants().iter().copied().map(MixName::One).chain([MixName::All]).collect()
        });
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        match self {
            Self::One(mix) => mix.to_possible_value(),
            Self::All => {
                Some(PossibleValue::new("all").help("All of them; E only with engines that have an order"))
            }
        }
    }
}

/// The engines of `lab ycsb` on the command line. RocksDB is there once; what it is run as is decided by
/// [`YcsbArguments::names`].
impl ValueEnum for AnyEngineName {
    fn value_variants<'a>() -> &'a [Self] {
        static ALL: LazyLock<Vec<AnyEngineName>> = LazyLock::new(|| {
            let tables =
                EngineName::value_variants().iter().copied().filter(|engine| *engine != EngineName::Raw);
            let mut all: Vec<_> = tables.map(AnyEngineName::Tables).collect();
            for engine in RecordEngineName::value_variants().iter().copied().map(AnyEngineName::Records) {
                if all.iter().all(|other| other.as_str() != engine.as_str()) {
                    all.push(engine);
                }
            }
            all
        });
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        match self {
            Self::Tables(engine) => engine.to_possible_value(),
            Self::Records(engine) => engine.to_possible_value(),
        }
    }
}

/// What follows from the arguments.
#[derive(Default)]
struct Plan {
    /// What is to be done, with which engines.
    contests: Vec<(Job, Vec<AnyEngineName>)>,
    /// Remarks on what is left out.
    notes: Vec<String>,
}

impl YcsbArguments {
    /// The engines as what they are run.
    fn names(&self) -> Vec<AnyEngineName> {
        #[cfg(feature = "rocksdb")]
        if match self.rocksdb_sync {
            Choice::Auto => self.engines.iter().any(|engine| matches!(engine, AnyEngineName::Records(_))),
            choice => choice == Choice::Yes,
        } {
            let synced = |engine: &AnyEngineName| match engine {
                AnyEngineName::Tables(EngineName::Rocksdb) => {
                    AnyEngineName::Records(RecordEngineName::Rocksdb)
                }
                other => *other,
            };
            return self.engines.iter().map(synced).collect();
        }
        self.engines.clone()
    }

    fn job(&self, mix: Mix) -> Result<Job> {
        let fields = self.fields;
        let value_bytes = self.value_bytes.unwrap_or(fields * self.field_bytes);
        if !value_bytes.is_multiple_of(fields) || value_bytes / fields < FIELD_BYTES_MIN {
            return Err(format!(
                "a record of {value_bytes} bytes has no {fields} equal fields of at least {FIELD_BYTES_MIN} bytes; \
                 choose another number of --fields, such as 1"
            )
            .into());
        }
        let workload = Workload::Ycsb {
            mix,
            distribution: self.distribution.unwrap_or(mix.distribution()),
            key_bytes: self.key_bytes.parse()?,
            fields,
            scan_max: self.scan_max,
        };
        Ok(Job::ycsb(workload, self.records, value_bytes))
    }

    /// What follows.
    ///
    /// # Errors
    /// If an engine cannot do a workload that was asked for by name, or records have no equal fields.
    fn plan(&self) -> Result<Plan> {
        let engines = self.names();
        let (ordered, unordered): (Vec<AnyEngineName>, Vec<_>) =
            engines.iter().partition(|engine| engine.is_ordered());
        let named = |mix| self.workload.contains(&MixName::One(mix));
        let mut plan = Plan::default();
        for mix in self.mixes() {
            if !mix.needs_order() || unordered.is_empty() {
                plan.contests.push((self.job(mix)?, engines.clone()));
                continue;
            }
            let names = unordered.iter().map(|engine| engine.as_str()).collect::<Vec<_>>().join(", ");
            if named(mix) {
                return Err(format!(
                    "{} scans records in the order of their keys, and {names} keep them in no order; leave them out, or \
                     leave that workload out, as --workload all does",
                    mix.as_str()
                )
                .into());
            }
            plan.notes
                .push(format!("{} is left out for {names}: they keep records in no order", mix.as_str()));
            if !ordered.is_empty() {
                plan.contests.push((self.job(mix)?, ordered.clone()));
            }
        }
        Ok(plan)
    }

    /// The workloads, each once, in the order in which they are named.
    fn mixes(&self) -> Vec<Mix> {
        let mut mixes = Vec::new();
        for name in &self.workload {
            let named = match name {
                MixName::One(mix) => std::slice::from_ref(mix),
                MixName::All => Mix::value_variants(),
            };
            let new: Vec<Mix> = named.iter().copied().filter(|mix| !mixes.contains(mix)).collect();
            mixes.extend(new);
        }
        mixes
    }
}

/// Runs the workloads that were asked for, and reports.
///
/// # Errors
/// As [`coordinator::run`], and if an engine cannot do one of the workloads.
pub fn run(
    run: &RunArguments,
    settings: &EngineSettings,
    arguments: &YcsbArguments,
    reporter: &Reporter,
) -> Result<()> {
    let plan = arguments.plan()?;
    coordinator::run(run, settings, &plan.contests, &plan.notes, reporter)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn parsed(line: &str) -> Option<YcsbArguments> {
        match Cli::try_parse_from(format!("lab ycsb {line}").split_ascii_whitespace()).ok()?.command {
            Command::Ycsb { ycsb, .. } => Some(ycsb),
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
}
