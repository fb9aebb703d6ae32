//! The run `lab ycsb`: which engines do which workloads, and as what.

use crate::Result;
use crate::config::{
    AnyEngineName, Contestant, EngineSettings, FIELD_BYTES_MIN, Mix, MixName, Named, RunSettings, Workload,
    YcsbSettings,
};
#[cfg(feature = "rocksdb")]
use crate::config::{Choice, EngineName, RecordEngineName};
use crate::report::reporter::Reporter;
use crate::run::coordinator::{self, Job};

/// What follows from the arguments.
#[derive(Default)]
pub struct Plan {
    /// What is to be done, with which engines.
    pub contests: Vec<(Job, Vec<AnyEngineName>)>,
    /// Remarks on what is left out.
    pub notes: Vec<String>,
}

impl YcsbSettings {
    /// The engines as what they are run.
    pub fn names(&self) -> Vec<AnyEngineName> {
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
            key_bytes: self.key_bytes,
            fields,
            scan_max: self.scan_max,
        };
        Ok(Job::ycsb(workload, self.records, value_bytes))
    }

    /// What follows.
    ///
    /// # Errors
    /// If an engine cannot do a workload that was asked for by name, or records have no equal fields.
    pub fn plan(&self) -> Result<Plan> {
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
            for (mix, ..) in Mix::ALL {
                if matches!(name, MixName::One(one) if one != mix) || mixes.contains(mix) {
                    continue;
                }
                mixes.push(*mix);
            }
        }
        mixes
    }
}

/// Runs the workloads that were asked for, and reports.
///
/// # Errors
/// As [`coordinator::run`], and if an engine cannot do one of the workloads.
pub fn run(
    run: &RunSettings,
    settings: &EngineSettings,
    ycsb: &YcsbSettings,
    reporter: &Reporter,
) -> Result<()> {
    let plan = ycsb.plan()?;
    let contestants = |engines: Vec<_>| engines.into_iter().map(Contestant::from).collect();
    let contests: Vec<_> =
        plan.contests.into_iter().map(|(job, engines)| (job, contestants(engines))).collect();
    coordinator::run(run, settings, &contests, &plan.notes, reporter)
}
