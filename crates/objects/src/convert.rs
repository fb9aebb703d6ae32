//! Conversion of the objects of a type that has changed.

use crate::{Heap, Object, error::ObjectError};
use vellum_pool::Pager;

/// The result of a conversion.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Converted {
    /// How many objects were converted.
    pub objects: u64,
}

impl<P: Pager> Heap<'_, P> {
    /// Converts all objects of type `Old` to `New`. Both types must have the same name in the heap. References to the
    /// objects stay valid.
    ///
    /// Each object is converted by itself. If the conversion is interrupted by an error or a crash, repeat the call,
    /// which goes on with the remaining objects; until then these cannot be read as `New`. Other threads must not use
    /// objects of the type meanwhile.
    ///
    /// # Errors
    /// [`ObjectError::NothingToConvert`] if the heap's type of this name is neither of the two; also if an object
    /// cannot be read or stored.
    pub fn convert<Old: Object, New: Object>(
        &self,
        mut convert: impl FnMut(Old) -> New,
    ) -> Result<Converted, ObjectError> {
        let (directory, mut converted) = (self.directory(), Converted::default());
        let nothing = || ObjectError::NothingToConvert { wanted: Old::shape().to_string() };
        if Old::NAME != New::NAME {
            return Err(nothing());
        }
        let has_old =
            directory.shape(Old::FINGERPRINT)?.is_some_and(|shape| shape == Old::shape().into_stored());
        match directory.fingerprint(Old::NAME)? {
            Some(now) if now == Old::FINGERPRINT && has_old => {
                if now == New::FINGERPRINT {
                    return Ok(converted);
                }
                if let Some(stored) =
                    directory.shape(New::FINGERPRINT)?.filter(|stored| *stored != New::shape().into_stored())
                {
                    let (stored, wanted) = (stored.to_string(), New::shape().to_string());
                    return Err(ObjectError::SameFingerprint { stored, wanted });
                }
                directory.add_shape::<New>(&New::shape())?;
                directory.set_fingerprint(New::NAME, New::FINGERPRINT)?;
                self.state.forget_types();
            }
            // The conversion continues, or has been done.
            Some(now) if now == New::FINGERPRINT => {}
            _ => return Err(nothing()),
        }
        let mut pages = Vec::new();
        directory.pages(|page| {
            pages.push(page);
            Ok(true)
        })?;
        for page in pages {
            for reference in self.references_in(page, Old::FINGERPRINT)? {
                self.change(|change| {
                    let found = change.find(reference)?;
                    if found.head.fingerprint() == Old::FINGERPRINT {
                        let old = change.get(reference.typed::<Old>())?;
                        change.store(reference, found, &convert(old))?;
                    }
                    Ok::<_, ObjectError>(())
                })?;
                converted.objects += 1;
            }
        }
        directory.remove_shape(Old::FINGERPRINT)?;
        Ok(converted)
    }
}
