//! No two modules of a crate need each other, neither directly nor by way of others.
//!
//! Each folder is looked at by itself. Its *parts* are its files, its folders as wholes, and each item of its
//! own file (`mod.rs`, or the root of the crate), written `mod::item`. A part needs another if code in it names
//! something that the other defines; names are followed through imports and re-exports to where they are
//! defined. A *circle* is a set of parts each of which needs, by some way, all the others.
//!
//! So a folder's file may pass on what its parts define, may define types that its parts use, and functions
//! that use its parts; only if a part needs, say, a function there that needs the part, they are a circle.
//!
//! Calls of methods are followed where a type has `impl` blocks in several files and calls its own methods
//! (`self.method()`, `Self::method()`, `Type::method()`); otherwise the receiver's type has to be named
//! somewhere, and that counts.

use super::source::{Crate, Mention, MentionKind, Module};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How many re-exports a name is followed through at most.
const HOPS_MAX: usize = 16;

/// A set of parts of one folder that need each other.
#[derive(Debug, PartialEq, Eq)]
pub struct Circle {
    /// The folder: its path from the root of the crate, empty for the root itself.
    pub folder: Vec<String>,
    pub parts: BTreeSet<String>,
    /// Each need within it: the part that needs, the part needed, and the first place where that is seen.
    pub needs: Vec<(String, String, String)>,
}

/// What each part needs, and where that is seen.
type Needs = BTreeMap<String, BTreeMap<String, String>>;

/// A file, or an item of it if it is a folder's own.
struct Node<'a> {
    module: &'a [String],
    item: Option<String>,
}

/// The circles of a crate.
pub fn find(tree: &Crate) -> Vec<Circle> {
    let mut folders: BTreeMap<Vec<String>, Needs> = BTreeMap::new();
    for (from, to, place) in edges(tree) {
        let common = from.module.iter().zip(to.module).take_while(|(a, b)| a == b).count();
        let part = |node: &Node<'_>| match (node.module.get(common), &node.item) {
            (Some(below), _) => below.clone(),
            (None, Some(item)) => format!("mod::{item}"),
            (None, None) => "mod".to_owned(),
        };
        let (needing, needed) = (part(&from), part(&to));
        if needing != needed {
            let needs = folders.entry(from.module[..common].to_vec()).or_default();
            needs.entry(needing).or_default().entry(needed).or_insert(place);
        }
    }
    folders.into_iter().flat_map(|(folder, needs)| circles(&folder, &needs)).collect()
}

/// What needs what, and where that is seen.
fn edges(tree: &Crate) -> Vec<(Node<'_>, Node<'_>, String)> {
    let methods = methods(tree);
    // The modules that are files, and whether the file is a folder's own.
    let mut files: Vec<(&[String], bool)> = vec![(&[], false); tree.files.len()];
    for module in tree.modules.iter().rev() {
        let parent = module.parent.map(|parent| tree.modules[parent].file);
        if parent != Some(module.file) {
            files[module.file].0 = &module.path;
            parent.into_iter().for_each(|parent| files[parent].1 = true);
        }
    }
    let node = |file: usize, item: String| {
        let (module, is_own) = files[file];
        Node { module, item: is_own.then_some(item) }
    };
    let mut found = Vec::new();
    for (index, module) in tree.modules.iter().enumerate() {
        for mention in &module.mentions {
            // In a folder's own file an import counts where its name is used.
            if files[module.file].1 && !in_code(mention) {
                continue;
            }
            let Some(target) = resolve(tree, index, &mention.path, mention.kind, HOPS_MAX) else { continue };
            let file = tree.files[module.file].display();
            let place = format!("{file}:{}: {}", mention.line, mention.path.join("::"));
            let mut add = |file: usize, item: String| {
                let from = node(module.file, mention.item.clone());
                found.push((from, node(file, item), place.clone()));
            };
            let [name, rest @ ..] = target.rest.as_slice() else {
                add(tree.modules[target.module].file, String::new());
                continue;
            };
            add(tree.modules[target.module].file, name.clone());
            if let Some(method) = rest.first()
                && let Some(files) = methods.get(&(target.module, name.clone(), method.clone()))
                && !files.contains(&module.file)
            {
                files.iter().for_each(|file| add(*file, format!("{name}::{method}")));
            }
        }
    }
    found
}

