//! The house's walls: who imports whom, who prints, how long a file may be, and that links lead somewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What is done by hand: never shipped, so it may print and use the test kit.
const TOOL: &str = "xtask";

/// Longest source file, in lines. Above it a file has more than one subject.
const MOST_LINES: usize = 500;
/// Files that are longer, and why.
const LONG_FILES: [(&str, &str); 3] = [
    ("ambitus-compile/tests/it/golden.rs", "programs in full, as passes leave them"),
    ("ambitus/tests/it/faults.rs", "one fault after another on one disk"),
    ("ambitus-train/src/saved/tests.rs", "one world of ranks for all its cases"),
];
/// Longest function, in lines.
const MOST_OF_A_FUNCTION: usize = 100;
/// Functions that are longer, and why.
const LONG_FUNCTIONS: [(&str, &str); 6] = [
    ("ambitus-train/src/metrics/log/tests.rs no_damage_ends_a_run", "a list of cases"),
    ("ambitus-exec/examples/kernel_bench.rs others", "a list of kernels"),
    ("ambitus-store/src/pickle.rs step", "an arm for each opcode of a pickle"),
    ("ambitus-testkit/src/interp/core.rs run", "an arm for each op, in the oracle's own words"),
    ("ambitus-testkit/src/cases/dense.rs layout", "a list of cases"),
    ("ambitus-recipe/src/import/tests.rs the_reports_file_key_by_key", "a line for each key of the file"),
];
/// Crates that may name a model family: its programs, its folder, and what is done by hand.
const FAMILIES: [&str; 2] = ["ambitus-models", "ambitus-families"];
/// Crates of which no two modules import each other, by whatever way.
const LAYERED: [&str; 5] = ["ambitus", "ambitus-recipe", "ambitus-families", "ambitus-plan", "ambitus-train"];
/// Modules of other crates that do, and why they stay.
const CIRCLES: [(&str, &str, &str); 8] = [
    (
        "ambitus-compile",
        "optimizer passes",
        "an update in backward is a pass that writes the optimizer's steps",
    ),
    ("ambitus-cuda", "bind kernels", "binding lists the kernels, and each kernel says its own steps"),
    ("ambitus-cuda", "driver nccl", "exchanges are recorded as steps, and ranks end with the card"),
    ("ambitus-data", "audio error files text", "errors name the limits of what they are about"),
    ("ambitus-data", "prepare speech", "lengths of speech follow from how its codes lie"),
    ("ambitus-ir", "builder ops program", "an op's page decomposes it with the builder"),
    ("ambitus-store", "disk files", "files are opened by one rule, whatever reads them"),
    ("ambitus-store", "safetensors tensor_file torch zip", "one index over both formats"),
];
/// Whatever prints. Libraries return values and errors; what a user sees is the command line's affair.
const PRINTING: [&str; 7] = ["print!", "println!", "eprint!", "eprintln!", "dbg!", "stdout()", "stderr()"];

