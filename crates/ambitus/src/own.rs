//! Options of families' own keys, made from the registry.

use ambitus_families::ALL;
use ambitus_recipe::recipe::{OwnOption, Recipe};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use serde_json::Value;

/// What is said of families' own keys: section, key and value.
#[derive(Clone, Default)]
pub struct OwnArgs(Vec<(&'static str, &'static str, Value)>);

impl OwnArgs {
    /// Lays them over a recipe: the keys that they say.
    pub fn lay(&self, recipe: &mut Recipe) -> Vec<String> {
        let lay = |(section, key, value): &(&str, &str, Value)| {
            recipe.set_own(section, key, value.clone());
            format!("{section}.{key}")
        };
        self.0.iter().map(lay).collect()
    }
}

/// Returns every option with its family, section and key.
fn options() -> impl Iterator<Item = (&'static str, &'static str, &'static str, OwnOption)> {
    let of = |f: &&'static dyn ambitus_families::Family| {
        let (name, section) = (f.name(), f.section());
        section.keys.iter().filter_map(move |k| Some((name, section.name, k.name, k.option?)))
    };
    ALL.iter().flat_map(of)
}

impl Args for OwnArgs {
    fn augment_args(cmd: Command) -> Command {
        options().fold(cmd, |cmd, (family, _, _, option)| {
            let arg = Arg::new(option.flag).long(option.flag).help(format!("{family}: {}", option.help));
            cmd.arg(match option.value {
                Some(value) => arg.value_name(value),
                None => arg.action(ArgAction::SetTrue),
            })
        })
    }

    fn augment_args_for_update(cmd: Command) -> Command {
        Self::augment_args(cmd)
    }
}

impl FromArgMatches for OwnArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<OwnArgs, clap::Error> {
        let given = |option: OwnOption| match option.value {
            Some(_) => matches.get_one::<String>(option.flag).map(|text| Value::from(text.as_str())),
            None => matches.get_flag(option.flag).then_some(Value::Bool(true)),
        };
        let all = options().filter_map(|(_, section, key, option)| Some((section, key, given(option)?)));
        Ok(OwnArgs(all.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = OwnArgs::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Returns what a model's folder holds, family by family.
pub fn folders() -> String {
    let each = ALL.iter().map(|f| format!("{} ({})", f.files(), f.name()));
    format!("Folder with {}", each.collect::<Vec<_>>().join(", or "))
}

/// Returns the families' names.
pub fn names() -> String {
    ALL.iter().map(|f| f.name()).collect::<Vec<_>>().join(", ")
}
