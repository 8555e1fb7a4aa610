//! Lines on standard error for whoever watches a command.

use std::fmt::Display;
use std::io::Write as _;

/// Writes a line. It may be that nobody can read it: the reader of a pipe has gone, a disk is full. Then it is not needed, and
/// what is being done goes on.
pub fn line(text: impl Display) {
    let _unread = writeln!(std::io::stderr(), "{text}");
}