fn root() -> PathBuf {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("crates/");
    crates.parent().expect("the workspace").to_owned()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Files below a folder with an extension; hidden folders and what builds and runs leave behind are not looked into.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for item in fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
            let item = item.expect("a directory entry");
            let (path, name) = (item.path(), item.file_name());
            let name = name.to_string_lossy();
            if item.file_type().is_ok_and(|t| t.is_dir()) {
                if !name.starts_with('.') && !["target", "runs"].contains(&&*name) {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|e| e == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

fn assert_none(problems: &[String], what: &str) {
    assert!(problems.is_empty(), "{what}:\n  {}", problems.join("\n  "));
}

/// Imports of our own crates: what ships, and what only tests use.
#[derive(Debug, Default, PartialEq)]
struct Imports {
    shipped: BTreeSet<String>,
    tests: BTreeSet<String>,
}

/// What each crate's manifest says.
fn imports() -> BTreeMap<String, Imports> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(root())
        .output()
        .expect("cargo metadata starts");
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).expect("cargo metadata writes JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    let text = |value: &serde_json::Value| value.as_str().expect("a string").to_owned();
    let ours: BTreeSet<String> = packages.iter().map(|p| text(&p["name"])).collect();
    let of = |package: &serde_json::Value| {
        let mut imports = Imports::default();
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let name = text(&dependency["name"]);
            if ours.contains(&name) {
                let tests = dependency["kind"] == "dev";
                if tests { &mut imports.tests } else { &mut imports.shipped }.insert(name);
            }
        }
        (text(&package["name"]), imports)
    };
    packages.iter().map(of).collect()
}

/// The table of `ARCHITECTURE.md` whose rows begin with a crate in backquotes: crate | imports | in tests also.
fn walls() -> BTreeMap<String, Imports> {
    let page = read(&root().join("ARCHITECTURE.md"));
    let (_, table) =
        page.split_once("## Who may import whom").expect("ARCHITECTURE.md: the section on imports");
    let rows = table.lines().skip_while(|l| !l.starts_with('|')).take_while(|l| l.starts_with('|'));
    let names = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<BTreeSet<_>>();
    let mut walls = BTreeMap::new();
    for row in rows.filter(|row| row.starts_with("| `")) {
        let cells: Vec<_> = row.trim_matches('|').split('|').map(names).collect();
        let [of, shipped, tests] = &cells[..] else { panic!("ARCHITECTURE.md: three columns: {row}") };
        let name = of.first().expect("a crate").clone();
        walls.insert(name, Imports { shipped: shipped.clone(), tests: tests.clone() });
    }
    walls
}

#[test]
fn crates_import_only_what_the_architecture_allows() {
    let (walls, imports) = (walls(), imports());
    let in_table: Vec<_> = walls.keys().collect();
    let in_workspace: Vec<_> = imports.keys().collect();
    assert_eq!(in_table, in_workspace, "ARCHITECTURE.md's table (left) has one row for each crate (right)");
    let mut problems = Vec::new();
    for (name, has) in &imports {
        let may = &walls[name];
        let known = |wall: &BTreeSet<String>| {
            wall.iter().filter(|n| !imports.contains_key(*n)).cloned().collect::<Vec<_>>()
        };
        problems.extend(
            known(&may.shipped).iter().chain(&known(&may.tests)).map(|n| format!("{name}: no crate `{n}`")),
        );
        problems.extend(has.shipped.difference(&may.shipped).map(|n| format!("{name} imports {n}")));
        let in_tests: BTreeSet<_> = may.shipped.union(&may.tests).cloned().collect();
        problems.extend(has.tests.difference(&in_tests).map(|n| format!("{name}'s tests import {n}")));
        if has.shipped.contains("ambitus-testkit") && name != TOOL {
            problems.push(format!("{name} imports ambitus-testkit, which is for tests only"));
        }
    }
    assert_none(&problems, "imports that ARCHITECTURE.md does not allow");
}

#[test]
fn only_the_command_line_prints() {
    let mut problems = Vec::new();
    for name in imports().keys().filter(|name| !["ambitus", TOOL].contains(&name.as_str())) {
        for path in files(&root().join("crates").join(name).join("src"), "rs") {
            for (number, line) in (1..).zip(read(&path).lines()) {
                let code = line.split("//").next().unwrap_or("");
                let word_before = |at: usize| code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
                if PRINTING.iter().any(|p| code.match_indices(p).any(|(at, _)| !word_before(at))) {
                    problems.push(format!("{}:{number}: {}", shown(&path), line.trim()));
                }
            }
        }
    }
    assert_none(&problems, "libraries that print");
}

#[test]
fn models_passes_and_the_planner_know_no_executor() {
    let mut problems = Vec::new();
    for name in ["ambitus-ir", "ambitus-compile", "ambitus-models", "ambitus-data", "ambitus-store"] {
        for path in files(&root().join("crates").join(name).join("src"), "rs") {
            for (number, line) in (1..).zip(read(&path).lines()) {
                if line.to_lowercase().contains("cuda") {
                    problems.push(format!("{}:{number}: {}", shown(&path), line.trim()));
                }
            }
        }
    }
    assert_none(&problems, "places that know of one kind of card");
}

#[test]
fn files_have_one_subject() {
    let mut problems = Vec::new();
    for path in files(&root().join("crates"), "rs") {
        let (text, name) = (read(&path), shown(&path));
        let name = name.strip_prefix("crates/").unwrap_or(&name).to_owned();
        let lines = text.lines().count();
        if lines > MOST_LINES && LONG_FILES.iter().all(|(file, _)| *file != name) {
            problems.push(format!("{name}: {lines} lines"));
        }
        for (function, lines) in functions(&text) {
            let id = format!("{name} {function}");
            if lines > MOST_OF_A_FUNCTION && LONG_FUNCTIONS.iter().all(|(long, _)| *long != id) {
                problems.push(format!("{id}: {lines} lines"));
            }
        }
    }
    assert_none(&problems, "files and functions that are too long");
}

/// Functions and their lines, as rustfmt lays them out.
fn functions(text: &str) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    let mut open: Option<(usize, usize, String)> = None;
    for (number, line) in text.lines().enumerate() {
        let code = line.trim_start();
        let indent = line.len() - code.len();
        let words: Vec<&str> = code.split(' ').collect();
        let modifiers = words.iter().take_while(|w| ["const", "unsafe"].contains(w) || w.starts_with("pub"));
        if words.get(modifiers.count()).is_some_and(|w| *w == "fn") {
            let (_, name) = code.split_once("fn ").expect("a function");
            let name = name.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or("");
            open = Some((number, indent, name.to_owned()));
        }
        if let Some((from, _, name)) = open.take_if(|(_, at, _)| code == "}" && indent == *at) {
            found.push((name, number + 1 - from));
        }
    }
    found
}

