//! The README: short, the same in both languages, with the program's own numbers, the states of `docs/status.md`, and links that
//! lead somewhere.

use crate::common;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const PAGES: [&str; 2] = ["README.md", "README.zh.md"];
/// More is a manual: that belongs below `docs/`.
const MOST_LINES: usize = 130;
/// States of the tables, in both languages.
const STATES: [(&str, &str); 5] =
    [("measured", "实测"), ("tested", "已测试"), ("compiled", "未运行"), ("absent", "未实现"), ("—", "—")];
/// MiB that a build with debug assertions plans for its process beyond a release build, of which the README shows the output.
const DEBUG_MIB: u64 = if cfg!(debug_assertions) { 3 } else { 0 };

fn read(page: &str) -> String {
    fs::read_to_string(common::root().join(page)).unwrap_or_else(|e| panic!("{page}: {e}"))
}

/// Blocks between fences, each with its language in the first line; and the lines outside of them.
fn split(page: &str) -> (Vec<String>, Vec<&str>) {
    let (mut blocks, mut prose, mut fenced) = (Vec::new(), Vec::new(), false);
    for line in page.lines() {
        if let Some(language) = line.strip_prefix("```") {
            fenced = !fenced;
            if fenced {
                blocks.push(language.to_owned());
            }
        } else if fenced {
            let block: &mut String = blocks.last_mut().expect("an open block");
            block.push('\n');
            block.push_str(line);
        } else {
            prose.push(line);
        }
    }
    assert!(!fenced, "a fence is not closed");
    (blocks, prose)
}

/// Cells of all table rows, the lines below headings left out.
fn rows(page: &str) -> Vec<Vec<String>> {
    let (_, prose) = split(page);
    let rows = prose.into_iter().filter_map(|l| l.strip_prefix('|')?.strip_suffix('|'));
    let rows = rows.filter(|l| !l.chars().all(|c| "-|: ".contains(c)));
    rows.map(|l| l.split('|').map(|cell| cell.trim().to_owned()).collect()).collect()
}

/// Where links and pictures of a page lead; code is skipped.
fn links(page: &str) -> Vec<String> {
    let (_, prose) = split(page);
    let mut found = Vec::new();
    for line in prose {
        let text: String = line.split('`').step_by(2).collect();
        found.extend(text.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0.to_owned())));
    }
    found
}

fn is_state(cell: &str) -> bool {
    STATES.iter().any(|(word, _)| *word == cell)
}

#[test]
fn it_is_short() {
    for page in PAGES {
        let lines = read(page).lines().count();
        assert!(lines <= MOST_LINES, "{page} has {lines} lines, more than {MOST_LINES}");
    }
}

#[test]
fn both_languages_have_the_same_commands_and_outputs() {
    let [english, chinese] = PAGES.map(|page| split(&read(page)).0);
    assert!(english.iter().filter(|b| b.starts_with("sh\n")).count() >= 3, "{english:#?}");
    assert_eq!(english, chinese);
}

/// Row by row: as many cells, the same code, states that translate each other, and in Chinese no name that is not in English.
#[test]
fn both_languages_have_the_same_tables() {
    let [english, chinese] = PAGES.map(|p| rows(&read(p)));
    let code = |row: &[String]| -> Vec<String> {
        row.iter().flat_map(|cell| cell.split('`').skip(1).step_by(2)).map(str::to_owned).collect()
    };
    let names = |row: &[String]| -> BTreeSet<String> {
        let row = row.join(" ").to_lowercase();
        let words =
            row.split(|c: char| !c.is_ascii_alphanumeric()).filter(|w| w.contains(char::is_alphabetic));
        words.map(str::to_owned).collect()
    };
    assert_eq!(english.len(), chinese.len(), "rows");
    for (e, c) in english.iter().zip(&chinese) {
        assert_eq!((e.len(), code(e)), (c.len(), code(c)), "cells and code: {e:?} {c:?}");
        for (e, c) in e.iter().zip(c) {
            let same = STATES.contains(&(e.as_str(), c.as_str()));
            let state = is_state(e) || STATES.iter().any(|(_, word)| word == c);
            assert!(same || !state, "{e} is not {c}");
        }
        let more: Vec<_> = names(c).difference(&names(e)).cloned().collect();
        assert!(more.is_empty(), "{more:?} in {c:?}, not in {e:?}");
    }
}

#[test]
fn both_languages_have_the_same_links() {
    let [english, chinese] = PAGES.map(|page| {
        let links = links(&read(page));
        links.into_iter().filter(|l| !PAGES.contains(&l.as_str())).collect::<Vec<_>>()
    });
    assert!(english.len() > 10, "{english:?}");
    assert_eq!(english, chinese);
    for (page, other) in PAGES.iter().zip(PAGES.iter().rev()) {
        assert!(links(&read(page)).iter().any(|l| l == other), "{page} links to {other}");
    }
}

