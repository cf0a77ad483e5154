"""
A support chat of thirty turns, condensed by a model in two ways: by budget and by count. Runs offline.

`MockChatGenerator` stands for the summariser here; put any chat generator of Haystack's in its place. What it writes
becomes part of the conversation, so trust it as much as the model that answers.
"""

import re

from haystack.components.generators.chat import MockChatGenerator
from haystack.dataclasses import ChatMessage

from haystack_compaction import (
    EstimatedTokenCounter,
    MessagesExceed,
    SlidingWindowCompactor,
    SummarizationCompactor,
    apply_compaction,
)

COUNTER = EstimatedTokenCounter()


def write_summary(messages: list[ChatMessage]) -> ChatMessage:
    """Stands for a model: it names the orders that it is shown."""
    orders = sorted(set(re.findall(r"order (\d+)", messages[-1].text or "")))
    return ChatMessage.from_assistant(
        "## Goal\n- The customer asks about orders, one after the other.\n"
        f"## Done and current state\n- {len(orders)} orders were looked up, up to {orders[-1] if orders else 'none'}."
    )


def support_chat() -> list[ChatMessage]:
    messages = [
        ChatMessage.from_system("You are the support desk of a furniture shop."),
        ChatMessage.from_user("Always answer in one sentence, and never call me by my first name."),
        ChatMessage.from_assistant("Understood."),
    ]
    for order in range(7001, 7031):
        messages.append(ChatMessage.from_user(f"Where is order {order}?"))
        messages.append(ChatMessage.from_assistant(f"Order {order} is on its way. " + "It left our warehouse. " * 12))
    messages.append(ChatMessage.from_user("And which of them comes first?"))
    return messages


def main() -> None:
    messages = support_chat()
    summariser = MockChatGenerator(response_fn=write_summary)
    print(f"before:    {COUNTER.count(messages):5} tokens, {len(messages):2} messages")

    # By budget: oldest first, until the target is met. The fallback is used while the model cannot be reached.
    by_budget = SummarizationCompactor(
        summariser, approximate_summary_tokens=200, fallback=SlidingWindowCompactor(), max_summary_input_tokens=2_000
    )
    shorter = apply_compaction(messages, by_budget, target_tokens=1_000)
    print(f"by budget: {COUNTER.count(shorter):5} tokens, {len(shorter):2} messages")

    # By count: above 40 messages, all but the newest 20 are condensed.
    by_count = SummarizationCompactor(summariser, keep_last_messages=20, trigger=MessagesExceed(40))
    shorter = apply_compaction(messages, by_count)
    print(f"by count:  {COUNTER.count(shorter):5} tokens, {len(shorter):2} messages\n")
    print(shorter[1].text)


if __name__ == "__main__":
    main()