#[test]
fn families_are_named_in_their_own_folders() {
    let of_folder = |path: PathBuf| Some(path.parent()?.file_name()?.to_str()?.to_owned());
    let names: Vec<String> = files(&root().join("crates/ambitus-families/src"), "rs")
        .into_iter()
        .filter(|path| path.ends_with("mod.rs") && read(path).contains("impl Family for"))
        .filter_map(of_folder)
        .collect();
    assert!(names.len() >= 2, "{names:?}");
    let mut problems = Vec::new();
    for name in imports().keys().filter(|name| !FAMILIES.contains(&name.as_str()) && *name != TOOL) {
        for path in files(&root().join("crates").join(name).join("src"), "rs") {
            for (number, line) in (1..).zip(read(&path).lines()) {
                let words = line.to_lowercase();
                let mut words = words.split(|c: char| !c.is_alphanumeric());
                if words
                    .any(|word| names.iter().any(|name| word.starts_with(&**name) && !is_hexadecimal(word)))
                {
                    problems.push(format!("{}:{number}: {}", shown(&path), line.trim()));
                }
            }
        }
    }
    assert_none(&problems, "places outside its folders that name a family");
}

/// As in `0xf5` and after it.
fn is_hexadecimal(word: &str) -> bool {
    word.len() >= 4 && word.bytes().all(|b| b.is_ascii_hexdigit())
}

#[test]
fn modules_are_layers() {
    let mut problems = Vec::new();
    let mut known: BTreeSet<(String, String)> =
        CIRCLES.iter().map(|(name, modules, _)| ((*name).to_owned(), (*modules).to_owned())).collect();
    for name in imports().into_keys().filter(|name| name != TOOL) {
        for circle in circles(&edges(&root().join("crates").join(&name).join("src"))) {
            let circle = circle.join(" ");
            let is_known = !LAYERED.contains(&name.as_str()) && known.remove(&(name.clone(), circle.clone()));
            if !is_known {
                problems.push(format!("{name}: {circle}"));
            }
        }
    }
    problems.extend(
        known.iter().map(|(name, circle)| format!("{name}: {circle} is no circle any more: take it out")),
    );
    assert_none(&problems, "modules that import each other");
}

