//! `stepbox plan`: the order in which a sandbox is made, as it is executed.

use std::io::{self, Write};

use super::args::PlanArgs;
use crate::sandbox::plan::STAGES;

/// Prints the stages and their steps.
pub(super) fn print(args: &PlanArgs, out: &mut impl Write) -> io::Result<()> {
    if args.json {
        let stages: Vec<_> = STAGES
            .iter()
            .map(|stage| {
                let steps: Vec<_> = stage
                    .steps
                    .iter()
                    .map(|step| serde_json::json!({"name": step.name(), "why": step.why()}))
                    .collect();
                serde_json::json!({"stage": stage.name, "when": stage.when, "steps": steps})
            })
            .collect();
        return writeln!(out, "{}", serde_json::Value::from(stages));
    }
    for stage in STAGES {
        writeln!(out, "{} ({})", stage.name, stage.when)?;
        for step in stage.steps {
            writeln!(out, "  {:<20} {}", step.name(), step.why())?;
        }
    }
    Ok(())
}
