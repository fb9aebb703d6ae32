//! What the derive writes for a type.

use proc_macro2::{Group, Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::{
    Attribute, Data, DeriveInput, Error, Field, Fields, GenericArgument, LitStr, Path, PathArguments, Result,
    Type, TypePath, ext::IdentExt, spanned::Spanned,
};

/// What `#[persistent(...)]` says.
struct Attributes {
    name: String,
    /// Where the crate is found.
    root: Path,
}

/// The implementation of `Persistent` and `Object` for a type.
///
/// # Errors
/// If it is no type that can persist, as far as the tokens tell.
pub fn expand(mut input: DeriveInput) -> Result<TokenStream> {
    if let Some(parameter) = input.generics.params.first() {
        let what = "a persistent type has no parameters: its layout is stored, and must be one; write a type for each use";
        return Err(Error::new(parameter.span(), what));
    }
    let Attributes { name, root } = attributes(&input)?;
    prepare_fields(&mut input)?;
    let fields = match &input.data {
        Data::Struct(data) => fields_of(&data.fields, &input)?,
        _ => TokenStream::new(),
    };
    let body = match &input.data {
        Data::Struct(data) => of_struct(&name, &data.fields)?,
        Data::Enum(data) => of_enum(&name, data, &input)?,
        Data::Union(data) => {
            let what = "a union cannot persist: nothing says which of its fields it holds; use an enum";
            return Err(Error::new(data.union_token.span(), what));
        }
    };
    let ident = &input.ident;
    Ok(quote! {
        const _: () = {
            #[allow(unused_imports, reason = "not every type needs all of it")]
            use #root::__private as _objects;
            #[allow(clippy::all, clippy::pedantic, clippy::restriction, reason = "the program did not write this")]
            impl _objects::Object for #ident {
                const NAME: &'static str = #name;
            }
            #[allow(unused_variables, unused_mut, reason = "a type without fields uses no argument")]
            #[allow(clippy::all, clippy::pedantic, clippy::restriction, reason = "the program did not write this")]
            #[automatically_derived]
            impl _objects::Persistent for #ident {
                #body
            }
            #fields
        };
    })
}

/// The name that the heap has for what a program calls so: `r#gen` is another way of writing `gen`.
fn name_of(ident: &Ident) -> String {
    ident.unraw().to_string()
}

fn attributes(input: &DeriveInput) -> Result<Attributes> {
    let mut found = Attributes { name: name_of(&input.ident), root: syn::parse_str("::vellum::objects")? };
    for attribute in input.attrs.iter().filter(|attribute| attribute.path().is_ident("persistent")) {
        attribute.parse_nested_meta(|meta| {
            if meta.path.is_ident("name") {
                found.name = meta.value()?.parse::<LitStr>()?.value();
                return Ok(());
            }
            if meta.path.is_ident("crate") {
                found.root = meta.value()?.parse::<LitStr>()?.parse()?;
                return Ok(());
            }
            Err(meta.error("`name = \"...\"` is what can be said here"))
        })?;
    }
    if found.name.is_empty() || found.name.len() > NAME_BYTES_MAX {
        let what = format!("the name of a persistent type has 1 to {NAME_BYTES_MAX} bytes");
        return Err(Error::new(input.ident.span(), what));
    }
    Ok(found)
}

/// Makes the fields ready to be described: their types are written out, because constants inside functions do not know
/// `Self`.
///
/// # Errors
/// If something is said of a field or a variant that would have no effect.
fn prepare_fields(input: &mut DeriveInput) -> Result<()> {
    let refuse_said = |attributes: &[Attribute]| {
        said_of(attributes).next().map_or(Ok(()), |said| Err(Error::new(said.span(), ONLY_TYPES_HAVE_NAMES)))
    };
    let is_struct = matches!(&input.data, Data::Struct(_));
    let fields: Vec<&mut Field> = match &mut input.data {
        Data::Struct(data) => data.fields.iter_mut().collect(),
        Data::Enum(data) => {
            data.variants.iter().try_for_each(|variant| refuse_said(&variant.attrs))?;
            data.variants.iter_mut().flat_map(|variant| variant.fields.iter_mut()).collect()
        }
        Data::Union(_) => Vec::new(),
    };
    for field in fields {
        // Others have no constants: what is said of those of structs is looked at when these are written.
        if !is_struct || field.ident.is_none() {
            refuse_said(&field.attrs)?;
        }
        refuse_itself(&field.ty, &input.ident)?;
        field.ty = syn::parse2(written_out(field.ty.to_token_stream(), &input.ident))?;
    }
    Ok(())
}

