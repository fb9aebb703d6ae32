/// A value in cache lines of its own: threads that change what lies around it do not slow those that use it.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Apart<T>(pub T);
