"""
A long Agent run inside a small context window, offline.

A scripted model reads its way through a source tree, the one of the installed `haystack` package by default, with real
file-reading tools. The run is made twice, without and with compaction, and each step's request is printed side by side.

    python examples/agent_run.py [FOLDER]
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import haystack
from haystack.components.agents import Agent
from haystack.components.generators.chat import MockChatGenerator
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.tools import create_tool_from_function

from haystack_compaction import (
    CompactionHook,
    EstimatedTokenCounter,
    MessageIndex,
    Outcome,
    ToolResultPruningCompactor,
)

CONTEXT_WINDOW = 20_000
STEPS = 48
TASK = "Find out which files of this source tree are the longest, and how many functions and classes they define."


def file_tools(root: Path) -> list[Callable[..., str]]:
    """
    Return tools that really read a source tree.

    :param root: The folder to read.
    :returns: Two functions.
    """

    def list_files(folder: Annotated[str, "Folder relative to the root"]) -> str:
        """List the Python files of a folder with their sizes."""
        lines = [
            f"{path.relative_to(root)}  {path.stat().st_size} bytes" for path in sorted((root / folder).glob("*.py"))
        ]
        return "\n".join(lines) or "no Python files"

    def read_file(path: Annotated[str, "File relative to the root"]) -> str:
        """Read a file."""
        return (root / path).read_text(encoding="utf-8")

    return [list_files, read_file]


@dataclass
class ScriptedModel:
    """
    Plays a model that reads one file after the other, keeps score, and answers at the end.

    :param files: What it reads, in order.
    :param requests: The size of each request that it was sent, in tokens.
    """

    files: list[str]
    requests: list[int] = field(default_factory=list)

    def reply(self, messages: list[ChatMessage], tools: Any) -> ChatMessage:
        """
        Return the next reply, with a report of usage as a provider gives it.

        :param messages: The request.
        :param tools: The tools that are sent along.
        :returns: A tool call, or the answer.
        """
        size = EstimatedTokenCounter().count(messages, tools=tools)
        every_call_has_its_result = all(group.is_whole for group in MessageIndex(messages).groups)
        if not every_call_has_its_result:
            raise ValueError("This request has a call without its result.")
        step = len(self.requests)
        self.requests.append(size)
        usage = {"prompt_tokens": size, "completion_tokens": 60}
        if step >= len(self.files):
            return ChatMessage.from_assistant(self._answer(messages), meta={"usage": usage})
        path = self.files[step]
        call = (
            ToolCall("list_files", {"folder": path}, id=f"call_{step}")
            if not path.endswith(".py")
            else ToolCall("read_file", {"path": path}, id=f"call_{step}")
        )
        text = f"Step {step + 1}: I look at {path} next."
        return ChatMessage.from_assistant(text, tool_calls=[call], meta={"usage": usage})

    def _answer(self, messages: list[ChatMessage]) -> str:
        whole = sum(1 for message in messages if message.tool_call_results and "context_compaction" not in message.meta)
        return (
            f"I looked at {len(self.files)} places, the last being {self.files[-1]}. The results of the newest {whole} "
            f"are before me in full; of the others I know what I called and can call it again."
        )


def run(model: ScriptedModel, root: Path, hooks: list[Any]) -> dict[str, Any]:
    """
    Run the Agent once.

    :param model: The scripted model; it remembers what it was sent.
    :param root: The source tree.
    :param hooks: The hooks to run before each model call.
    :returns: The Agent's result.
    """
    agent = Agent(
        chat_generator=MockChatGenerator(response_fn=model.reply),
        system_prompt="You read source code with your tools and answer questions about it.",
        tools=[create_tool_from_function(function) for function in file_tools(root)],
        hooks={"before_llm": hooks},
        max_agent_steps=len(model.files) + 1,
    )
    return agent.run(messages=[ChatMessage.from_user(TASK)])


def places_to_read(root: Path) -> list[str]:
    """
    Return a folder now and then, and many files.

    :param root: The source tree.
    :returns: Paths relative to the root, as many as the run has steps.
    """
    files = sorted(path for path in root.rglob("*.py") if 1_500 < path.stat().st_size < 16_000)
    places: list[str] = []
    for path in files:
        folder = str(path.parent.relative_to(root))
        if folder not in places:
            places.append(folder)
        places.append(str(path.relative_to(root)))
    return places[:STEPS]


def what_went(outcome: Outcome) -> str:
    """
    Return in a few words what a pass took.

    :param outcome: What was done.
    :returns: How many results, and which.
    """
    calls = [call for edit in outcome.edits for call in edit.groups[0].messages[0].tool_calls]
    names = [str(value) for call in calls for value in call.arguments.values()]
    shown = ", ".join(names[:2]) + (", ..." if len(names) > 2 else "")
    return f"{len(names)} results pruned ({shown}), {outcome.freed_tokens:,} tokens freed" if names else ""


def main() -> int:
    """
    Run the Agent twice and print what each request was.

    :returns: The exit code: 0 if no request with compaction was larger than the window.
    """
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(haystack.__file__).parent).resolve()
    files = places_to_read(root)
    if len(files) < 40:
        print(f"{root} has too few Python files for a long run: name another folder.", file=sys.stderr)
        return 2

    plain, compacted = ScriptedModel(files), ScriptedModel(files)
    notes: dict[int, str] = {}
    hook = CompactionHook(
        ToolResultPruningCompactor(),
        context_window=CONTEXT_WINDOW,
        on_compaction=lambda outcome: notes.update({len(compacted.requests): what_went(outcome)}),
    )
    run(plain, root, [])
    result = run(compacted, root, [hook])

    print(f"An Agent with a window of {CONTEXT_WINDOW:,} tokens reads {root.name}/: {len(files)} steps.\n")
    print("step   without   with   what went before this request")
    for step, (without, with_hook) in enumerate(zip(plain.requests, compacted.requests, strict=True)):
        print(f"{step + 1:>4} {without:>9,} {with_hook:>6,}   {notes.get(step, '')}".rstrip())
    print(f"\nFinal answer: {result['last_message'].text}")
    largest, unbounded = max(compacted.requests), max(plain.requests)
    print(f"\nLargest request with compaction:    {largest:>7,} tokens, {largest / CONTEXT_WINDOW:.0%} of the window")
    print(f"Largest request without compaction: {unbounded:>7,} tokens, {unbounded / CONTEXT_WINDOW:.1f} windows")
    return 0 if largest <= CONTEXT_WINDOW else 1


if __name__ == "__main__":
    raise SystemExit(main())
