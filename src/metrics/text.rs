//! The two text formats that Prometheus reads. The library writes OpenMetrics. The older format names the types of
//! counters differently, and has no units and no end mark.

use std::fmt::Write as _;

/// The content type of OpenMetrics.
pub const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The content type of the older format.
pub const CLASSIC: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Converts OpenMetrics to the older format, in which a counter's description has the name of its samples.
pub fn classic(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    let mut lines = open_metrics.lines().peekable();
    let kind = |line: &str| -> Option<(String, String)> {
        let (name, kind) = line.strip_prefix("# TYPE ")?.split_once(' ')?;
        Some((name.to_owned(), kind.to_owned()))
    };
    while let Some(line) = lines.next() {
        if line == "# EOF" || line.starts_with("# UNIT ") {
            continue;
        }
        // The line with the help comes right before the line with the type.
        let described = kind(line).or_else(|| lines.peek().and_then(|next| kind(next)));
        let counter = described.filter(|(_, kind)| kind == "counter").map(|(name, _)| name);
        let renamed = counter.and_then(|name| {
            let (head, rest) = line.strip_prefix("# ")?.split_once(' ')?;
            let rest = rest.strip_prefix(&name)?;
            rest.starts_with(' ').then(|| format!("# {head} {name}_total{rest}"))
        });
        let _infallible = writeln!(text, "{}", renamed.as_deref().unwrap_or(line));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_described_under_the_name_of_its_samples() {
        let open = "# HELP a_seconds What.\n# TYPE a_seconds gauge\n# UNIT a_seconds seconds\na_seconds 1\n\
                    # HELP b How b counter.\n# TYPE b counter\nb_total{x=\"# TYPE b counter\"} 2\n# EOF\n";
        assert_eq!(
            classic(open),
            "# HELP a_seconds What.\n# TYPE a_seconds gauge\na_seconds 1\n\
             # HELP b_total How b counter.\n# TYPE b_total counter\nb_total{x=\"# TYPE b counter\"} 2\n"
        );
    }
}
