"""The main job, once: an agent loads a CSV, computes, makes a mistake and recovers, draws a chart, meets a fault.

The model is scripted; the agent loop is LangChain's own, and the code runs in real sandboxes. The demo computes the
same figures by itself, compares, and exits with 1 when anything is not as it should be. The chart goes to
`demo-output/`.
"""

from __future__ import annotations

import csv
import sys
import textwrap
from collections import defaultdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_stepbox import StepboxTool
from stepbox import ExecutionResult, Sandbox, StepboxError

from data import make_readings
from scripted_model import ScriptedModel, Turn

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

OUTPUT = Path(__file__).parent.parent / "demo-output"
QUESTION = "readings.csv has our meters' readings of 2024. Draw what each used by month. What was the longest gap?"

LOOK = """
import pandas as pd
readings = pd.read_csv("readings.csv")
print(len(readings), "rows")
print(readings.head(4))
print(readings.isna().sum().to_dict())
"""
WRONG_COLUMN = """
import pandas as pd
readings = pd.read_csv("readings.csv", parse_dates=["timestamp"])
monthly = readings.groupby([readings["date"].dt.month, "meter"])["kwh"].sum()
print(monthly)
"""
MONTHLY = """
import pandas as pd
readings = pd.read_csv("readings.csv", parse_dates=["timestamp"])
month = readings["timestamp"].dt.month.rename("month")
monthly = readings.groupby([month, "meter"])["kwh"].sum().unstack()
monthly.to_csv("monthly.csv", float_format="%.1f")
for meter, total in monthly.sum().items():
    print(f"{meter} total {total:.1f} kWh")
print(monthly.round(1).to_string())
"""
CHART = """
import pandas as pd
import matplotlib.pyplot as plt
monthly = pd.read_csv("monthly.csv", index_col="month")
axes = monthly.plot.bar(stacked=True, figsize=(8, 4.5), rot=0, title="Electricity by month, 2024")
axes.set_ylabel("kWh")
plt.tight_layout()
plt.savefig("chart.png", dpi=110)
print("saved chart.png")
"""
EVERY_PAIR = """
import itertools
import pandas as pd
readings = pd.read_csv("readings.csv", parse_dates=["timestamp"])
longest = pd.Timedelta(0)
for meter, group in readings.groupby("meter"):
    times = list(group["timestamp"])
    for earlier, later in itertools.combinations(times, 2):
        if not any(earlier < time < later for time in times):
            longest = max(longest, later - earlier)
print(longest)
"""
NEIGHBOURS = """
import pandas as pd
readings = pd.read_csv("readings.csv", parse_dates=["timestamp"]).sort_values("timestamp")
gaps = readings.groupby("meter")["timestamp"].diff() - pd.Timedelta(hours=1)
row = gaps.idxmax()
print(f"longest gap {gaps[row] / pd.Timedelta(hours=1):.0f} h, {readings.loc[row, 'meter']}")
"""
TURNS = [
    Turn("I look at the file first.", LOOK),
    Turn("Now the sums by month.", WRONG_COLUMN),
    Turn("The column is called timestamp. Once more.", MONTHLY),
    Turn("Now the chart.", CHART),
    Turn("The longest gap: I compare every pair of readings.", EVERY_PAIR),
    Turn("That is too much work; neighbours are enough.", NEIGHBOURS),
    Turn("The sums are in monthly.csv, the chart is chart.png, and the longest gap is in the last output."),
]


class Facts(NamedTuple):
    """What the demo itself finds in the file, with nothing but the standard library."""

    rows: int
    totals: dict[str, float]
    longest_gap: int
    gap_meter: str


def facts_of(path: Path) -> Facts:
    totals: dict[str, float] = defaultdict(float)
    latest: dict[str, datetime] = {}
    longest, gap_meter, rows = timedelta(0), "", 0
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            rows += 1
            meter, time = row["meter"], datetime.fromisoformat(row["timestamp"])
            totals[meter] += float(row["kwh"] or 0)
            if (gap := time - latest.get(meter, time) - timedelta(hours=1)) > longest:
                longest, gap_meter = gap, meter
            latest[meter] = time
    return Facts(rows, dict(totals), round(longest / timedelta(hours=1)), gap_meter)


