//! Lines on standard error for the user of a command.

use std::fmt::Display;
use std::io::Write as _;

/// Writes a line. A write that fails, because a pipe is closed or a disk is full, is ignored, so that the command
/// goes on.
pub fn line(text: impl Display) {
    let _unread = writeln!(std::io::stderr(), "{text}");
}