const ONLY_TYPES_HAVE_NAMES: &str =
    "only a whole type has another name in the heap; `Heap::convert` renames fields and variants";

/// What is said to the derive of a field or a variant.
fn said_of(attributes: &[Attribute]) -> impl Iterator<Item = &Attribute> {
    attributes.iter().filter(|attribute| attribute.path().is_ident("persistent"))
}

/// A place in the program for what the derive writes: errors point there, and lints still know that the program did not
/// write it.
fn place_of(span: Span) -> Span {
    span.resolved_at(Span::call_site())
}

/// The name of the constant by which a field is read by itself.
fn constant_of(field: &Field, ident: &Ident) -> Result<Ident> {
    let mut constant = format_ident!("{}", name_of(ident).to_uppercase(), span = ident.span());
    for said in said_of(&field.attrs) {
        said.parse_nested_meta(|meta| {
            if meta.path.is_ident("constant") {
                constant = meta.value()?.parse::<LitStr>()?.parse()?;
                return Ok(());
            }
            Err(meta.error(ONLY_TYPES_HAVE_NAMES))
        })?;
    }
    Ok(constant)
}

/// Refuses a type that contains itself, as far as the tokens tell. The compiler would report a cycle between constants
/// that the program did not write.
fn refuse_itself(field: &Type, name: &Ident) -> Result<()> {
    match field {
        Type::Array(array) => refuse_itself(&array.elem, name),
        Type::Paren(inner) => refuse_itself(&inner.elem, name),
        Type::Group(inner) => refuse_itself(&inner.elem, name),
        Type::Path(TypePath { qself: None, path, .. }) => {
            if path.get_ident().is_some_and(|ident| ident == name || ident == "Self") {
                let what = format!(
                    "`{name}` cannot contain itself: its objects would have no length; refer to another one by `Ref<{name}>`"
                );
                return Err(Error::new(field.span(), what));
            }
            let Some(last) = path.segments.last() else { return Ok(()) };
            let PathArguments::AngleBracketed(arguments) = &last.arguments else { return Ok(()) };
            // Whatever else has parameters may be another name of a `Ref`.
            let holds = last.ident == "Array" || last.ident == "Option";
            arguments.args.iter().filter(|_| holds).try_for_each(|argument| match argument {
                GenericArgument::Type(inner) => refuse_itself(inner, name),
                _ => Ok(()),
            })
        }
        _ => Ok(()),
    }
}

/// The tokens of a type with the name of the deriving type instead of `Self`.
fn written_out(tokens: TokenStream, name: &Ident) -> TokenStream {
    let written_out = tokens.into_iter().map(|token| match token {
        TokenTree::Ident(ident) if ident == "Self" => name.clone().into(),
        TokenTree::Group(group) => {
            let mut written_out = Group::new(group.delimiter(), written_out(group.stream(), name));
            written_out.set_span(group.span());
            written_out.into()
        }
        token => token,
    });
    written_out.collect()
}

/// The longest name of a type.
const NAME_BYTES_MAX: usize = 200;

/// Some fields: of a struct, or of a variant of an enum.
struct Layout {
    /// The names that they have in the description.
    names: Vec<String>,
    types: Vec<Type>,
    /// What makes the value of `values`, and what takes it apart.
    pattern: TokenStream,
    values: Vec<Ident>,
}

