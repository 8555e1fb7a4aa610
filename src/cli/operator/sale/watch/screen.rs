//! The live view on a terminal. It is redrawn in place, and keys scroll the items, search them and leave.
//!
//! Green is selling or sold, yellow paused or held, red a trouble, and dim what is over. Each of them is a word or a
//! symbol, too. The colours are the terminal's own, to be read on light and on dark. Nothing has a background, or is
//! bold, which some terminals brighten.
//!
//! While it is open, the terminal is in raw mode; dropping it gives the terminal back.

use super::frame::Frame;
use super::history::History;
use crate::cli::Failure;
use crate::cli::shared::output::one_line;
use crate::domain::operator::report::ItemStats;
use crate::domain::sale::SaleState;
use anyhow::Context as _;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};
use ratatui::crossterm::style::force_color_output;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState};
use signal_hook::consts::{SIGHUP, SIGTERM};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Rows of items that stay visible before the sparklines give way.
const ITEMS_MIN: u16 = 4;
/// How many keys are read before the view is drawn again.
const KEYS_MAX: usize = 64;
/// The longest text to search for.
const SEARCH_MAX: usize = 64;
const BAR_WIDTH: u16 = 30;
const KEYS: &str = "↑ ↓ PgUp PgDn Home End scroll · / search · q leave";

/// The terminal with the view.
pub struct Screen {
    terminal: ratatui::DefaultTerminal,
    controls: Controls,
    /// Whether a signal asks to end.
    ended: Arc<AtomicBool>,
    /// Why the view is old, if it is.
    notice: Option<String>,
}

/// Whether the operator goes on watching.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    Stay,
    Leave,
}

