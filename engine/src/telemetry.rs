//! Logging: to stderr, and of this crate only.
//!
//! The transport's own crates can print headers and frames at their lowest levels, where the token and the code are;
//! no filter turns them on.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

/// Crates below ours that see secrets.
const SILENT: [&str; 6] = ["h2", "hyper", "hyper_util", "tonic", "tower", "axum"];
const DEFAULT: &str = "warn";

/// Why logging cannot start.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    #[error("STEPBOX_LOG is not a log filter; write one such as \"info\"")]
    Filter(#[source] ParseError),
    #[error("logging is set up already")]
    Twice(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Starts logging with a filter, such as that of `STEPBOX_LOG`.
///
/// # Errors
/// The filter cannot be parsed, or logging was started before.
pub fn start(filter: Option<&str>) -> Result<(), TelemetryError> {
    tracing_subscriber::fmt()
        .with_env_filter(parse_filter(filter)?)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .try_init()
        .map_err(TelemetryError::Twice)
}

/// The filter with the crates that see secrets turned off, whatever it says of them.
///
/// # Errors
/// The filter cannot be parsed.
pub fn parse_filter(filter: Option<&str>) -> Result<EnvFilter, TelemetryError> {
    let told = filter
        .filter(|text| !text.trim().is_empty())
        .unwrap_or(DEFAULT);
    let kept = told.split(',').filter(|directive| !is_of_silent(directive));
    let kept: Vec<_> = kept.collect();
    let mut parsed = EnvFilter::try_new(kept.join(",")).map_err(TelemetryError::Filter)?;
    for name in SILENT {
        let off = format!("{name}=off")
            .parse()
            .map_err(TelemetryError::Filter)?;
        parsed = parsed.add_directive(off);
    }
    Ok(parsed)
}

fn is_of_silent(directive: &str) -> bool {
    let target = directive.trim();
    SILENT.iter().any(|name| {
        let rest = target.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([':', '=', '[']))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_that_see_secrets_stay_silent_whatever_the_filter_says() {
        for told in [
            "trace",
            "h2=trace",
            "h2::codec=trace,info",
            "tonic[x]=trace",
            "hyper",
            "",
        ] {
            let filter = parse_filter(Some(told)).expect(told).to_string();
            for name in SILENT {
                assert!(filter.contains(&format!("{name}=off")), "{told}: {filter}");
            }
            assert!(
                !filter.contains("h2::codec") && !filter.contains("tonic["),
                "{told}: {filter}"
            );
        }
    }

    #[test]
    fn a_filter_that_is_none_is_refused() {
        assert!(parse_filter(Some("a=b=c")).is_err());
    }
}
