//! Histories in which the file is compacted now and then, to its end or not, while transactions are open.

use crate::{
    for_seeds,
    histories::{Run, live},
};

#[test]
fn compactions() {
    for_seeds(80, |seed| live(&mut Run::compacting(seed)));
}
