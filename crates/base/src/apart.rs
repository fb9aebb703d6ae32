/// A value in its own cache lines: threads that change neighbouring data do not slow threads that use the value.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Apart<T>(pub T);
