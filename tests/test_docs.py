"""Every example in the README, the docstrings and the examples folder runs, offline."""

import ast
import re
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import haystack_compaction

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks_of(text: str) -> list[str]:
    return BLOCK.findall(textwrap.dedent(text))


def documented() -> Iterator[tuple[str, str]]:
    """Each block of Python in the README and in the docstrings, with where it stands."""
    for number, block in enumerate(blocks_of((ROOT / "README.md").read_text(encoding="utf-8"))):
        yield f"README {number + 1}", block
    for path in sorted((ROOT / "haystack_compaction").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                for block in blocks_of(ast.get_docstring(node, clean=True) or ""):
                    yield f"{path.stem}.{getattr(node, 'name', 'module')}", block


EXAMPLES = dict(documented())


@pytest.mark.parametrize("where", EXAMPLES)
def test_the_documented_example_runs(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(EXAMPLES[where], where, "exec"), {"__name__": "__example__"})  # noqa: S102
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("script", sorted(path.name for path in (ROOT / "examples").glob("*.py")))
def test_the_example_script_runs(script: str) -> None:
    done = subprocess.run(  # noqa: S603
        [sys.executable, str(ROOT / "examples" / script)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("name", haystack_compaction.__all__)
def test_every_public_name_exists_and_is_documented(name: str) -> None:
    value = getattr(haystack_compaction, name)
    assert (value.__doc__ or "").strip()


@pytest.mark.parametrize(
    "name",
    [name for name in haystack_compaction.__all__ if isinstance(getattr(haystack_compaction, name), type)],
)
def test_every_public_class_that_users_build_has_a_runnable_example(name: str) -> None:
    value = getattr(haystack_compaction, name)
    if issubclass(value, Exception) or name in {
        "Action",
        "Reason",
        "Size",
        "Goal",
        "Edit",
        "Exchange",
        "Call",
        "Trigger",
    }:
        pytest.skip("only returned or raised, never built by a user")
    if name == "MessageGroupKind":
        pytest.skip("shown with MessageGroup")
    assert blocks_of(value.__doc__), f"{name} needs an example"


def test_the_public_names_are_sorted() -> None:
    assert haystack_compaction.__all__ == sorted(haystack_compaction.__all__)


def test_importing_the_package_loads_no_tokenizer() -> None:
    code = "import sys, haystack_compaction; print([name for name in sys.modules if name.startswith('tiktoken')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603
    assert done.stdout.strip() == "[]"
