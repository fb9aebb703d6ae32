//! What a run is told, by the command line or by a test: names, sizes and settings. Everything else may use it, and it uses nothing else.

mod contestant;
mod device;
mod engine;
mod named;
mod oo7;
mod settings;
mod table;
mod workload;
mod ycsb;

pub use contestant::{Contestant, TransactionSettings};
pub use device::{EvictSettings, IoSettings, LogMethod, LogSettings, Method, ReleaseName};
pub use engine::{AnyEngineName, Choice, Durability, EngineName, Isolation, RecordEngineName};
pub use named::Named;
pub use oo7::{GraphName, Oo7Operation, Oo7Settings, Oo7Size};
pub use settings::{EngineSettings, Load, RecordSettings, RecoverySettings, RunSettings};
pub use table::{KEY_BYTES, KeyKind, Order, Skew, TableSettings, ValueSizes};
pub use workload::{Specification, Workload};
pub use ycsb::{Distribution, FIELD_BYTES_MIN, Mix, MixName, YcsbSettings};
