//! The operations of OO7, and what each must count.

use crate::Result;
use crate::config::Oo7Operation;
use crate::engines::graphs::plan::{BASES, COMPLEX, FANOUT, Plan};
use crate::engines::graphs::{Children, Graph};
use rand::{RngExt, SeedableRng, rngs::StdRng};

/// What Q1 and Q4 choose depends on this.
const CHOICE: u64 = 7;
/// How many atomic parts Q1 looks up, and how many documents Q4.
const LOOKUPS: u32 = 10;
/// How many composite parts that will be visited are told to the graph at once, and how many such batches before they are.
const AHEAD: usize = 4;
const BATCHES_AHEAD: usize = 2;

/// Does an operation; returns what it counts.
///
/// # Errors
/// If the graph fails, or does not do it.
pub fn perform<G: Graph>(graph: &mut G, operation: Oo7Operation, plan: &Plan) -> Result<u64> {
    use Oo7Operation as O;
    let count = match operation {
        O::T1 => traverse(graph, plan, 1, |_, _, _| Ok(()))?,
        O::T1Sparse => traverse(graph, plan, 3, |_, _, _| Ok(()))?,
        O::T2a => traverse_changing(graph, plan, true, 1, G::swap)?,
        O::T2b => traverse_changing(graph, plan, false, 1, G::swap)?,
        O::T2c => traverse_changing(graph, plan, false, 4, G::swap)?,
        O::T3a => traverse_changing(graph, plan, true, 1, G::toggle_date)?,
        O::T3b => traverse_changing(graph, plan, false, 1, G::toggle_date)?,
        O::T3c => traverse_changing(graph, plan, false, 4, G::toggle_date)?,
        O::All => traverse_all(graph, plan)?,
        O::T6 => {
            let mut count = 0;
            for composite in composites(graph, 1)? {
                let root = graph.composite(composite)?.root;
                count += u64::from(graph.part(root)?.number < plan.part_count());
            }
            count
        }
        O::Q1 => {
            let mut random = StdRng::seed_from_u64(CHOICE);
            let mut count = 0;
            for _ in 0..LOOKUPS {
                let number = random.random_range(0..plan.part_count());
                let part = graph.part_numbered(number)?;
                count += u64::from(graph.part(part)?.number == number);
            }
            count
        }
        O::Q2 => since(graph, Plan::date_of_latest(0.01))?,
        O::Q3 => since(graph, Plan::date_of_latest(0.1))?,
        O::Q4 => chosen_documents(plan)
            .map(|composite| graph.users_of_document(&Plan::title(composite)))
            .sum::<Result<u64>>()?,
        O::Q5 => later_bases(graph)?,
        O::Q6 => {
            let root = graph.root()?;
            later_assemblies(graph, root)?.1
        }
        O::Q7 => {
            let mut count = 0;
            graph.all_parts(&mut |part| count += u64::from(part.number < plan.part_count()))?;
            count
        }
        O::Q8 => {
            let mut documents = Vec::new();
            graph.all_parts(&mut |part| documents.push(part.document))?;
            let mut count = 0;
            for document in documents {
                count += u64::from(graph.has_document(document)?);
            }
            count
        }
    };
    Ok(count)
}

/// What an operation must count.
pub fn expected(operation: Oo7Operation, plan: &Plan) -> u64 {
    use Oo7Operation as O;
    let visited = u64::from(3 * BASES * plan.parts);
    let dates_since =
        |share| plan.part_dates.iter().filter(|date| **date >= Plan::date_of_latest(share)).count() as u64;
    match operation {
        O::T1 | O::T2b | O::T3b => visited,
        O::T1Sparse => visited / 3,
        O::T2a | O::T3a | O::T6 => u64::from(3 * BASES),
        O::T2c | O::T3c => 4 * visited,
        O::Q1 => LOOKUPS.into(),
        O::Q2 => dates_since(0.01),
        O::Q3 => dates_since(0.1),
        O::Q4 => {
            let users = plan.users();
            chosen_documents(plan).map(|composite| users[composite as usize].len() as u64).sum()
        }
        O::Q5 => (0..BASES).filter(|base| is_later(plan, COMPLEX + base)).count() as u64,
        O::Q6 => (0..COMPLEX + BASES)
            .filter(|assembly| latest(plan, *assembly) > plan.assembly_dates[*assembly as usize])
            .count() as u64,
        O::All | O::Q7 | O::Q8 => plan.part_count().into(),
    }
}

fn is_later(plan: &Plan, base: u32) -> bool {
    latest(plan, base) > plan.assembly_dates[base as usize]
}

/// The latest date of a composite part below an assembly.
fn latest(plan: &Plan, assembly: u32) -> u32 {
    if assembly < COMPLEX {
        return Plan::children(assembly).into_iter().map(|child| latest(plan, child)).max().unwrap_or(0);
    }
    let parts = plan.base_parts[(assembly - COMPLEX) as usize];
    parts.iter().map(|part| plan.composite_dates[*part as usize]).max().unwrap_or(0)
}

