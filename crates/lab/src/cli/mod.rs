//! The command line: what it understands becomes settings, and nothing below knows of it.

mod arguments;
mod names;
mod parse;
mod records;
#[cfg(test)]
mod ycsb_tests;

pub use arguments::{ChoiceArguments, EngineArguments, RunArguments, TableArguments};
pub use records::{OnRecords, RecordArguments};

use crate::config::Order;
use arguments::{
    BatchArguments, EvictArguments, IoArguments, LogArguments, Oo7Arguments, RecoveryArguments,
    SettingsArguments, TransactionArguments, YcsbArguments,
};
use clap::builder::RangedU64ValueParser;
use clap::{Parser, Subcommand};
use names::named;
use std::path::PathBuf;

/// Measures Vellum beside other engines, and what the kernel and the device give at best.
#[derive(Debug, Parser)]
#[command(
    name = "lab",
    version,
    after_help = "Each command runs its contestants in turn, for several rounds, and reports medians and \
                  ratios; with --json one object a line, the manifest of the machine first and one summary \
                  a contestant last.\n\n\
                  Exit codes: 0 success, 1 a failure, 2 wrong usage, 3 a check that did not hold."
)]
pub struct Cli {
    /// What to measure.
    #[command(subcommand)]
    pub command: Command,
}

