//! Lines on standard error for the user of a command.

use std::fmt::Display;
use std::io::Write as _;

/// What Rust writes before the number of a system's error, as in `No such file or directory (os error 2)`.
const NUMBER: &str = " (os error ";

/// Writes a line. A write that fails, because a pipe is closed or a disk is full, is ignored, so that the command
/// goes on.
pub fn line(text: impl Display) {
    let _unread = writeln!(std::io::stderr(), "{}", without_numbers(&text.to_string()));
}

/// The text without the numbers of the system's errors: the words before them say the same.
fn without_numbers(text: &str) -> String {
    let mut parts = text.split(NUMBER);
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |line, part| {
        line + part.split_once(')').map_or("", |(_number, rest)| rest)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_systems_error_has_words_and_no_number() {
        for number in [2, 98] {
            let error = std::io::Error::from_raw_os_error(number).to_string();
            let (words, _) = error.split_once(NUMBER).unwrap();
            let line = without_numbers(&format!("a: {error}; b: {error}: (end)"));
            assert_eq!(line, format!("a: {words}; b: {words}: (end)"));
        }
    }
}