/// `docs/status.md` has each row's evidence, and what it calls measured links to the figure.
#[test]
fn states_are_those_of_the_status_page() {
    let key = |row: &[String]| -> Vec<String> {
        row[..1].iter().chain(row.iter().filter(|cell| is_state(cell))).cloned().collect()
    };
    let status = rows(&read("docs/status.md"));
    let states: BTreeSet<_> = status.iter().map(|row| key(row)).collect();
    let shown = rows(&read(PAGES[0]));
    let shown: Vec<_> = shown.iter().map(|row| key(row)).filter(|key| key.len() > 1).collect();
    assert!(shown.len() > 20, "{shown:#?}");
    for row in shown {
        assert!(states.contains(&row), "docs/status.md has no row {row:?}");
    }
    for row in status.iter().filter(|row| row[1..].iter().any(|cell| cell == "measured")) {
        let evidence = row.last().expect("cells");
        assert!(evidence.contains("](../benches/results/"), "measured, but no result is linked: {row:?}");
    }
}

/// Anchors of a page's headings, as GitHub makes them.
fn headings(page: &str) -> BTreeSet<String> {
    let anchor = |heading: &str| {
        let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    let (_, prose) = split(page);
    prose.iter().filter(|l| l.starts_with('#')).map(|l| anchor(l.trim_start_matches('#'))).collect()
}

fn pages(folder: &Path, found: &mut Vec<PathBuf>) {
    for item in fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
        let path = item.expect("a directory entry").path();
        if path.is_dir() {
            pages(&path, found);
        } else if path.extension().is_some_and(|e| e == "md") {
            found.push(path);
        }
    }
}

#[test]
fn links_lead_to_files_and_headings() {
    let mut all = PAGES.map(|p| common::root().join(p)).to_vec();
    pages(&common::root().join("docs"), &mut all);
    let mut problems = Vec::new();
    for page in all {
        let text = fs::read_to_string(&page).expect("a page");
        for link in links(&text).into_iter().filter(|l| !l.contains("://")) {
            let (file, part) = link.split_once('#').unwrap_or((&link, ""));
            let target = if file.is_empty() { page.clone() } else { page.with_file_name(file) };
            let leads = match part {
                "" => target.exists(),
                part => fs::read_to_string(&target).is_ok_and(|there| headings(&there).contains(part)),
            };
            if !leads {
                problems.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(problems.is_empty(), "links to what is not there:\n  {}", problems.join("\n  "));
}

/// The block of output in the README that begins so.
fn shown(start: &str) -> String {
    let (blocks, _) = split(&read(PAGES[0]));
    let block = blocks.into_iter().find(|b| b.starts_with(&format!("text\n{start}")));
    block.unwrap_or_else(|| panic!("the README shows no output that begins with `{start}`"))
}

/// What the quickstart's plan says in the memory of an output, the number behind `before`, and its exit code.
fn planned(shown: &str, before: &str) -> (i32, String) {
    let (_, rest) = shown.split_once(before).unwrap_or_else(|| panic!("no `{before}` in {shown}"));
    let mib: String = rest.chars().take_while(char::is_ascii_digit).collect();
    let memory = format!("{}MiB", mib.parse::<u64>().expect("MiB") + DEBUG_MIB);
    common::said(&common::root(), &["plan", "recipes/quickstart.yaml", "--memory", &memory])
}

/// Bytes of tensors and what is recomputed; what the process itself takes differs between builds.
#[test]
fn the_plan_that_is_shown_is_the_plan() {
    let shown = shown("plan: ");
    let (code, said) = planned(&shown, " MiB of ");
    assert_eq!(code, 0, "{said}");
    let peak = shown.lines().find(|l| l.starts_with("  at the peak")).expect("what lives at the peak");
    let sizes = peak.split(['·', ':', '…']).map(str::trim);
    let mut sizes: Vec<_> =
        sizes.filter(|size| size.ends_with("iB") && !size.starts_with("process")).collect();
    assert!(sizes.len() > 4, "{peak}");
    let between = |from: &str, to: &str| Some(shown.split_once(from)?.1.split_once(to)?.0);
    let arena = format!("arena {}", between("; arena ", " …").expect("the arena"));
    let recomputed = between("recomputed in backward: ", ";").expect("what is recomputed");
    sizes.extend([arena.as_str(), recomputed]);
    for size in sizes {
        assert!(said.contains(size), "the README shows `{size}`, but the plan is\n{said}");
    }
}

#[test]
fn the_refusal_that_is_shown_is_the_refusal() {
    // Options, time and numerics of each change; the peak differs between builds.
    let changes = |text: &str| -> Vec<[String; 3]> {
        let lines = text.lines().filter(|l| l.starts_with("    --"));
        let cells = |line: &str| -> Vec<String> {
            line.split("  ").map(|cell| cell.trim().to_owned()).filter(|cell| !cell.is_empty()).collect()
        };
        let three = |cells: Vec<String>| [0, 2, 3].map(|i| cells.get(i).cloned().unwrap_or_default());
        lines.map(|line| three(cells(line))).collect()
    };
    let shown = shown("error: ");
    let (code, said) = planned(&shown, "budget ");
    let shown = changes(&shown);
    assert!(!shown.is_empty() && shown.iter().flatten().all(|cell| !cell.is_empty()), "{shown:?}");
    assert_eq!(code, 3, "{said}");
    assert_eq!(shown, changes(&said), "{said}");
}
