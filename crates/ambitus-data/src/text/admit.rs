//! What a `tokenizer.json` may ask for. The package runs whatever it says: a dozen characters can make a text grow a million
//! times, or an expression run for minutes. Admitted are the parts that Llama's relatives have (Llama 2 and 3, Qwen, Mistral,
//! SmolLM and models made of them), and T5's, with parameters under which a text grows by a fixed factor at most.

use serde_json::{Map, Value};

/// Longest part of a file, bytes, of normalizer, pre-tokenizer or post-processor. Real ones have under 4 KiB.
pub(super) const MAX_PART: usize = 64 << 10;
/// Parts in a sequence.
const MAX_STEPS: usize = 16;
/// Sequences in sequences.
const MAX_DEPTH: usize = 4;
/// Longest expression, bytes. The longest known has some 600.
const MAX_EXPRESSION: usize = 1 << 10;
/// Counted repetitions of an expression (`{1,3}`), multiplied: what it may expand to.
const MAX_REPETITIONS: u64 = 64;
/// Longest text that is prepended, characters.
const MAX_PREPENDED: usize = 4;
/// Longest text that a Unigram's normalizer replaces, characters.
const MAX_REPLACED: usize = 64;
/// Ids that a template puts around a text.
const MAX_TEMPLATE_IDS: usize = 64;

type Checked = Result<(), String>;
/// A part of the file with its type.
pub(super) type Step<'a> = (&'a str, &'a Map<String, Value>);

/// Returns a normalizer: none, NFC, prepending, and replacing one text by a character.
pub(super) fn normalizer(part: &Value) -> Checked {
    for (kind, step) in steps(part, "normalizers")? {
        let sound = match kind {
            "NFC" => true,
            "Prepend" => length(&step["prepend"]).is_some_and(|n| n <= MAX_PREPENDED),
            "Replace" => {
                let of = step.get("pattern").map_or(&Value::Null, |p| &p["String"]);
                length(of).is_some_and(|n| n > 0)
                    && step.get("content").and_then(length).is_some_and(|n| n <= 1)
            }
            other => return Err(unknown("normalizer", other, "NFC, Prepend and Replace")),
        };
        if !sound {
            return Err(parameters("normalizer", kind));
        }
    }
    Ok(())
}

/// Returns a pre-tokenizer: none, splits by expressions, digits, words, one change to byte-level characters or to Metaspace's.
pub(super) fn pre_tokenizer(part: &Value) -> Checked {
    let mut rewrites = 0;
    for (kind, step) in steps(part, "pretokenizers")? {
        match kind {
            "Digits" | "Whitespace" => {}
            "Split" => {
                let pattern = step.get("pattern").unwrap_or(&Value::Null);
                match (pattern["Regex"].as_str(), pattern["String"].as_str()) {
                    (Some(regex), None) => expression(regex)?,
                    (None, Some(text)) if !text.is_empty() && text.len() <= MAX_EXPRESSION => {}
                    _ => return Err(parameters("pre_tokenizer", kind)),
                }
            }
            // Each of a row of these would make a text several times as long again.
            "ByteLevel" | "Metaspace" => rewrites += 1,
            other => {
                return Err(unknown(
                    "pre_tokenizer",
                    other,
                    "ByteLevel, Digits, Metaspace, Split and Whitespace",
                ));
            }
        }
    }
    if rewrites > 1 {
        return Err("its pre_tokenizer changes the text's characters more than once".into());
    }
    Ok(())
}

/// Returns a post-processor: none, ByteLevel's offsets, and a template around the text.
pub(super) fn post_processor(part: &Value) -> Checked {
    for (kind, step) in steps(part, "processors")? {
        match kind {
            "ByteLevel" => {}
            "TemplateProcessing" => template(step)?,
            other => return Err(unknown("post_processor", other, "ByteLevel and TemplateProcessing")),
        }
    }
    Ok(())
}