def text_of(message: ToolMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    return "\n".join(block["text"] for block in message.content if isinstance(block, dict) and block["type"] == "text")


def show(messages: Sequence[Any]) -> None:
    for message in messages:
        if isinstance(message, AIMessage):
            say(f"\n=== model: {message.text}")
            for call in message.tool_calls:
                say(textwrap.indent(call["args"]["code"].strip(), "    "))
        elif isinstance(message, ToolMessage):
            result: ExecutionResult = message.artifact
            say("--- the model got")
            say(textwrap.indent(text_of(message), "  | "))
            say(f"--- fault: {result.fault or 'none'}")
            changes = ", ".join(f"{change.change} {change.path}" for change in result.files)
            say(f"--- changed files: {changes or 'none'}")


def mistakes(replies: Sequence[ToolMessage], facts: Facts, chart: bytes) -> Iterator[str]:
    """Everything that is not as it should be."""
    if len(replies) != len(TURNS) - 1:
        yield f"{len(replies)} tool calls were answered, not {len(TURNS) - 1}"
        return
    look, wrong, monthly, drawn, pairs, neighbours = replies
    results: list[ExecutionResult] = [reply.artifact for reply in replies]
    if facts.rows < 10_000:
        yield f"the file has only {facts.rows} rows"
    if f"{facts.rows} rows" not in text_of(look):
        yield f"the sandbox did not see {facts.rows} rows"
    if results[1].exit_code != 1 or results[1].fault is not None or "KeyError: 'date'" not in text_of(wrong):
        yield "the wrong column was not a plain KeyError"
    for meter, total in facts.totals.items():
        if f"{meter} total {total:.1f} kWh" not in text_of(monthly):
            yield f"the sandbox did not find {total:.1f} kWh for {meter}"
    if ("created", "monthly.csv") not in [(change.change, change.path) for change in results[2].files]:
        yield "monthly.csv is not among the changed files"
    if not chart.startswith(b"\x89PNG\r\n\x1a\n") or len(chart) < 5_000:
        yield "chart.png is no chart"
    if [block["type"] for block in drawn.content if isinstance(block, dict)] != ["text", "image"]:
        yield "the model did not get the chart as an image"
    if (
        results[4].fault is None
        or results[4].fault.type != "timeout"
        or not text_of(pairs).startswith("[fault timeout]")
    ):
        yield "the endless search was not stopped by a timeout"
    if f"longest gap {facts.longest_gap} h, {facts.gap_meter}" not in text_of(neighbours):
        yield f"the sandbox did not find the gap of {facts.longest_gap} h of {facts.gap_meter}"
    for number in (0, 2, 3, 5):
        if not results[number].success:
            yield f"call {number + 1} did not succeed: {results[number]!r}"


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    readings = make_readings.write()
    facts = facts_of(readings)
    with Sandbox(memory_mb=1024, timeout_s=15, files={"readings.csv": readings.read_bytes()}) as sandbox:
        tool = StepboxTool(sandbox)
        say(f"=== the tool's description\n{textwrap.indent(tool.description, '  | ')}\n=== user: {QUESTION}")
        agent = create_agent(ScriptedModel(turns=TURNS, tool_name=tool.name), tools=[tool])
        messages: list[Any] = []
        for update in agent.stream({"messages": [HumanMessage(QUESTION)]}, stream_mode="updates"):
            for node in update.values():
                show(node["messages"])
                messages += node["messages"]
        OUTPUT.mkdir(exist_ok=True)
        chart = sandbox.read_file("chart.png") if sandbox.exists("chart.png") else b""
        (OUTPUT / "chart.png").write_bytes(chart)
    wrong = list(mistakes([message for message in messages if isinstance(message, ToolMessage)], facts, chart))
    for mistake in wrong:
        say(f"NOT AS IT SHOULD BE: {mistake}")
    if not wrong:
        say(f"\nAll as it should be. The chart is {OUTPUT.name}/chart.png.")
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except StepboxError as error:
        sys.exit(f"demo: {error}")
