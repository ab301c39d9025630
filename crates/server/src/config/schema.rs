//! The JSON Schema of the configuration: the order of its keys, their descriptions, ranges and examples.
//!
//! schemars generates it from the types and comments in `file`, `settings` and core. The schema is the one for
//! serialisation, since only that lists the keys of a table in order (`required`).

use std::sync::LazyLock;

use schemars::Schema;
use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use serde_json::Value;

use super::file::File;

static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
    let settings = SchemaSettings::draft2020_12().for_serialize().with(|settings| settings.inline_subschemas = true);
    settings.into_generator().into_root_schema_for::<File>().to_value()
});

/// Returns the schema of the whole file.
pub(super) fn schema() -> &'static Value {
    &SCHEMA
}

/// Returns the schema for editors.
pub(super) fn for_editors() -> String {
    let settings = SchemaSettings::draft07().with(|settings| settings.inline_subschemas = true);
    let settings = settings.with_transform(RecursiveTransform(without_null));
    let schema = settings.into_generator().into_root_schema_for::<File>();
    serde_json::to_string_pretty(&schema).unwrap_or_default()
}

/// Removes null from the types: TOML has none, an optional key is absent.
fn without_null(schema: &mut Schema) {
    match schema.get_mut("default") {
        Some(Value::Null) => drop(schema.remove("default")),
        Some(default) => drop_nulls(default),
        None => {}
    }
    if let Some(Value::Array(options)) = schema.get_mut("anyOf") {
        options.retain(|option| option["type"] != "null");
        if let [Value::Object(only)] = &mut options[..] {
            let only = std::mem::take(only);
            schema.remove("anyOf");
            only.into_iter().for_each(|(key, value)| _ = schema.insert(key, value));
        }
    }
    if let Some(Value::Array(types)) = schema.get_mut("type") {
        types.retain(|name| name != "null");
        if let [only] = &mut types[..] {
            let only = only.take();
            schema.insert("type".to_owned(), only);
        }
    }
}

/// Removes the keys without a value, also from tables in the table.
fn drop_nulls(value: &mut Value) {
    if let Value::Object(table) = value {
        table.retain(|_, value| !value.is_null());
        table.values_mut().for_each(drop_nulls);
    }
}

/// Returns the keys of a table and the schema of each, in the order of the definition.
pub(super) fn keys(table: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let order = table["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    order.map(|key| (key, &table["properties"][key]))
}

/// Returns the schema at this path of keys; a list is represented by its elements.
pub(super) fn of(path: &[&str]) -> &'static Value {
    path.iter().fold(schema(), |schema, key| &table(schema)["properties"][key])
}

/// Returns the schema of a table, or of the elements of a list.
pub(super) fn table(schema: &Value) -> &Value {
    schema.get("items").unwrap_or(schema)
}

/// Returns whether a key is a table or a list of tables; otherwise it has a value, as an optional table has.
pub(super) fn is_table(schema: &Value) -> bool {
    let table = table(schema);
    table.get("properties").is_some() && table["type"].is_string()
}

/// Returns the description of a key: its first sentence, and the rest.
pub(super) fn description(schema: &Value) -> (String, String) {
    let text = schema["description"].as_str().or(table(schema)["description"].as_str()).unwrap_or_default();
    let (first, rest) = text.split_once("\n\n").unwrap_or((text, ""));
    (first.replace('\n', " "), rest.replace('\n', " "))
}

/// Returns the permitted values of an enumerated key, each with its description.
pub(super) fn choices(schema: &Value) -> Vec<(&str, String)> {
    let schema = table(schema);
    // An optional one is a choice between them and null.
    let all = if schema["oneOf"].is_null() { &schema["anyOf"][0]["oneOf"] } else { &schema["oneOf"] };
    let all = all.as_array().into_iter().flatten();
    all.filter_map(|choice| Some((choice["const"].as_str()?, description(choice).0))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_description_and_example() {
        fn check(table: &Value, path: &str) {
            let number = table["properties"].as_object().map_or(0, serde_json::Map::len);
            assert_eq!(keys(table).count(), number, "{path}");
            for (key, schema) in keys(table) {
                assert!(!description(schema).0.is_empty(), "{path}.{key} has no description: {schema:#}");
                if is_table(schema) {
                    check(super::table(schema), &format!("{path}.{key}"));
                } else {
                    let shown = [&schema["default"], &schema["examples"]];
                    assert!(shown.iter().any(|value| !value.is_null()), "{path}.{key} has no default and no example");
                }
            }
        }
        check(schema(), "");
    }

    #[test]
    fn schema_for_editors_permits_no_null() {
        assert!(!for_editors().contains("null"));
    }
}
