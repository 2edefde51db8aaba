//! All mistakes of one request, gathered.

use super::Violation;

/// Gathers mistakes while parsing goes on.
#[derive(Debug, Default)]
pub struct Violations(Vec<Violation>);

impl Violations {
    /// Adds a mistake.
    pub fn add(&mut self, field: impl Into<String>, description: impl Into<String>) {
        self.0.push(Violation {
            field: field.into(),
            description: description.into(),
            mount_refused: false,
        });
    }

    /// Adds the refusal of a mount rule.
    pub fn refuse(&mut self, field: impl Into<String>, description: impl Into<String>) {
        self.0.push(Violation {
            field: field.into(),
            description: description.into(),
            mount_refused: true,
        });
    }

    /// The value, or the mistake noted and none.
    pub(super) fn take<T>(&mut self, field: &str, result: Result<T, String>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(description) => {
                self.add(field, description);
                None
            }
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All that was gathered.
    #[must_use]
    pub fn into_vec(self) -> Vec<Violation> {
        self.0
    }
}
