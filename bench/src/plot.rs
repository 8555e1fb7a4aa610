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

#[must_use]
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
    for (number, series) in pictures.into_iter().enumerate() {
        let first = if plot.is_stacked { number } else { 0 };
        picture(&mut svg, plot, series, (left, right), (top, each), first);
        top += each;
    }
    svg + "</svg>"
}

fn picture(
    svg: &mut String,
    plot: &Plot,
    series: &[Series],
    (left, right): (f64, f64),
    (top, height): (f64, f64),
    first: usize,
) {
    let most = highest(series.iter().flat_map(|it| &it.points).map(|(_, y)| *y)).max(f64::MIN_POSITIVE);
    let scale = |x: f64| if plot.is_logarithmic { x.max(1e-9).log10() } else { x };
    let (from, to) = (scale(left), scale(right));
    let span = (to - from).max(f64::MIN_POSITIVE);
    let at_x = |x: f64| LEFT + (WIDTH - LEFT - RIGHT) * ((scale(x) - from) / span).clamp(0.0, 1.0);
    let at_y = |y: f64| top + TOP + (height - TOP - BOTTOM) * (1.0 - (y / most).clamp(0.0, 1.0));
    let base = at_y(0.0);
    let mut put = |text: String| svg.push_str(&text);
    put(format!(
        "<line x1=\"{LEFT}\" y1=\"{base:.1}\" x2=\"{:.1}\" y2=\"{base:.1}\" stroke=\"var(--line)\"/>\
         <text class=\"soft\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
         <text class=\"soft\" x=\"{:.1}\" y=\"{base:.1}\" text-anchor=\"end\">0</text>\
         <text class=\"soft\" x=\"{LEFT}\" y=\"{:.1}\">{}</text>\
         <text class=\"soft\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{} {}</text>\n",
        WIDTH - RIGHT,
        LEFT - 6.0,
        top + TOP + 4.0,
        short(most),
        LEFT - 6.0,
        base + 18.0,
        short(left),
        WIDTH - RIGHT,
        base + 18.0,
        short(right),
        escape(&plot.x),
    ));
    put(format!(
        "<text class=\"soft\" x=\"{LEFT}\" y=\"{:.1}\">{}</text>\n",
        top + 12.0,
        escape(&plot.y)
    ));
    for (number, it) in series.iter().enumerate() {
        let colour = COLOURS[(first + number) % COLOURS.len()];
        let points: Vec<String> = it
            .points
            .iter()
            .map(|(x, y)| format!("{:.1},{:.1}", at_x(*x), at_y(*y)))
            .collect();
        put(format!(
            "<polyline fill=\"none\" stroke=\"var({colour})\" stroke-width=\"1.5\" points=\"{}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" style=\"fill: var({colour})\">{}</text>\n",
            points.join(" "),
            WIDTH - RIGHT,
            top + 14.0 + 16.0 * f64::from(u16::try_from(number).unwrap_or(u16::MAX)),
            escape(&it.name)
        ));
        for (x, what) in &it.marks {
            let x = at_x(*x);
            put(format!(
                "<line x1=\"{x:.1}\" y1=\"{:.1}\" x2=\"{x:.1}\" y2=\"{base:.1}\" stroke=\"var(--bad)\" \
                 stroke-dasharray=\"4 3\"/><text x=\"{:.1}\" y=\"{:.1}\">{}</text>\n",
                top + TOP,
                x + 4.0,
                top + TOP + 12.0,
                escape(what)
            ));
        }
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
#[must_use]
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