/// What to measure.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Point lookups of random keys, one by one or in batches
    #[command(after_help = "Examples:\n  lab lookup --engines vellum,lmdb --tuples 10M --threads 1,2\n  \
                            lab lookup --engines vellum --tuples 10M --pool 200MiB --check\n  \
                            lab lookup --engines vellum,lmdb --tuples 10M --batch 64\n  \
                            lab lookup --engines vellum-tx,vellum --tuples 2M --batch 64\n  \
                            lab lookup --engines vellum --tuples 10M --pool 176MiB --batch 256 --updates 20\n  \
                            lab lookup --tuples 3M --keys url --values 40..300 --distribution zipf:0.99 --load random")]
    Lookup {
        /// What all runs have.
        #[command(flatten)]
        run: RunArguments,
        /// What runs with engines have.
        #[command(flatten)]
        engines: EngineArguments,
        /// The table.
        #[command(flatten)]
        table: TableArguments,
        /// What runs in batches have.
        #[command(flatten)]
        batch: BatchArguments,
        /// The order in which the table is loaded
        #[arg(long, value_parser = named::<Order>(), default_value = "sequential")]
        load: Order,
        /// Which tuples are used how often.
        #[command(flatten)]
        chosen: ChoiceArguments,
    },
    /// Scans in key order, whole or of a few tuples; operations are tuples
    #[command(after_help = "Examples:\n  lab scan --tuples 10M\n  lab scan --tuples 10M --length 100\n  \
                            lab scan --tuples 700k --keys url --values 300 --length 20 --distribution zipf:0.99")]
    Scan {
        /// What all runs have.
        #[command(flatten)]
        run: RunArguments,
        /// What runs with engines have.
        #[command(flatten)]
        engines: EngineArguments,
        /// The table.
        #[command(flatten)]
        table: TableArguments,
        /// The order in which the table is loaded
        #[arg(long, value_parser = named::<Order>(), default_value = "sequential")]
        load: Order,
        /// Tuples a scan, from random keys; without it the whole table is scanned again and again
        #[arg(long, value_parser = parse::count)]
        length: Option<u64>,
        /// Which tuples are used how often.
        #[command(flatten)]
        chosen: ChoiceArguments,
    },
    /// Ranges of a few tuples from random keys; operations are ranges
    #[command(after_help = "The ranges are those of `lab scan --length N`, which counts tuples.\n\n\
                            Examples:\n  lab range --tuples 1M --keys url --values 20..400\n  \
                            lab range --length 100 --keys email --distribution zipf:0.99 --engines vellum,lmdb,bf-tree")]
    Range {
        /// What all runs have.
        #[command(flatten)]
        run: RunArguments,
        /// What runs with engines have.
        #[command(flatten)]
        engines: EngineArguments,
        /// The table.
        #[command(flatten)]
        table: TableArguments,
        /// The order in which the table is loaded
        #[arg(long, value_parser = named::<Order>(), default_value = "sequential")]
        load: Order,
        /// Tuples a range; fewer at the end of the table
        #[arg(long, value_parser = parse::count, default_value = "20")]
        length: u64,
        /// Where ranges begin.
        #[command(flatten)]
        chosen: ChoiceArguments,
    },
    /// Insertion of a whole table, anew in each round
    #[command(
        after_help = "With --order bulk each engine loads sorted input in the way that it recommends, and the ratio to its \
                            own sequential inserts is printed.\n\n\
                            Examples:\n  lab insert --engines vellum,lmdb --tuples 10M --order random\n  \
                            lab insert --engines vellum,lmdb --tuples 10M --pool 6GiB --order bulk"
    )]
    Insert {
        /// What all runs have.
        #[command(flatten)]
        run: RunArguments,
        /// What runs with engines have.
        #[command(flatten)]
        engines: EngineArguments,
        /// The table.
        #[command(flatten)]
        table: TableArguments,
        /// The order of the keys
        #[arg(long, value_parser = named::<Order>(), default_value = "random")]
        order: Order,
        /// Refused unless all tuples are alike: each is inserted once.
        #[command(flatten)]
        chosen: ChoiceArguments,
    },
    /// Deletes and re-inserts of all tuples with other sizes, and how much the data grows
    #[command(after_help = "Example:\n  lab churn --engines vellum --tuples 10M --rounds 1 --check")]
    Churn {
        /// What all runs have.
        #[command(flatten)]
        run: RunArguments,
        /// What runs with engines have.
        #[command(flatten)]
        engines: EngineArguments,
        /// The table.
        #[command(flatten)]
        table: TableArguments,
        /// The order in which the table is loaded
        #[arg(long, value_parser = named::<Order>(), default_value = "random")]
        load: Order,
        /// Which tuples are replaced how often: each once, or as many as there are, drawn at random.
        #[command(flatten)]
        chosen: ChoiceArguments,
    },
    /// TPC-C: the five transactions in the mix of the specification, without waiting; operations are transactions
    #[command(
        after_help = "Operations are transactions of all five types, of which 45 in 100 are new-orders. Nobody \
                            waits between them, and vellum's transactions (not those of vellum-tx) are series of \
                            atomic operations, so these are no results in the sense of the TPC. Conditions 1 to 12 of the \
                            specification's clause 3.3.2 are checked after loading and at the end, with exit code \
                            3 if one does not hold.\n\n\
                            Examples:\n  lab tpcc --warehouses 4 --threads 1,2 --engines vellum,lmdb\n  \
                            lab tpcc --warehouses 1 --engines vellum --pool 32MiB --seconds 10 --check\n  \
                            lab tpcc --engines vellum-tx,redb,fjall,lmdb --durability synced --clients 64\n  \
                            lab tpcc --engines vellum-tx --durability synced --clients 1,4,16,64\n  \
                            lab tpcc --engines vellum-tx@snapshot,vellum-tx@serializable --durability deferred\n  \
                            lab tpcc --engines vellum-tx@checkpoint=none,vellum-tx@checkpoint=64MiB,vellum-tx@archive --durability synced --clients 64\n  \
                            lab tpcc --warehouses 1 --threads 2 --kill --durability buffered"
    )]
    Tpcc {
        /// What all runs have.
        #[command(flatten)]
        run: RunArguments,
        /// What runs with engines have.
        #[command(flatten)]
        engines: EngineArguments,
        /// Warehouses, of about 100 MB each
        #[arg(long, default_value = "4", value_parser = clap::value_parser!(u32).range(1..=10_000))]
        warehouses: u32,
        /// Clients a thread, each of which waits for the acknowledgement of its commit, or several numbers, each of which is
        /// measured. vellum-tx goes on with the next client
        /// meanwhile, and waits only if every client does; with the other engines each client is a thread of its own
        #[arg(long, default_value = "1", value_delimiter = ',', value_parser = RangedU64ValueParser::<usize>::new().range(1..=1024))]
        clients: Vec<usize>,
        /// Kills the process of vellum-tx in each round, within the seconds of a round, opens what it has left, and checks it
        #[arg(long, conflicts_with = "clients")]
        kill: bool,
    },
    /// Transactions that read and change a few random records; operations are transactions
    #[command(
        after_help = "All records are checked at the end, with exit code 3 if one is missing or was changed more or less often than \
                      was committed. A transaction that conflicts is run again, and its time counts.\n\n\
                      Examples:\n  lab transactions --engines vellum-tx,vellum-tx@held --durability synced --threads 64\n  \
                      lab transactions --engines vellum-tx@serializable --disjoint --threads 8\n  \
                      lab transactions --engines vellum-tx,redb,fjall --reads 4 --updates 2 --durability buffered"
    )]
    Transactions {
        /// What all runs have.
        #[command(flatten)]
        run: RunArguments,
        /// What runs with engines have.
        #[command(flatten)]
        engines: EngineArguments,
        /// What this run has.
        #[command(flatten)]
        records: TransactionArguments,
    },
    /// How long it takes to open what a killed process has left, by how much log there is (vellum-tx)
    #[command(
        after_help = "In each round a process fills the tables, takes a checkpoint, works until there is so much log, and is killed. \
                      Then the database is opened, checked, closed, and opened again. Exit code 3 if something that was \
                      stored is not as it should be.\n\n\
                      Examples:\n  lab recovery --log 128MiB,512MiB,1GiB --warehouses 4\n  \
                      lab recovery --log 256MiB --records 10M --pool 4GiB,200MiB --cold --rounds 1\n  \
                      lab recovery --log 1MiB --records 64M --rounds 1    (a clean open of 10 GiB)"
    )]
    Recovery {
        /// What all runs have.
        #[command(flatten)]
        run: RunArguments,
        /// What this run has.
        #[command(flatten)]
        recovery: RecoveryArguments,
    },
    /// Transfers between accounts, a few of which everybody wants, and looks at all of them; operations are transactions
    #[command(
        after_help = "The sum of all accounts is checked at the end, and by engines with transactions at each look, with exit \
                      code 3 if it is wrong. A transaction that conflicts is run again, and its time counts.\n\n\
                      Examples:\n  lab bank --engines vellum-tx,lmdb --accounts 10 --threads 1,2\n  \
                      lab bank --engines vellum-tx --isolation serializable --durability buffered"
    )]
    Bank {
        /// What all runs have.
        #[command(flatten)]
        run: RunArguments,
        /// What runs with engines have.
        #[command(flatten)]
        engines: EngineArguments,
        /// Accounts; the fewer, the more transfers want the same
        #[arg(long, default_value = "1000", value_parser = clap::value_parser!(u32).range(2..=100_000_000))]
        accounts: u32,
    },
    /// Queues: each thread appends a record to its own and removes the first; operations are transactions
    #[command(
        after_help = "The records of all queues are checked at the end, with exit code 3 if one is missing or one too many. With \
                      --snapshot a transaction is held open in each round, and must see the queues as they were.\n\n\
                      Example:\n  lab queue --engines vellum-tx,lmdb --records 100k --snapshot --seconds 60"
    )]
    Queue {
        /// What all runs have.
        #[command(flatten)]
        run: RunArguments,
        /// What runs with engines have.
        #[command(flatten)]
        engines: EngineArguments,
        /// Records of a queue
        #[arg(long, default_value = "10k", value_parser = parse::count)]
        records: u64,
        /// Whether a transaction is held open meanwhile
        #[arg(long)]
        snapshot: bool,
    },
    /// The traversals and queries of OO7 on objects that refer to each other
    #[command(
        after_help = "A database of one module (Carey, DeWitt, Naughton 1993): 729 base assemblies of three of 500 composite parts, each \
                      with 20 or 200 atomic parts of three connections. Each operation is done once by each contestant in a \
                      round, after a round that does not count; what it counts is checked, with exit code 3 if that is wrong. \
                      --seconds and --threads mean nothing here. With --memory-limit each operation is done twice in each process: \
                      cold, from an empty memory, and warm, again.\n\n\
                      Examples:\n  lab oo7 --engines memory,heap --operations t1,t6 --rounds 20\n  \
                      lab oo7 --size medium --pool 16MiB --engines texas-drop,heap,heap-ahead --operations t1,t1-sparse\n  \
                      lab oo7 --size medium --memory-limit 16MiB --engines texas,texas-free,heap --operations t1 --rounds 3"
    )]
    Oo7 {
        /// What all runs have.
        #[command(flatten)]
        run: RunArguments,
        /// What this run has.
        #[command(flatten)]
        oo7: Oo7Arguments,
    },
    /// The workloads A to F of YCSB on records of several fields
    #[command(
        after_help = "Engines that keep tables (vellum, lmdb and so on) make nothing durable meanwhile. Those of single \
                      records are run as by `lab put`: pmem and pmem_variable make each operation durable, dashmap and papaya \
                      nothing ever. These four have no order: E is refused for them, and left out of `--workload all`. \
                      RocksDB is among both kinds if it is built in.\n\n\
                      Examples:\n  lab ycsb --workload a --records 1M --threads 1,2\n  \
                      lab ycsb --workload e --distribution uniform --engines vellum,lmdb --scan-max 100\n  \
                      lab ycsb --workload all --engines pmem,dashmap,papaya --key-bytes 16 --value-bytes 200 --threads 2 \
                      --dir /dev/shm\n\n\
                      All records are checked after loading and at the end, with exit code 3 if one is missing, one too \
                      many, or not as its last change left it."
    )]
    Ycsb {
        /// What all runs have.
        #[command(flatten)]
        run: RunArguments,
        /// What engines are told.
        #[command(flatten)]
        settings: SettingsArguments,
        /// What this run has.
        #[command(flatten)]
        ycsb: YcsbArguments,
    },
    /// All records into an empty store, in random order, anew in each round
    #[command(after_help = "With engines that keep tables it is lab insert.\n\n\
                      Example:\n  lab put --engines pmem,dashmap --records 2M --value-bytes 200 --threads 2 --dir /dev/shm")]
    Put {
        /// What all runs have.
        #[command(flatten)]
        run: RunArguments,
        /// What runs on records have.
        #[command(flatten)]
        records: RecordArguments,
    },
    /// Values of random keys
    #[command(after_help = "With engines that keep tables it is lab lookup.\n\n\
                      Example:\n  lab get --engines pmem,dashmap --records 2M --value-bytes 200 --threads 2 --dir /dev/shm")]
    Get {
        /// What all runs have.
        #[command(flatten)]
        run: RunArguments,
        /// What runs on records have.
        #[command(flatten)]
        records: RecordArguments,
    },
    /// Changes of eight bytes in values of random keys; in tables, other values for random keys
    #[command(
        after_help = "In a table each update stores another value, of another size if there are several (--values MIN..MAX). \
                      The last updates are looked up after each round, and all tuples compared at the end.\n\n\
                      Examples:\n  lab update --engines pmem,dashmap --records 2M --value-bytes 200 --threads 2 --dir /dev/shm\n  \
                      lab update --engines vellum,lmdb,bf-tree --tuples 1M --keys url --values 20..400 --distribution zipf:0.99"
    )]
    Update {
        /// What all runs have.
        #[command(flatten)]
        run: RunArguments,
        /// What runs on records have.
        #[command(flatten)]
        records: RecordArguments,
    },
    /// All records out of a store, in random order, anew in each round
    #[command(
        after_help = "Examples:\n  lab delete --engines pmem,dashmap --records 2M --value-bytes 200 --threads 2 --dir /dev/shm\n  \
                      lab delete --engines vellum,lmdb,bf-tree --tuples 1M --keys url --values 20..400"
    )]
    Delete {
        /// What all runs have.
        #[command(flatten)]
        run: RunArguments,
        /// What runs on records have.
        #[command(flatten)]
        records: RecordArguments,
    },
    /// Pages made resident and released again, by each method; operations are pages
    #[command(after_help = "Example:\n  lab evict --threads 1,2")]
    Evict {
        /// What all runs have.
        #[command(flatten)]
        run: RunArguments,
        /// What this run has.
        #[command(flatten)]
        evict: EvictArguments,
    },
    /// Raw random reads of 4 KiB past the page cache; operations are pages
    #[command(after_help = "Example:\n  lab io --dir /var/tmp --size 8GiB")]
    Io {
        /// What all runs have.
        #[command(flatten)]
        run: RunArguments,
        /// What this run has.
        #[command(flatten)]
        io: IoArguments,
    },
    /// Records made durable one by one; operations are records
    #[command(
        after_help = "Each thread is a client that waits for its record before it writes the next.\n\n\
                            Examples:\n  lab log --threads 1,2,64\n  lab log --methods log,buffered --record-bytes 2000"
    )]
    Log {
        /// What all runs have.
        #[command(flatten)]
        run: RunArguments,
        /// What this run has.
        #[command(flatten)]
        log: LogArguments,
    },
    /// Prints the facts about the machine that belong to every figure
    Manifest {
        /// The folder whose file system is described
        #[arg(long)]
        dir: Option<PathBuf>,
    },
    /// The process of one engine
    #[command(hide = true)]
    Worker,
    /// The process of one contestant of OO7 with a limit of memory
    #[command(hide = true)]
    Oo7Worker,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Contestant, EngineName, KeyKind, Skew, ValueSizes, Workload};
    use clap::CommandFactory;
    use std::time::Duration;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn lists_and_units_are_understood() {
        let line = "lab lookup --json --engines lmdb,vellum --tuples 20k --pool 64MiB --threads 1,2 \
                    --seconds 0.2";
        let Command::Lookup { run, engines, table, load, batch, chosen } =
            Cli::try_parse_from(line.split(' ').filter(|w| !w.is_empty())).unwrap().command
        else {
            panic!("not a lookup");
        };
        assert!(run.json && run.rounds == 3 && run.threads == [1, 2]);
        assert_eq!(run.seconds, Duration::from_millis(200));
        assert_eq!(engines.engines, [EngineName::Lmdb, EngineName::Vellum].map(Contestant::from));
        assert_eq!((table.tuples, engines.settings.pool), (20_000, 64 << 20));
        assert_eq!((table.values, table.keys), (ValueSizes::one(120), KeyKind::U64));
        assert_eq!(chosen.distribution, Skew::Uniform);
        assert_eq!(load, Order::Sequential);
        assert_eq!(batch.workload(), Workload::Lookup);
    }

    #[test]
    fn tables_may_have_keys_values_and_choices_of_other_kinds() {
        let line = "lab scan --length 20 --keys url --values 40..300 --distribution zipf:0.99";
        let Command::Scan { table, chosen, .. } = Cli::try_parse_from(line.split(' ')).unwrap().command
        else {
            panic!("not a scan");
        };
        assert_eq!((table.keys, table.values), (KeyKind::Url, ValueSizes { min: 40, max: 300 }));
        assert_eq!(chosen.distribution, Skew::Zipfian(0.99));
    }

    #[test]
    fn nonsense_is_refused() {
        for line in [
            "lab lookup --keys words",
            "lab lookup --values 300..40",
            "lab scan --distribution zipf:2",
            "lab lookup --engines oracle",
            "lab lookup --engines vellum@sometimes",
            "lab lookup --engines oracle@synced",
            "lab lookup --threads 0",
            "lab lookup --tuples many",
            "lab lookup --value-bytes 7",
            "lab lookup --updates 20",
            "lab lookup --batch 0",
            "lab insert --order sideways",
            "lab evict --methods forget",
            "lab io --depth 0",
            "lab tpcc --warehouses 0",
        ] {
            assert!(Cli::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }
}
