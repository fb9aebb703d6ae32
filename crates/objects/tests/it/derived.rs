//! What programs write where they derive.

use crate::support::Store;
use vellum_objects as objects;
use vellum_objects::{Array, ObjectError, Persistent, Ref, Shape, Text};

#[derive(Persistent, Clone, PartialEq, Debug)]
#[persistent(crate = "vellum_objects")]
struct Own {
    next: Option<Ref<Self>>,
    all: Array<Ref<Self>>,
    bytes: [u8; Self::COUNT],
}

impl Own {
    const COUNT: usize = 3;
}

#[derive(Persistent, Clone, PartialEq, Debug)]
#[persistent(crate = "vellum_objects")]
enum OwnChoice {
    None,
    Some(Ref<Self>, Array<Ref<Self>>),
}

#[derive(objects::Persistent, Clone, PartialEq, Debug)]
#[persistent(crate = "vellum_objects")]
struct ByModule {
    text: objects::Text,
    choice: Option<objects::Ref<OwnChoice>>,
}

#[derive(Persistent, Clone, PartialEq, Debug)]
#[persistent(crate = "vellum_objects", name = "any \0 characters: {} ü")]
#[expect(non_camel_case_types, reason = "it is named as nothing else can be")]
struct r#type {
    r#in: u32,
    größe: Text,
    value_1: u8,
    value_0: Option<Option<Ref<r#type>>>,
    offsets: Option<u128>,
    at: [Option<bool>; 0],
    to: Array<[Text; 2]>,
}

/// Types whose names were written as they are.
mod plain {
    use vellum_objects::{Persistent, Ref};

    #[derive(Persistent, Clone, PartialEq, Debug)]
    #[persistent(crate = "vellum_objects")]
    pub struct Plan {
        pub step: Step,
        pub next: Option<Ref<Plan>>,
    }

    #[derive(Persistent, Clone, PartialEq, Debug)]
    #[persistent(crate = "vellum_objects")]
    pub enum Step {
        Build { floor: u32 },
    }
}

/// The same types: a program writes names so that have become keywords, as `gen` has.
mod raw {
    use vellum_objects::{Persistent, Ref};

    #[derive(Persistent, Clone, PartialEq, Debug)]
    #[persistent(crate = "vellum_objects")]
    pub struct r#Plan {
        pub r#step: r#Step,
        pub next: Option<Ref<r#Plan>>,
    }

    #[derive(Persistent, Clone, PartialEq, Debug)]
    #[persistent(crate = "vellum_objects")]
    pub enum r#Step {
        r#Build { r#floor: u32 },
    }
}

/// A type with constants that those of its fields would collide with.
#[derive(Persistent, Clone, PartialEq, Debug)]
#[persistent(crate = "vellum_objects")]
#[expect(non_snake_case, reason = "there are such names")]
struct Numbered {
    #[persistent(constant = "ID_OF_ONE")]
    id: u32,
    name: Text,
    #[persistent(constant = "NAME_AGAIN")]
    Name: Text,
}

impl Numbered {
    const ID: u32 = 7;
}

/// A type of one letter, and a constant of a name that the derive may use itself.
#[derive(Persistent, Clone, PartialEq, Debug)]
#[persistent(crate = "vellum_objects")]
struct B(u16);

const OFFSETS: usize = 3;

#[derive(Persistent, Clone, PartialEq, Debug)]
#[persistent(crate = "vellum_objects")]
struct OfB {
    b: B,
    all: [B; OFFSETS],
}

#[derive(Persistent, Clone, PartialEq, Debug)]
#[persistent(crate = "vellum_objects")]
enum ChoiceOfB {
    One(B),
    Many([B; OFFSETS]),
}

macro_rules! long_name {
    ($($name:ident)*) => {
        /// A type with a field of a name that is longer than what is stored of it.
        #[derive(Persistent, Clone, PartialEq, Debug)]
        #[persistent(crate = "vellum_objects")]
        struct LongName {
            $($name: u32,)*
        }

        /// The same type with a further field.
        #[derive(Persistent, Clone, PartialEq, Debug)]
        #[persistent(crate = "vellum_objects", name = "LongName")]
        struct LongerName {
            $($name: u32,)*
            more: u32,
        }
    };
}

long_name! {
    llllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllll
}

