//! Fields of objects that are read without the rest.

use crate::{Persistent, codec::Reader};
use std::marker::PhantomData;
use vellum_base::Bytes;

/// A field of type `F` of the objects of type `T`. The derive makes one for each named field of a struct: a constant of
/// the struct with the name of the field in capital letters, or with the one that `#[persistent(constant = "...")]` at the
/// field gives. `AT` is the field's offset in an object: as it is part of
/// the type, a value that names a field takes no space.
pub struct Field<T, F, const AT: usize>(PhantomData<fn(T) -> F>);

impl<T, F, const AT: usize> std::fmt::Debug for Field<T, F, AT> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "field at {AT}")
    }
}

impl<T, F, const AT: usize> Field<T, F, AT> {
    /// For the derive.
    #[doc(hidden)]
    pub const NEW: Self = Self(PhantomData);
}

impl<T, F, const AT: usize> Clone for Field<T, F, AT> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, F, const AT: usize> Copy for Field<T, F, AT> {}

/// One field, or several in a tuple, in order.
pub trait Fields<T> {
    /// Their values.
    type Values;

    /// Loads them from the bytes of an object.
    #[doc(hidden)]
    fn load<B: Bytes>(self, from: &Reader<B>) -> Self::Values;
}

impl<T, F: Persistent, const AT: usize> Fields<T> for Field<T, F, AT> {
    type Values = F;

    #[inline(always)]
    fn load<B: Bytes>(self, from: &Reader<B>) -> F {
        // Fields may be requested in an order other than that of their runs.
        from.begin_again();
        F::load(from, AT)
    }
}

/// The whole object.
#[derive(Clone, Copy)]
pub(crate) struct Whole;

impl<T: Persistent> Fields<T> for Whole {
    type Values = T;

    #[inline(always)]
    fn load<B: Bytes>(self, from: &Reader<B>) -> T {
        T::load(from, 0)
    }
}

macro_rules! tuples {
    ($($($field:ident)+;)*) => {
        $(impl<T, $($field: Fields<T>),+> Fields<T> for ($($field,)+) {
            type Values = ($($field::Values,)+);

            #[inline(always)]
            fn load<B: Bytes>(self, from: &Reader<B>) -> Self::Values {
                #[expect(non_snake_case, reason = "they are named after their types")]
                let ($($field,)+) = self;
                ($($field.load(from),)+)
            }
        })*
    };
}

tuples! {
    A;
    A C;
    A C D;
    A C D E;
    A C D E G;
    A C D E G H;
}
