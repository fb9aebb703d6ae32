//! What keeps the objects of OO7, and the one interface to it.

pub mod heap;
pub mod image;
pub mod memory;
pub mod plan;
#[cfg(feature = "sqlite")]
pub mod sqlite;
pub mod texas;

use crate::Result;
use plan::FANOUT;

/// An assembly.
#[derive(Clone, Copy, Debug)]
pub struct Assembly<A, C> {
    /// When it was built.
    pub date: u32,
    /// Of which it is made.
    pub children: Children<A, C>,
}

/// What an assembly is made of.
#[derive(Clone, Copy, Debug)]
pub enum Children<A, C> {
    /// Other assemblies.
    Assemblies([A; FANOUT]),
    /// Composite parts: it is a base assembly.
    Parts([C; FANOUT]),
}

/// A composite part.
#[derive(Clone, Copy, Debug)]
pub struct Composite<P> {
    /// When it was built.
    pub date: u32,
    /// The atomic part at which a traversal of its parts begins.
    pub root: P,
}

/// An atomic part.
#[derive(Clone, Copy, Debug)]
pub struct Part<C> {
    /// Its number, from zero.
    pub number: u32,
    /// A coordinate, which is read so that something is.
    pub x: i32,
    /// The number of the document that it names.
    pub document: u32,
    /// The connections to others.
    pub to: [C; FANOUT],
}

/// Something that keeps the objects of an OO7 database.
///
/// Each method fails if storage or the engine does. What a contestant does not do it refuses as [`Unsupported`].
pub trait Graph {
    /// A reference to an assembly.
    type Assembly: Copy;
    /// A reference to a composite part.
    type Composite: Copy;
    /// A reference to an atomic part.
    type Part: Copy;
    /// A reference to a connection.
    type Connection: Copy;

    /// The assembly at the top.
    fn root(&mut self) -> Result<Self::Assembly>;

    /// Reads an assembly.
    fn assembly(&mut self, id: Self::Assembly) -> Result<Assembly<Self::Assembly, Self::Composite>>;

    /// Reads a composite part.
    fn composite(&mut self, id: Self::Composite) -> Result<Composite<Self::Part>>;

    /// Reads an atomic part.
    fn part(&mut self, id: Self::Part) -> Result<Part<Self::Connection>>;

    /// The atomic part to which a connection leads.
    fn connection(&mut self, id: Self::Connection) -> Result<Self::Part>;

    /// Composite parts that will be visited after those of the calls before.
    fn ahead(&mut self, _composites: &[Self::Composite]) -> Result<()> {
        Ok(())
    }

    /// Exchanges x and y of an atomic part.
    fn swap(&mut self, _part: Self::Part) -> Result<()> {
        Err(Unsupported.into())
    }

    /// Makes the date of an atomic part odd if it is even, and even if it is odd, in its index too.
    fn toggle_date(&mut self, _part: Self::Part) -> Result<()> {
        Err(Unsupported.into())
    }

    /// An atomic part by its number, by an index.
    fn part_numbered(&mut self, _number: u32) -> Result<Self::Part> {
        Err(Unsupported.into())
    }

    /// A composite part by its number, by the index of the titles of documents if there is one.
    fn composite_numbered(&mut self, number: u32) -> Result<Self::Composite>;

    /// Shows the atomic parts with this date or a later one, by an index.
    fn parts_since(&mut self, _date: u32, _show: &mut dyn FnMut(Part<Self::Connection>)) -> Result<()> {
        Err(Unsupported.into())
    }

    /// Shows all atomic parts.
    fn all_parts(&mut self, _show: &mut dyn FnMut(Part<Self::Connection>)) -> Result<()> {
        Err(Unsupported.into())
    }

    /// How many base assemblies use the composite part of the document with this title, found by an index.
    fn users_of_document(&mut self, _title: &str) -> Result<u64> {
        Err(Unsupported.into())
    }

    /// Whether there is a document of this number, by an index.
    fn has_document(&mut self, _number: u32) -> Result<bool> {
        Err(Unsupported.into())
    }

    /// Makes what was changed durable, as far as the engine does.
    fn commit(&mut self) -> Result<()> {
        Ok(())
    }

    /// What should be told of what has happened so far: pages that were read, say.
    fn remarks(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// The graph does not do this.
#[derive(Debug)]
pub struct Unsupported;

impl std::fmt::Display for Unsupported {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("this contestant does not do that")
    }
}

impl std::error::Error for Unsupported {}
