//! Reads from the sources which file imports which.
//!
//! The reader follows `mod` declarations from the root of a crate. In each file it collects every path: in `use`
//! declarations, in code and in macros. A path that leads to an item of another module is an import of the file that
//! defines the item; a re-export leads on to the definition. A `mod` declaration is no import. Items under
//! `#[cfg(test)]` do not count. A method that another file adds to a type (`impl`) is no path:
//! files that share a type by its methods count as one unit in two files, and are no loop here.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// The imports of each file, with the names that it takes from the other.
pub type Imports = BTreeMap<PathBuf, BTreeMap<PathBuf, BTreeSet<String>>>;

/// The longest chain of re-exports.
const LONGEST_CHAIN: usize = 8;

/// Keywords that a name of an item follows.
const ITEMS: [&str; 9] =
    ["const", "enum", "fn", "macro_rules", "static", "struct", "trait", "type", "union"];

/// The imports of all files of the crate with this root (`lib.rs` or `main.rs`).
pub fn read(root: &Path) -> Imports {
    let tree = Tree::read(root);
    let mut imports = Imports::new();
    for (at, module) in tree.modules.iter().enumerate() {
        let own = imports.entry(module.file.clone()).or_default();
        for path in &module.paths {
            let Some((to, name)) = tree.resolve(at, path, LONGEST_CHAIN) else { continue };
            let file = &tree.modules[to].file;
            if *file != module.file {
                own.entry(file.clone()).or_default().insert(name);
            }
        }
    }
    imports
}

/// The modules for tests alone of the crate with this root. Each is given by its files, without
/// their extension, or by the folder that contains them.
pub fn test_modules(root: &Path) -> Vec<PathBuf> {
    Tree::read(root).tests
}

/// The loops of imports: sets of files in which each file reaches all others.
pub fn loops(imports: &Imports) -> Vec<BTreeSet<PathBuf>> {
    let reached: BTreeMap<&Path, BTreeSet<&Path>> =
        imports.keys().map(|file| (file.as_path(), reachable(imports, file))).collect();
    let mut found = BTreeSet::new();
    for (file, others) in &reached {
        let back = |other: &&&Path| reached[*other].contains(file);
        let component: BTreeSet<PathBuf> =
            others.iter().filter(back).map(|it| (*it).into()).collect();
        if component.len() > 1 {
            found.insert(component);
        }
    }
    found.into_iter().collect()
}

/// The imports inside a loop, one per line.
pub fn describe(imports: &Imports, files: &BTreeSet<PathBuf>) -> String {
    let mut text = format!("{} files import one another in a loop:\n", files.len());
    for file in files {
        for (to, names) in imports[file].iter().filter(|(to, _)| files.contains(*to)) {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let (from, to) = (file.display(), to.display());
            text += &format!("  {from} -> {to}: {}\n", names.join(", "));
        }
    }
    text
}

fn reachable<'a>(imports: &'a Imports, from: &Path) -> BTreeSet<&'a Path> {
    let (mut found, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(file) = open.pop() {
        for to in imports.get(file).into_iter().flat_map(BTreeMap::keys) {
            if found.insert(to.as_path()) {
                open.push(to);
            }
        }
    }
    found
}

#[derive(Default)]
struct Module {
    file: PathBuf,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    /// The names of the module's own items.
    items: BTreeSet<String>,
    /// The names that the module's `use` declarations bind, and their paths.
    bound: BTreeMap<String, Vec<String>>,
    /// The paths of the module's `use` declarations that end with `*`, without the `*`.
    globs: Vec<Vec<String>>,
    /// All paths that the module names.
    paths: Vec<Vec<String>>,
}

struct Tree {
    modules: Vec<Module>,
    tests: Vec<PathBuf>,
}

impl Tree {
    fn read(root: &Path) -> Self {
        let mut tree = Self { modules: Vec::new(), tests: Vec::new() };
        tree.add_file(root.to_owned(), root.parent().unwrap().to_owned(), None);
        tree
    }

