"""
How large the next request will be, and what has to be reached: pure arithmetic on four local counts and one report.

The provider's own count of the last request is exact, so as much as possible hangs on it; only what came since is
counted here. How far the two are apart also tells how many of the model's tokens one of the counter's is worth, which
makes a counter that is off by a factor as good as any.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from haystack_compaction.arguments import check_int

# A report below this share of the local count is none: zeros, or words instead of tokens.
_BELIEVED_SHARE: Final = 0.25

# Counters are off by up to these factors: four characters a token on Korean, a tokenizer on short identifiers.
_MIN_SCALE: Final = 0.5
_MAX_SCALE: Final = 6.0

# In fewer tokens than this the wrapping of a request weighs more than its words, so their ratio says little.
_MIN_SCALED_TOKENS: Final = 1000


@dataclass(frozen=True, slots=True)
class Window:
    """
    The room that a conversation has, and where compaction starts and ends.

    :param context_window: The model's context window, in the model's tokens.
    :param compact_at: The fraction of the room at which compaction starts.
    :param compact_to: The fraction of the room that it aims at.
    :param max_output_tokens: What the reply may take of the window, taken off first.
    :raises TypeError: If a number is of the wrong type.
    :raises ValueError: If the window is empty, or the fractions are not `0 < compact_to < compact_at <= 1`.
    """

    context_window: int
    compact_at: float = 0.7
    compact_to: float = 0.4
    max_output_tokens: int = 0

    #: The room for a request.
    tokens: int = field(init=False, repr=False, compare=False)

    #: The size of a request at which compaction starts.
    start_tokens: float = field(init=False, repr=False, compare=False)

    #: The size of a request that compaction aims at.
    goal_tokens: float = field(init=False, repr=False, compare=False)

    #: How much a conversation has to grow before a pass that missed its goal is worth another.
    retry_tokens: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_int("context_window", self.context_window, minimum=1, why="Give the window of your model.")
        check_int("max_output_tokens", self.max_output_tokens, minimum=0)
        if self.max_output_tokens >= self.context_window:
            raise ValueError(
                f"`max_output_tokens` must be smaller than `context_window`, got {self.max_output_tokens} of "
                f"{self.context_window}. Nothing would be left for the conversation."
            )
        for name, value in (("compact_at", self.compact_at), ("compact_to", self.compact_to)):
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise TypeError(f"`{name}` must be a fraction between 0 and 1, got {value!r}.")
        if not 0 < self.compact_to < self.compact_at <= 1:
            raise ValueError(
                f"`compact_at` and `compact_to` must satisfy 0 < compact_to < compact_at <= 1, got compact_at="
                f"{self.compact_at} and compact_to={self.compact_to}. A goal that is not below the start would start "
                f"compaction again at once."
            )
        # Taken once, because they are asked in each step of a run.
        tokens = self.context_window - self.max_output_tokens
        start, goal = self.compact_at * tokens, self.compact_to * tokens
        for name, number in (
            ("tokens", tokens),
            ("start_tokens", start),
            ("goal_tokens", goal),
            ("retry_tokens", max((start - goal) / 4, 1)),
        ):
            object.__setattr__(self, name, number)


# What is reported where there is neither a cache nor reasoning.
_PLAIN_USAGE: Final = frozenset({"prompt_tokens", "completion_tokens", "total_tokens", "input_tokens", "output_tokens"})


class Usage(NamedTuple):
    """
    What a provider reported with a reply.

    :param input_tokens: The whole request, cached input counted once.
    :param output_tokens: The reply without the reasoning that is not sent again; None where it was not reported.
    :param context_tokens: Input and output as Haystack's Agent adds them up.
    """

    input_tokens: int
    output_tokens: int | None
    context_tokens: int

    @classmethod
    def of(cls, meta: Mapping[str, Any]) -> "Usage | None":
        """
        Read the usage out of a reply's metadata.

        :param meta: The metadata of the reply.
        :returns: The usage, or None where there is none to read.
        """
        usage = meta.get("usage")
        if not isinstance(usage, Mapping):
            return None
        prompt = _first_number(usage, "prompt_tokens", "input_tokens")
        completion = _first_number(usage, "completion_tokens", "output_tokens")
        if usage.keys() <= _PLAIN_USAGE:
            # Asked in each step of a run, and most providers report no more.
            return cls(prompt, completion if completion > 0 else None, prompt + completion)
        reasoning = max(
            _details(usage, "completion_tokens_details", "output_tokens_details", key="reasoning_tokens"), 0
        )
        return cls(
            input_tokens=prompt + _cached_beside(usage, prompt),
            output_tokens=max(completion - reasoning, 0) if completion > 0 else None,
            context_tokens=prompt + completion,
        )


def _cached_beside(usage: Mapping[str, Any], prompt: int) -> int:
    """The cached input that the provider did not count as input already."""
    inside = _details(usage, "prompt_tokens_details", "input_tokens_details", key="cached_tokens")
    if inside:
        return inside if inside > prompt else 0
    apart = sum(
        _first_number(usage, name)
        for name in ("cache_read_input_tokens", "cache_creation_input_tokens", "cache_write_input_tokens")
    )
    if apart:
        return apart
    unnamed = _first_number(usage, "cached_tokens", "cached_content_token_count")
    return unnamed if unnamed > prompt else 0


def _first_number(usage: Mapping[str, Any], *names: str) -> int:
    for name in names:
        value = usage.get(name)
        if type(value) is int:
            return value
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return int(value)
    return 0


def _details(usage: Mapping[str, Any], *names: str, key: str) -> int:
    for name in names:
        details = usage.get(name)
        if isinstance(details, Mapping):
            return _first_number(details, key)
    return 0


class LocalCounts(NamedTuple):
    """
    What the counter says of the parts of a request.

    :param before: The messages before the last reply; all messages where there is no reply.
    :param reply: The last reply.
    :param after: What came after it.
    :param schemas: The schemas of the tools.
    """

    before: int
    reply: int
    after: int
    schemas: int


class RequestSize(NamedTuple):
    """
    The size of the next request.

    :param tokens: The model's tokens.
    :param scale: How many of the model's tokens one of the counter's is worth.
    :param fixed: What a request costs beside its messages: schemas, and wrapping where it is known.
    :param after: The model's tokens of what came after the last reply.
    """

    tokens: float
    scale: float
    fixed: float
    after: float

    def target_tokens(self, goal: float) -> int:
        """
        Return what the messages may cost.

        :param goal: The size of a request to reach, in the model's tokens.
        :returns: Tokens of the counter.
        """
        return max(int((goal - self.fixed) / self.scale), 0)


def request_size(counts: LocalCounts, usage: Usage | None, context_tokens: int) -> RequestSize:
    """
    Estimate the next request.

    :param counts: The local counts.
    :param usage: What was reported with the last reply.
    :param context_tokens: What the Agent keeps of that report. Where the two differ, something has changed the
        conversation since, and this is what it made of it.
    :returns: The size of the request and what follows from it.
    """
    if usage is None or context_tokens <= 0:
        return _by_local_count(counts)
    explained = usage.context_tokens == context_tokens
    reported = usage.input_tokens if explained else context_tokens
    measured = counts.before if explained else counts.before + counts.reply
    if reported < _BELIEVED_SHARE * (measured + counts.schemas):
        return _by_local_count(counts)
    scale, wrapping = 1.0, reported - counts.schemas - measured
    if measured >= _MIN_SCALED_TOKENS:
        scale, wrapping = min(max((reported - counts.schemas) / measured, _MIN_SCALE), _MAX_SCALE), 0
    reply: float = 0
    if explained:
        reply = scale * counts.reply if usage.output_tokens is None else usage.output_tokens
    after = scale * counts.after
    return RequestSize(reported + reply + after, scale, counts.schemas + wrapping, after)


def _by_local_count(counts: LocalCounts) -> RequestSize:
    total = counts.before + counts.reply + counts.after + counts.schemas
    return RequestSize(total, 1.0, counts.schemas, counts.after)
