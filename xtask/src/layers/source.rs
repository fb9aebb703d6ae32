//! The modules of one crate as its source has them: what each defines, imports and names.
//!
//! Code that only tests or models see is left out: items, fields and statements under `#[cfg(test)]` or
//! `#[cfg(loom)]`. Calls of macros are read as tokens, so paths in them count as well.

use proc_macro2::{TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, ImplItem, Item, Meta, Stmt, Token, TraitItem, UseTree, Visibility};

/// The modules of a crate; the first is its root.
#[derive(Default)]
pub struct Crate {
    pub modules: Vec<Module>,
    /// The paths of its files.
    pub files: Vec<PathBuf>,
}

/// A module: a file, or an inline module, which lies in the file of its parent.
#[derive(Default)]
pub struct Module {
    /// Its file, as an index into [`Crate::files`].
    pub file: usize,
    /// Its name from the root of the crate.
    pub path: Vec<String>,
    pub parent: Option<usize>,
    pub children: BTreeMap<String, usize>,
    /// The names of its items.
    pub items: BTreeSet<String>,
    /// What its `use` declarations bring into its scope, by name.
    pub imports: BTreeMap<String, Vec<String>>,
    /// The modules of which it imports everything.
    pub globs: Vec<Vec<String>>,
    /// The paths that it names.
    pub mentions: Vec<Mention>,
    /// Methods that it defines in blocks `impl Type`: the path of the type and the name of the method.
    pub methods: Vec<(Vec<String>, String)>,
}

/// A path in the source.
pub struct Mention {
    pub path: Vec<String>,
    /// The item in which it stands: `name`, `Type::method`, or another text for an `impl` of a trait.
    pub item: String,
    pub line: usize,
    pub kind: MentionKind,
}

/// Where a path stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MentionKind {
    /// In code.
    Code,
    /// In a `use` declaration that only brings a name into the own scope.
    Import,
    /// In a `use` declaration that passes a name on.
    Reexport,
    /// A call `self.method()`: the path of the type, and the name of the method.
    Method,
}

impl Crate {
    /// Reads a crate from the file of its root.
    ///
    /// # Errors
    /// If a file is missing or is not Rust.
    pub fn read(root: &Path) -> Result<Self, String> {
        Self::read_with(root, &|path| {
            std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
        })
    }

    /// The same from files that `read` gives.
    pub fn read_with(root: &Path, read: &dyn Fn(&Path) -> Result<String, String>) -> Result<Self, String> {
        let mut tree = Self::default();
        tree.modules.push(Module::default());
        tree.read_file(0, root.to_path_buf(), &read(root)?, read)?;
        Ok(tree)
    }

    fn read_file(
        &mut self,
        module: usize,
        path: PathBuf,
        text: &str,
        read: &dyn Fn(&Path) -> Result<String, String>,
    ) -> Result<(), String> {
        let file = syn::parse_file(text).map_err(|error| format!("{}: {error}", path.display()))?;
        let index = self.files.len();
        self.files.push(path.clone());
        self.modules[module].file = index;
        let mut declared = Vec::new();
        let item = String::new();
        let mut visitor = Visitor { tree: self, module, declared: &mut declared, own_type: None, item };
        visitor.visit_file(&file);
        let (folder, name) = (path.parent().unwrap_or(&path), path.file_stem().unwrap_or_default());
        // The children of `mod.rs` and of a root lie beside it, those of another file in a folder of its name.
        let beside = module == 0 || name == "mod";
        let folder = if beside { folder.to_path_buf() } else { folder.join(name) };
        for (parent, name) in declared {
            let inner = &self.modules[parent].path[self.modules[module].path.len()..];
            let folder = inner.iter().fold(folder.clone(), |folder, name| folder.join(name));
            let candidates = [folder.join(format!("{name}.rs")), folder.join(&name).join("mod.rs")];
            let found = candidates.iter().find_map(|path| Some((path, read(path).ok()?)));
            let Some((found, text)) = found else {
                return Err(format!("{}: no file for `mod {name};`", path.display()));
            };
            let child = self.add(parent, &name);
            self.read_file(child, found.clone(), &text, read)?;
        }
        Ok(())
    }

    /// A new module in another one and, until told otherwise, in the same file.
    fn add(&mut self, parent: usize, name: &str) -> usize {
        let mut path = self.modules[parent].path.clone();
        path.push(name.to_owned());
        let file = self.modules[parent].file;
        self.modules.push(Module { file, path, parent: Some(parent), ..Module::default() });
        let child = self.modules.len() - 1;
        self.modules[parent].children.insert(name.to_owned(), child);
        child
    }
}

