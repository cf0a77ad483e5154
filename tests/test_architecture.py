"""The order of the rooms: imports go down only, and what belongs to the edges stays there."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "haystack_compaction"

# Low to high. A module may import from lines above its own, and not from its own.
LAYERS = [
    {"summaries"},
    {"arguments", "errors", "prompts", "content", "steps", "lifecycle", "serialization"},
    {"attachments", "marks", "render", "budget", "json_documents"},
    {"evidence.binding_words", "evidence.block", "evidence.values"},
    {"evidence.statements", "evidence.value_ranking"},
    {"token_counters.estimated_counter"},
    {"token_counters.tiktoken_counter", "token_counters.cached_counter"},
    {"token_counters"},
    {"metering", "groups", "evidence.choice"},
    {"evidence.collector"},
    {"evidence"},
    {"grouping", "ledger", "tally"},
    {"conversation_size", "changes"},
    {"conversation"},
    {"collapsed_calls", "edits", "haystack_format", "openai_format", "tool_call_groups", "triggers"},
    {"summaries.breaker", "summaries.messages", "summaries.order"},
    {
        "outcome",
        "oversize",
        "summaries.summarizer",
        "summaries.checks",
        "summaries.transcript",
        "transcripts",
        "validity",
    },
    {"goal"},
    {"compactor", "notes", "summaries.plan"},
    {
        "foreign",
        "removal",
        "compactors.media",
        "compactors.selective_tool_call",
        "compactors.tool_result_collapse",
        "compactors.tool_result_pruning",
    },
    {"compactors.sliding_window", "compactors.truncation", "compactors.stages", "summaries.rounds"},
    {"compactors.context_window", "compactors.pipeline", "compactors.summarization", "compactors.token_budget"},
    {"compactors"},
    {"compaction"},
    {"hooks", "components"},
    {""},
]

EDGES = {
    "haystack.components.agents": {"hooks"},
    "haystack.tracing": {"hooks"},
    "haystack.logging": {"hooks", "components", "compactor", "token_counters.tiktoken_counter"},
    "haystack.hooks": set(),
    "pathlib": {"transcripts"},
}


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        yield name.removesuffix("__init__").rstrip("."), ast.parse(path.read_text(encoding="utf-8"))


def imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Each imported module with the name that is taken from it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield node.module, alias.name
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, ""


MODULES = dict(modules())


def layer_of(name: str) -> int:
    return next(number for number, layer in enumerate(LAYERS) if name in layer)


def test_every_module_has_its_place() -> None:
    assert set(MODULES) == set().union(*LAYERS)


@pytest.mark.parametrize("name", MODULES)
def test_imports_go_down_only(name: str) -> None:
    for module, _ in imports(MODULES[name]):
        if module == "haystack_compaction" or module.startswith("haystack_compaction."):
            below = module.removeprefix("haystack_compaction").lstrip(".")
            assert layer_of(below) < layer_of(name), f"{name} must not import {module}"


@pytest.mark.parametrize("name", MODULES)
def test_no_underscored_name_is_imported(name: str) -> None:
    for module, imported in imports(MODULES[name]):
        parts = [*module.split("."), imported]
        assert not any(part.startswith("_") and not part.startswith("__") for part in parts), (module, imported)


@pytest.mark.parametrize("name", MODULES)
def test_what_belongs_to_the_edges_is_used_there_only(name: str) -> None:
    for module, imported in imports(MODULES[name]):
        for edge, allowed in EDGES.items():
            if module == edge or module.startswith(f"{edge}.") or f"{module}.{imported}" == edge:
                assert name in allowed, f"{name} must not use {edge}"


def test_no_file_is_named_after_nothing() -> None:
    assert not {path.stem for path in PACKAGE.rglob("*.py")} & {"utils", "helpers", "common"}


def test_files_keep_to_one_subject() -> None:
    lengths = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in PACKAGE.rglob("*.py")}
    assert {name: length for name, length in lengths.items() if length > 450} == {}
