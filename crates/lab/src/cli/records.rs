//! The options of `lab put`, `get`, `update` and `delete`, which run on engines of single records or on tables.

use super::arguments::{ChoiceArguments, SettingsArguments};
use super::names::{Contestants, key_bytes, named};
use super::parse;
use crate::config::{
    AnyEngineName, Contestant, EngineSettings, KeyKind, Order, RecordEngineName, RecordSettings, Skew,
    TableSettings, ValueSizes,
};
use clap::Args;

/// What runs on records have.
#[derive(Clone, Debug, Args)]
pub struct RecordArguments {
    /// The engines, in the order of their turns; ratios are of the first to the others. All keep single records (pmem,
    /// pmem_variable, dashmap, papaya, and RocksDB beside these), or all keep tables
    #[arg(long, value_parser = Contestants::Any, value_delimiter = ',', default_value = "pmem,dashmap")]
    pub engines: Vec<Contestant>,
    /// Records in the store, or tuples in the table; by default 1M, of a table 10M
    #[arg(long, visible_alias = "tuples", value_parser = parse::count)]
    pub records: Option<u64>,
    /// The size of each value in bytes, by default 200, of a table 120; in a table also MIN..MAX, between which each tuple has
    /// its own. Where sizes must be known when the lab is built (dashmap, papaya), 200 or 1000, and 8 with keys of 8
    #[arg(long, visible_alias = "value-bytes", value_name = "N|MIN..MAX", value_parser = parse::value_sizes)]
    pub values: Option<ValueSizes>,
    /// The size of each key of a single record: 8 or 16, by default 16
    #[arg(long, value_parser = key_bytes())]
    pub key_bytes: Option<usize>,
    /// What keys of a table are made of
    #[arg(long, value_parser = named::<KeyKind>(), default_value = "u64", help_heading = "Of engines that keep tables")]
    pub keys: KeyKind,
    /// The order in which the table is loaded
    #[arg(long, value_parser = named::<Order>(), default_value = "random", help_heading = "Of engines that keep tables")]
    pub load: Order,
    /// Which tuples are used how often.
    #[command(flatten, next_help_heading = "Of engines that keep tables")]
    pub chosen: ChoiceArguments,
    /// What engines are told.
    #[command(flatten, next_help_heading = "Of engines that keep tables")]
    pub settings: SettingsArguments,
}

/// What they come to.
#[derive(Debug)]
pub enum OnRecords {
    /// Engines of single records.
    Single(RecordSettings),
    /// Engines that keep tables.
    Table {
        /// The engines.
        engines: Vec<Contestant>,
        /// What they are told.
        settings: EngineSettings,
        /// The table.
        table: TableSettings,
        /// The order in which it is loaded.
        load: Order,
        /// Which tuples are used how often.
        skew: Skew,
    },
}

impl RecordArguments {
    /// What they ask for.
    ///
    /// # Errors
    /// What cannot be had together.
    pub fn settings(self) -> Result<OnRecords, String> {
        let is_single = |engine: &Contestant| matches!(engine.engine, AnyEngineName::Records(_));
        let may_be_single = |engine: &Contestant| engine.engine.single().is_some();
        if self.engines.iter().any(is_single) || self.engines.iter().all(may_be_single) {
            return self.single().map(OnRecords::Single);
        }
        if self.key_bytes.is_some() {
            return Err("--key-bytes is for engines of single records; a table has --keys".to_owned());
        }
        let Self { engines, records, values, keys, load, chosen, settings, .. } = self;
        let (tuples, values) = (records.unwrap_or(10_000_000), values.unwrap_or(ValueSizes::one(120)));
        let (settings, table) = (settings.settings(), TableSettings { tuples, keys, values });
        Ok(OnRecords::Table { engines, settings, table, load, skew: chosen.distribution })
    }