/// Returns the steps of a Unigram's normalizer: at most one table of replacements, taking off spaces, and replacing one text, or spaces
/// that follow each other, by a character. None makes more characters of some but the table.
pub(super) fn unigram_normalizer(part: &Value) -> Result<Vec<Step<'_>>, String> {
    let all = steps(part, "normalizers")?;
    for (kind, step) in &all {
        let sound = match *kind {
            "Precompiled" => all.iter().filter(|(kind, _)| *kind == "Precompiled").count() == 1,
            "Strip" => true,
            "Replace" => {
                let pattern = step.get("pattern").unwrap_or(&Value::Null);
                let of = length(&pattern["String"]);
                let known =
                    pattern["Regex"] == " {2,}" || of.is_some_and(|n| (1..=MAX_REPLACED).contains(&n));
                known && step.get("content").and_then(length).is_some_and(|n| n <= 1)
            }
            other => return Err(unknown("normalizer", other, "Precompiled, Strip and Replace")),
        };
        if !sound {
            return Err(parameters("normalizer", kind));
        }
    }
    Ok(all)
}

/// Returns a Unigram's pre-tokenizer: none, splits at spaces, and one change to Metaspace's character.
pub(super) fn unigram_pre_tokenizer(part: &Value) -> Checked {
    let mut rewrites = 0;
    for (kind, _) in steps(part, "pretokenizers")? {
        match kind {
            "WhitespaceSplit" => {}
            "Metaspace" => rewrites += 1,
            other => return Err(unknown("pre_tokenizer", other, "Metaspace and WhitespaceSplit")),
        }
    }
    if rewrites > 1 {
        return Err("its pre_tokenizer changes the text's characters more than once".into());
    }
    Ok(())
}

/// Returns the parts of a sequence in their order, or the one that there is; each with its type.
fn steps<'a>(part: &'a Value, list: &str) -> Result<Vec<Step<'a>>, String> {
    fn walk<'a>(part: &'a Value, list: &str, depth: usize, out: &mut Vec<Step<'a>>) -> Checked {
        let Some(step) = part.as_object() else { return Err(format!("a part of its {list} is no object")) };
        // Without a type the package guesses.
        let Some(kind) = step.get("type").and_then(Value::as_str) else {
            return Err(format!("a part of its {list} has no type"));
        };
        if kind != "Sequence" {
            out.push((kind, step));
            return Ok(());
        }
        let Some(inner) = step.get(list).and_then(Value::as_array) else {
            return Err(format!("a Sequence without {list}"));
        };
        if depth == 0 || out.len() + inner.len() > MAX_STEPS {
            return Err(format!("more than {MAX_STEPS} {list}, or sequences deep in each other"));
        }
        inner.iter().try_for_each(|part| walk(part, list, depth - 1, out))
    }
    let mut out = Vec::new();
    if !part.is_null() {
        walk(part, list, MAX_DEPTH, &mut out)?;
    }
    Ok(out)
}

/// Counts the characters of a text.
fn length(value: &Value) -> Option<usize> {
    value.as_str().map(|text| text.chars().count())
}

/// Returns an expression that is short and expands little. Its steps are counted by the engine, which gives up after a million.
fn expression(regex: &str) -> Checked {
    let too_much = || {
        let shown = crate::error::short(regex);
        Err(format!(
            "its pre_tokenizer splits by an expression that is too long or repeats too much ({shown})"
        ))
    };
    if regex.len() > MAX_EXPRESSION {
        return too_much();
    }
    let mut product = 1u64;
    // `\p{L}` gives no number, and counts as none.
    for braces in regex.split('{').skip(1) {
        let inner = braces.split('}').next().unwrap_or(braces);
        let numbers = inner.split(',').filter_map(|n| n.trim().parse::<u64>().ok());
        product = product.saturating_mul(numbers.max().unwrap_or(1).max(1));
    }
    if product > MAX_REPETITIONS { too_much() } else { Ok(()) }
}

/// Returns a template that has the text once and few ids around it.
fn template(step: &Map<String, Value>) -> Checked {
    let bad = || Err(parameters("post_processor", "TemplateProcessing"));
    let Some(single) = step.get("single").and_then(Value::as_array) else { return bad() };
    let (mut texts, mut ids) = (0, 0);
    for piece in single {
        if piece.get("Sequence").is_some() {
            texts += 1;
        } else if let Some(id) = piece["SpecialToken"]["id"].as_str() {
            let known = step.get("special_tokens").and_then(|all| all.get(id)?.get("ids")?.as_array());
            let Some(known) = known else { return bad() };
            ids += known.len();
        } else {
            return bad();
        }
    }
    if texts == 1 && ids <= MAX_TEMPLATE_IDS { Ok(()) } else { bad() }
}

