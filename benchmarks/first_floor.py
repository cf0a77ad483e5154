"""
Measures everything that the first version has to reach, and prints it as a table.

    python benchmarks/first_floor.py [--quick] [--only SECTION ...] [--json FILE]

Figures, not a test: it always ends well. `README.md` in this folder tells how to read it.
"""

import argparse
import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from agent_runs import exact_runs, quiet_steps, whole_runs, work_amplification
from footprint import imports, memory
from measuring import Line, Settings, show, show_heading, write
from one_shot import estimated, exact

SECTIONS: dict[str, tuple[str, Callable[[Settings], Iterator[Line]]]] = {
    "one-shot": ("One shot to 40 %, estimate", estimated),
    "exact": ("One shot to 40 %, exact counter", exact),
    "runs": ("Whole runs of a real Agent, estimate", whole_runs),
    "exact-runs": ("Whole runs of a real Agent, exact counter", exact_runs),
    "work": ("Work over a whole run, counted", work_amplification),
    "steps": ("A step without compaction", quiet_steps),
    "memory": ("Memory", memory),
    "import": ("Import", imports),
}


class Heard(logging.Handler):
    """Keeps what the package says, because a hook that fails is fast and only tells the log."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: dict[str, int] = {}

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        self.texts[text] = self.texts.get(text, 0) + 1


def main() -> None:
    arguments = _arguments()
    heard = listen()
    lines: list[Line] = []
    for name in arguments.only or SECTIONS:
        title, section = SECTIONS[name]
        show_heading(title)
        for line in section(_settings(arguments)):
            show([line])
            lines.append(line)
    missed = [line for line in lines if line.verdict == "MISSED"]
    print(f"\n{len(missed)} of {sum(line.limit is not None for line in lines)} limits missed.")
    show(missed)
    for text, times in heard.texts.items():
        print(f"\nWarned {times} times: {text}")
    if arguments.json is not None:
        write(lines, arguments.json)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measures what haystack_compaction costs, beside Haystack's own.")
    parser.add_argument("--quick", action="store_true", help="smaller sizes and fewer rounds, for a first look")
    parser.add_argument("--long", action="store_true", help="also runs of 4,000 steps")
    parser.add_argument("--with-haystack-run", action="store_true", help="also whole runs of Haystack's hook: minutes")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file")
    return parser.parse_args()


def _settings(arguments: argparse.Namespace) -> Settings:
    settings = Settings(haystack_runs=arguments.with_haystack_run)
    if arguments.quick:
        settings = replace(settings, sizes=(1_000, 2_000, 4_000), rounds=3, steps=(100, 400), runs=1)
    if arguments.long:
        settings = replace(settings, steps=(*settings.steps, 4_000))
    return settings


def listen() -> Heard:
    warnings.filterwarnings("ignore", message=".*is an experimental component")
    logging.getLogger("haystack").setLevel(logging.ERROR)
    heard, logger = Heard(), logging.getLogger("haystack_compaction")
    logger.addHandler(heard)
    logger.propagate = False
    return heard


if __name__ == "__main__":
    main()
