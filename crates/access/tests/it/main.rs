//! Trees, from outside: each file is a scenario. One program, because each would translate the tree's code anew.
//!
//! Memory is measured in a program of its own, `resident_size`.

mod batches;
mod blobs;
mod bulk_load;
mod concurrent_histories;
mod cursors;
mod cursors_and_changes;
mod damaged_files;
mod io_faults;
mod isolation;
mod long_keys;
mod modify;
mod node_damage;
mod node_model;
mod node_tree;
mod outages;
mod planted_bugs;
mod readers;
mod recording;
mod reference;
mod replay;
mod runs;
mod scans;
mod space;
mod support;
mod tree_model;
mod walks;
