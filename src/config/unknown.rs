//! Names in the environment that begin like our variables, and that nothing reads.

use super::variable::Variable;
use super::{PREFIX, VARIABLES};
use serde::Serialize;
use std::fmt;
use strsim::damerau_levenshtein;

/// Variables of the commands, the compose file and test programs. No server reads them.
const OTHERS: &str = "\
    FLASHSALE_ADMISSION FLASHSALE_BUG FLASHSALE_CACERT FLASHSALE_CRASH_AT FLASHSALE_OPERATOR FLASHSALE_PURCHASE_TOKEN \
    FLASHSALE_TEST_PROGRAM FLASHSALE_TOKEN FLASHSALE_URL";
/// The prefixes of variables that Kubernetes sets for a service named flashsale, of the compose file, and of seeded
/// bugs.
const OTHER_PREFIXES: [&str; 3] = ["FLASHSALE_SERVICE_", "FLASHSALE_PORT", "FLASHSALE_BUG_"];
/// How many typing errors a name may have to be matched with a variable.
const TYPOS_MAX: usize = 4;

/// A name in the environment that begins like our variables and is none of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unknown {
    pub name: String,
    /// The variable that was probably meant.
    pub meant: Option<&'static str>,
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is no variable of Flashsale; ", self.name)?;
        match self.meant {
            Some(meant) => write!(f, "did you mean {meant}?"),
            None => f.write_str("remove it, or list all variables with `flashsale config show`"),
        }
    }
}

/// Names in the environment that begin like our variables and that nothing reads, each with the variable that was
/// probably meant.
pub fn unknown(names: impl Iterator<Item = String>) -> Vec<Unknown> {
    let is_other = |name: &str| {
        let mut others = OTHERS.split_whitespace();
        others.any(|other| other == name) || OTHER_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    };
    let unknown = names.filter(|name| name.starts_with(PREFIX) && !is_other(name) && Variable::named(name).is_none());
    let mut unknown: Vec<_> = unknown
        .map(|name| Unknown {
            meant: nearest(&name),
            name,
        })
        .collect();
    unknown.sort_by(|one, other| one.name.cmp(&other.name));
    unknown
}

fn nearest(name: &str) -> Option<&'static str> {
    let name = name.to_ascii_uppercase();
    let distance = |variable: &Variable| damerau_levenshtein(variable.name, &name);
    let nearest = VARIABLES.iter().min_by_key(|variable| distance(variable))?;
    (distance(nearest) <= TYPOS_MAX).then_some(nearest.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ADDRESS_RATE, DATABASE_URL, LISTEN, REDIS_URL};

    #[test]
    fn a_misspelt_name_is_found_with_the_one_that_was_meant() {
        let of = |name: &str| unknown(std::iter::once(name.to_owned())).pop();
        for (name, meant) in [
            ("FLASHSALE_ADRESS_RATE", Some(ADDRESS_RATE)),
            ("FLASHSALE_ADDRESSRATE", Some(ADDRESS_RATE)),
            ("FLASHSALE_REDIS_ULR", Some(REDIS_URL)),
            ("FLASHSALE_DATABASE", Some(DATABASE_URL)),
            ("FLASHSALE_listen", Some(LISTEN)),
            ("FLASHSALE_SOMETHING_ELSE", None),
        ] {
            let name = name.to_owned();
            assert_eq!(of(&name), Some(Unknown { name, meant }));
        }
        for known in [
            LISTEN,
            "FLASHSALE_URL",
            "FLASHSALE_PORT",
            "FLASHSALE_SERVICE_HOST",
            "PATH",
            "FLASHSALE",
        ] {
            assert_eq!(of(known), None, "{known}");
        }
    }
}
