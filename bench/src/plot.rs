//! Plots as inline SVG.

use serde::Serialize;

/// A line of a plot.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Series {
    pub name: String,
    /// Ordered by x.
    pub points: Vec<(f64, f64)>,
    /// Marked moments: the x of each, and its label.
    pub marks: Vec<(f64, String)>,
}

/// Lines in one picture, or a bar for the last point of each series.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Plot {
    pub title: String,
    /// The label of the x axis.
    pub x: String,
    pub y: String,
    /// Whether the x axis is logarithmic.
    pub is_logarithmic: bool,
    /// Draws each series in its own picture, one above the other, because their sizes differ too much.
    pub is_stacked: bool,
    pub series: Vec<Series>,
}

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 300.0;
const STACKED_HEIGHT: f64 = 170.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 40.0;
const COLOURS: [&str; 4] = ["--one", "--two", "--three", "--four"];

pub fn svg(plot: &Plot) -> String {
    let pictures: Vec<&[Series]> = if plot.is_stacked {
        plot.series.chunks(1).collect()
    } else {
        vec![plot.series.as_slice()]
    };
    let each = if plot.is_stacked { STACKED_HEIGHT } else { HEIGHT };
    let height = each * f64::from(u16::try_from(pictures.len()).unwrap_or(u16::MAX));
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">\n",
        escape(&plot.title)
    );
    // All pictures share one x range, so that a reader can compare them.
    let right = highest(plot.series.iter().flat_map(|it| &it.points).map(|(x, _)| *x));
    let left = lowest(plot.series.iter().flat_map(|it| &it.points).map(|(x, _)| *x));
    let mut top = 0.0;
    let mut colours = COLOURS.iter().cycle();
    for series in pictures {
        let most = highest(series.iter().flat_map(|it| &it.points).map(|(_, y)| *y)).max(f64::MIN_POSITIVE);
        let picture = Picture {
            plot,
            left,
            right,
            most,
            top,
            height: each,
        };
        svg.push_str(&picture.axes());
        for ((row, it), colour) in (0..).zip(series).zip(&mut colours) {
            svg.push_str(&picture.series(it, colour, row));
        }
        top += each;
    }
    svg + "</svg>"
}

/// One picture: its place in the image, and the values at its edges.
struct Picture<'a> {
    plot: &'a Plot,
    left: f64,
    right: f64,
    /// The highest y.
    most: f64,
    top: f64,
    height: f64,
}

impl Picture<'_> {
    fn x(&self, x: f64) -> f64 {
        let scale = |x: f64| {
            if self.plot.is_logarithmic {
                x.max(1e-9).log10()
            } else {
                x
            }
        };
        let (from, to) = (scale(self.left), scale(self.right));
        let span = (to - from).max(f64::MIN_POSITIVE);
        LEFT + (WIDTH - LEFT - RIGHT) * ((scale(x) - from) / span).clamp(0.0, 1.0)
    }

    fn y(&self, y: f64) -> f64 {
        self.top + TOP + (self.height - TOP - BOTTOM) * (1.0 - (y / self.most).clamp(0.0, 1.0))
    }

    fn axes(&self) -> String {
        let (top, base) = (self.top, self.y(0.0));
        let (end, before, below) = (WIDTH - RIGHT, LEFT - 6.0, base + 18.0);
        let text = |x: f64, y: f64, end: &str, text: &str| {
            format!("<text class=\"soft\" x=\"{x:.1}\" y=\"{y:.1}\"{end}>{text}</text>")
        };
        let anchor = " text-anchor=\"end\"";
        [
            format!("<line x1=\"{LEFT}\" y1=\"{base:.1}\" x2=\"{end:.1}\" y2=\"{base:.1}\" stroke=\"var(--line)\"/>"),
            text(before, top + TOP + 4.0, anchor, &short(self.most)),
            text(before, base, anchor, "0"),
            text(LEFT, below, "", &short(self.left)),
            text(
                end,
                below,
                anchor,
                &format!("{} {}", short(self.right), escape(&self.plot.x)),
            ),
            text(LEFT, top + 12.0, "", &escape(&self.plot.y)),
            "\n".to_owned(),
        ]
        .concat()
    }

    /// A line with its name in the given row, and its marks.
    fn series(&self, it: &Series, colour: &str, row: u16) -> String {
        let points = it
            .points
            .iter()
            .map(|(x, y)| format!("{:.1},{:.1}", self.x(*x), self.y(*y)));
        let mut svg = format!(
            "<polyline fill=\"none\" stroke=\"var({colour})\" stroke-width=\"1.5\" points=\"{}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" style=\"fill: var({colour})\">{}</text>\n",
            points.collect::<Vec<_>>().join(" "),
            WIDTH - RIGHT,
            self.top + 14.0 + 16.0 * f64::from(row),
            escape(&it.name)
        );
        for (x, what) in &it.marks {
            let (x, top, base) = (self.x(*x), self.top + TOP, self.y(0.0));
            svg.push_str(&format!(
                "<line x1=\"{x:.1}\" y1=\"{top:.1}\" x2=\"{x:.1}\" y2=\"{base:.1}\" stroke=\"var(--bad)\" \
                 stroke-dasharray=\"4 3\"/><text x=\"{:.1}\" y=\"{:.1}\">{}</text>\n",
                x + 4.0,
                top + 12.0,
                escape(what)
            ));
        }
        svg
    }
}

fn highest(values: impl Iterator<Item = f64>) -> f64 {
    values.filter(|it| it.is_finite()).fold(0.0, f64::max)
}

fn lowest(values: impl Iterator<Item = f64>) -> f64 {
    let least = values.filter(|it| it.is_finite()).fold(f64::INFINITY, f64::min);
    if least.is_finite() { least } else { 0.0 }
}

fn short(number: f64) -> String {
    if number >= 10.0 || number == 0.0 {
        super::numbers::grouped(number)
    } else {
        format!("{number:.2}")
    }
}

/// Escapes a text for HTML, also for use in an attribute.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot() -> Plot {
        Plot {
            title: "a <b> & \"c\"".to_owned(),
            x: "seconds".to_owned(),
            y: "a second".to_owned(),
            series: vec![
                Series {
                    name: "x<y".to_owned(),
                    points: vec![(0.0, 0.0), (1.0, 100.0)],
                    marks: vec![(0.5, "kill & go".to_owned())],
                },
                Series::default(),
            ],
            ..Plot::default()
        }
    }

    #[test]
    fn every_text_is_escaped() {
        let svg = svg(&plot());
        assert!(svg.contains("x&lt;y") && svg.contains("kill &amp; go"), "{svg}");
        assert!(svg.contains("a &lt;b&gt; &amp; &quot;c&quot;"), "{svg}");
        assert!(!svg.contains("x<y"), "{svg}");
    }

    #[test]
    fn points_lie_within_the_picture_and_nothing_is_not_a_number() {
        for (is_logarithmic, is_stacked) in [(false, false), (true, false), (false, true)] {
            let svg = svg(&Plot {
                is_logarithmic,
                is_stacked,
                ..plot()
            });
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
        assert!(
            svg(&plot()).contains("940.0,26.0"),
            "the highest point is at the top right"
        );
    }
}
