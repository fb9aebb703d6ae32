//! An OO7 database as structures in pages that refer to each other by pointers, as a program in C or C++ has it, and as a file of such pages.
//!
//! In the file a reference is the number of an object, from 1. *Swizzling* a page turns each into the address of the object, by a table of
//! all objects. So that it is found where references stand, each page has a list of these places.

use super::plan::{COMPLEX, FANOUT, Plan};
use super::{Assembly, Children, Composite, Part};
use std::cell::Cell;
use vellum_base::PAGE_SIZE;

/// An assembly.
#[repr(C)]
pub struct AssemblyNode {
    date: u32,
    is_base: u32,
    /// Of assemblies, or of composite parts.
    children: [*const (); FANOUT],
}

/// A composite part.
#[repr(C)]
pub struct CompositeNode {
    date: u32,
    /// How many base assemblies use it.
    pub users: u32,
    root: *const PartNode,
    document: *const (),
}

/// An atomic part.
#[repr(C)]
pub struct PartNode {
    pub number: u32,
    pub date: Cell<u32>,
    pub x: Cell<i32>,
    pub y: Cell<i32>,
    document: u32,
    kind: [u8; 12],
    of: *const CompositeNode,
    to: [*const ConnectionNode; FANOUT],
}

/// A connection.
#[repr(C)]
pub struct ConnectionNode {
    kind: [u8; 12],
    length: u32,
    from: *const PartNode,
    to: *const PartNode,
}

/// Reads an assembly.
///
/// # Safety
/// It is there, and swizzled.
pub unsafe fn assembly(node: *const AssemblyNode) -> Assembly<*const AssemblyNode, *const CompositeNode> {
    // SAFETY: as the caller promises.
    let node = unsafe { &*node };
    let children = match node.is_base {
        0 => Children::Assemblies(node.children.map(<*const ()>::cast)),
        _ => Children::Parts(node.children.map(<*const ()>::cast)),
    };
    Assembly { date: node.date, children }
}

/// Reads a composite part.
///
/// # Safety
/// As for [`assembly`].
#[inline]
pub unsafe fn composite(node: *const CompositeNode) -> Composite<*const PartNode> {
    // SAFETY: as the caller promises.
    let node = unsafe { &*node };
    Composite { date: node.date, root: node.root }
}

/// Reads an atomic part.
///
/// # Safety
/// As for [`assembly`].
#[inline]
pub unsafe fn part(node: *const PartNode) -> Part<*const ConnectionNode> {
    // SAFETY: as the caller promises.
    let node = unsafe { &*node };
    Part { number: node.number, x: node.x.get(), document: node.document, to: node.to }
}

/// The atomic part to which a connection leads.
///
/// # Safety
/// As for [`assembly`].
#[inline]
pub unsafe fn connection(node: *const ConnectionNode) -> *const PartNode {
    // SAFETY: as the caller promises.
    unsafe { (*node).to }
}

/// The pages of a database, and what is known of them.
pub struct Image {
    /// The pages.
    pub bytes: Vec<u8>,
    /// Where each object begins; the first one is none.
    pub objects: Vec<u64>,
    /// The places of references in each page.
    pub references: Vec<Vec<u16>>,
    /// The objects of composite parts and of atomic parts, by their numbers.
    pub composites: Vec<usize>,
    pub parts: Vec<usize>,
}

/// What is known of the pages of a database that lie elsewhere; see [`Image`].
pub struct Layout {
    /// How many bytes they are.
    pub bytes: usize,
    pub objects: Vec<u64>,
    pub references: Vec<Vec<u16>>,
    pub composites: Vec<usize>,
}

/// The object of the assembly at the top.
pub const ROOT: usize = 1;

impl Image {
    /// The database of a plan: assemblies first, then each composite part with its document, atomic parts and connections.
    pub fn build(plan: &Plan) -> Self {
        let mut image = Self {
            bytes: Vec::new(),
            objects: vec![0],
            references: Vec::new(),
            composites: Vec::new(),
            parts: Vec::new(),
        };
        let assemblies = plan.assembly_dates.len();
        // Which object each will be.
        let of_composite = |number: u32| 1 + assemblies + number as usize * (2 + 4 * plan.parts as usize);
        let of_part =
            |number: u32| of_composite(number / plan.parts) + 2 + (number % plan.parts) as usize * 4;
        for (number, date) in (0u32..).zip(&plan.assembly_dates) {
            let children = match number.checked_sub(COMPLEX) {
                None => Plan::children(number).map(|child| 1 + child as usize),
                Some(base) => plan.base_parts[base as usize].map(of_composite),
            };
            image.add(&[*date, u32::from(number >= COMPLEX)], &children, 0);
        }
        let users = plan.users();
        for composite in 0..plan.composites() {
            let (date, users) = (plan.composite_dates[composite as usize], users[composite as usize].len());
            let (own, first) = (of_composite(composite), composite * plan.parts);
            image.composites.push(own);
            image.add(&[date, users as u32], &[of_part(first), own + 1], 0);
            image.add(&[plan.document_bytes as u32, 0], &[own], plan.document_bytes);
            for part in first..first + plan.parts {
                let (own, index) = (of_part(part), part as usize);
                image.parts.push(own);
                let numbers =
                    [part, plan.part_dates[index], part, part / 2, plan.part_documents[index], 0, 0, 0];
                image.add(&numbers, &[of_composite(composite), own + 1, own + 2, own + 3], 0);
                for to in plan.connections[index] {
                    image.add(&[0, 0, 0, part], &[own, of_part(to)], 0);
                }
            }
        }
        image.bytes.resize(image.bytes.len().next_multiple_of(PAGE_SIZE), 0);
        image.references.resize(image.bytes.len() / PAGE_SIZE, Vec::new());
        image
    }

    /// What is known of the pages, and how many bytes they are.
    pub fn without_pages(self) -> Layout {
        let Self { bytes, objects, references, composites, .. } = self;
        Layout { bytes: bytes.len(), objects, references, composites }
    }

    /// Adds an object of numbers, references and other bytes. It begins in a new page if it does not fit into the last one.
    fn add(&mut self, numbers: &[u32], references: &[usize], more: usize) {
        let length = 4 * numbers.len() + 8 * references.len() + more.next_multiple_of(8);
        let left = self.bytes.len().next_multiple_of(PAGE_SIZE) - self.bytes.len();
        if length > left {
            self.bytes.resize(self.bytes.len() + left, 0);
        }
        self.objects.push(self.bytes.len() as u64);
        numbers.iter().for_each(|number| self.bytes.extend_from_slice(&number.to_ne_bytes()));
        for reference in references {
            let (page, place) = (self.bytes.len() / PAGE_SIZE, self.bytes.len() % PAGE_SIZE);
            self.references.resize(self.references.len().max(page + 1), Vec::new());
            self.references[page].push(place as u16);
            self.bytes.extend_from_slice(&reference.to_ne_bytes());
        }
        self.bytes.resize(self.bytes.len() + more.next_multiple_of(8), b'.');
    }
}

/// Turns the references of a page into addresses.
///
/// # Safety
/// The page is in memory, can be written, and has references in these places that are not swizzled yet; `base` is where the pages begin.
pub unsafe fn swizzle(page: *mut u8, references: &[u16], objects: &[u64], base: *const u8) {
    for place in references {
        // SAFETY: references are aligned, and within the page.
        let word = unsafe { &mut *page.add(usize::from(*place)).cast::<usize>() };
        *word = base.wrapping_add(objects[*word] as usize).addr();
    }
}
