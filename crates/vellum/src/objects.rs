//! Heaps of objects: structs and enums that refer to each other, and stay.
//!
//! A heap holds a graph of objects, larger than memory if need be, with circles, in the same file as tables. A [`Ref`] leads to an object
//! as a pointer does: what it holds is where the object is, and that is its address in memory too. Nothing is looked up and nothing is
//! swizzled: reading an object that is in memory costs a translation by the processor's page table, a look at the state of its page, and one at its
//! first word, which tells that it is the object that was meant. One that is not in memory is read from storage first.
//!
//! ```
//! use vellum::objects::{Array, Persistent, Ref, Text};
//! use vellum::{Database, Options};
//!
//! #[derive(Persistent)]
//! struct Person {
//!     name: Text,
//!     born: u16,
//!     knows: Array<Ref<Person>>,
//! }
//!
//! let directory = tempfile::tempdir()?;
//! let path = directory.path().join("people.vellum");
//! let database = Database::create(&path, &Options::default())?;
//! let people = database.create_heap("people")?;
//! let ada = people.allocate(&Person { name: "Ada".into(), born: 1815, knows: Array::default() })?;
//! let charles = Person { name: "Charles".into(), born: 1791, knows: vec![ada].into() };
//! let charles = people.allocate_near(ada, &charles)?;
//! people.update(ada, |ada: &mut Person| ada.knows.push(charles))?;
//! people.set_root(Some(ada))?;
//! drop(people);
//! database.close()?;
//!
//! let database = Database::open(&path, &Options::default())?;
//! let people = database.heap("people")?;
//! let ada = people.get(people.root::<Person>()?.expect("it was set"))?;
//! for other in &ada.knows {
//!     println!("{} knows {}", ada.name, people.get(*other)?.name);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Types
//! [`derive(Persistent)`](derive@Persistent) describes a struct or an enum of fields that persist themselves: numbers, `bool`, `char`, [`Ref`],
//! [`Text`], [`Array`], `Option`, arrays of a fixed length, and structs and enums that derive it as well, which lie within the object. What holds an
//! address (`Box`, `String`, `Vec`, references, raw pointers) or differs between machines (`usize`) the compiler refuses, and says what to use.
//! The description of each type is stored in the heap. A program whose type of that name is another one gets an error that shows both, and
//! converts the objects by a function: [`Heap::convert`].
//!
//! # Objects
//! An object belongs to the heap, and not to what refers to it: it is there until it is [deleted](Change::delete). Following a reference
//! to an object that was deleted is an error, [`ObjectError::Dangling`]. (It is noticed by a number of 16 bits that each
//! object of a place has: with certainty until 65 536 objects of the same page have been deleted since, and nearly always after that.) [`Database::verify`](crate::Database::verify)
//! finds references that lead to nothing and objects to which nothing leads. It begins with the *roots*: each heap has one for each type.
//!
//! [`Heap::allocate_near`] puts an object into the page of another one: what is visited together is best stored together. An object whose
//! texts and arrays outgrow a page has an extent of its own, up to 1 GiB, which is read and written as a whole. One that grows stays where it is for references: what is moved leaves
//! a forwarding reference.
//!
//! # Changes
//! A value that was read is a copy; [`Heap::fields`] copies some fields and no others. [`Heap::set`] and [`Heap::update`] store another one, and [`Heap::change`] makes several changes at
//! once: all of them happen, or none. Changes are logged, durable and recovered as those of [plain tables](crate::TableOptions::versions) are; what
//! [`Options::durability`](crate::Options::durability) says of those goes for them too. So a program that builds a large graph puts many objects into each
//! change, or opens its database with [`Durability::Deferred`](crate::Durability::Deferred). They are not part of a [`Transaction`](crate::Transaction), and snapshots do not
//! see earlier states of objects.
//!
//! # More than memory holds
//! A traversal that misses at each step waits for the device at each step. [`Heap::fetch_all`] and [`Fetcher`] read the objects to which an
//! object refers side by side.
//!
//! # What it does not do
//! Pages of a heap are used again for its objects, and given back when the heap is dropped; compaction leaves them where they are. A feed of changes tells
//! nothing of heaps, and a salvage does not take objects out. There is no garbage collection.
//!
//! `docs/objects.md` says when to use a heap, and when a table.

pub use crate::heap::{Change, Fetcher, Heap};
pub use vellum_objects::{
    AnyRef, Array, Converted, Field, Fields, Object, ObjectError, Persistent, Ref, Shape, Text,
};

#[doc(hidden)]
pub use vellum_objects::__private;
