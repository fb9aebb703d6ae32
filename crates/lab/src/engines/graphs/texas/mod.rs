//! The design of Texas (Singhal, Kakkad, Wilson, *Texas: an efficient, portable persistent store*, 1992): pointers are swizzled at page-fault
//! time.
//!
//! Address space is reserved for all pages of a file. The first touch of a page is caught; the page is read, every reference in
//! it is turned into an address, and the program goes on. So it follows plain pointers. A reference in the file is the number of an
//! object, and a table says where that is. The file is read past the system's cache, as the pool reads its own. One
//! thread follows pointers, and changes nothing.
//!
//! [`Design`] says how touches are caught and what becomes of pages for which there is no room. In Texas the operating system pages them
//! out. A page that was swizzled is one that was written, so it goes to swap (Narasayya, Ng, McNamee, Tiwary, Levy, *Reducing the virtual
//! memory overhead of swizzling*, 1996), though it could be read and swizzled again. The other designs avoid that.

mod region;
mod userfault;

use super::image::{self, AssemblyNode, CompositeNode, ConnectionNode, Image, Layout, PartNode};
use super::plan::Plan;
use super::{Assembly, Composite, Graph, Part};
use crate::Result;
use region::Region;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;

/// How touches of pages that are not in memory are caught, and what becomes of pages for which there is no room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Design {
    /// Protected pages and `SIGSEGV`; the operating system swaps. This is Texas.
    Swap,
    /// Missing pages, of which userfaultfd tells a thread; the operating system swaps.
    Thread,
    /// Missing pages, for which userfaultfd sends `SIGBUS`. A page that is swizzled is given to `MADV_FREE`: the operating system drops it
    /// instead of writing it, and it is missing again.
    Free,
    /// Protected pages and `SIGSEGV`. So many pages stay as a limit says; those that came first go first (`MADV_DONTNEED`), and are
    /// protected again.
    Drop,
}

/// A database whose pages are swizzled at the first touch.
pub struct TexasGraph {
    region: Region,
    composites: Vec<usize>,
}

impl TexasGraph {
    /// Builds a database in a file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn create(plan: &Plan, path: &Path) -> Result<()> {
        let mut file = File::create(path)?;
        file.write_all(&Image::build(plan).bytes)?;
        Ok(file.sync_all()?)
    }

    /// Opens the database of a plan, of which so many bytes may be in memory if the design has a limit of its own.
    ///
    /// # Errors
    /// If the system refuses addresses, the handler or the file.
    pub fn open(mut layout: Layout, path: &Path, pool: u64, design: Design) -> Result<Self> {
        let composites = std::mem::take(&mut layout.composites);
        Ok(Self { region: Region::reserve(layout, path, pool, design)?, composites })
    }
}

// Each pointer leads to an object of its type in the region, whose page is swizzled before any of it is seen.
impl Graph for TexasGraph {
    type Assembly = *const AssemblyNode;
    type Composite = *const CompositeNode;
    type Part = *const PartNode;
    type Connection = *const ConnectionNode;

    fn root(&mut self) -> Result<*const AssemblyNode> {
        Ok(self.region.address(image::ROOT).cast())
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

    fn composite_numbered(&mut self, number: u32) -> Result<*const CompositeNode> {
        Ok(self.region.address(self.composites[number as usize]).cast())
    }

    fn remarks(&self) -> Vec<(&'static str, u64)> {
        vec![("pages_swizzled", self.region.swizzled())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Oo7Operation, Oo7Size};
    use crate::workloads::oo7::{expected, perform};

    #[test]
    fn a_page_that_was_dropped_is_caught_and_swizzled_again() {
        let plan = Plan::new(Oo7Size::Small, 30, 1);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("texas");
        TexasGraph::create(&plan, &file).unwrap();
        for design in [Design::Free, Design::Thread] {
            let layout = Image::build(&plan).without_pages();
            let mut graph = match TexasGraph::open(layout, &file, 0, design) {
                Ok(graph) => graph,
                Err(error) => {
                    assert!(error.to_string().contains("userfaultfd is refused"), "{error}");
                    return;
                }
            };
            let mut swizzled = vec![0];
            for _ in 0..3 {
                let counted = perform(&mut graph, Oo7Operation::T1, &plan).unwrap();
                assert_eq!(counted, expected(Oo7Operation::T1, &plan));
                swizzled.push(graph.region.swizzled());
                graph.region.lose();
            }
            let each: Vec<u64> = swizzled.windows(2).map(|pair| pair[1] - pair[0]).collect();
            assert!(each[0] > 10 && each[1] == each[0] && each[2] == each[0], "{design:?}: {each:?}");
        }
    }
}