impl Screen {
    /// Takes the terminal.
    pub fn open(has_color: bool) -> Result<Self, Failure> {
        // Without this, the library leaves out the colours that `--color always` asks for in spite of `NO_COLOR`.
        force_color_output(has_color);
        let ended = Arc::default();
        for signal in [SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&ended)).context("signals cannot be caught")?;
        }
        // A failure half way leaves the terminal in raw mode.
        let terminal = ratatui::try_init().inspect_err(|_| ratatui::restore());
        let terminal = terminal.context("the terminal cannot be controlled; try --json, or `| cat`")?;
        Ok(Self {
            terminal,
            ended,
            controls: Controls {
                has_color,
                ..Controls::default()
            },
            notice: None,
        })
    }

    /// Draws the sale. With a `notice`, the numbers are old.
    pub fn draw(&mut self, frame: &Frame, history: &History, notice: Option<String>) -> Result<(), Failure> {
        self.notice = notice;
        self.draw_again(frame, history)
    }

    fn draw_again(&mut self, frame: &Frame, history: &History) -> Result<(), Failure> {
        let (controls, notice) = (&mut self.controls, self.notice.as_deref());
        let drawn = self
            .terminal
            .draw(|canvas| controls.draw(canvas, frame, history, notice));
        drawn.context("the terminal cannot be written")?;
        Ok(())
    }

    /// Obeys signals and the keys that have been pressed meanwhile, and follows the size of the terminal.
    pub fn attend(&mut self, frame: &Frame, history: &History) -> Result<Wish, Failure> {
        if self.ended.load(Ordering::Relaxed) {
            return Ok(Wish::Leave);
        }
        let mut has_changed = false;
        for _ in 0..KEYS_MAX {
            if !event::poll(Duration::ZERO).context("the keys cannot be read")? {
                break;
            }
            let event = event::read().context("the keys cannot be read")?;
            if let Some(key) = event.as_key_press_event()
                && self.controls.press(key, frame) == Wish::Leave
            {
                return Ok(Wish::Leave);
            }
            has_changed |= matches!(event, Event::Key(_) | Event::Resize(..));
        }
        if has_changed {
            self.draw_again(frame, history)?;
        }
        Ok(Wish::Stay)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// What the operator has chosen with keys.
#[derive(Default)]
struct Controls {
    /// The chosen item, and the first visible one.
    items: TableState,
    /// Only items whose SKU contains this are shown.
    search: String,
    is_searching: bool,
    /// How many items were visible when the view was last drawn.
    page: u16,
    has_color: bool,
}

impl Controls {
    fn press(&mut self, key: KeyEvent, frame: &Frame) -> Wish {
        let has_control = key.modifiers.contains(KeyModifiers::CONTROL);
        if has_control && key.code == KeyCode::Char('c') {
            return Wish::Leave;
        }
        if self.is_searching {
            self.type_search(key.code);
            return Wish::Stay;
        }
        match key.code {
            KeyCode::Esc if !self.search.is_empty() => self.search.clear(),
            KeyCode::Esc | KeyCode::Char('q') => return Wish::Leave,
            KeyCode::Char('/') => self.is_searching = true,
            KeyCode::Down | KeyCode::Char('j') => self.items.select_next(),
            KeyCode::Up | KeyCode::Char('k') => self.items.select_previous(),
            KeyCode::PageDown => self.items.scroll_down_by(self.page),
            KeyCode::PageUp => self.items.scroll_up_by(self.page),
            KeyCode::Home => self.items.select_first(),
            KeyCode::End => self.items.select(self.found(frame).len().checked_sub(1)),
            _ => {}
        }
        Wish::Stay
    }

    fn type_search(&mut self, code: KeyCode) {
        match code {
            KeyCode::Esc => {
                self.search.clear();
                self.is_searching = false;
            }
            KeyCode::Enter => self.is_searching = false,
            KeyCode::Backspace => _ = self.search.pop(),
            KeyCode::Char(typed) if self.search.len() < SEARCH_MAX => self.search.push(typed),
            _ => {}
        }
        self.items.select_first();
    }

    /// The items that the search finds, by a part of their SKU in any case.
    fn found<'a>(&self, frame: &'a Frame) -> Vec<&'a ItemStats> {
        let search = self.search.to_lowercase();
        let items = frame.items.iter();
        items
            .filter(|item| item.sku.as_str().to_lowercase().contains(&search))
            .collect()
    }

    fn draw(&mut self, canvas: &mut ratatui::Frame<'_>, frame: &Frame, history: &History, notice: Option<&str>) {
        let found = self.found(frame);
        let chosen = self.items.selected().unwrap_or(0).min(found.len().saturating_sub(1));
        self.items.select((!found.is_empty()).then_some(chosen));
        let [name, state, rates, latencies] = frame.head();
        let mut head = vec![
            Line::from(name),
            self.state_line(frame.state, &state),
            Line::from(rates),
            Line::from(latencies),
            Line::default(),
        ];
        let (red, warnings) = (self.color(Color::Red), frame.warnings());
        let warnings = notice.map(one_line).into_iter().chain(warnings);
        head.extend(warnings.map(|text| Line::styled(text, red)));
        let shards = found
            .get(chosen)
            .map(|item| frame.shards_of(&item.sku))
            .unwrap_or_default();
        let mut below = shards;
        below.push(format!("orders  {}", frame.orders().join("  ")));
        let history = history.lines(canvas.area().width.into());
        let history: Vec<&str> = history.lines().collect();
        let [top, middle, bottom, past, last] = Layout::vertical([
            Constraint::Length(length(head.len())),
            Constraint::Min(ITEMS_MIN),
            Constraint::Length(length(below.len())),
            Constraint::Max(length(history.len())),
            Constraint::Length(1),
        ])
        .areas(canvas.area());
        canvas.render_widget(Paragraph::new(head), top);
        self.draw_items(canvas, middle, &found);
        canvas.render_widget(text(below), bottom);
        canvas.render_widget(text(history), past);
        canvas.render_widget(self.footer(&found, frame.items.len()), last);
    }

    fn color(&self, color: Color) -> Style {
        if self.has_color {
            Style::new().fg(color)
        } else {
            Style::new()
        }
    }

    /// The line that begins with the sale's state, which has its colour.
    fn state_line(&self, state: SaleState, line: &str) -> Line<'static> {
        let style = match state {
            SaleState::Open if self.has_color => self.color(Color::Green),
            SaleState::Paused if self.has_color => self.color(Color::Yellow),
            SaleState::Closed => Modifier::DIM.into(),
            _ => Modifier::BOLD.into(),
        };
        let (word, rest) = line.split_at(state.as_str().len());
        Line::from(vec![
            Span::styled(word.to_owned(), style),
            Span::styled(rest.to_owned(), Modifier::BOLD),
        ])
    }

    fn draw_items(&mut self, canvas: &mut ratatui::Frame<'_>, area: Rect, items: &[&ItemStats]) {
        self.page = area.height.saturating_sub(1);
        let widest = items.iter().map(|item| Span::raw(item.sku.as_str()).width()).max();
        let numbers = ["TOTAL", "AVAILABLE", "HELD", "SOLD", "IN TRANSIT"];
        let (sold, held) = (self.color(Color::Green), self.color(Color::Yellow));
        let right = |text: String| Cell::from(Line::from(text).right_aligned());
        let header = std::iter::once(Cell::from("SKU")).chain(numbers.map(|name| right(name.to_owned())));
        let rows = items.iter().map(|item| {
            let mut counts =
                [item.total, item.available, item.held, item.sold, item.in_transit].map(|count| count.to_string());
            if is_sold_out(item) {
                counts[1] = "SOLD OUT".to_owned();
            }
            let cells = std::iter::once(Cell::from(item.sku.as_str()));
            let cells = cells.chain(counts.map(right));
            Row::new(cells.chain([Cell::from(bar(item, sold, held))]))
        });
        let widths = [Constraint::Length(length(widest.unwrap_or(0)).clamp(8, 64))];
        let widths = widths.into_iter().chain([11; 5].map(Constraint::Length));
        let table = Table::new(rows, widths.chain([Constraint::Length(BAR_WIDTH)]))
            .header(Row::new(header).style(Modifier::DIM))
            .row_highlight_style(Modifier::REVERSED);
        canvas.render_stateful_widget(table, area, &mut self.items);
    }

    fn footer(&self, found: &[&ItemStats], all: usize) -> Line<'static> {
        let place = self.items.selected().map_or(0, |chosen| chosen + 1);
        let place = format!("item {place} of {}", found.len());
        let searched = match (self.is_searching, self.search.is_empty()) {
            (false, true) => String::new(),
            (false, false) => format!(" · \"{}\" among {all} · Esc shows all", self.search),
            (true, _) => format!(" · search: {}▏", self.search),
        };
        Line::styled(format!("{place}{searched} · {KEYS}"), Modifier::DIM)
    }
}

