//! Bugs on demand, with which the torture tests show that they find bugs. Without the feature `seeded-bugs`, which
//! only tests enable, there are none.

use std::borrow::Cow;

#[cfg(all(feature = "seeded-bugs", not(debug_assertions)))]
compile_error!("the feature seeded-bugs is for tests; a release build has none");

#[cfg(feature = "seeded-bugs")]
mod seeded {
    use std::sync::LazyLock;

    fn variable(name: &str) -> Option<String> {
        std::env::var(name).ok()
    }

    pub static NAME: LazyLock<Option<String>> = LazyLock::new(|| variable("FLASHSALE_BUG"));
    /// The script, the text to replace, and its replacement.
    pub static SCRIPT: LazyLock<Option<[String; 3]>> = LazyLock::new(|| {
        let part = |part: &str| variable(&format!("FLASHSALE_BUG_{part}"));
        Some([part("SCRIPT")?, part("FROM")?, part("TO")?])
    });
}

/// Whether this process runs with the bug of this name.
#[cfg(feature = "seeded-bugs")]
#[must_use]
pub fn has(name: &str) -> bool {
    seeded::NAME.as_deref() == Some(name)
}

#[cfg(not(feature = "seeded-bugs"))]
#[must_use]
pub const fn has(_name: &str) -> bool {
    false
}

/// A script's text, changed as the seeded bug of this process asks.
#[must_use]
pub fn script(name: &str, text: &'static str) -> Cow<'static, str> {
    #[cfg(feature = "seeded-bugs")]
    if let Some([script, from, to]) = &*seeded::SCRIPT
        && script == name
    {
        return Cow::Owned(text.replacen(from.as_str(), to, 1));
    }
    let _every_script_is_right = name;
    Cow::Borrowed(text)
}
