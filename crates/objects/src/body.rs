//! The bytes of a whole object.

use crate::{
    Object,
    codec::{Reader, Writer},
    error::ObjectError,
    field::Fields,
    reference::AnyRef,
};
use vellum_access::BlobReference;
use vellum_pool::PoolError;

/// Decodes fields of an object from its bytes.
pub(crate) fn decode<T: Object, F: Fields<T>>(
    fields: F,
    body: &[u8],
    at: AnyRef,
) -> Result<F::Values, ObjectError> {
    let reader = Reader::new(body, 0, body.len(), T::BYTES);
    let values = fields.load(&reader);
    if reader.is_sound() { Ok(values) } else { Err(damaged(at, T::NAME)) }
}

/// Encodes an object.
pub(crate) fn encode<T: Object>(object: &T) -> Result<Vec<u8>, ObjectError> {
    let mut writer = Writer::new(T::BYTES);
    object.store(&mut writer, 0);
    writer.finish().ok_or(ObjectError::TooLong)
}

/// Decodes the reference to the extent of a large object.
pub(crate) fn large(body: &[u8], at: AnyRef) -> Result<BlobReference, ObjectError> {
    let reference = body.first_chunk::<LARGE_BYTES>().and_then(|bytes| BlobReference::decode(bytes));
    reference.ok_or_else(|| damaged(at, "reference to a large object"))
}

/// The length of a reference to an extent, in bytes.
pub(crate) const LARGE_BYTES: usize = 24;

pub(crate) fn damaged(at: AnyRef, what: &str) -> ObjectError {
    let what = format!("the object at byte {} is no {what} that could have been stored", at.at());
    PoolError::contents(at.page(), what).into()
}