/// The documents that Q4 looks up.
fn chosen_documents(plan: &Plan) -> impl Iterator<Item = u32> {
    let (mut random, composites) = (StdRng::seed_from_u64(CHOICE), plan.composites());
    (0..LOOKUPS).map(move |_| random.random_range(0..composites))
}

/// The composite parts of all base assemblies, in the order of a traversal; of each base assembly one of `of`.
fn composites<G: Graph>(graph: &mut G, of: usize) -> Result<Vec<G::Composite>> {
    let (mut found, mut next) = (Vec::new(), vec![graph.root()?]);
    while let Some(id) = next.pop() {
        match graph.assembly(id)?.children {
            Children::Parts(parts) => found.extend(parts.into_iter().step_by(of)),
            Children::Assemblies(assemblies) => next.extend(assemblies.into_iter().rev()),
        }
    }
    Ok(found)
}

/// Visits the atomic parts of composite parts, and does something to each, given the part and whether it is the first one. Returns how
/// many it has visited.
fn traverse<G: Graph>(
    graph: &mut G,
    plan: &Plan,
    of: usize,
    visit: impl FnMut(&mut G, G::Part, bool) -> Result<()>,
) -> Result<u64> {
    let order = composites(graph, of)?;
    visit_all(graph, plan, &order, visit)
}

/// Visits the atomic parts of all composite parts, those too that no assembly uses, each once. Returns how many there are.
fn traverse_all<G: Graph>(graph: &mut G, plan: &Plan) -> Result<u64> {
    let mut order = Vec::with_capacity(plan.composites() as usize);
    for composite in 0..plan.composites() {
        order.push(graph.composite_numbered(composite)?);
    }
    visit_all(graph, plan, &order, |_, _, _| Ok(()))
}

/// Visits the atomic parts of composite parts in this order, and tells the graph early which ones come.
fn visit_all<G: Graph>(
    graph: &mut G,
    plan: &Plan,
    order: &[G::Composite],
    mut visit: impl FnMut(&mut G, G::Part, bool) -> Result<()>,
) -> Result<u64> {
    let mut parts = Visits::new(plan);
    let batch = |number: usize| order.chunks(AHEAD).nth(number).unwrap_or_default();
    for number in 0..BATCHES_AHEAD {
        graph.ahead(batch(number))?;
    }
    for (index, composite) in order.iter().enumerate() {
        if index % AHEAD == 0 {
            graph.ahead(batch(index / AHEAD + BATCHES_AHEAD))?;
        }
        let root = graph.composite(*composite)?.root;
        parts.visit(graph, root, &mut visit)?;
    }
    Ok(parts.end())
}

/// Visits of the atomic parts of composite parts.
struct Visits<G: Graph> {
    /// The number of the visit at which each part was met last: so nothing has to be cleared.
    met: Vec<u32>,
    turn: u32,
    next: Vec<G::Part>,
    visited: u64,
    sum: i64,
}

impl<G: Graph> Visits<G> {
    fn new(plan: &Plan) -> Self {
        let met = vec![0; plan.part_count() as usize];
        Self { met, turn: 0, next: Vec::new(), visited: 0, sum: 0 }
    }

    /// Visits those of one composite part, from its root, depth first.
    #[inline(always)]
    fn visit(
        &mut self,
        graph: &mut G,
        root: G::Part,
        visit: &mut impl FnMut(&mut G, G::Part, bool) -> Result<()>,
    ) -> Result<()> {
        self.turn += 1;
        self.next.push(root);
        let mut is_first = true;
        while let Some(id) = self.next.pop() {
            let part = graph.part(id)?;
            let met = &mut self.met[part.number as usize];
            if *met == self.turn {
                continue;
            }
            *met = self.turn;
            self.visited += 1;
            self.sum += i64::from(part.x);
            visit(graph, id, is_first)?;
            is_first = false;
            for connection in part.to {
                self.next.push(graph.connection(connection)?);
            }
        }
        Ok(())
    }

    /// How many were visited.
    fn end(self) -> u64 {
        std::hint::black_box(self.sum);
        self.visited
    }
}

/// T1 with changes, which are counted: of the first part of each composite part, or of each part so often.
fn traverse_changing<G: Graph>(
    graph: &mut G,
    plan: &Plan,
    first_only: bool,
    times: u32,
    change: fn(&mut G, G::Part) -> Result<()>,
) -> Result<u64> {
    let mut changes = 0;
    traverse(graph, plan, 1, |graph, part, is_first| {
        for _ in 0..if is_first || !first_only { times } else { 0 } {
            change(graph, part)?;
            changes += 1;
        }
        Ok(())
    })?;
    graph.commit()?;
    Ok(changes)
}

fn since<G: Graph>(graph: &mut G, date: u32) -> Result<u64> {
    let mut count = 0;
    graph.parts_since(date, &mut |_| count += 1)?;
    Ok(count)
}