    /// Adds the module of a file, and its children, whose files are in `folder`.
    fn add_file(&mut self, file: PathBuf, folder: PathBuf, parent: Option<usize>) -> usize {
        let text = fs::read_to_string(&file).unwrap();
        let tokens = text.parse().unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        self.add(file, &folder, parent, tokens)
    }

    fn add(
        &mut self,
        file: PathBuf,
        folder: &Path,
        parent: Option<usize>,
        tokens: TokenStream,
    ) -> usize {
        let at = self.modules.len();
        self.modules.push(Module { file: file.clone(), parent, ..Module::default() });
        let mut content = Content::default();
        content.read_items(tokens);
        self.tests.extend(content.tests.iter().map(|name| folder.join(name)));
        for (name, body) in content.modules {
            let own = folder.join(&name);
            let child = match body {
                Some(body) => self.add(file.clone(), &own, Some(at), body),
                None => {
                    let files = [own.with_extension("rs"), own.join("mod.rs")];
                    let found = files.into_iter().find(|file| file.exists());
                    let found = found.unwrap_or_else(|| panic!("no file of {}", own.display()));
                    self.add_file(found, own, Some(at))
                }
            };
            self.modules[at].children.insert(name, child);
        }
        let module = &mut self.modules[at];
        (module.items, module.bound) = (content.items, content.bound);
        (module.globs, module.paths) = (content.globs, content.paths);
        at
    }

    /// The module that contains the item of a path, and the item's name. `None`: the item is not in
    /// this crate.
    fn resolve(&self, from: usize, path: &[String], chain: usize) -> Option<(usize, String)> {
        let mut at = from;
        let mut rest = path;
        let mut is_inside = false;
        while let Some((first, others)) = rest.split_first() {
            let module = &self.modules[at];
            let next = match first.as_str() {
                "crate" => Some(self.root(from)),
                "self" => Some(at),
                "super" => module.parent,
                name => module.children.get(name).copied(),
            };
            match next {
                Some(next) => at = next,
                // A name of this module itself can only lead elsewhere by a `use` declaration.
                None if is_inside || module.bound.contains_key(first) => {
                    return self.find(at, first, others, chain);
                }
                None => return None,
            }
            is_inside = true;
            rest = others;
        }
        let name = path.last().map_or("", |name| name);
        is_inside.then(|| (at, name.to_owned()))
    }

    /// Finds the module that defines `name`, starting from the module `at`; `others` is the rest of
    /// the path.
    fn find(
        &self,
        at: usize,
        name: &str,
        others: &[String],
        chain: usize,
    ) -> Option<(usize, String)> {
        let module = &self.modules[at];
        let here = Some((at, name.to_owned()));
        if module.items.contains(name) || chain == 0 {
            return here;
        }
        if let Some(path) = module.bound.get(name) {
            let path = [path, others].concat();
            // A re-export from another crate belongs to the re-exporting file.
            return self.resolve(at, &path, chain - 1).or(here);
        }
        let behind_glob = module.globs.iter().find_map(|glob| {
            let (to, _) = self.resolve(at, glob, chain - 1)?;
            let target = &self.modules[to];
            let has = target.items.contains(name) || target.bound.contains_key(name);
            has.then(|| self.find(to, name, others, chain - 1)).flatten()
        });
        behind_glob.or(here)
    }

    fn root(&self, mut at: usize) -> usize {
        while let Some(parent) = self.modules[at].parent {
            at = parent;
        }
        at
    }
}

/// The content of a module.
#[derive(Default)]
struct Content {
    /// Declared modules, with their body if it is in the same file.
    modules: Vec<(String, Option<TokenStream>)>,
    /// Declared modules that are built for tests alone.
    tests: Vec<String>,
    items: BTreeSet<String>,
    bound: BTreeMap<String, Vec<String>>,
    globs: Vec<Vec<String>>,
    paths: Vec<Vec<String>>,
}

