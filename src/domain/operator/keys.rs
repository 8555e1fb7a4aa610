//! The keys of operators: the one that all may share, and named ones with a role. A named key proves its name.

use super::console::OperatorName;
use crate::domain::names::names;
use schemars::JsonSchema;
use serde::Serialize;
use std::sync::Arc;
use subtle::ConstantTimeEq as _;

// In this order: a role may do all that an earlier one may.
/// What the holder of a key may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OperatorRole {
    /// Only read.
    View,
    /// Also run published sales.
    Run,
    /// Everything.
    All,
}

names! { OperatorRole: View "view", Run "run", All "all" }

pub struct OperatorKey {
    /// The name of its only holder; none for the key that all may share.
    pub name: Option<OperatorName>,
    pub role: OperatorRole,
    text: String,
}

impl OperatorKey {
    pub fn text(&self) -> &str {
        &self.text
    }
}

#[derive(Clone)]
pub struct OperatorKeys(Vec<Arc<OperatorKey>>);

impl OperatorKeys {
    /// The shared key, which may do all, and the named keys in `NAME:ROLE:KEY,NAME:ROLE:KEY…`. Each of these must pass
    /// the `check`. The error says what is wrong, and what to write instead. It shows no key.
    pub fn parse(shared: &str, named: &str, check: impl Fn(&str) -> Result<(), String>) -> Result<Self, String> {
        let mut keys = vec![Arc::new(OperatorKey {
            name: None,
            role: OperatorRole::All,
            text: shared.to_owned(),
        })];
        let entries = named.split(',').map(str::trim).filter(|entry| !entry.is_empty());
        // An error names an entry by its number: in the place of a name, there may be a key.
        for (entry, number) in entries.zip(1..) {
            let mut parts = entry.splitn(3, ':');
            let name = parts.next().and_then(|name| name.parse::<OperatorName>().ok());
            let role = parts.next().and_then(OperatorRole::from_name);
            let (Some(name), Some(role), Some(text)) = (name, role, parts.next()) else {
                return Err(
                    "is not a list of keys; write each as NAME:ROLE:KEY with commas in between; a role is view, run or \
                     all"
                        .to_owned(),
                );
            };
            check(text).map_err(|problem| format!("has a key, number {number}, that {problem}"))?;
            if keys
                .iter()
                .any(|key| key.text == text || key.name.as_ref() == Some(&name))
            {
                return Err(format!(
                    "has the name or the key of number {number} twice, or its key is the shared one"
                ));
            }
            keys.push(Arc::new(OperatorKey {
                name: Some(name),
                role,
                text: text.to_owned(),
            }));
        }
        Ok(Self(keys))
    }

    /// The key with this text. Takes the same time for every wrong one of a length.
    pub fn find(&self, given: &[u8]) -> Option<&Arc<OperatorKey>> {
        let mut found = None;
        for key in &self.0 {
            if bool::from(key.text.as_bytes().ct_eq(given)) {
                found = Some(key);
            }
        }
        found
    }

    pub fn each(&self) -> impl Iterator<Item = &Arc<OperatorKey>> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(named: &str) -> Result<OperatorKeys, String> {
        OperatorKeys::parse("shared", named, |key| match key {
            "weak" => Err("is weak".to_owned()),
            _ => Ok(()),
        })
    }

    #[test]
    fn a_key_has_the_name_and_the_role_that_stand_beside_it() {
        let keys = parse("ada:view:k1, 王伟:run:k:2").unwrap();
        for (text, name, role) in [
            ("shared", None, OperatorRole::All),
            ("k1", Some("ada"), OperatorRole::View),
            ("k:2", Some("王伟"), OperatorRole::Run),
        ] {
            let key = keys.find(text.as_bytes()).unwrap();
            assert_eq!((key.name.as_ref().map(OperatorName::as_str), key.role), (name, role));
        }
        for wrong in ["", "k", "k1 ", "ada"] {
            assert!(keys.find(wrong.as_bytes()).is_none(), "{wrong}");
        }
        assert_eq!(parse("").unwrap().each().count(), 1);
    }

    #[test]
    fn a_wrong_list_is_refused_without_its_keys() {
        for wrong in [
            "k1",
            "ada:k1",
            "ada:boss:k1",
            ":run:k1",
            "ada:run:weak",
            "ada:run:shared",
            "ada:run:k1,bob:view:k1",
            "ada:run:k1,ada:view:k2",
            "k1:run:weak",
            "k1:run:shared",
        ] {
            let said = parse(wrong).err().unwrap();
            assert!(!said.contains("k1") && !said.contains("shared,"), "{wrong}: {said}");
        }
    }
}
