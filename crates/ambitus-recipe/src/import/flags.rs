//! `--key value` as after a command: in a text (of one or many lines, a whole launch script too) or as words of our own
//! command line.

use super::python::{Wrong, number};
use crate::recipe::Place;
use crate::recipe::tree::{Key, Node, Tree};

/// A piece of a command.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    /// A word and where it stands.
    Word(Word),
    /// The end of a line.
    Line,
    /// What ends a command or sends its output elsewhere: `|`, `&&`, `;`, `>` and the like.
    End,
}

/// A word and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Word {
    pub text: String,
    pub place: Place,
    /// It begins with a quote.
    quoted: bool,
    /// A shell would put something else in its place: `$N`, `$(nproc)`.
    code: bool,
}

impl Word {
    /// Returns a word that is meant as it stands.
    pub fn plain(text: &str, place: Place) -> Word {
        Word { text: text.to_owned(), place, quoted: false, code: false }
    }

    /// Returns whether a shell would put something else in its place.
    pub fn is_code(&self) -> bool {
        self.code
    }
}

/// Flags that are there or not, of launchers: what follows is their value only if it is true or false.
const SWITCHES: &[&str] = &[
    "use_fsdp",
    "use_deepspeed",
    "use_megatron_lm",
    "use_parallelism_config",
    "multi_gpu",
    "cpu",
    "use_cpu",
    "tpu",
    "use_mps_device",
    "ipex",
    "downcast_bf16",
    "enable_cpu_affinity",
    "standalone",
    "module",
    "no_python",
    "quiet",
];

/// Flags of one value, of launchers: the next word is the program.
const SINGLE: &[&str] = &[
    "num_processes",
    "nproc_per_node",
    "num_machines",
    "nnodes",
    "mixed_precision",
    "config_file",
    "machine_rank",
    "node_rank",
    "main_process_ip",
    "main_process_port",
    "master_addr",
    "master_port",
    "rdzv_backend",
    "rdzv_endpoint",
    "rdzv_id",
    "gpu_ids",
    "dynamo_backend",
    "num_cpu_threads_per_process",
    "fsdp_version",
    "fsdp_sharding_strategy",
    "fsdp_reshard_after_forward",
    "fsdp_auto_wrap_policy",
    "fsdp_min_num_params",
    "fsdp_backward_prefetch",
    "fsdp_forward_prefetch",
    "fsdp_offload_params",
    "fsdp_state_dict_type",
    "fsdp_use_orig_params",
    "fsdp_sync_module_states",
    "fsdp_cpu_ram_efficient_loading",
    "fsdp_activation_checkpointing",
];

/// Returns the pieces of a text as a shell splits it: quotes, comments, lines joined by a backslash. `joins` is what escapes a
/// character and joins lines: `\`, and `^` in a batch file.
pub(super) fn tokens(text: &str, joins: char) -> Result<Vec<Token>, Wrong> {
    let mut lexer = Lexer { chars: text.chars().peekable(), place: Place { line: 1, column: 1 }, word: None };
    let mut found = Vec::new();
    let mut quote: Option<(char, Place)> = None;
    while let Some((c, here)) = lexer.next() {
        match (c, quote) {
            (c, Some((q, _))) if c == q => quote = None,
            (c, q) if c == joins && q.is_none_or(|(q, _)| q == '"') => match lexer.next() {
                Some(('\n', _)) | None => {}
                // Of a text with \r\n.
                Some(('\r', _)) => {
                    lexer.chars.next_if_eq(&'\n').inspect(|_| lexer.place = below(here));
                }
                Some((c, _)) => {
                    if quote.is_some() && !matches!(c, '"' | '\\' | '$' | '`') {
                        lexer.push(here, Some(joins));
                    }
                    lexer.push(here, Some(c));
                }
            },
            // A batch file has %N% instead.
            ('$', q) if joins == '\\' && q.is_none_or(|(q, _)| q == '"') => lexer.expansion(here)?,
            ('`', q) if joins == '\\' && q.is_none_or(|(q, _)| q == '"') => {
                lexer.code(here, c);
                lexer.until('`', here)?;
            }
            ('%', _) if joins == '^' => lexer.code(here, c),
            (c, Some(_)) => lexer.push(here, Some(c)),
            ('\'' | '"', None) => {
                let begins = lexer.word.is_none();
                lexer.push(here, None);
                lexer.word.iter_mut().for_each(|w| w.quoted |= begins);
                quote = Some((c, here));
            }
            ('#', None) if lexer.word.is_none() => {
                while lexer.chars.peek().is_some_and(|c| *c != '\n') {
                    lexer.next();
                }
            }
            ('|' | '&' | ';' | '>' | '<', None) => {
                // In `2>&1` the number is no value.
                let word = lexer.word.take();
                let stream = matches!(c, '>' | '<')
                    && word.as_ref().is_some_and(|w| !w.quoted && w.text.bytes().all(|b| b.is_ascii_digit()));
                found.extend(word.filter(|_| !stream).map(Token::Word));
                found.push(Token::End);
            }
            (c, None) if c.is_whitespace() || c == '\u{feff}' => {
                found.extend(lexer.word.take().map(Token::Word));
                found.extend((c == '\n').then_some(Token::Line));
            }
            (c, None) => lexer.push(here, Some(c)),
        }
    }
    if let Some((_, opened)) = quote {
        return Err((opened, "the quote is not closed".to_owned()));
    }
    found.extend(lexer.word.take().map(Token::Word));
    Ok(found)
}

