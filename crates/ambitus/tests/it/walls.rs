//! The house's walls: who imports whom, who prints, how long a file may be, and that links lead somewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What is done by hand: never shipped, so it may print and use the test kit.
const TOOL: &str = "xtask";

/// Longest source file, in lines. Above it a file has more than one subject.
const MOST_LINES: usize = 1000;
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
    let long = files(&root().join("crates"), "rs").into_iter().filter_map(|path| {
        let lines = read(&path).lines().count();
        (lines > MOST_LINES).then(|| format!("{}: {lines} lines", shown(&path)))
    });
    assert_none(&long.collect::<Vec<_>>(), "files that are too long");
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
