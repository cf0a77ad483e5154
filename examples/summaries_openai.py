"""
A conversation condensed by a real model, over the API that OpenAI, vLLM, Ollama, llama.cpp and others speak.

    OPENAI_BASE_URL=http://localhost:11434/v1 OPENAI_MODEL=qwen3 python examples/summaries_openai.py

`OPENAI_API_KEY` is sent if it is set; a server on one's own machine mostly wants none. `OPENAI_MODEL` is the model to
use, gpt-5-mini by default. Without `OPENAI_BASE_URL` nothing is sent anywhere.

The model that condenses is trusted like the model that answers: what it writes becomes part of the conversation.
"""

import os
import sys
from contextlib import closing

from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.utils import Secret

from haystack_compaction import ChatMessageCompactor, EstimatedTokenCounter, SummarizationCompactor

TARGET_TOKENS = 1_500
QUESTION = "Which port does the new database listen on, and what must not happen before Friday?"

# What the user said, what was called for it, what came back, and what the answer was.
TURNS = [
    (
        "We move the shop's database to a new machine. Never restart the old one before Friday: billing runs on it.",
        ToolCall("describe_host", {"name": "db-old-3"}, id="call_1"),
        "db-old-3 postgres 14.9 port 5432 size 412 GB",
        "Noted: db-old-3 stays up until Friday. It runs PostgreSQL 14.9 and holds 412 GB.",
    ),
    (
        "The new machine is db-new-1. Is it ready?",
        ToolCall("describe_host", {"name": "db-new-1"}, id="call_2"),
        "db-new-1 postgres 16.3 port 5433 size 0 GB",
        "db-new-1 is empty and runs PostgreSQL 16.3. It listens on port 5433, because 5432 is taken by the proxy.",
    ),
    (
        "Start to copy, with logical replication. I do not want a dump, that would take the shop offline.",
        ToolCall("start_replication", {"source": "db-old-3", "target": "db-new-1"}, id="call_3"),
        "slot shop_move created, 212 tables queued",
        "Replication runs in the slot shop_move; 212 tables are queued.",
    ),
    (
        "How far is it?",
        ToolCall("replication_status", {"slot": "shop_move"}, id="call_4"),
        "ERROR: table orders_2019 has no primary key, 211 of 212 tables copied",
        "211 of 212 tables are copied. orders_2019 has no primary key; I suggest REPLICA IDENTITY FULL for it.",
    ),
]


def conversation() -> list[ChatMessage]:
    """
    Return the conversation so far.

    :returns: Instructions, four turns with a tool result each, and a question that needs the early ones.
    """
    messages = [ChatMessage.from_system("You help to run a shop's databases. Be exact about names and numbers.")]
    for said, call, result, answer in TURNS:
        log = f"\n{call.tool_name}: the connection is alive and nothing has changed since the last line" * 60
        messages += [
            ChatMessage.from_user(said),
            ChatMessage.from_assistant(tool_calls=[call]),
            ChatMessage.from_tool(result + log, origin=call),
            ChatMessage.from_assistant(answer),
        ]
    return [*messages, ChatMessage.from_user(QUESTION)]


def main() -> int:
    """
    Condense and ask with the model that the environment names, or say what it has to name.

    :returns: The exit code: 1 if there was no summary to be had.
    """
    base_url = os.environ.get("OPENAI_BASE_URL")
    if not base_url:
        print("Set OPENAI_BASE_URL to the address of a chat-completions API, such as http://localhost:11434/v1 for")
        print("Ollama or https://api.openai.com/v1, and OPENAI_API_KEY and OPENAI_MODEL to what it wants.")
        return 0
    generator = OpenAIChatGenerator(
        api_base_url=base_url,
        api_key=Secret.from_token(os.environ.get("OPENAI_API_KEY") or "none"),
        model=os.environ.get("OPENAI_MODEL") or "gpt-5-mini",
    )
    with closing(generator):
        return condense_and_ask(generator)


def condense_and_ask(generator: OpenAIChatGenerator) -> int:
    """
    Have a model condense the conversation, then ask it what only the summary can tell it.

    :param generator: The model, for both.
    :returns: The exit code: 1 if there was no summary to be had.
    """
    summarizing = SummarizationCompactor(generator, approximate_summary_tokens=500)
    messages = conversation()
    result = ChatMessageCompactor(summarizing, target_tokens=TARGET_TOKENS).run(messages=messages)
    shorter, report = result["messages"], result["report"]
    if report["reason"] != "compacted":
        print(f"The conversation is as it was ({report['reason']}): {'; '.join(report['failures'])}", file=sys.stderr)
        return 1

    count = EstimatedTokenCounter().count
    print(f"{len(messages)} messages with {count(messages):,} tokens became {len(shorter)} with {count(shorter):,}.\n")
    print(next(message.text for message in shorter if "context_compaction" in message.meta))
    print(f"\n{QUESTION}\n{generator.run(shorter)['replies'][0].text}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
