//! How a watched sale is shown: redrawn in place, as lines, or as JSON.

use super::Pauses;
use super::frame::Frame;
use super::screen::{Screen, Wish};
use super::watched::Watched;
use crate::cli::Failure;
use crate::cli::shared::output::{self, Reader};
use crate::stderr;
use std::thread;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    Redraw,
    Lines,
    Json,
}

/// What has been shown, and since when the server has been silent.
pub(super) struct View {
    pub(super) style: Style,
    pub(super) has_color: bool,
    pub(super) pauses: Pauses,
    /// On a terminal, after the sale has been read.
    pub(super) screen: Option<Screen>,
    /// The last line elsewhere.
    pub(super) shown: String,
    pub(super) lost_since: Option<Instant>,
}

impl View {
    pub(super) fn show(&mut self, data: &str, watched: &Watched) -> Result<Reader, Failure> {
        match self.style {
            Style::Json => output::write(&format!("{}\n", output::one_line(data))),
            Style::Redraw => {
                self.draw(watched, None)?;
                Ok(Reader::There)
            }
            Style::Lines => {
                let Some(frame) = &watched.frame else {
                    return Ok(Reader::There);
                };
                let line = frame.line();
                if line == self.shown {
                    return Ok(Reader::There);
                }
                let reader = output::write(&format!("{} {line}\n", frame.now().format("%H:%M:%S%.3fZ")))?;
                self.shown = line;
                Ok(reader)
            }
        }
    }

    /// Waits before the next attempt. On a terminal it meanwhile shows how long there has been no news.
    pub(super) fn wait(&mut self, trouble: &str, watched: &Watched, pause: Duration) -> Result<Wish, Failure> {
        let began = Instant::now();
        let since = *self.lost_since.get_or_insert_with(|| {
            // Once an outage: a log with a line a second would be of no use.
            if self.style != Style::Redraw {
                stderr::line(format_args!("flashsale: {trouble}; trying again"));
            }
            began
        });
        let trouble = format!("{trouble}; trying again");
        while let Some(left) = pause.checked_sub(began.elapsed()).filter(|left| !left.is_zero()) {
            self.silent(since, &trouble, watched)?;
            if self.attend(watched)? == Wish::Leave {
                return Ok(Wish::Leave);
            }
            thread::sleep(left.min(self.pauses.tick));
        }
        Ok(Wish::Stay)
    }

    /// On a terminal, shows beside the last numbers how long there has been no news.
    pub(super) fn silent(&mut self, since: Instant, trouble: &str, watched: &Watched) -> Result<(), Failure> {
        if self.style != Style::Redraw {
            return Ok(());
        }
        let notice = format!("no news for {} s: {trouble}", since.elapsed().as_secs());
        self.draw(watched, Some(notice))
    }

    fn draw(&mut self, watched: &Watched, notice: Option<String>) -> Result<(), Failure> {
        let Some(frame) = &watched.frame else { return Ok(()) };
        let screen = match &mut self.screen {
            Some(screen) => screen,
            none => none.insert(Screen::open(self.has_color)?),
        };
        screen.draw(frame, &watched.history, notice)
    }

    /// Obeys the keys on a terminal.
    pub(super) fn attend(&mut self, watched: &Watched) -> Result<Wish, Failure> {
        match (&mut self.screen, &watched.frame) {
            (Some(screen), Some(frame)) => screen.attend(frame, &watched.history),
            _ => Ok(Wish::Stay),
        }
    }

    /// Gives the terminal back and leaves the last numbers on it.
    pub(super) fn close(&mut self, watched: &Watched) -> Result<(), Failure> {
        let screen = self.screen.take();
        let line = watched.frame.as_ref().filter(|_| screen.is_some()).map(Frame::line);
        drop(screen);
        line.map_or(Ok(()), |line| output::print(&format!("{line}\n")))
    }

    pub(super) fn regained(&mut self) {
        if self.lost_since.take().is_some() && self.style != Style::Redraw {
            stderr::line("flashsale: the server answers again");
        }
    }
}