    /// The same for engines of single records.
    fn single(self) -> Result<RecordSettings, String> {
        let single = |contestant: &Contestant| -> Result<RecordEngineName, String> {
            match contestant.engine.single() {
                Some(engine) if *contestant == Contestant::from(contestant.engine) => Ok(engine),
                _ => Err(format!(
                    "{} keeps tables, or has settings, and others keep single records: they are not compared",
                    contestant.name()
                )),
            }
        };
        let engines = self.engines.iter().map(single).collect::<Result<_, _>>()?;
        let value_bytes = self.values.unwrap_or(ValueSizes::one(200)).same();
        let refused = [
            (self.keys != KeyKind::U64, "--keys: their keys are numbers of --key-bytes 8 or 16"),
            (value_bytes == 0, "--values MIN..MAX: their values have one size"),
            (self.chosen.distribution != Skew::Uniform, "--distribution: they use all records alike"),
        ];
        if let Some((_, what)) = refused.iter().find(|(is_asked, _)| *is_asked) {
            return Err(format!("engines of single records have no {what}"));
        }
        let (records, key_bytes) = (self.records.unwrap_or(1_000_000), self.key_bytes.unwrap_or(16));
        Ok(RecordSettings { engines, records, key_bytes, value_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use crate::config::EngineName;
    use clap::Parser;

    fn asked(line: &str) -> Result<OnRecords, String> {
        let words = format!("lab update {line}");
        match Cli::try_parse_from(words.split_ascii_whitespace()).unwrap().command {
            Command::Update { records, .. } => records.settings(),
            _ => panic!("not an update"),
        }
    }

    #[test]
    fn single_records_have_the_settings_that_they_always_had() {
        let Ok(OnRecords::Single(settings)) = asked("") else { panic!("no single records") };
        assert_eq!(settings.engines, [RecordEngineName::Pmem, RecordEngineName::Dashmap]);
        assert_eq!((settings.records, settings.key_bytes, settings.value_bytes), (1_000_000, 16, 200));
        let line = "--engines papaya --records 2k --key-bytes 8 --value-bytes 1000";
        let Ok(OnRecords::Single(settings)) = asked(line) else { panic!("no single records") };
        assert_eq!((settings.records, settings.key_bytes, settings.value_bytes), (2000, 8, 1000));
    }

    #[test]
    fn tables_have_theirs() {
        let line =
            "--engines vellum@synced,bf-tree --tuples 2k --keys url --values 20..400 --distribution latest";
        let Ok(OnRecords::Table { engines, table, load, skew, .. }) = asked(line) else { panic!("no table") };
        assert_eq!(engines[0].name(), "vellum@synced");
        assert_eq!(engines[1], Contestant::from(EngineName::BfTree));
        assert_eq!(
            (table.tuples, table.keys, table.values),
            (2000, KeyKind::Url, ValueSizes { min: 20, max: 400 })
        );
        assert_eq!((load, skew), (Order::Random, Skew::Latest));
        let Ok(OnRecords::Table { table, .. }) = asked("--engines lmdb") else { panic!("no table") };
        assert_eq!((table.tuples, table.values), (10_000_000, ValueSizes::one(120)));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (line, expected) in [
            ("--engines pmem,vellum", "vellum keeps tables"),
            ("--engines pmem@synced", "pmem@synced"),
            ("--keys url", "--keys"),
            ("--values 20..400", "--values"),
            ("--distribution latest", "--distribution"),
            ("--engines vellum --key-bytes 8", "--key-bytes"),
        ] {
            let error = asked(line).unwrap_err();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }

    #[cfg(feature = "rocksdb")]
    #[test]
    fn rocksdb_is_what_the_others_are() {
        assert!(matches!(asked("--engines pmem,rocksdb"), Ok(OnRecords::Single(_))));
        assert!(matches!(asked("--engines rocksdb"), Ok(OnRecords::Single(_))));
        assert!(matches!(asked("--engines vellum,rocksdb"), Ok(OnRecords::Table { .. })));
    }
}