struct Visitor<'a> {
    tree: &'a mut Crate,
    module: usize,
    /// Modules that lie in files of their own: the parent and the name.
    declared: &'a mut Vec<(usize, String)>,
    /// The type whose `impl` block this is.
    own_type: Option<Vec<String>>,
    /// The item that is being read, empty between items.
    item: String,
}

impl Visitor<'_> {
    fn own(&mut self) -> &mut Module {
        &mut self.tree.modules[self.module]
    }

    fn mention(&mut self, path: Vec<String>, line: usize, kind: MentionKind) {
        let item = self.item.clone();
        self.own().mentions.push(Mention { path, item, line, kind });
    }

    /// A path in code, or a call of a function of the own type by `Self`.
    fn code(&mut self, path: Vec<String>, line: usize) {
        match (path.as_slice(), &self.own_type) {
            ([own, name, ..], Some(_)) if own == "Self" => self.method(name.clone(), line),
            _ => self.mention(path, line, MentionKind::Code),
        }
    }

    fn method(&mut self, name: String, line: usize) {
        let Some(mut path) = self.own_type.clone() else { return };
        path.push(name);
        self.mention(path, line, MentionKind::Method);
    }

    fn imports(&mut self, tree: &UseTree, before: &[String], kind: MentionKind) {
        let mut path = before.to_vec();
        match tree {
            UseTree::Path(part) => {
                path.push(part.ident.to_string());
                self.imports(&part.tree, &path, kind);
            }
            UseTree::Group(group) => group.items.iter().for_each(|item| self.imports(item, before, kind)),
            UseTree::Glob(glob) => {
                self.own().globs.push(path.clone());
                self.mention(path, glob.star_token.spans[0].start().line, kind);
            }
            UseTree::Name(name) => self.import(path, &name.ident, &name.ident, kind),
            UseTree::Rename(rename) => self.import(path, &rename.ident, &rename.rename, kind),
        }
    }

    fn import(
        &mut self,
        mut path: Vec<String>,
        name: &proc_macro2::Ident,
        local: &proc_macro2::Ident,
        kind: MentionKind,
    ) {
        // `use a::{self}` imports `a`.
        let itself = name == "self" && !path.is_empty();
        if !itself {
            path.push(name.to_string());
        }
        let local = if itself && local == "self" { path.last().cloned() } else { Some(local.to_string()) };
        self.own().imports.extend(local.map(|local| (local, path.clone())));
        self.mention(path, name.span().start().line, kind);
    }

    /// What a macro is called with: paths, single names, and calls of methods of `self`.
    fn tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let ident = |at: usize| match tokens.get(at) {
            Some(TokenTree::Ident(ident)) => Some(ident),
            _ => None,
        };
        let is = |at: usize, sign: char| matches!(tokens.get(at), Some(TokenTree::Punct(p)) if p.as_char() == sign);
        let mut at = 0;
        while at < tokens.len() {
            if let Some(TokenTree::Group(group)) = tokens.get(at) {
                self.tokens(group.stream());
            }
            let Some(first) = ident(at).filter(|_| at == 0 || !is(at - 1, '.')) else {
                at += 1;
                continue;
            };
            let line = first.span().start().line;
            let mut path = vec![first.to_string()];
            at += 1;
            while is(at, ':') && is(at + 1, ':') {
                let Some(next) = ident(at + 2) else { break };
                path.push(next.to_string());
                at += 3;
            }
            let called = is(at, '.') && matches!(tokens.get(at + 2), Some(TokenTree::Group(_)));
            match ident(at + 1) {
                Some(name) if called && path == ["self"] => self.method(name.to_string(), line),
                _ => self.code(path, line),
            }
        }
    }
}

