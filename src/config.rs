//! Configuration from the environment and `flashsale.toml`.

use crate::cli::Failure;

/// What a process needs to know to serve.
#[derive(Debug)]
pub struct Config {}

impl Config {
    /// Reads the environment and `flashsale.toml`.
    ///
    /// # Errors
    /// `Usage` with one line that names what is missing or wrong.
    pub fn load() -> Result<Self, Failure> {
        Ok(Self {})
    }
}
