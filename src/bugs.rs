//! Bugs on demand, with which the torture tests show that they find bugs. Without the feature `seeded-bugs`, which
//! only tests enable, there are none.

use std::borrow::Cow;
use std::sync::LazyLock;

#[cfg(all(feature = "seeded-bugs", not(debug_assertions)))]
compile_error!("the feature seeded-bugs is for tests; a release build has none");

/// A constant instead of conditional code, so that lints see both kinds of build at once.
const ARE_POSSIBLE: bool = cfg!(feature = "seeded-bugs");

static NAME: LazyLock<Option<String>> = LazyLock::new(|| std::env::var("FLASHSALE_BUG").ok());
/// The script, the text to replace, and its replacement.
static SCRIPT: LazyLock<Option<[String; 3]>> = LazyLock::new(|| {
    let part = |part: &str| std::env::var(format!("FLASHSALE_BUG_{part}")).ok();
    Some([part("SCRIPT")?, part("FROM")?, part("TO")?])
});

/// Whether this process runs with the bug of this name.
pub fn has(name: &str) -> bool {
    ARE_POSSIBLE && NAME.as_deref() == Some(name)
}

/// A script's text, changed as the seeded bug of this process asks.
pub fn script(name: &str, text: &'static str) -> Cow<'static, str> {
    if ARE_POSSIBLE
        && let Some([script, from, to]) = &*SCRIPT
        && script == name
    {
        return Cow::Owned(text.replacen(from.as_str(), to, 1));
    }
    Cow::Borrowed(text)
}