impl Content {
    /// Reads the items of a module.
    fn read_items(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut rest = &tokens[..];
        while let Some(token) = rest.first() {
            if is_test_attribute(rest) {
                let behind = after_item(&rest[2..]);
                let item = &rest[2..rest.len() - behind.len()];
                let is_module = |pair: &&[TokenTree]| is_ident(&pair[0], "mod");
                if let Some([_, TokenTree::Ident(name)]) = item.windows(2).find(is_module) {
                    self.tests.push(plain(name));
                }
                rest = behind;
                continue;
            }
            if is_import(rest) {
                rest = self.read_use(&rest[1..], true);
                continue;
            }
            if is_ident(token, "mod")
                && let [_, TokenTree::Ident(name), body, ..] = rest
            {
                let body = match body {
                    TokenTree::Group(group) => Some(group.stream()),
                    _ => None,
                };
                self.modules.push((plain(name), body));
                rest = &rest[3..];
                continue;
            }
            if let TokenTree::Ident(keyword) = token
                && ITEMS.iter().any(|item| keyword == item)
            {
                let name = rest[1..].iter().find(|it| !matches!(it, TokenTree::Punct(_)));
                if let Some(TokenTree::Ident(name)) = name {
                    self.items.insert(plain(name));
                }
            }
            rest = self.read_token(rest);
        }
    }

    /// Reads the paths of code.
    fn read_code(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut rest = &tokens[..];
        while !rest.is_empty() {
            rest = if is_import(rest) {
                self.read_use(&rest[1..], false)
            } else {
                self.read_token(rest)
            };
        }
    }

    /// Reads a path, a group or another token; returns the tokens behind it.
    fn read_token<'a>(&mut self, tokens: &'a [TokenTree]) -> &'a [TokenTree] {
        match &tokens[0] {
            TokenTree::Group(group) => {
                self.read_code(group.stream());
                &tokens[1..]
            }
            // `pub(in PATH)` imports nothing.
            TokenTree::Ident(first) if first == "pub" && is_parenthesis(tokens.get(1)) => {
                &tokens[2..]
            }
            TokenTree::Ident(first) => {
                let mut path = vec![plain(first)];
                let mut rest = &tokens[1..];
                while let Some(TokenTree::Ident(next)) = after_colons(rest).and_then(<[_]>::first) {
                    path.push(plain(next));
                    rest = &rest[3..];
                }
                if path.len() > 1 {
                    self.paths.push(path);
                }
                rest
            }
            // A path that begins with `::` names another crate.
            _ if matches!(
                after_colons(tokens).and_then(<[_]>::first),
                Some(TokenTree::Ident(_))
            ) =>
            {
                &tokens[3..]
            }
            _ => &tokens[1..],
        }
    }

    /// Reads the tree of a `use` declaration up to its `;`; returns the tokens behind it.
    fn read_use<'a>(&mut self, tokens: &'a [TokenTree], is_item: bool) -> &'a [TokenTree] {
        let end = tokens.iter().position(|it| is_punct(it, ';')).unwrap_or(0);
        self.read_use_tree(&tokens[..end], &[], is_item);
        &tokens[end..]
    }

    fn read_use_tree(&mut self, tokens: &[TokenTree], before: &[String], is_item: bool) {
        for branch in tokens.split(|token| is_punct(token, ',')) {
            let mut path = before.to_vec();
            let mut rest = branch;
            let mut name = None;
            while let Some(token) = rest.first() {
                match token {
                    TokenTree::Ident(word) if word == "as" => {
                        name = rest.get(1).map(ToString::to_string);
                        break;
                    }
                    TokenTree::Ident(word) => path.push(plain(word)),
                    TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                        let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                        self.read_use_tree(&inner, &path, is_item);
                        path.clear();
                    }
                    TokenTree::Punct(star) if star.as_char() == '*' => {
                        self.paths.push(path.clone());
                        if is_item {
                            self.globs.push(path.clone());
                        }
                        path.clear();
                    }
                    _ => {}
                }
                rest = &rest[1..];
            }
            // `{self}` at the end of a path names the path before it.
            if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
                path.pop();
            }
            if let Some(last) = path.last().cloned() {
                if is_item {
                    self.bound.insert(name.unwrap_or(last), path.clone());
                }
                self.paths.push(path);
            }
        }
    }
}

