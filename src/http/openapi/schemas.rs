//! What values look like, as the types say that they are read and written.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value};

/// The types that routes name, by what they are called.
pub struct Schemas {
    read: SchemaGenerator,
    written: SchemaGenerator,
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
    /// What is read as this type.
    pub fn read<T: JsonSchema>(&mut self) -> Value {
        self.read.subschema_for::<T>().to_value()
    }

    /// What is written from this type.
    pub fn written<T: JsonSchema>(&mut self) -> Value {
        self.written.subschema_for::<T>().to_value()
    }

    /// What is read as this type, without a name.
    pub fn alone<T: JsonSchema>() -> Value {
        let settings = settings().with(|settings| settings.inline_subschemas = true);
        T::json_schema(&mut settings.for_deserialize().into_generator()).to_value()
    }

    /// All that were named.
    pub fn named(mut self) -> Map<String, Value> {
        let mut all = self.read.take_definitions(true);
        all.extend(self.written.take_definitions(true));
        all
    }

    /// Names that mean one thing where they are read and another where they are written.
    #[cfg(test)]
    pub fn torn(&self) -> Vec<&String> {
        let written = self.written.definitions();
        let read = self.read.definitions().iter();
        read.filter(|(name, schema)| written.get(*name).is_some_and(|it| it != *schema))
            .map(|(name, _)| name)
            .collect()
    }
}