fn length(count: usize) -> u16 {
    u16::try_from(count).unwrap_or(u16::MAX)
}

fn text<S: Into<String>>(lines: Vec<S>) -> Paragraph<'static> {
    let lines: Vec<Line<'static>> = lines.into_iter().map(|line| Line::from(line.into())).collect();
    Paragraph::new(lines)
}

/// Whether shoppers have all units. Units in transit are free.
const fn is_sold_out(item: &ItemStats) -> bool {
    let has_buyers = item.held > 0 || item.sold > 0;
    has_buyers && item.available == 0 && item.in_transit == 0
}

/// `█` sold, `▒` held, `·` free. Rounding never hides sold or held units.
fn bar(item: &ItemStats, sold_style: Style, held_style: Style) -> Line<'static> {
    let units = |count: i64| u64::try_from(count).unwrap_or(0);
    let (total, columns) = (units(item.total).max(1), u128::from(BAR_WIDTH));
    let width = |count: i64| match units(count) {
        0 => 0,
        count => (u128::from(count.min(total)) * columns / u128::from(total)).max(1),
    };
    let sold = width(item.sold);
    let held = width(item.held).min(columns - sold);
    let part = |symbol: &str, width: u128, style: Style| {
        Span::styled(symbol.repeat(usize::try_from(width).unwrap_or(0)), style)
    };
    Line::from(vec![
        part("█", sold, sold_style),
        part("▒", held, held_style),
        part("·", columns - sold - held, Style::new()),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::operator::sale::watch::frame::tests::frame;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn lines(controls: &mut Controls, frame: &Frame, notice: Option<&str>, (columns, rows): (u16, u16)) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
        let drawn = terminal
            .draw(|canvas| controls.draw(canvas, frame, &History::default(), notice))
            .unwrap();
        let cells = drawn.buffer.content().chunks(columns.into());
        let line = |row: &[ratatui::buffer::Cell]| row.iter().map(|cell| cell.symbol()).collect::<String>();
        cells.map(|row| line(row).trim_end().to_owned()).collect()
    }

    fn item(sku: &str) -> ItemStats {
        ItemStats {
            sku: sku.parse().unwrap(),
            total: 0,
            available: 0,
            held: 0,
            sold: 0,
            in_transit: 0,
        }
    }

    fn press(controls: &mut Controls, frame: &Frame, codes: &[KeyCode]) -> Wish {
        let pressed = codes.iter().map(|code| controls.press((*code).into(), frame));
        pressed.last().unwrap()
    }

    #[test]
    fn the_screen_shows_where_every_unit_is_and_how_shoppers_are_answered() {
        let frame = frame("scheduled");
        let shown = lines(&mut Controls::default(), &frame, Some("no news for 3 s"), (110, 16));
        assert_eq!(
            shown,
            [
                &*format!("Launch  {}", frame.id),
                "SCHEDULED   starts in 00:01:00   2026-11-27 19:59:00 UTC",
                "purchases a second 12.5   refused a second 3.5   undrained events 7",
                "milliseconds to answer: p50 0.5  p95 4.0  p99 12.0",
                "",
                "no news for 3 s",
                "ATTENTION 2 dead letters",
                "SKU            TOTAL   AVAILABLE        HELD        SOLD  IN TRANSIT",
                "a                 90          50           9          30           1 ██████████▒▒▒·················",
                "",
                "",
                "",
                "",
                "  a on 2 shards, 20 to 30: 30 20",
                "orders  reserved 9  paid 30  cancelled 0  expired 0  revoked 0",
                "item 1 of 1 · ↑ ↓ PgUp PgDn Home End scroll · / search · q leave",
            ]
        );
    }

    #[test]
    fn an_item_without_free_units_is_sold_out() {
        let mut frame = frame("open");
        for (available, in_transit, is_sold_out) in [(0, 0, true), (1, 0, false), (0, 1, false)] {
            (frame.items[0].available, frame.items[0].in_transit) = (available, in_transit);
            let shown = lines(&mut Controls::default(), &frame, None, (110, 16));
            let row = shown.iter().find(|line| line.starts_with("a ")).unwrap();
            assert_eq!(row.contains(" SOLD OUT "), is_sold_out, "{row}");
        }
    }

    #[test]
    fn colors_have_a_meaning_and_may_be_left_out() {
        let colors = |has_color: bool, state: &str| {
            let mut terminal = Terminal::new(TestBackend::new(110, 16)).unwrap();
            let mut controls = Controls {
                has_color,
                ..Controls::default()
            };
            let frame = frame(state);
            let drawn = terminal
                .draw(|canvas| controls.draw(canvas, &frame, &History::default(), None))
                .unwrap();
            let cells: Vec<_> = drawn.buffer.content().to_vec();
            assert!(cells.iter().all(|cell| cell.bg == Color::Reset));
            // The state's word, the warning and the bar, which is in the row of the only item.
            let row = |number: usize| &cells[number * 110..][..110];
            let color_of = |symbol: &str| row(7).iter().find(|cell| cell.symbol() == symbol).unwrap().fg;
            [row(1)[0].fg, row(5)[0].fg, color_of("█"), color_of("▒")]
        };
        let (green, yellow, red, none) = (Color::Green, Color::Yellow, Color::Red, Color::Reset);
        assert_eq!(colors(true, "open"), [green, red, green, yellow]);
        assert_eq!(colors(true, "paused")[0], yellow);
        for state in ["draft", "scheduled", "closed"] {
            assert_eq!(colors(true, state)[0], none, "{state}");
        }
        assert_eq!(colors(false, "open"), [none; 4]);
    }

    #[test]
    fn keys_reach_each_item_on_a_small_terminal() {
        let mut frame = frame("open");
        frame.items = (0..100).map(|number| item(&format!("item-{number:02}"))).collect();
        let mut controls = Controls::default();
        let has = |controls: &mut Controls, sku: &str| {
            let shown = lines(controls, &frame, None, (80, 14));
            shown.iter().any(|line| line.starts_with(sku))
        };
        assert!(has(&mut controls, "item-00") && !has(&mut controls, "item-99"));
        press(&mut controls, &frame, &[KeyCode::End]);
        assert!(has(&mut controls, "item-99") && !has(&mut controls, "item-00"));
        press(
            &mut controls,
            &frame,
            &[KeyCode::Home, KeyCode::PageDown, KeyCode::PageDown],
        );
        assert!(!has(&mut controls, "item-00"));
        press(
            &mut controls,
            &frame,
            &[KeyCode::PageUp, KeyCode::PageUp, KeyCode::PageUp],
        );
        assert!(has(&mut controls, "item-00"));
        let typed = [
            KeyCode::Char('/'),
            KeyCode::Char('M'),
            KeyCode::Char('-'),
            KeyCode::Char('7'),
        ];
        press(&mut controls, &frame, &typed);
        assert_eq!(controls.found(&frame).len(), 10);
        // While a text is typed, `q` is a letter.
        assert_eq!(press(&mut controls, &frame, &[KeyCode::Char('q')]), Wish::Stay);
        assert!(controls.found(&frame).is_empty() && !has(&mut controls, "item-"));
        press(&mut controls, &frame, &[KeyCode::Backspace, KeyCode::Enter]);
        assert!(has(&mut controls, "item-70"));
        // The first Esc ends the search, the second leaves.
        assert_eq!(press(&mut controls, &frame, &[KeyCode::Esc]), Wish::Stay);
        assert_eq!(controls.found(&frame).len(), 100);
        assert_eq!(press(&mut controls, &frame, &[KeyCode::Esc]), Wish::Leave);
        let ctrl_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(controls.press(ctrl_c, &frame), Wish::Leave);
    }

    #[test]
    fn a_bar_never_hides_what_is_sold_or_held() {
        let drawn = |total, held, sold| {
            let item = ItemStats {
                total,
                held,
                sold,
                ..item("a")
            };
            bar(&item, Style::new(), Style::new()).to_string()
        };
        assert_eq!(drawn(1_000_000, 1, 1), format!("█▒{}", "·".repeat(28)));
        assert_eq!(drawn(10, 5, 5), format!("{}{}", "█".repeat(15), "▒".repeat(15)));
        assert_eq!(drawn(2, 1, 9), "█".repeat(30));
        assert_eq!(drawn(0, 0, 0), "·".repeat(30));
        assert_eq!(drawn(i64::MAX, i64::MAX, 0), "▒".repeat(30));
    }
}