/// The name without `r#`.
fn plain(name: &proc_macro2::Ident) -> String {
    name.to_string().trim_start_matches("r#").to_owned()
}

fn is_ident(token: &TokenTree, name: &str) -> bool {
    matches!(token, TokenTree::Ident(it) if it == name)
}

fn is_parenthesis(token: Option<&TokenTree>) -> bool {
    matches!(token, Some(TokenTree::Group(it)) if it.delimiter() == Delimiter::Parenthesis)
}

fn is_punct(token: &TokenTree, sign: char) -> bool {
    matches!(token, TokenTree::Punct(it) if it.as_char() == sign)
}

/// The tokens behind a `::`, if there is one.
fn after_colons(tokens: &[TokenTree]) -> Option<&[TokenTree]> {
    match tokens {
        [one, two, rest @ ..] if is_punct(one, ':') && is_punct(two, ':') => Some(rest),
        _ => None,
    }
}

/// Whether the tokens begin with `use` and a path: not the `use<..>` of a type that captures lifetimes.
fn is_import(tokens: &[TokenTree]) -> bool {
    is_ident(&tokens[0], "use") && !tokens.get(1).is_some_and(|it| is_punct(it, '<'))
}

/// Whether the tokens begin with `#[cfg(...)]` of tests.
fn is_test_attribute(tokens: &[TokenTree]) -> bool {
    let [hash, TokenTree::Group(attribute), ..] = tokens else { return false };
    let content: Vec<TokenTree> = attribute.stream().into_iter().collect();
    let [name, TokenTree::Group(condition)] = &content[..] else { return false };
    let first = condition.stream().into_iter().next();
    is_punct(hash, '#') && is_ident(name, "cfg") && first.is_some_and(|it| is_ident(&it, "test"))
}

/// The tokens behind the item that they begin with.
fn after_item(tokens: &[TokenTree]) -> &[TokenTree] {
    let is_end = |token: &TokenTree| match token {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        token => is_punct(token, ';'),
    };
    let end = tokens.iter().position(is_end);
    &tokens[end.map_or(tokens.len(), |end| end + 1)..]
}

/// The imports between the modules of the first level, whose files all lie below `folder`.
pub fn between_modules(imports: &Imports, folder: &Path) -> Imports {
    let module = |file: &Path| {
        let inside = file.strip_prefix(folder).unwrap_or(file);
        let first = inside.components().next().unwrap();
        Path::new(&first).with_extension("")
    };
    let mut found = Imports::new();
    for (file, others) in imports {
        let own = found.entry(module(file)).or_default();
        for (to, names) in others.iter().filter(|(to, _)| module(to) != module(file)) {
            own.entry(module(to)).or_default().extend(names.iter().cloned());
        }
    }
    found
}

/// The folder of a module's file: `a.rs` belongs to the folder `a` if there is one that holds more than tests.
pub fn folder(file: &Path, imports: &Imports) -> PathBuf {
    let own = file.with_extension("");
    let has_files = imports.keys().any(|other| other.starts_with(&own));
    if has_files { own } else { file.parent().unwrap().to_owned() }
}

mod tests {
    use super::*;

    /// Makes files, each with a name and a text, and returns their imports.
    fn imports_of(files: &[(&str, &str)]) -> (tempfile::TempDir, Imports) {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let file = folder.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        let imports = read(&folder.path().join("lib.rs"));
        (folder, imports)
    }

    /// The imports as `from -> to: names`, with file names without their folder.
    fn lines(folder: &Path, imports: &Imports) -> Vec<String> {
        let short = |file: &Path| file.strip_prefix(folder).unwrap().display().to_string();
        let mut lines = Vec::new();
        for (from, others) in imports {
            for (to, names) in others {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                lines.push(format!("{} -> {}: {}", short(from), short(to), names.join(" ")));
            }
        }
        lines
    }