/// Which top modules of a crate name which others after `crate::`; tests are left out.
fn edges(src: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let mut edges: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let module = |path: &Path| {
        let first = path.strip_prefix(src).ok()?.iter().next()?.to_str()?;
        Some(first.strip_suffix(".rs").unwrap_or(first).to_owned())
    };
    let all = files(src, "rs");
    let modules: BTreeSet<String> = all.iter().filter_map(|path| module(path)).collect();
    let is_test =
        |path: &Path| path.iter().any(|part| ["tests", "tests.rs", "testing.rs"].iter().any(|t| part == *t));
    for path in all.iter().filter(|path| !is_test(path)) {
        let Some(from) = module(path) else { continue };
        let text = read(path);
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or("");
        let code: Vec<&str> = code.lines().map(|l| l.split("//").next().unwrap_or("")).collect();
        for named in named_after_crate(&code.join("\n")) {
            if named != from && modules.contains(&named) {
                edges.entry(from.clone()).or_default().insert(named);
            }
        }
    }
    edges
}

/// The modules after each `crate::`, also of a group in braces.
fn named_after_crate(code: &str) -> Vec<String> {
    let word = |text: &str| {
        text.trim_start().split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or("").to_owned()
    };
    let mut named = Vec::new();
    for rest in code.split("crate::").skip(1) {
        let Some(group) = rest.strip_prefix('{') else {
            named.push(word(rest));
            continue;
        };
        let (mut depth, mut from) = (0, 0);
        for (at, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth > 0 => depth -= 1,
                ',' | '}' if depth == 0 => {
                    named.push(word(&group[from..at]));
                    from = at + 1;
                }
                _ => {}
            }
            if c == '}' && from == at + 1 {
                break;
            }
        }
    }
    named
}

/// Modules that import each other, each circle in order of their names.
fn circles(edges: &BTreeMap<String, BTreeSet<String>>) -> Vec<Vec<String>> {
    let reached = |from: &String| {
        let (mut seen, mut left) = (BTreeSet::new(), vec![from.clone()]);
        while let Some(module) = left.pop() {
            for next in edges.get(&module).into_iter().flatten() {
                if seen.insert(next.clone()) {
                    left.push(next.clone());
                }
            }
        }
        seen
    };
    let reach: BTreeMap<&String, BTreeSet<String>> = edges.keys().map(|m| (m, reached(m))).collect();
    let mut found: Vec<Vec<String>> = Vec::new();
    for (module, all) in &reach {
        let circle: Vec<String> = all
            .iter()
            .filter(|other| reach.get(other).is_some_and(|back| back.contains(*module)))
            .cloned()
            .collect();
        if circle.len() > 1 && !found.contains(&circle) {
            found.push(circle);
        }
    }
    found
}

#[test]
fn circles_are_found() {
    let edges = |all: &[(&str, &[&str])]| {
        all.iter().map(|(m, to)| (m.to_string(), to.iter().map(|t| t.to_string()).collect())).collect()
    };
    assert!(circles(&edges(&[("a", &["b", "c"]), ("b", &["c"])])).is_empty());
    let found = circles(&edges(&[("a", &["b"]), ("b", &["c"]), ("c", &["a", "d"]), ("d", &[])]));
    assert_eq!(found, [["a", "b", "c"]]);
    let code = "use crate::{a::{b, c}, d};\nuse crate::e::F; crate::g()";
    assert_eq!(named_after_crate(code), ["a", "d", "e", "g"]);
}

/// Where the links of a Markdown page lead; code is skipped.
fn links(page: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut fenced = false;
    for (number, line) in (1..).zip(page.lines()) {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        let prose: String = line.split('`').step_by(2).collect();
        found.extend(
            prose.split("](").skip(1).filter_map(|rest| Some((number, rest.split_once(')')?.0.to_owned()))),
        );
    }
    found
}

#[test]
fn relative_links_lead_somewhere() {
    let mut problems = Vec::new();
    for path in files(&root(), "md") {
        for (number, link) in links(&read(&path)) {
            let target = link.split('#').next().unwrap_or("");
            let outside = link.contains("://") || link.starts_with("mailto:");
            if !outside && !target.is_empty() && !path.with_file_name(target).exists() {
                problems.push(format!("{}:{number}: {link}", shown(&path)));
            }
        }
    }
    assert_none(&problems, "links to what is not there");
}

#[test]
fn links_are_found_outside_code() {
    let page = "see [a](b.md#c) and [d](e/f)\n```\n[g](h)\n```\n`[i](j)` but [`k`](l)";
    assert_eq!(links(page), [(1, "b.md#c".into()), (1, "e/f".into()), (5, "l".into())]);
}