fn in_code(mention: &Mention) -> bool {
    matches!(mention.kind, MentionKind::Code | MentionKind::Method)
}

/// The files in which the methods of types are defined: by the type's module, its name, and theirs.
fn methods(tree: &Crate) -> BTreeMap<(usize, String, String), BTreeSet<usize>> {
    let mut found: BTreeMap<_, BTreeSet<usize>> = BTreeMap::new();
    for (index, module) in tree.modules.iter().enumerate() {
        for (own_type, method) in &module.methods {
            if let Some(target) = resolve(tree, index, own_type, MentionKind::Code, HOPS_MAX)
                && let Some(name) = target.rest.first()
            {
                let key = (target.module, name.clone(), method.clone());
                found.entry(key).or_default().insert(module.file);
            }
        }
    }
    found
}

/// Where a path leads: the module that defines the item, and the names from the item on.
#[derive(Debug, PartialEq, Eq)]
struct Target {
    module: usize,
    rest: Vec<String>,
}

/// Follows a path to where it is defined; nothing if that is another crate, or no module at all.
fn resolve(tree: &Crate, from: usize, path: &[String], kind: MentionKind, hops: usize) -> Option<Target> {
    let module = &tree.modules[from];
    let (first, rest) = path.split_first()?;
    match first.as_str() {
        // The value `self`, or a visibility within a macro.
        "crate" | "self" | "super" if kind == MentionKind::Code && rest.is_empty() => None,
        "crate" => walk(tree, 0, rest, hops),
        "self" => walk(tree, from, rest, hops),
        "super" => {
            let mut at = module.parent?;
            let mut rest = rest;
            while let Some(("super", after)) =
                rest.split_first().map(|(first, after)| (first.as_str(), after))
            {
                at = tree.modules[at].parent?;
                rest = after;
            }
            walk(tree, at, rest, hops)
        }
        // A single name in code is no module, but may be a variable called like one.
        name if rest.is_empty() && kind == MentionKind::Code && module.children.contains_key(name) => None,
        _ if has(tree, from, first, hops) => walk(tree, from, path, hops),
        _ => None,
    }
}

/// Goes down a path from a module.
fn walk(tree: &Crate, from: usize, path: &[String], hops: usize) -> Option<Target> {
    let module = &tree.modules[from];
    let Some((first, rest)) = path.split_first() else {
        return Some(Target { module: from, rest: Vec::new() });
    };
    if let Some(child) = module.children.get(first) {
        return walk(tree, *child, rest, hops);
    }
    let hops = hops.checked_sub(1)?;
    if !module.items.contains(first) {
        if let Some(import) = module.imports.get(first).filter(|import| import.as_slice() != path) {
            let whole: Vec<String> = import.iter().chain(rest).cloned().collect();
            return resolve(tree, from, &whole, MentionKind::Import, hops);
        }
        if let Some(target) = glob_with(tree, module, from, first, hops) {
            return walk(tree, target, path, hops);
        }
    }
    Some(Target { module: from, rest: path.to_vec() })
}

/// Whether a module has a name in its scope that this crate defines or imports.
fn has(tree: &Crate, module: usize, name: &str, hops: usize) -> bool {
    let own = &tree.modules[module];
    own.children.contains_key(name)
        || own.items.contains(name)
        || own.imports.contains_key(name)
        || hops > 0 && glob_with(tree, own, module, name, hops - 1).is_some()
}

/// The module with a name among those of which a module imports everything.
fn glob_with(tree: &Crate, module: &Module, index: usize, name: &str, hops: usize) -> Option<usize> {
    module.globs.iter().find_map(|glob| {
        let target = resolve(tree, index, glob, MentionKind::Import, hops.checked_sub(1)?)?;
        (target.rest.is_empty() && target.module != index && has(tree, target.module, name, hops - 1))
            .then_some(target.module)
    })
}

