//! Heaps of objects: persistent structs and enums that refer to each other.
//!
//! A heap holds a graph of objects, possibly larger than memory and with cycles, in the same file as tables. A [`Ref`]
//! leads to an object as a pointer does: it holds the object's location, which is also its address in memory. There is
//! no lookup and no swizzling: reading an object in memory costs a translation by the processor's page table, a look at
//! the state of its page, and one at its first word, which shows that it is the intended object. An object that is not
//! in memory is first read from storage.
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
//! [`derive(Persistent)`](derive@Persistent) describes a struct or an enum whose fields are themselves persistent:
//! numbers, `bool`, `char`, [`Ref`], [`Text`], [`Array`], `Option`, arrays of a fixed length, and structs and enums
//! that derive it as well, which are embedded in the object. The compiler refuses types that hold an address (`Box`,
//! `String`, `Vec`, references, raw pointers) or differ between machines (`usize`), and says what to use instead. The
//! description of each type is stored in the heap. A program whose type of the same name differs gets an error that
//! shows both, and converts the objects by a function: [`Heap::convert`].
//!
//! # Objects
//! An object belongs to the heap, not to the objects that refer to it: it exists until it is [deleted](Change::delete).
//! Following a reference to a deleted object is an error, [`ObjectError::Dangling`]. (It is detected by a 16-bit number
//! that each object in a place has: with certainty until 65 536 objects of the same page have been deleted since, and
//! nearly always after that.) A reference is for the heap that made it: another heap refuses to change anything by it, but
//! may read the object. [`Database::verify`](crate::Database::verify) finds references that lead nowhere and
//! objects that no reference leads to. It begins with the *roots*: each heap has one root for each type.
//!
//! [`Heap::allocate_near`] puts an object into the page of another one: objects that are visited together are best
//! stored together. An object whose texts and arrays outgrow a page has its own extent, up to 1 GiB, which is read and
//! written as a whole. References to an object stay valid when it grows: an object that is moved leaves a forwarding
//! reference.
//!
//! # Changes
//! A value that was read is a copy; [`Heap::fields`] copies only selected fields. [`Heap::set`] and [`Heap::update`]
//! store a new value, and [`Heap::change`] makes several changes at once: all of them happen, or none. Changes are
//! logged, durable and recovered like those of [plain tables](crate::TableOptions::versions), and
//! [`Options::durability`](crate::Options::durability) applies to them too. So a program that builds a large graph puts
//! many objects into each change, or opens its database with [`Durability::Deferred`](crate::Durability::Deferred).
//! Changes of a heap are not part of a [`Transaction`](crate::Transaction), and snapshots do not see earlier states of
//! objects.
//!
//! # More than memory holds
//! A traversal that misses at each step waits for the device at each step. [`Heap::fetch_all`] and [`Fetcher`] overlap
//! the reads of the objects to which an object refers.
//!
//! # What it does not do
//! Pages of a heap are reused for its objects, and given back when the heap is dropped; compaction does not move them.
//! A feed of changes does not include heaps, and a salvage does not extract objects. There is no garbage collection.
//!
//! `docs/objects.md` says when to use a heap, and when a table.

pub use crate::heap::{Change, Fetcher, Heap};
pub use vellum_objects::{
    AnyRef, Array, Converted, Field, Fields, Object, ObjectError, Persistent, Ref, Shape, Text,
};

#[doc(hidden)]
pub use vellum_objects::__private;