fn unknown(part: &str, kind: &str, known: &str) -> String {
    let kind = crate::error::short(kind);
    format!("its {part} {kind} is none that such models have: {known} can be read")
}

fn parameters(part: &str, kind: &str) -> String {
    format!("its {part} {kind} has parameters that no such model has")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    const QWEN_2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

    fn byte_level(regex: bool) -> Value {
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": regex})
    }

    fn split(regex: &str) -> Value {
        json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false})
    }

    fn sequence(list: &str, parts: &[Value]) -> Value {
        json!({"type": "Sequence", list: parts})
    }

    #[test]
    fn parts_of_known_models_are_admitted() {
        let begin = |ids: usize| {
            json!({
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [],
                "special_tokens": {"<s>": {"id": "<s>", "ids": vec![1; ids], "tokens": vec!["<s>"; ids]}},
            })
        };
        // Llama 3, Qwen 2 and 2.5, Mistral's Tekken, SmolLM, Llama 2 as it was and as it is.
        for regex in [LLAMA_3, QWEN_2, TEKKEN] {
            let parts = sequence("pretokenizers", &[split(regex), byte_level(false)]);
            assert_eq!(pre_tokenizer(&parts), Ok(()));
        }
        let digits = json!({"type": "Digits", "individual_digits": true});
        assert_eq!(pre_tokenizer(&sequence("pretokenizers", &[digits, byte_level(true)])), Ok(()));
        let metaspace =
            json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false});
        assert_eq!(pre_tokenizer(&metaspace), Ok(()));
        assert_eq!(pre_tokenizer(&json!({"type": "Whitespace"})), Ok(()));
        assert_eq!(normalizer(&json!({"type": "NFC"})), Ok(()));
        let spaces = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
        let prepend = json!({"type": "Prepend", "prepend": "▁"});
        assert_eq!(normalizer(&sequence("normalizers", &[prepend, spaces])), Ok(()));
        for part in
            [json!(null), byte_level(true), begin(1), sequence("processors", &[byte_level(true), begin(1)])]
        {
            assert_eq!(post_processor(&part), Ok(()));
        }
        assert!(post_processor(&begin(65)).is_err());
    }

    #[test]
    fn what_grows_or_is_unknown_is_named() {
        let grows = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"});
        let empty = json!({"type": "Replace", "pattern": {"String": ""}, "content": "a"});
        let long = json!({"type": "Prepend", "prepend": "x".repeat(5)});
        for part in [&grows, &empty, &long] {
            assert!(normalizer(part).expect_err("refused").contains("parameters"), "{part}");
        }
        let error = normalizer(&sequence("normalizers", &[json!({"type": "NFKC"})])).expect_err("refused");
        assert!(error.contains("NFKC") && error.contains("NFC, Prepend"), "{error}");
        let many = vec![json!({"type": "NFC"}); MAX_STEPS + 1];
        assert!(normalizer(&sequence("normalizers", &many)).is_err());
        let mut deep = json!({"type": "NFC"});
        for _ in 0..=MAX_DEPTH {
            deep = sequence("normalizers", &[deep]);
        }
        assert!(normalizer(&deep).is_err());
        assert!(pre_tokenizer(&sequence("pretokenizers", &[byte_level(true), byte_level(true)])).is_err());
        for regex in ["(?:(?:a{9}){9}){9}", &"a".repeat(2000), "\\p{L}{1,65}"] {
            let error = pre_tokenizer(&split(regex)).expect_err("refused");
            assert!(error.contains("expression") && error.len() < 300, "{error}");
        }
        let twice = json!({"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}, {"Sequence": {"id": "A"}}],
            "special_tokens": {}});
        assert!(post_processor(&twice).is_err());
        assert!(pre_tokenizer(&json!([])).is_err() && pre_tokenizer(&json!({"type": 3})).is_err());
    }
}
