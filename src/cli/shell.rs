//! Commands for shells: completion scripts, the words that these ask for, and manual pages.

pub mod complete_words;
pub mod completions;
pub mod man;