/// Stores an object, reads it, and finds it as the root, also in another session.
fn check<T: objects::Object + Clone + PartialEq + std::fmt::Debug>(store: Store, object: &T) -> Store {
    let heap = store.heap();
    let place = heap.allocate(object).unwrap();
    heap.set_root(Some(place)).unwrap();
    let store = store.reopen(64);
    let heap = store.heap();
    assert_eq!(heap.root::<T>().unwrap(), Some(place));
    assert_eq!(heap.get(place).unwrap(), *object);
    heap.set(place, object).unwrap();
    assert_eq!(heap.change(|change| change.get(place)).unwrap(), *object);
    store
}

#[test]
fn a_type_may_refer_to_itself_as_self() {
    let store = Store::new(64);
    let heap = store.heap();
    let own = Own { next: None, all: Array::default(), bytes: [1, 2, 3] };
    let first = heap.allocate(&own).unwrap();
    let second = Own { next: Some(first), all: vec![first, first].into(), bytes: [4, 5, 6] };
    let store = check(store, &second);
    assert_eq!(
        store.heap().fields(store.heap().root::<Own>().unwrap().unwrap(), Own::NEXT).unwrap(),
        Some(first)
    );
    let choice = store.heap().allocate(&OwnChoice::None).unwrap();
    let store = check(store, &OwnChoice::Some(choice, vec![choice].into()));
    assert!(store.verify().problems.is_empty(), "{:?}", store.verify().problems);
    assert_eq!(
        Own::shape().to_string(),
        "Own { next: Option<Ref<Own>>, all: Array<Ref<Own>>, bytes: [u8; 3] }"
    );
}

#[test]
fn a_type_may_name_its_fields_by_a_module_of_any_name() {
    check(Store::new(64), &ByModule { text: "text".into(), choice: None });
}

#[test]
fn types_and_constants_may_have_any_names() {
    let store = check(Store::new(64), &OfB { b: B(1), all: [B(2), B(3), B(4)] });
    let store = check(store, &ChoiceOfB::One(B(5)));
    check(store, &ChoiceOfB::Many([B(6), B(7), B(8)]));
}

#[test]
fn names_may_have_any_characters() {
    let texts = vec![["a".into(), "".into()], ["b".into(), "c".into()]];
    let object = r#type {
        r#in: 1,
        größe: "ß".into(),
        value_1: 2,
        value_0: Some(None),
        offsets: Some(7),
        at: [],
        to: texts.into(),
    };
    check(Store::new(64), &object);
}

#[test]
fn raw_identifiers_name_what_the_others_do() {
    let store = Store::new(64);
    let first =
        store.heap().allocate(&plain::Plan { step: plain::Step::Build { floor: 3 }, next: None }).unwrap();
    store.heap().set_root(Some(first)).unwrap();
    let heap = store.heap();
    let same = heap.root::<raw::Plan>().unwrap().unwrap();
    assert_eq!(heap.get(same).unwrap().step, raw::Step::Build { floor: 3 });
    assert_eq!(heap.fields(same, raw::Plan::STEP).unwrap(), raw::Step::Build { floor: 3 });
    assert_eq!(raw::Plan::shape(), plain::Plan::shape());
}

#[test]
fn the_constant_of_a_field_may_have_another_name() {
    let object = Numbered { id: Numbered::ID, name: "a".into(), Name: "b".into() };
    let store = check(Store::new(64), &object);
    let heap = store.heap();
    let place = heap.root::<Numbered>().unwrap().unwrap();
    let fields = (Numbered::NAME_AGAIN, Numbered::ID_OF_ONE, Numbered::NAME);
    assert_eq!(heap.fields(place, fields).unwrap(), ("b".into(), 7, "a".into()));
}

#[test]
fn names_may_be_longer_than_what_is_stored_of_them() {
    let store = check(Store::new(64), &LongName { llllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllll: 7 });
    let heap = store.heap();
    assert!(matches!(heap.root::<LongerName>(), Err(ObjectError::TypeChanged { .. })));
    let longer = |old: LongName| {
        LongerName { llllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllll: old.llllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllll, more: 8 }
    };
    assert_eq!(heap.convert(longer).unwrap().objects, 1);
    let store = check(store, &LongerName { llllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllll: 9, more: 10 });
    assert!(matches!(LongName::shape(), Shape::Struct { fields, .. } if fields[0].0.len() == 270));
    assert_eq!(store.heap().convert(longer).unwrap().objects, 0);
}