/// Q5: the base assemblies that use a composite part of a later date.
fn later_bases<G: Graph>(graph: &mut G) -> Result<u64> {
    let (mut count, mut next) = (0, vec![graph.root()?]);
    while let Some(id) = next.pop() {
        let assembly = graph.assembly(id)?;
        match assembly.children {
            Children::Assemblies(assemblies) => next.extend(assemblies),
            Children::Parts(parts) => {
                let mut is_later = false;
                for composite in parts {
                    is_later |= graph.composite(composite)?.date > assembly.date;
                }
                count += u64::from(is_later);
            }
        }
    }
    Ok(count)
}

/// Q6: the latest date below an assembly, and how many assemblies from this one on are earlier than that.
fn later_assemblies<G: Graph>(graph: &mut G, id: G::Assembly) -> Result<(u32, u64)> {
    let assembly = graph.assembly(id)?;
    let (mut latest, mut count) = (0, 0);
    for child in 0..FANOUT {
        let (date, below) = match assembly.children {
            Children::Assemblies(assemblies) => later_assemblies(graph, assemblies[child])?,
            Children::Parts(parts) => (graph.composite(parts[child])?.date, 0),
        };
        latest = latest.max(date);
        count += below;
    }
    Ok((latest, count + u64::from(latest > assembly.date)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Named, Oo7Size};
    use crate::engines::graphs::image::Image;
    use crate::engines::graphs::texas::{Design, TexasGraph};
    use crate::engines::graphs::{Unsupported, heap::HeapGraph, memory::MemoryGraph};

    /// Every operation but some counts what follows from the plan, and so again; returns how many were done.
    fn counts<G: Graph>(graph: &mut G, plan: &Plan, without: &[&str]) -> usize {
        let mut done = 0;
        for _ in 0..2 {
            for (operation, name, _) in Oo7Operation::ALL {
                if without.contains(name) {
                    continue;
                }
                match perform(graph, *operation, plan) {
                    Ok(count) => assert_eq!(count, expected(*operation, plan), "{name}"),
                    Err(error) if error.is::<Unsupported>() => continue,
                    Err(error) => panic!("{name}: {error}"),
                }
                done += 1;
            }
        }
        done
    }

    #[test]
    fn the_counts_of_the_benchmark_are_those_of_the_paper() {
        let plan = Plan::new(Oo7Size::Small, 500, 1);
        assert_eq!(plan.part_count(), 10_000);
        assert_eq!(expected(Oo7Operation::T1, &plan), 43_740);
        assert_eq!(expected(Oo7Operation::T2a, &plan), 2187);
        assert_eq!(expected(Oo7Operation::T2c, &plan), 174_960);
        assert_eq!(expected(Oo7Operation::T1, &Plan::new(Oo7Size::Medium, 500, 1)), 437_400);
    }

    #[test]
    fn every_contestant_counts_what_it_must() {
        let plan = Plan::new(Oo7Size::Small, 60, 1);
        let folder = tempfile::tempdir().unwrap();
        let all = 2 * Oo7Operation::ALL.len();
        // What takes long in a program that is not optimised.
        let (long, changes) = (["t2c", "t3b", "t3c"], ["t2a", "t2b", "t2c", "t3a", "t3b", "t3c"]);
        assert_eq!(counts(&mut MemoryGraph::build(&plan), &plan, &[]), all);
        let file = folder.path().join("heap");
        HeapGraph::create(&plan, &file).unwrap();
        let mut graph = HeapGraph::open(&file, 16 << 20, false).unwrap();
        assert_eq!(counts(&mut graph, &plan, &long), all - 2 * long.len());
        drop(graph);
        let file = folder.path().join("small");
        HeapGraph::create(&plan, &file).unwrap();
        let mut graph = HeapGraph::open(&file, 256 << 10, true).unwrap();
        assert_eq!(counts(&mut graph, &plan, &changes), all - 2 * changes.len());
        let file = folder.path().join("texas");
        TexasGraph::create(&plan, &file).unwrap();
        for design in [Design::Swap, Design::Thread, Design::Free, Design::Drop] {
            for pool in [16 << 20, 64 << 10] {
                let layout = Image::build(&plan).without_pages();
                let mut graph = match TexasGraph::open(layout, &file, pool, design) {
                    Ok(graph) => graph,
                    Err(error) if error.to_string().contains("userfaultfd is refused") => {
                        println!("{design:?}: {error}");
                        continue;
                    }
                    Err(error) => panic!("{design:?}: {error}"),
                };
                // T1, its sparse form, T6, all, Q5 and Q6.
                assert_eq!(counts(&mut graph, &plan, &[]), 2 * 6, "{design:?}");
            }
        }
        #[cfg(feature = "sqlite")]
        {
            use crate::engines::graphs::sqlite::SqliteGraph;
            let file = folder.path().join("sqlite");
            SqliteGraph::create(&plan, &file).unwrap();
            let mut graph = SqliteGraph::open(&file, 16 << 20).unwrap();
            assert_eq!(counts(&mut graph, &plan, &long), all - 2 * long.len());
        }
    }
}