/// The sets of parts that need each other.
fn circles(folder: &[String], needs: &Needs) -> Vec<Circle> {
    let reached: BTreeMap<&String, BTreeSet<&String>> =
        needs.keys().map(|part| (part, reachable(needs, part))).collect();
    let mut found: Vec<Circle> = Vec::new();
    for (part, reach) in &reached {
        let back = |other: &&&String| reached.get(**other).is_some_and(|reach| reach.contains(part));
        let parts: BTreeSet<String> = reach.iter().filter(back).map(|part| (*part).clone()).collect();
        let in_one_file = parts.iter().all(|part| part.starts_with("mod::"));
        if parts.is_empty() || in_one_file || found.iter().any(|circle| circle.parts == parts) {
            continue;
        }
        let mut inner = Vec::new();
        for from in &parts {
            let to = needs[from].iter().filter(|(to, _)| parts.contains(*to));
            inner.extend(to.map(|(to, place)| (from.clone(), to.clone(), place.clone())));
        }
        found.push(Circle { folder: folder.to_vec(), parts, needs: inner });
    }
    found
}

/// The parts that a part needs, by way of others too; itself only if it is in a circle.
fn reachable<'a>(needs: &'a Needs, from: &String) -> BTreeSet<&'a String> {
    let mut found = BTreeSet::new();
    let mut waiting = VecDeque::from([from]);
    while let Some(part) = waiting.pop_front() {
        for next in needs.get(part).into_iter().flatten().map(|(next, _)| next) {
            if found.insert(next) {
                waiting.push_back(next);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// The circles of a crate of these files, as `folder: part part`.
    fn circles_of(files: &[(&str, &str)]) -> Vec<String> {
        let read = |path: &Path| {
            let found = files.iter().find(|(name, _)| Path::new(name) == path);
            found.map(|(_, text)| (*text).to_owned()).ok_or_else(|| format!("no {}", path.display()))
        };
        let tree = Crate::read_with(Path::new("lib.rs"), &read).unwrap();
        let shown = |circle: Circle| {
            let parts: Vec<String> = circle.parts.into_iter().collect();
            format!("{}: {}", circle.folder.join("/"), parts.join(" "))
        };
        find(&tree).into_iter().map(shown).collect()
    }

    #[test]
    fn siblings_that_need_each_other_are_found_by_every_kind_of_path() {
        for back in [
            "use crate::a::A;",
            "use super::a::A;",
            "use super::{a::{self, A}};",
            "use crate::A;",
            "use super::*; fn f(_: A) {}",
            "fn f() { crate::a::f() }",
            "fn f() -> Vec<super::a::A> { vec![] }",
            "fn f() { assert!(crate::a::f(), \"text\") }",
            "mod inner { use super::super::a::A; }",
            "mod inner { pub use crate::a::A; }",
            "pub use crate::a::A;",
            "use self::inner::B; mod inner { pub struct B(crate::a::A); }",
        ] {
            let found = circles_of(&[
                ("lib.rs", "mod a; mod b; pub use a::A;"),
                ("a.rs", "use crate::b::B; pub struct A; pub fn f() -> bool { true }"),
                ("b.rs", &format!("pub struct B; {back}")),
            ]);
            assert_eq!(found, [": a b"], "{back}");
        }
    }

    #[test]
    fn what_only_tests_and_models_need_does_not_count() {
        for back in [
            "#[cfg(test)] use crate::a::A;",
            "#[cfg(all(test, unix))] mod tests { use crate::a::A; }",
            "#[cfg(loom)] fn f(_: crate::a::A) {}",
            "struct C { #[cfg(test)] a: crate::a::A }",
            "fn f() { #[cfg(test)] crate::a::f(); }",
            "fn f() { #[cfg(test)] if crate::a::f() { g() } }",
            "impl B { #[cfg(any(test, loom))] fn f(_: crate::a::A) {} }",
            "/// See [`crate::a::A`].\nfn f() {}",
            "pub(in crate::a) fn f() {}",
            "fn f(a: bool) -> bool { a }",
            "use std::a::A;",
        ] {
            let found = circles_of(&[
                ("lib.rs", "mod a; mod b;"),
                ("a.rs", "use crate::b::B; pub struct A; pub fn f() -> bool { true }"),
                ("b.rs", &format!("pub struct B; {back}")),
            ]);
            assert!(found.is_empty(), "{back}: {found:?}");
        }
        // Neither of these hides anything from the product.
        for back in ["#[cfg(any(test, unix))] use crate::a::A;", "#[cfg(not(test))] use crate::a::A;"] {
            let found = circles_of(&[
                ("lib.rs", "mod a; mod b;"),
                ("a.rs", "use crate::b::B; pub struct A;"),
                ("b.rs", &format!("pub struct B; {back}")),
            ]);
            assert_eq!(found, [": a b"], "{back}");
        }
    }

    #[test]
    fn circles_between_folders_and_by_way_of_others_are_found() {
        let found = circles_of(&[
            ("lib.rs", "mod x; mod y; mod z;"),
            ("x/mod.rs", "mod one; mod two;"),
            ("x/one.rs", "use crate::y::one::f;"),
            ("x/two.rs", "pub fn f() {}"),
            ("y.rs", "pub mod one; mod two;"),
            ("y/one.rs", "pub fn f() {}"),
            ("y/two.rs", "use crate::z::f;"),
            ("z.rs", "pub use crate::x::two::f;"),
        ]);
        // No file is in a circle, but the folders are. `z` needs `x`, and nothing needs `z`: `f` is not its own.
        assert_eq!(found, [": x y"]);
        let found = circles_of(&[
            ("lib.rs", "mod a; mod b; mod c; mod d;"),
            ("a.rs", "use crate::b::B; use crate::d::D;"),
            ("b.rs", "pub struct B; use crate::c::C;"),
            ("c.rs", "pub struct C; fn f() { crate::a::g(); }"),
            ("d.rs", "pub struct D;"),
        ]);
        assert_eq!(found, [": a b c"]);
    }

    #[test]
    fn a_folder_file_may_pass_on_define_and_drive() {
        let files = |inner: &'static str| {
            [
                ("lib.rs", "mod x;"),
                (
                    "x/mod.rs",
                    "mod a; mod b; pub use a::A; use b::run; pub struct Plan; pub const N: usize = 1;
                     pub struct Tree { plan: Plan }
                     pub fn drive(plan: Plan) -> A { run(plan) }
                     impl Tree { fn get(&self) { self.find() } }",
                ),
                ("x/a.rs", "use super::{N, Plan}; pub struct A(Plan);"),
                ("x/b.rs", inner),
            ]
        };
        assert!(
            circles_of(&files("use super::{A, Plan, Tree}; impl Tree { pub fn find(&self) {} }")).is_empty()
        );
        // Naming what drives it is another thing, by a function and by a method.
        assert_eq!(circles_of(&files("pub fn run() { super::drive() }")), ["x: b mod::drive"]);
        let method = "use super::Tree; impl Tree { pub fn find(&self) { self.get() } }";
        assert_eq!(circles_of(&files(method)), ["x: b mod::Tree::get"]);
    }

    #[test]
    fn methods_of_one_type_in_several_files_are_followed() {
        let core = ("core.rs", "pub struct Core; impl Core { fn get(&self) { self.evict() } }");
        let lib = ("lib.rs", "mod core; mod evict;");
        let uses = "use crate::core::Core; impl Core { pub fn evict(&self) {} }";
        assert_eq!(circles_of(&[lib, core, ("evict.rs", uses)]), [": core evict"]);
        let alone = ("core.rs", "pub struct Core; impl Core { fn get(&self) {} }");
        assert!(circles_of(&[lib, alone, ("evict.rs", uses)]).is_empty());
        let in_macro = ("core.rs", "pub struct Core; impl Core { fn f(&self) { assert!(self.evict()) } }");
        assert_eq!(circles_of(&[lib, in_macro, ("evict.rs", uses)]), [": core evict"]);
        let by_type = ("core.rs", "pub struct Core; fn f(core: &Core) { Core::evict(core) }");
        assert_eq!(circles_of(&[lib, by_type, ("evict.rs", uses)]), [": core evict"]);
    }

    #[test]
    fn a_module_without_a_file_is_an_error() {
        let read = |path: &Path| {
            if path == Path::new("lib.rs") { Ok("mod gone;".into()) } else { Err("none".to_owned()) }
        };
        assert!(Crate::read_with(Path::new("lib.rs"), &read).is_err_and(|error| error.contains("mod gone")));
    }
}