impl Layout {
    fn of(path: TokenStream, fields: &Fields) -> Result<Self> {
        let mut layout =
            Self { names: Vec::new(), types: Vec::new(), pattern: path.clone(), values: Vec::new() };
        for (index, field) in fields.iter().enumerate() {
            refuse(&field.ty)?;
            let name = field.ident.as_ref().map_or_else(|| index.to_string(), name_of);
            layout.names.push(name);
            layout.types.push(field.ty.clone());
            layout.values.push(format_ident!("value_{index}"));
        }
        let values = &layout.values;
        layout.pattern = match fields {
            Fields::Named(named) => {
                let idents = named.named.iter().map(|field| &field.ident);
                quote! { #path { #(#idents: #values),* } }
            }
            Fields::Unnamed(_) => quote! { #path(#(#values),*) },
            Fields::Unit => path,
        };
        Ok(layout)
    }

    /// An array with where each field stands if they begin at `from`, and at its end where they end.
    fn offsets(&self, from: usize) -> TokenStream {
        let (types, count) = (&self.types, self.types.len() + 1);
        let indices = 0..self.types.len();
        quote! {{
            let mut offsets = [0usize; #count];
            let mut at: usize = #from;
            #(
                at = at.next_multiple_of(<#types as _objects::Persistent>::ALIGN);
                offsets[#indices] = at;
                at += <#types as _objects::Persistent>::BYTES;
            )*
            offsets[#count - 1] = at;
            offsets
        }}
    }

    fn align(&self) -> TokenStream {
        let types = &self.types;
        quote! {{
            let mut align: usize = 1;
            #(if <#types as _objects::Persistent>::ALIGN > align {
                align = <#types as _objects::Persistent>::ALIGN;
            })*
            align
        }}
    }

    /// Whether all fields take as many bytes in every value.
    fn is_fixed(&self) -> TokenStream {
        let types = &self.types;
        quote! { (true #(&& <#types as _objects::Persistent>::IS_FIXED)*) }
    }

    /// Mixes what the fields are into `print`.
    fn fingerprint(&self) -> TokenStream {
        let fields = self.names.iter().zip(&self.types).map(|(name, of)| {
            // What is wrong with it is wrong with the type of the field.
            let print = quote_spanned! { place_of(of.span())=> <#of as _objects::Persistent>::FINGERPRINT };
            quote! { print = _objects::mix(_objects::mix(print, _objects::print_of(#name)), #print); }
        });
        quote! { #(#fields)* }
    }

    fn shape(&self) -> TokenStream {
        let (names, types) = (&self.names, &self.types);
        quote! {
            ::std::vec![#((#names.to_owned(), <#types as _objects::Persistent>::shape())),*]
        }
    }

    /// Loads the fields of `offsets`.
    fn load(&self) -> TokenStream {
        let Self { types, pattern, values, .. } = self;
        let indices = 0..types.len();
        quote! {{
            #(let #values = <#types as _objects::Persistent>::load(from, at + offsets[#indices]);)*
            #pattern
        }}
    }

    fn store(&self) -> TokenStream {
        let Self { types, values, .. } = self;
        let indices = 0..types.len();
        quote! {
            #(<#types as _objects::Persistent>::store(#values, to, at + offsets[#indices]);)*
        }
    }
}

fn of_struct(name: &str, fields: &Fields) -> Result<TokenStream> {
    let layout = Layout::of(quote!(Self), fields)?;
    let (offsets, align, fingerprint) = (layout.offsets(0), layout.align(), layout.fingerprint());
    let is_fixed = layout.is_fixed();
    let (shape, load, store, pattern) = (layout.shape(), layout.load(), layout.store(), &layout.pattern);
    let count = layout.types.len();
    Ok(quote! {
        const ALIGN: usize = #align;
        const BYTES: usize = {
            let offsets = #offsets;
            offsets[#count].next_multiple_of(<Self as _objects::Persistent>::ALIGN)
        };
        const FINGERPRINT: u32 = {
            let mut print = _objects::print_of(#name);
            #fingerprint
            _objects::end(print)
        };
        const IS_FIXED: bool = #is_fixed;
        fn shape() -> _objects::Shape {
            _objects::Shape::Struct { name: #name.to_owned(), fields: #shape }
        }
        #[inline(always)]
        fn load<__Bytes: _objects::Bytes>(from: &_objects::Reader<__Bytes>, at: usize) -> Self {
            const __OFFSETS: [usize; #count + 1] = #offsets;
            let offsets = __OFFSETS;
            #load
        }
        fn store(&self, to: &mut _objects::Writer, at: usize) {
            let offsets = #offsets;
            let #pattern = self;
            #store
        }
    })
}

/// A constant for each named field, by which it is read by itself.
fn fields_of(fields: &Fields, input: &DeriveInput) -> Result<TokenStream> {
    let layout = Layout::of(quote!(Self), fields)?;
    let (offsets, count, of) = (layout.offsets(0), layout.types.len(), &input.ident);
    let mut named: Vec<String> = Vec::new();
    let mut constants = Vec::new();
    for (index, field) in fields.iter().enumerate() {
        let Some(ident) = field.ident.as_ref() else { continue };
        let (visibility, of_field, mut constant) = (&field.vis, &field.ty, constant_of(field, ident)?);
        let name = constant.to_string();
        if named.contains(&name) {
            let what = format!(
                "there is a constant `{name}` for another field already; name this one's: `#[persistent(constant = \"...\")]`"
            );
            return Err(Error::new(ident.span(), what));
        }
        let document = format!("The field `{}`, to be read by itself.", name_of(ident));
        // That the program has such a constant is said at the field.
        constant.set_span(place_of(constant.span()));
        constants.push(quote_spanned! { place_of(ident.span())=>
            #[doc = #document]
            #[allow(dead_code, reason = "a program reads some fields by themselves, or none")]
            #visibility const #constant: _objects::Field<#of, #of_field, { __OFFSETS[#index] }> = _objects::Field::NEW;
        });
        named.push(name);
    }
    Ok(quote! {
        // Once for all fields: with those of each one the compiler would take time by the square of their number.
        #[allow(dead_code, reason = "a struct without named fields has no constants")]
        const __OFFSETS: [usize; #count + 1] = #offsets;
        #[allow(clippy::all, clippy::pedantic, clippy::restriction, reason = "the program did not write this")]
        impl #of {
            #(#constants)*
        }
    })
}

fn of_enum(name: &str, data: &syn::DataEnum, input: &DeriveInput) -> Result<TokenStream> {
    if data.variants.is_empty() {
        return Err(Error::new(
            input.ident.span(),
            "an enum without variants has no value that could persist",
        ));
    }
    if data.variants.len() > 256 {
        return Err(Error::new(input.ident.span(), "a persistent enum has at most 256 variants"));
    }
    let mut layouts = Vec::new();
    for variant in &data.variants {
        let ident = &variant.ident;
        layouts.push((name_of(ident), Layout::of(quote!(Self::#ident), &variant.fields)?));
    }
    let (names, layouts): (Vec<_>, Vec<_>) = layouts.into_iter().unzip();
    let tags: Vec<u8> = (0..layouts.len()).map(|tag| tag as u8).collect();
    let offsets: Vec<_> = layouts.iter().map(|layout| layout.offsets(1)).collect();
    let counts: Vec<_> = layouts.iter().map(|layout| layout.types.len()).collect();
    let aligns = layouts.iter().map(Layout::align);
    let fingerprints = layouts.iter().map(Layout::fingerprint);
    let are_fixed = layouts.iter().map(Layout::is_fixed);
    let shapes = layouts.iter().map(Layout::shape);
    let loads: Vec<_> = layouts.iter().map(Layout::load).collect();
    let (first_offsets, first_load, later) = (&offsets[0], &loads[0], 1..layouts.len());
    let (later_tags, later_offsets, later_loads) =
        (&tags[later.clone()], &offsets[later.clone()], &loads[later]);
    let stores = layouts.iter().map(Layout::store);
    let patterns = layouts.iter().map(|layout| &layout.pattern);
    Ok(quote! {
        const ALIGN: usize = {
            let mut most: usize = 1;
            #({
                let align = #aligns;
                if align > most { most = align; }
            })*
            most
        };
        const BYTES: usize = {
            let mut most: usize = 1;
            #({
                let offsets = #offsets;
                if offsets[#counts] > most { most = offsets[#counts]; }
            })*
            most.next_multiple_of(<Self as _objects::Persistent>::ALIGN)
        };
        const FINGERPRINT: u32 = {
            let mut print = _objects::mix(_objects::print_of("enum"), _objects::print_of(#name));
            #(
                print = _objects::mix(print, _objects::print_of(#names));
                #fingerprints
            )*
            _objects::end(print)
        };
        const IS_FIXED: bool = true #(&& #are_fixed)*;
        fn shape() -> _objects::Shape {
            _objects::Shape::Enum {
                name: #name.to_owned(),
                variants: ::std::vec![#((#names.to_owned(), #shapes)),*],
            }
        }
        #[inline]
        fn load<__Bytes: _objects::Bytes>(from: &_objects::Reader<__Bytes>, at: usize) -> Self {
            match from.u8(at) {
                #(#later_tags => { let offsets = #later_offsets; #later_loads })*
                tag => {
                    if tag != 0 {
                        from.refuse();
                    }
                    let offsets = #first_offsets;
                    #first_load
                }
            }
        }
        fn store(&self, to: &mut _objects::Writer, at: usize) {
            match self {
                #(#patterns => {
                    let offsets = #offsets;
                    to.put(at, &[#tags]);
                    #stores
                })*
            }
        }
    })
}

/// Refuses what its syntax shows to be an address in memory.
fn refuse(field: &Type) -> Result<()> {
    let what = match field {
        Type::Ptr(_) => {
            "a raw pointer cannot persist: addresses change when the program starts again; use `Ref<T>`"
        }
        Type::Reference(_) => {
            "a reference cannot persist: addresses change when the program starts again; use `Ref<T>`, or `Text` for `&str`"
        }
        Type::FnPtr(_) => {
            "a function cannot persist: its address changes when the program starts again; use an enum"
        }
        Type::Slice(_) | Type::TraitObject(_) => {
            "a persistent field has a size that is known: use `Array<T>`, or an enum"
        }
        _ => return Ok(()),
    };
    Err(Error::new(field.span(), what))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(input: &str) -> String {
        expand(syn::parse_str(input).unwrap()).unwrap_err().to_string()
    }

    #[test]
    fn a_type_that_contains_itself_is_told_what_to_use() {
        for input in [
            "struct Tree { children: Array<Tree> }",
            "struct Tree { children: vellum::objects::Array<Option<Self>> }",
            "struct Tree(Array<[Tree; 2]>);",
            "enum Tree { Leaf(u32), Node { left: Option<(Tree)> } }",
            "struct Tree { next: Self }",
        ] {
            assert!(refused(input).contains("by `Ref<Tree>`"), "{input}: {}", refused(input));
        }
        for input in [
            "struct Tree { children: Array<Ref<Tree>>, next: Option<Ref<Self>>, other: Link<Tree> }",
            "struct Tree { other: forest::Tree, count: [u8; Self::COUNT], all: Array<<Self as Kind>::Of> }",
        ] {
            expand(syn::parse_str(input).unwrap()).unwrap();
        }
    }

    #[test]
    fn fields_whose_constants_would_have_one_name_are_told_how_to_name_them() {
        let input = "struct City { name: Text, id: u32, r#Id: u32 }";
        assert!(refused(input).contains("`ID` for another field already"), "{}", refused(input));
        for input in [
            "struct City { id: u32, #[persistent(constant = \"OTHER_ID\")] Id: u32 }",
            "struct City { #[persistent(constant = \"r#fn\")] id: u32, Id: u32 }",
        ] {
            expand(syn::parse_str(input).unwrap()).unwrap();
        }
    }

    #[test]
    fn what_is_said_of_a_field_that_has_no_constant_is_refused() {
        for input in [
            "struct City(#[persistent(constant = \"ID\")] u32);",
            "enum City { Known { #[persistent(constant = \"ID\")] id: u32 } }",
            "enum City { #[persistent(constant = \"ID\")] Known }",
            "struct City { #[persistent(name = \"ID\")] id: u32 }",
        ] {
            assert!(refused(input).contains("only a whole type"), "{input}: {}", refused(input));
        }
    }

    #[test]
    fn what_is_written_grows_as_the_number_of_fields() {
        let written = |count: usize| {
            let fields: String = (0..count).map(|index| format!("field_{index:03}: u32,")).collect();
            let input = format!("struct Wide {{ {fields} }}");
            expand(syn::parse_str(&input).unwrap()).unwrap().to_string().len()
        };
        assert!(written(400) < 5 * written(100), "{} and {}", written(100), written(400));
    }
}
