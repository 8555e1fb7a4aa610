//! The schemas of values, from the types that parse and write them.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value};

/// The schemas that routes refer to, by name.
pub struct Schemas {
    read: SchemaGenerator,
    written: SchemaGenerator,
}

/// The elements of a part of a schema; none if it has no such list.
pub fn elements<'a>(schema: &'a Value, part: &'static str) -> impl Iterator<Item = &'a Value> {
    schema[part].as_array().into_iter().flatten()
}

fn settings() -> SchemaSettings {
    SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    })
}

impl Default for Schemas {
    fn default() -> Self {
        Self {
            read: settings().for_deserialize().into_generator(),
            written: settings().for_serialize().into_generator(),
        }
    }
}

impl Schemas {
    /// The schema of a value that is parsed into this type.
    pub fn read<T: JsonSchema>(&mut self) -> Value {
        self.read.subschema_for::<T>().to_value()
    }

    /// The schema of a value that is written from this type.
    pub fn written<T: JsonSchema>(&mut self) -> Value {
        self.written.subschema_for::<T>().to_value()
    }

    /// The schema of a value that is parsed into this type, with all parts inline.
    pub fn alone<T: JsonSchema>() -> Value {
        let settings = settings().with(|settings| settings.inline_subschemas = true);
        T::json_schema(&mut settings.for_deserialize().into_generator()).to_value()
    }

    /// All named schemas.
    pub fn named(mut self) -> Map<String, Value> {
        let mut all = self.read.take_definitions(true);
        all.extend(self.written.take_definitions(true));
        all
    }

    /// Names whose schemas differ between parsing and writing.
    #[cfg(test)]
    pub fn torn(&self) -> Vec<&String> {
        let written = self.written.definitions();
        let read = self.read.definitions().iter();
        read.filter(|(name, schema)| written.get(*name).is_some_and(|it| it != *schema))
            .map(|(name, _)| name)
            .collect()
    }
}
