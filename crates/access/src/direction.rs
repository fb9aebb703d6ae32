//! In which order keys are visited.

/// The direction of a cursor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Direction {
    /// In ascending order.
    #[default]
    Forward,
    /// In descending order.
    Backward,
}
