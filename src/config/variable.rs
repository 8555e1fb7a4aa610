//! What a row of the table of variables says: its kind, its default, how it is shown, and its line in the document.

use super::{PREFIX, VARIABLES, hidden};

/// The kind of a value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Text that may be shown.
    Text,
    /// A number. The file may have it without quotes.
    Number,
    /// A boolean. The file may have it without quotes.
    Switch,
    /// The path of a file with a private key.
    KeyFile,
    Secret,
    /// The URL of a server, which may hold a login.
    Server,
    /// The URL of a receiver of notifications or traces. Its path may be a secret.
    Address,
}

/// The value of a variable that nothing sets.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Unset {
    /// `serve` refuses to start.
    Required,
    Optional,
    Is(&'static str),
    /// The same, but off if only this machine can connect.
    OffAlone(&'static str),
}

pub(super) struct Variable {
    /// The name in the environment.
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) unset: Unset,
    /// What the variable sets, in Markdown.
    pub(super) meaning: &'static str,
}

impl Variable {
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        VARIABLES.iter().find(|variable| variable.name == name)
    }

    /// The name in the file: the variable's own, in lower case without the prefix.
    pub(super) fn key(&self) -> String {
        self.name.trim_start_matches(PREFIX).to_ascii_lowercase()
    }

    pub(super) fn default(&self, is_alone: bool) -> Option<&'static str> {
        match self.unset {
            Unset::Required | Unset::Optional => None,
            Unset::OffAlone(_) if is_alone => Some("0"),
            Unset::Is(default) | Unset::OffAlone(default) => Some(default),
        }
    }

    /// Whether the value may be or hold a secret.
    pub(super) fn is_secret(&self) -> bool {
        matches!(self.kind, Kind::Secret | Kind::Server | Kind::Address)
    }

    /// A value without its secrets.
    pub(super) fn shown(&self, value: &str) -> String {
        match self.kind {
            Kind::Text | Kind::Number | Kind::Switch | Kind::KeyFile => value.to_owned(),
            Kind::Secret => hidden::HIDDEN.to_owned(),
            Kind::Server => hidden::without_login(value, true),
            Kind::Address => hidden::without_login(value, false),
        }
    }
}

/// The table of all variables in Markdown.
pub fn markdown() -> String {
    let row = |it: &Variable| {
        let more = match it.unset {
            Unset::Required => "; required by `serve`",
            Unset::OffAlone(_) => "; 0 is off, and the default on a loopback address without trusted proxies",
            Unset::Optional | Unset::Is(_) => "",
        };
        let default = it
            .default(false)
            .map_or_else(|| "none".to_owned(), |it| format!("`{it}`"));
        format!("| `{}` | {}{more} | {default} |\n", it.name, it.meaning)
    };
    let rows: String = VARIABLES.iter().map(row).collect();
    format!("| variable | meaning | default |\n|---|---|---|\n{rows}")
}
