//! Names of parameters by pattern: how a recipe says which of them it means.

use std::fmt;

/// A name in which `*` stands for any characters, dots and none included; everything else stands for itself.
///
/// A pattern means a parameter, or a module and every parameter in it: `transformer.text_embed` and `*.text_embed` mean
/// `transformer.text_embed.text_embed.weight`; `*.to_q` means the weight and the bias of every `to_q`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(String);

impl Pattern {
    /// Returns a pattern from its text.
    pub fn new(text: impl Into<String>) -> Pattern {
        Pattern(text.into())
    }

    /// Returns true for a parameter of this name: the pattern fits the name, or the name of a module around it.
    pub fn matches(&self, parameter: &str) -> bool {
        let modules = parameter.match_indices('.').map(|(dot, _)| &parameter[..dot]);
        modules.chain([parameter]).any(|name| fits(self.0.as_bytes(), name.as_bytes()))
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Matches greedily; after a mismatch the last `*` takes one character more. An earlier `*` need never be tried again: what
/// it would take, the last one can.
fn fits(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(c) if *c == name[n] => (p, n) = (p + 1, n + 1),
            _ => match star {
                Some((at, taken)) => {
                    star = Some((at, taken + 1));
                    (p, n) = (at + 1, taken + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == b'*')
}

/// Returns the modules of these parameters for a message: numbers of blocks become `*`, so that a model of many blocks shows
/// all its kinds.
pub(super) fn shown<'a>(names: impl Iterator<Item = &'a str>) -> String {
    const MOST: usize = 32;
    let mut kinds: Vec<String> = Vec::new();
    for name in names {
        let name = name.rsplit_once('.').map_or(name, |(module, _)| module);
        let number = |part: &str| part.bytes().all(|c| c.is_ascii_digit());
        // Only what stands before a further name is the number of a block: `to_out.0` and `ff.2` are layers.
        let parts: Vec<&str> = name.split('.').collect();
        let block = parts.iter().position(|part| number(part)).filter(|at| at + 1 < parts.len());
        let kind: Vec<&str> =
            parts.iter().enumerate().map(|(i, part)| if block == Some(i) { "*" } else { part }).collect();
        let kind = kind.join(".");
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    let more = kinds.len().saturating_sub(MOST);
    kinds.truncate(MOST);
    let shown = kinds.join(", ");
    if more > 0 { format!("{shown} and {more} more") } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_is_anything_and_a_module_is_all_of_it() {
        let name = "transformer.transformer_blocks.12.attn.to_q.weight";
        let fits = [
            name,
            "*",
            "*.to_q",
            "*.to_q.weight",
            "transformer",
            "transformer.transformer_blocks.*.attn",
            "transformer.transformer_blocks.1*",
            "*blocks*to_*weight",
            "**.to_q*",
        ];
        for pattern in fits {
            assert!(Pattern::new(pattern).matches(name), "{pattern}");
        }
        let others = [
            "",
            "to_q",
            "*.to_",
            "*.to_k",
            "transformer.transformer_blocks.1",
            "transformer.",
            "*.weight.*",
            "ansformer*",
            "*.to_q.weigh",
        ];
        for pattern in others {
            assert!(!Pattern::new(pattern).matches(name), "{pattern}");
        }
    }

    /// Against the definition, by trying every length for every star.
    #[test]
    fn matching_is_what_its_definition_says() {
        fn slow(p: &[u8], n: &[u8]) -> bool {
            match p.split_first() {
                None => n.is_empty(),
                Some((b'*', rest)) => (0..=n.len()).any(|k| slow(rest, &n[k..])),
                Some((c, rest)) => n.first() == Some(c) && slow(rest, &n[1..]),
            }
        }
        arbtest::arbtest(|u| {
            let text = |u: &mut arbtest::arbitrary::Unstructured<'_>, letters: &[u8]| {
                let n = u.int_in_range(0..=9)?;
                (0..n).map(|_| u.choose(letters).copied()).collect::<Result<Vec<u8>, _>>()
            };
            let (p, n) = (text(u, b"ab*")?, text(u, b"ab")?);
            assert_eq!(fits(&p, &n), slow(&p, &n), "{p:?} {n:?}");
            Ok(())
        })
        .budget_ms(200);
    }

    #[test]
    fn names_are_shown_by_kind() {
        let names =
            ["m.b.0.q.weight", "m.b.1.q.weight", "m.b.1.q.bias", "m.b.1.out.0.weight", "m.out.0.weight", "w"];
        assert_eq!(shown(names.into_iter()), "m.b.*.q, m.b.*.out.0, m.out.0, w");
    }
}
