"""
Measures what a model can still know after a conversation was compacted, and prints it as a table.

    python benchmarks/fidelity.py [--transcripts DIR] [--quick] [--held-out] [--only SECTION ...] [--json FILE]

Figures, not a test: it always ends well. `README.md` in this folder tells how to read it.
"""

import argparse
import logging
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from asked import SEEDS
from contenders import contenders
from kept_sentences import asked
from kept_values import recorded
from measuring import Line, show, show_heading, write

_TRANSCRIPTS = Path(__file__).parents[2] / "shared" / "transcripts"

_TITLES = {
    "recorded": "Values that recorded runs needed later, compacted to 40 %",
    "asked": "What users asked, five rounds, a turn in between",
    "asked-long": "What users asked, five rounds, long talk in between",
}


def main() -> None:
    arguments = _arguments()
    warnings.filterwarnings("ignore", message=".*is an experimental component")
    logging.getLogger("haystack").setLevel(logging.ERROR)
    sections, lines = _sections(arguments), list[Line]()
    for name in arguments.only or _TITLES:
        show_heading(_TITLES[name])
        for line in sections[name]():
            show([line])
            lines.append(line)
    missed = [line for line in lines if line.verdict == "MISSED"]
    print(f"\n{len(missed)} of {sum(line.limit is not None for line in lines)} limits missed.")
    show(missed)
    if arguments.json is not None:
        write(lines, arguments.json)


def _sections(arguments: argparse.Namespace) -> dict[str, Callable[[], Iterator[Line]]]:
    compactors = contenders()
    ask = partial(asked, compactors, seeds=1 if arguments.quick else SEEDS, held_out=arguments.held_out)
    return {
        "recorded": partial(recorded, compactors, arguments.transcripts),
        "asked": ask,
        "asked-long": partial(ask, long_talk=True),
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measures what a model can still know after compaction.")
    parser.add_argument("--transcripts", type=Path, default=_TRANSCRIPTS, metavar="DIR", help="recorded runs, JSONL")
    parser.add_argument("--quick", action="store_true", help="one conversation a language instead of several")
    parser.add_argument("--held-out", action="store_true", help="other sentences and seeds, kept apart for judging")
    parser.add_argument("--only", nargs="+", choices=_TITLES, metavar="SECTION", help=", ".join(_TITLES))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
