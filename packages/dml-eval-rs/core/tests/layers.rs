//! Tests the layers of the source: modules must import only from lower layers and the module's
//! folder, and never in a circle.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Folders and top-level modules, lowest layer first, in the layers of lib.rs.
const LAYERS: [&[&str]; 6] = [
    &[
        "control",
        "counting_sort",
        "error",
        "exact",
        "logarithm",
        "memory",
        "peers",
        "random",
        "side",
        "sizes",
    ],
    &["kernel"],
    &["rows"],
    &["screen"],
    &["rank", "search", "verification"],
    &["cluster"],
];

/// The modules that each module imports. Modules are paths like `rows/space`, and a folder's mod.rs
/// is the folder.
type Imports = BTreeMap<String, BTreeSet<String>>;

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { rust_files(&path) } else { vec![path] }).collect()
}

/// Returns the imports of all modules except lib.rs, excluding imports in tests.
fn imports() -> Imports {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let files = rust_files(&source).into_iter().filter_map(|path| {
        let module =
            path.strip_prefix(&source).unwrap().with_extension("").to_str()?.replace('\\', "/");
        let module = module.strip_suffix("/mod").unwrap_or(&module).to_owned();
        let is_folder = path.ends_with("mod.rs");
        let text = fs::read_to_string(&path).unwrap();
        let text = text.split("#[cfg(test)]\nmod tests").next()?.to_owned();
        (module != "lib" && !module.ends_with("_tests")).then_some((module, (is_folder, text)))
    });
    let files: BTreeMap<String, (bool, String)> = files.collect();
    let resolve = |path: &str| {
        let segments: Vec<&str> = path.split("::").collect();
        (1..=segments.len())
            .rev()
            .map(|n| segments[..n].join("/"))
            .find(|name| files.contains_key(name))
    };
    let find_imports = |module: &str, is_folder: bool, text: &str| -> BTreeSet<String> {
        let folder = if is_folder {
            Some(module)
        } else {
            module.rsplit_once('/').map(|(folder, _)| folder)
        };
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let children = text.lines().filter_map(|line| line.split("mod ").nth(1)?.strip_suffix(';'));
        let children = children.filter(|_| is_folder).map(|child| format!("{module}::{child}"));
        let paths = code.flat_map(|line| {
            let after =
                |prefix: &str| line.split(prefix).skip(1).map(str::to_owned).collect::<Vec<_>>();
            let siblings = after("super::")
                .into_iter()
                .filter_map(|path| Some(format!("{}::{path}", folder?)));
            after("crate::").into_iter().chain(siblings)
        });
        let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
        let paths =
            paths.map(|path| path.split(|c| !is_path(c)).next().unwrap_or_default().to_owned());
        paths
            .chain(children)
            .filter_map(|path| resolve(&path))
            .filter(|name| name != module)
            .collect()
    };
    files
        .iter()
        .map(|(name, (is_folder, text))| (name.clone(), find_imports(name, *is_folder, text)))
        .collect()
}

fn top(module: &str) -> &str {
    module.split('/').next().unwrap_or(module)
}

#[test]
fn no_module_imports_from_its_own_layer_or_a_higher_one() {
    let layer = |module: &str| {
        let found = LAYERS.iter().position(|layer| layer.contains(&top(module)));
        found.unwrap_or_else(|| panic!("{module} is in no layer: add it to LAYERS and to lib.rs"))
    };
    let imports = imports();
    assert!(
        imports["rank/evaluate"].contains("rows/space"),
        "the imports are not found: {imports:?}"
    );
    for (module, imported) in &imports {
        for other in imported.iter().filter(|other| top(other) != top(module)) {
            // Modules in the lowest layer may use each other.
            let allowed = layer(other) < layer(module) || layer(module) == 0 && layer(other) == 0;
            assert!(allowed, "{module} imports {other}, which is not in a lower layer");
        }
    }
}

#[test]
fn no_imports_form_a_circle() {
    let mut left = imports();
    // Remove modules that do not import, one by one, until only circles remain.
    while let Some(leaf) =
        left.iter().find(|(_, imported)| imported.is_empty()).map(|(name, _)| name.clone())
    {
        left.remove(&leaf);
        for imported in left.values_mut() {
            imported.remove(&leaf);
        }
    }
    // Remove modules that aren't imported, because these only lead to circles.
    while let Some(root) =
        left.keys().find(|name| !left.values().any(|i| i.contains(*name))).cloned()
    {
        left.remove(&root);
    }
    assert!(left.is_empty(), "circles among {left:?}");
}
