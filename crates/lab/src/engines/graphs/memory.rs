//! Pointers in memory: what no storage costs.

use super::image::{self, AssemblyNode, CompositeNode, ConnectionNode, Image, PartNode};
use super::plan::Plan;
use super::{Assembly, Composite, Graph, Part};
use crate::Result;
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use vellum_base::PAGE_SIZE;
use vellum_vm::AlignedBuffer;

/// The objects of a database in memory, which refer to each other by addresses.
pub struct MemoryGraph {
    root: *const AssemblyNode,
    parts: Vec<*const PartNode>,
    dates: BTreeMap<(u32, u32), *const PartNode>,
    titles: HashMap<String, *const CompositeNode>,
    /// What all of it points into.
    _bytes: AlignedBuffer,
}

impl MemoryGraph {
    /// Builds a database.
    pub fn build(plan: &Plan) -> Self {
        let image = Image::build(plan);
        let mut bytes = AlignedBuffer::new(image.bytes.len());
        bytes.copy_from_slice(&image.bytes);
        let base = bytes.as_mut_ptr();
        for (page, references) in image.references.iter().enumerate() {
            // SAFETY: the page lies in the buffer, which nothing else points into yet.
            unsafe { image::swizzle(base.add(page * PAGE_SIZE), references, &image.objects, base) };
        }
        let address = |object: usize| base.wrapping_add(image.objects[object] as usize).cast_const();
        let parts: Vec<*const PartNode> = image.parts.iter().map(|part| address(*part).cast()).collect();
        let dates =
            (0u32..).zip(&plan.part_dates).map(|(number, date)| ((*date, number), parts[number as usize]));
        let titles = (0u32..).zip(&image.composites);
        Self {
            root: address(image::ROOT).cast(),
            dates: dates.collect(),
            titles: titles.map(|(number, object)| (Plan::title(number), address(*object).cast())).collect(),
            parts,
            _bytes: bytes,
        }
    }
}

// Each pointer leads to an object of its type in the buffer, all of which are swizzled.
impl Graph for MemoryGraph {
    type Assembly = *const AssemblyNode;
    type Composite = *const CompositeNode;
    type Part = *const PartNode;
    type Connection = *const ConnectionNode;

    fn root(&mut self) -> Result<*const AssemblyNode> {
        Ok(self.root)
    }

    fn assembly(
        &mut self,
        id: *const AssemblyNode,
    ) -> Result<Assembly<*const AssemblyNode, *const CompositeNode>> {
        // SAFETY: see above; so for all others.
        Ok(unsafe { image::assembly(id) })
    }

    #[inline]
    fn composite(&mut self, id: *const CompositeNode) -> Result<Composite<*const PartNode>> {
        // SAFETY: as above.
        Ok(unsafe { image::composite(id) })
    }

    #[inline]
    fn part(&mut self, id: *const PartNode) -> Result<Part<*const ConnectionNode>> {
        // SAFETY: as above.
        Ok(unsafe { image::part(id) })
    }

    #[inline]
    fn connection(&mut self, id: *const ConnectionNode) -> Result<*const PartNode> {
        // SAFETY: as above.
        Ok(unsafe { image::connection(id) })
    }

    fn swap(&mut self, part: *const PartNode) -> Result<()> {
        // SAFETY: as above.
        let part = unsafe { &*part };
        part.x.swap(&part.y);
        Ok(())
    }

    fn toggle_date(&mut self, id: *const PartNode) -> Result<()> {
        // SAFETY: as above.
        let part = unsafe { &*id };
        self.dates.remove(&(part.date.get(), part.number));
        part.date.set(part.date.get() ^ 1);
        self.dates.insert((part.date.get(), part.number), id);
        Ok(())
    }

    fn part_numbered(&mut self, number: u32) -> Result<*const PartNode> {
        Ok(self.parts[number as usize])
    }

    fn parts_since(&mut self, date: u32, show: &mut dyn FnMut(Part<*const ConnectionNode>)) -> Result<()> {
        for (_, part) in self.dates.range((Bound::Included((date, 0)), Bound::Unbounded)) {
            // SAFETY: as above.
            show(unsafe { image::part(*part) });
        }
        Ok(())
    }

    fn all_parts(&mut self, show: &mut dyn FnMut(Part<*const ConnectionNode>)) -> Result<()> {
        for part in &self.parts {
            // SAFETY: as above.
            show(unsafe { image::part(*part) });
        }
        Ok(())
    }

    fn composite_numbered(&mut self, number: u32) -> Result<*const CompositeNode> {
        Ok(self.titles[&Plan::title(number)])
    }

    fn users_of_document(&mut self, title: &str) -> Result<u64> {
        // SAFETY: as above.
        Ok(unsafe { &*self.titles[title] }.users.into())
    }

    fn has_document(&mut self, number: u32) -> Result<bool> {
        Ok(self.titles.contains_key(&Plan::title(number)))
    }
}