impl<'ast> Visit<'ast> for Visitor<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if attributes_of_item(item).iter().any(is_test) {
            return;
        }
        let name = name_of_item(item);
        if !self.item.is_empty() {
            return visit::visit_item(self, item);
        }
        self.own().items.extend(name.clone());
        self.item = name.unwrap_or_default();
        visit::visit_item(self, item);
        self.item.clear();
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let name = item.ident.to_string();
        let Some((_, items)) = &item.content else {
            self.declared.push((self.module, name));
            return;
        };
        let child = self.tree.add(self.module, &name);
        let outer = std::mem::replace(&mut self.module, child);
        self.item.clear();
        items.iter().for_each(|item| self.visit_item(item));
        self.module = outer;
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let kind = match item.vis {
            Visibility::Inherited => MentionKind::Import,
            _ => MentionKind::Reexport,
        };
        if item.leading_colon.is_none() {
            self.imports(&item.tree, &[], kind);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let own_type = match &*item.self_ty {
            syn::Type::Path(path) => Some(names(&path.path)),
            _ => None,
        };
        if let (Some(own_type), None) = (&own_type, &item.trait_) {
            for part in &item.items {
                if let ImplItem::Fn(function) = part {
                    self.own().methods.push((own_type.clone(), function.sig.ident.to_string()));
                }
            }
        }
        let outer = std::mem::replace(&mut self.own_type, own_type);
        if self.item.is_empty() && item.trait_.is_some() {
            self.item = "impl of a trait".to_owned();
        }
        visit::visit_item_impl(self, item);
        self.own_type = outer;
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        let attributes = match item {
            ImplItem::Const(item) => &item.attrs,
            ImplItem::Fn(item) => &item.attrs,
            ImplItem::Type(item) => &item.attrs,
            ImplItem::Macro(item) => &item.attrs,
            _ => return,
        };
        if attributes.iter().any(is_test) {
            return;
        }
        let (ImplItem::Fn(function), true, Some(own)) = (item, self.item.is_empty(), &self.own_type) else {
            return visit::visit_impl_item(self, item);
        };
        self.item = format!("{}::{}", own.last().map_or("", String::as_str), function.sig.ident);
        visit::visit_impl_item(self, item);
        self.item.clear();
    }

    fn visit_trait_item(&mut self, item: &'ast TraitItem) {
        let attributes = match item {
            TraitItem::Const(item) => &item.attrs,
            TraitItem::Fn(item) => &item.attrs,
            TraitItem::Type(item) => &item.attrs,
            TraitItem::Macro(item) => &item.attrs,
            _ => return,
        };
        if !attributes.iter().any(is_test) {
            visit::visit_trait_item(self, item);
        }
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if !field.attrs.iter().any(is_test) {
            visit::visit_field(self, field);
        }
    }

    fn visit_field_value(&mut self, field: &'ast syn::FieldValue) {
        if !field.attrs.iter().any(is_test) {
            visit::visit_field_value(self, field);
        }
    }

    fn visit_stmt(&mut self, statement: &'ast Stmt) {
        let attributes: &[Attribute] = match statement {
            Stmt::Local(local) => &local.attrs,
            Stmt::Macro(call) => &call.attrs,
            Stmt::Expr(Expr::If(inner), _) => &inner.attrs,
            Stmt::Expr(Expr::Block(inner), _) => &inner.attrs,
            Stmt::Expr(Expr::Call(inner), _) => &inner.attrs,
            Stmt::Expr(Expr::MethodCall(inner), _) => &inner.attrs,
            Stmt::Item(_) | Stmt::Expr(..) => &[],
        };
        if !attributes.iter().any(is_test) {
            visit::visit_stmt(self, statement);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if let (None, Some(first)) = (&path.leading_colon, path.segments.first()) {
            self.code(names(path), first.ident.span().start().line);
        }
        visit::visit_path(self, path);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        if let Expr::Path(receiver) = &*call.receiver
            && receiver.path.is_ident("self")
        {
            self.method(call.method.to_string(), call.method.span().start().line);
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.visit_path(&call.path);
        self.tokens(call.tokens.clone());
    }

    /// Attributes name no modules.
    fn visit_attribute(&mut self, _: &'ast Attribute) {}

    /// Nor do visibilities: they say from where a name may be used, and use none.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}
}

fn names(path: &syn::Path) -> Vec<String> {
    path.segments.iter().map(|segment| segment.ident.to_string()).collect()
}

/// Whether an attribute hides from a build of the product what it stands on.
fn is_test(attribute: &Attribute) -> bool {
    attribute.path().is_ident("test")
        || attribute.path().is_ident("cfg")
            && attribute.parse_args::<Meta>().is_ok_and(|meta| is_test_predicate(&meta))
}

fn is_test_predicate(meta: &Meta) -> bool {
    let Meta::List(list) = meta else { return meta.path().is_ident("test") || meta.path().is_ident("loom") };
    let inner = syn::punctuated::Punctuated::<Meta, Token![,]>::parse_terminated;
    let Ok(inner) = list.parse_args_with(inner) else { return false };
    match () {
        () if list.path.is_ident("all") => inner.iter().any(is_test_predicate),
        () if list.path.is_ident("any") => !inner.is_empty() && inner.iter().all(is_test_predicate),
        () => false,
    }
}

fn name_of_item(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::TraitAlias(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(ident.to_string())
}

fn attributes_of_item(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}