    #[test]
    fn a_loop_is_found_with_the_names_that_tie_it_and_a_chain_is_none() {
        let (folder, imports) = imports_of(&[
            ("lib.rs", "mod a; mod b; mod c; mod d;"),
            ("a.rs", "use crate::b::{self, Deep, deeper::{Deepest as Other}}; fn a() { b::f() }"),
            ("b/mod.rs", "pub mod deeper; pub struct Deep; pub fn f() { crate::c::g() }"),
            ("b/deeper.rs", "pub struct Deepest;"),
            ("c.rs", "pub fn g() { assert!(super::a::A == std::fs::A, \"crate::d::D\") }"),
            ("d.rs", "use super::c::g; // crate::a::A\nfn d(it: crate::b::Deep) {}"),
        ]);
        let expected = [
            "a.rs -> b/deeper.rs: Deepest",
            "a.rs -> b/mod.rs: Deep b f",
            "b/mod.rs -> c.rs: g",
            "c.rs -> a.rs: A",
            "d.rs -> b/mod.rs: Deep",
            "d.rs -> c.rs: g",
        ];
        assert_eq!(lines(folder.path(), &imports), expected);
        let found = loops(&imports);
        let files = ["a.rs", "b/mod.rs", "c.rs"].map(|name| folder.path().join(name));
        assert_eq!(found, [BTreeSet::from(files)]);
        let text = describe(&imports, &found[0]);
        assert!(text.contains("c.rs -> ") && text.contains("a.rs: A\n"), "{text}");
        let modules = between_modules(&imports, folder.path());
        assert_eq!(loops(&modules), [["a", "b", "c"].map(PathBuf::from).into()]);
    }

    #[test]
    fn a_re_export_leads_to_the_file_that_defines_the_item() {
        let (folder, imports) = imports_of(&[
            ("lib.rs", "mod a; mod user; pub use a::*; use std::io::Read;"),
            ("a/mod.rs", "mod b; mod c; pub use b::Renamed as Name; pub use c::*; pub struct Own;"),
            ("a/b.rs", "pub struct Renamed; use super::Own;"),
            ("a/c.rs", "pub enum Kind { One } impl Kind { pub(crate) const ALL: u8 = 1; }"),
            (
                "user.rs",
                "use crate::a; type A = (a::Name, crate::a::Kind, crate::Read); const B: u8 = a::Kind::ALL;",
            ),
        ]);
        let expected = [
            "a/b.rs -> a/mod.rs: Own",
            "a/mod.rs -> a/b.rs: Renamed",
            "a/mod.rs -> a/c.rs: c",
            "lib.rs -> a/mod.rs: a",
            "user.rs -> a/b.rs: Renamed",
            "user.rs -> a/c.rs: Kind",
            "user.rs -> a/mod.rs: a",
            "user.rs -> lib.rs: Read",
        ];
        assert_eq!(lines(folder.path(), &imports), expected);
    }

    #[test]
    fn tests_and_modules_in_the_same_file_are_no_imports() {
        let (folder, imports) = imports_of(&[
            ("lib.rs", "mod a; mod b; #[cfg(test)] mod tests;"),
            (
                "a.rs",
                "mod inner { use super::A; use super::super::b::B; } struct A;\n\
                #[cfg(test)] use crate::b::{Only, InTests};\n\
                #[cfg(test)] #[expect(unused)] mod tests { use crate::b::Only; }\n\
                #[cfg(not(test))] use crate::b::Always;",
            ),
            ("b.rs", "pub struct B; pub struct Always; pub struct Only; pub struct InTests;"),
        ]);
        assert_eq!(lines(folder.path(), &imports), ["a.rs -> b.rs: Always B"]);
        assert!(loops(&imports).is_empty());
    }
}