fn below(place: Place) -> Place {
    Place { line: place.line + 1, column: 1 }
}

struct Lexer<'a> {
    chars: std::iter::Peekable<std::str::Chars<'a>>,
    place: Place,
    word: Option<Word>,
}

impl Lexer<'_> {
    /// Returns the next character and its place.
    fn next(&mut self) -> Option<(char, Place)> {
        let c = self.chars.next()?;
        let here = self.place;
        self.place = if c == '\n' { below(here) } else { Place { column: here.column + 1, ..here } };
        Some((c, here))
    }

    /// Puts a character on the word, which begins here if there is none.
    fn push(&mut self, here: Place, c: Option<char>) {
        self.word.get_or_insert_with(|| Word::plain("", here)).text.extend(c);
    }

    /// Puts a character on the word and marks it as code that a shell would run.
    fn code(&mut self, here: Place, c: char) {
        self.push(here, Some(c));
        self.word.iter_mut().for_each(|w| w.code = true);
    }

    /// Reads what begins with `$`.
    fn expansion(&mut self, here: Place) -> Result<(), Wrong> {
        match self.chars.peek() {
            Some('(') => {
                self.code(here, '$');
                self.until(')', here)
            }
            Some('{') => {
                self.code(here, '$');
                self.until('}', here)
            }
            Some(c) if c.is_alphanumeric() || "_@*#?!".contains(*c) => {
                self.code(here, '$');
                Ok(())
            }
            _ => {
                self.push(here, Some('$'));
                Ok(())
            }
        }
    }

    /// Reads up to where `close` closes what stands here.
    fn until(&mut self, close: char, opened: Place) -> Result<(), Wrong> {
        let open = match close {
            ')' => '(',
            '}' => '{',
            // It does not nest, and has been read.
            _ => '\0',
        };
        let mut depth = usize::from(open == '\0');
        while let Some((c, here)) = self.next() {
            self.push(here, Some(c));
            if c == open {
                depth += 1;
            } else if c == close {
                depth -= 1;
            }
            if depth == 0 {
                return Ok(());
            }
        }
        Err((opened, format!("no `{close}` closes what begins here")))
    }
}

/// Returns whether a flag stands among a text's pieces.
pub(super) fn any(tokens: &[Token]) -> bool {
    tokens.iter().any(|t| matches!(t, Token::Word(w) if !w.quoted && flag(&w.text).is_some()))
}

/// Returns what stands behind the dashes of a flag.
fn flag(word: &str) -> Option<&str> {
    word.strip_prefix("--").filter(|flag| flag.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
}

/// Returns the flags among the pieces of a text. Words before the first are the command; a script's name (`train.py`), what
/// follows a short flag (`-m train`), and other commands are nobody's value.
pub(super) fn parse(tokens: &[Token]) -> Vec<(Key, Tree)> {
    let mut found: Vec<(Key, Vec<Word>)> = Vec::new();
    // In a text that is flags alone their values may stand on lines of their own.
    let first = tokens.iter().find_map(|t| if let Token::Word(w) = t { Some(w) } else { None });
    let alone = first.is_some_and(|w| flag(&w.text).is_some());
    // Values that the last flag may still have.
    let mut open = 0;
    for token in tokens {
        let word = match token {
            Token::Word(word) => word,
            Token::Line if alone => continue,
            Token::Line | Token::End => {
                open = 0;
                continue;
            }
        };
        let text = word.text.as_str();
        let short = |c: char| c.is_alphabetic() || c == '-';
        if let Some(flag) = flag(text) {
            let (name, value) = match flag.split_once('=') {
                Some((name, value)) => (name, Some(Word { text: value.to_owned(), ..word.clone() })),
                None => (flag, None),
            };
            let name = name.replace('-', "_");
            open = match name.as_str() {
                _ if value.is_some() => 0,
                name if SWITCHES.contains(&name) || SINGLE.contains(&name) => 1,
                _ => usize::MAX,
            };
            found.push((Key { name, place: word.place }, value.into_iter().collect()));
        } else if text.ends_with(".py")
            || (!word.quoted && text.strip_prefix('-').is_some_and(|t| t.starts_with(short)))
        {
            open = 0;
        } else if open > 0
            && let Some((key, values)) = found.last_mut()
        {
            open -= 1;
            let on =
                matches!(text.to_ascii_lowercase().as_str(), "true" | "false" | "yes" | "no" | "1" | "0");
            if on || !SWITCHES.contains(&key.name.as_str()) {
                values.push(word.clone());
            }
        }
    }
    let tree = |(key, mut values): (Key, Vec<Word>)| {
        let tree = match values.len() {
            0 => Tree { place: key.place, node: Node::Bool(true) },
            1 => leaf(values.remove(0)),
            _ => Tree { place: key.place, node: Node::List(values.into_iter().map(leaf).collect()) },
        };
        (key, tree)
    };
    found.into_iter().map(tree).collect()
}

fn leaf(Word { text, place, code, .. }: Word) -> Tree {
    let node = match number(&text) {
        _ if code => Node::Code(text),
        Some(number) => number,
        None => Node::Text(text),
    };
    Tree { place, node }
}
