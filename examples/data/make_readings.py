"""Writes `generated/readings.csv`: a year of hourly electricity readings of two meters, with the gaps that meters have.

Made from a seed and nothing else, so that every machine has the same 17,000 rows. Usage: `make_readings.py [TARGET]`.
"""

from __future__ import annotations

import csv
import math
import random
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

TARGET = Path(__file__).parent / "generated" / "readings.csv"
COLUMNS = ("timestamp", "meter", "kwh", "outside_c")

START = datetime(2024, 1, 1)  # local standard time all year: no hour is missing or there twice for the clock's sake
HOURS = 366 * 24
# Hours in which a meter sent nothing at all: no row.
OUTAGES = {"house": ((2050, 31), (6101, 7)), "heat_pump": ((410, 12), (5003, 58), (8200, 5))}


def rows() -> Iterator[tuple[str, str, str, str]]:
    """Each reading as it stands in the file; an empty `kwh` is a reading that arrived damaged."""
    chance = random.Random(20240101)
    for hour in range(HOURS):
        now = START + timedelta(hours=hour)
        season = math.cos((hour / HOURS - 0.04) * 2 * math.pi)
        outside = 10 - 10 * season - 4 * math.cos((now.hour - 3) / 24 * 2 * math.pi) + chance.gauss(0, 2)
        for meter in OUTAGES:
            kwh = _house(now, chance) if meter == "house" else _heat_pump(outside, chance)
            damaged = chance.random() < 0.004
            if not any(first <= hour < first + length for first, length in OUTAGES[meter]):
                yield now.isoformat(" ", "minutes"), meter, "" if damaged else f"{kwh:.3f}", f"{outside:.1f}"


def _house(now: datetime, chance: random.Random) -> float:
    morning = 0.5 * math.exp(-((now.hour - 7) ** 2) / 3)
    evening = 1.1 * math.exp(-((now.hour - 19) ** 2) / 6)
    weekend = 0.25 if now.weekday() >= 5 and 9 <= now.hour <= 17 else 0.0
    return 0.18 + morning + evening + weekend + abs(chance.gauss(0, 0.08))


def _heat_pump(outside: float, chance: random.Random) -> float:
    return max(0.0, (17 - outside) * 0.11) + abs(chance.gauss(0, 0.05))


def write(target: Path = TARGET) -> Path:
    """Writes the file, whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_suffix(".part")
    with unfinished.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(rows())
    return unfinished.replace(target)


if __name__ == "__main__":
    sys.stdout.write(f"{write(Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET)}\n")
