//! Formats figures, and computes medians, ranges and ratios.

pub const NOT_MEASURED: &str = "not measured";

/// A number in its shortest form.
pub fn plain(number: f64) -> String {
    if number.abs() >= 100.0 {
        grouped(number)
    } else if number.fract() == 0.0 {
        format!("{number:.0}")
    } else if number.abs() >= 10.0 {
        format!("{number:.1}")
    } else {
        format!("{number:.3}").trim_end_matches('0').to_owned()
    }
}

/// A whole number with a comma between thousands.
pub fn grouped(number: f64) -> String {
    let digits = format!("{:.0}", number.abs());
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if number < -0.5 { format!("-{text}") } else { text }
}

/// A figure with this many decimals, or [`NOT_MEASURED`].
pub fn cell(figure: Option<f64>, digits: usize) -> String {
    match figure.filter(|it| it.is_finite()) {
        None => NOT_MEASURED.to_owned(),
        Some(number) if digits == 0 => grouped(number),
        Some(number) => format!("{number:.digits$}"),
    }
}

pub fn median(figures: &[f64]) -> Option<f64> {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (below, above) = (sorted.len().checked_sub(1)? / 2, sorted.len() / 2);
    Some(f64::midpoint(*sorted.get(below)?, *sorted.get(above)?))
}

/// The median of a figure over the rounds that have it.
pub fn median_of<T>(rounds: &[T], of: impl Fn(&T) -> Option<f64>) -> Option<f64> {
    median(&rounds.iter().filter_map(of).collect::<Vec<_>>())
}

/// The lowest and the highest figure.
pub fn range(figures: &[f64]) -> Option<(f64, f64)> {
    let low = figures.iter().copied().min_by(f64::total_cmp)?;
    Some((low, figures.iter().copied().max_by(f64::total_cmp)?))
}

/// The quotient of two figures; `None` if one is missing or the divisor is not positive.
pub fn ratio(figure: Option<f64>, by: Option<f64>) -> Option<f64> {
    Some(figure? / by.filter(|by| *by > 0.0)?)
}
