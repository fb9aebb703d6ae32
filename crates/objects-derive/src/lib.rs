//! Internal to Vellum (use `vellum::objects`): `#[derive(Persistent)]`.
//!
//! The derive lays the fields of a type out one after the other, each at a multiple of its alignment, and writes how they are
//! loaded, stored and described. What a field may be, its type decides: one that does not implement `Persistent` is refused by the
//! compiler, with the message that the trait has for it.
#![forbid(unsafe_code)]

mod expand;

use proc_macro::TokenStream;

/// Describes a struct or an enum as an object of a heap.
///
/// `#[persistent(name = "...")]` gives the type another name in the heap than in the program.
///
/// Each named field of a struct becomes a constant of it, by which the field can be read by itself: `City::NAME` for `name`. If the
/// program has such a constant, `#[persistent(constant = "...")]` at the field gives that of the field another name.
#[proc_macro_derive(Persistent, attributes(persistent))]
pub fn derive_persistent(input: TokenStream) -> TokenStream {
    let input = syn::parse_macro_input!(input as syn::DeriveInput);
    expand::expand(input).unwrap_or_else(syn::Error::into_compile_error).into()
}
