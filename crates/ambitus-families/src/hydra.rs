//! Configurations of whole training runs, as audiocraft's checkpoints hold them: YAML in which values refer to each other.

use ambitus_recipe::recipe::short;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// `${...}` within `${...}`, at most.
const MOST_REFERENCES: usize = 16;
/// Values of a section, at most; references can make many of a few.
const MOST_VALUES: usize = 10_000;

/// Reads a configuration.
///
/// # Errors
/// A text that is no YAML.
pub fn read(yaml: &str) -> Result<Value, String> {
    serde_saphyr::from_str(yaml).map_err(|e| short(&e.without_snippet().to_string()))
}

/// Reads a section, in which a value may be another's: `${encodec.causal}`.
///
/// # Errors
/// Names the section: it is missing, refers to nothing or to itself, or has another form.
pub fn section<T: DeserializeOwned>(whole: &Value, key: &str) -> Result<T, String> {
    let value = whole.get(key).ok_or_else(|| format!("{key}: is missing"))?;
    let mut room = MOST_VALUES;
    let value = resolved(whole, value, MOST_REFERENCES, &mut room);
    let value = value.map_err(|why| format!("{key}: {why}"))?;
    T::deserialize(value).map_err(|e| format!("{key}: {}", short(&e.to_string())))
}

/// Returns a value without references, of which `left` may follow each other; it has at most `room` values.
fn resolved(whole: &Value, value: &Value, left: usize, room: &mut usize) -> Result<Value, String> {
    *room = room.checked_sub(1).ok_or_else(|| format!("more than {MOST_VALUES} values"))?;
    match value {
        Value::String(text) => match text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}')) {
            None => Ok(value.clone()),
            Some(path) => {
                let left =
                    left.checked_sub(1).ok_or_else(|| format!("`{}` refers to itself", short(text)))?;
                let found = path.split('.').try_fold(whole, |at, key| at.get(key));
                resolved(whole, found.ok_or_else(|| format!("`{}` is not there", short(text)))?, left, room)
            }
        },
        Value::Object(all) => {
            let each = all.iter().map(|(key, value)| Ok((key.clone(), resolved(whole, value, left, room)?)));
            each.collect::<Result<_, String>>().map(Value::Object)
        }
        other => Ok(other.clone()),
    }
}
