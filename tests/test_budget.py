"""How large the next request is, and what is to be reached: the paragraph 'Size' sentence by sentence."""

from typing import Any

import pytest
from naming import shown

from haystack_compaction.budget import LocalCounts, RequestSize, Usage, Window, request_size


def usage_of(**usage: Any) -> Usage:
    read = Usage.of({"usage": usage})
    assert read is not None
    return read


def size_of(counts: LocalCounts, context_tokens: int | None = None, **usage: Any) -> RequestSize:
    """The size with a report, by default one that the Agent's record agrees with."""
    report = usage_of(**usage)
    return request_size(counts, report, report.context_tokens if context_tokens is None else context_tokens)


class TestWindow:
    def test_fractions_are_of_the_window_less_the_output(self) -> None:
        window = Window(10_000, 0.7, 0.4, max_output_tokens=2000)
        assert window.tokens == 8000
        assert window.start_tokens == pytest.approx(5600)
        assert window.goal_tokens == pytest.approx(3200)

    def test_without_an_output_reserve_fractions_are_of_the_whole_window(self) -> None:
        assert Window(10_000).start_tokens == pytest.approx(7000)
        assert Window(10_000).goal_tokens == pytest.approx(4000)

    def test_a_window_of_one_token_and_a_start_of_all_of_it_are_allowed(self) -> None:
        assert Window(1, compact_at=1, compact_to=0.001).tokens == 1

    @pytest.mark.parametrize("window", [0, -1, -128_000])
    def test_a_window_below_one_is_refused(self, window: int) -> None:
        with pytest.raises(ValueError, match=rf"`context_window`.*{window}"):
            Window(window)

    @pytest.mark.parametrize("window", ["128000", 1e5, None, True, [1]], ids=shown)
    def test_a_window_that_is_no_integer_is_refused(self, window: Any) -> None:
        with pytest.raises(TypeError, match="`context_window`"):
            Window(window)

    @pytest.mark.parametrize(
        ("at", "to"),
        [(0.4, 0.4), (0.4, 0.7), (1.1, 0.4), (0.7, 0), (0.7, -0.1), (0, 0), (float("nan"), 0.4), (0.7, float("nan"))],
    )
    def test_fractions_out_of_order_are_refused_with_both_values(self, at: float, to: float) -> None:
        with pytest.raises(ValueError, match=r"`compact_at`.*`compact_to`.*0 < compact_to < compact_at <= 1"):
            Window(1000, at, to)

    @pytest.mark.parametrize("value", ["0.5", None, True, [0.5]], ids=shown)
    @pytest.mark.parametrize("name", ["compact_at", "compact_to"])
    def test_a_fraction_that_is_no_number_is_refused_by_name(self, name: str, value: Any) -> None:
        with pytest.raises(TypeError, match=f"`{name}`"):
            Window(1000, **{name: value})

    @pytest.mark.parametrize(("reserve", "kind"), [(-1, ValueError), (1000, ValueError), (2000, ValueError)])
    def test_an_output_that_leaves_nothing_is_refused(self, reserve: int, kind: type[Exception]) -> None:
        with pytest.raises(kind, match="`max_output_tokens`"):
            Window(1000, max_output_tokens=reserve)

    @pytest.mark.parametrize("reserve", ["10", 1.5, None, False], ids=shown)
    def test_an_output_that_is_no_integer_is_refused(self, reserve: Any) -> None:
        with pytest.raises(TypeError, match="`max_output_tokens`"):
            Window(1000, max_output_tokens=reserve)


class TestCachedInput:
    @pytest.mark.parametrize(
        ("usage", "tokens"),
        [
            ({"prompt_tokens": 12, "cache_read_input_tokens": 5165}, 5177),
            ({"input_tokens": 12, "cache_read_input_tokens": 5165}, 5177),
            ({"prompt_tokens": 12, "cache_creation_input_tokens": 900, "cache_read_input_tokens": 4000}, 4912),
            ({"prompt_tokens": 6000, "cache_read_input_tokens": 5165}, 11_165),
            ({"prompt_tokens": 6000, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}, 6000),
        ],
    )
    def test_named_apart_as_anthropic_does_it_is_beside_the_input(self, usage: dict[str, Any], tokens: int) -> None:
        assert usage_of(**usage).input_tokens == tokens

    @pytest.mark.parametrize(
        "usage",
        [
            {"prompt_tokens": 5200, "prompt_tokens_details": {"cached_tokens": 5100}},
            {"input_tokens": 5200, "input_tokens_details": {"cached_tokens": 5100}},
            {"prompt_tokens": 5200, "prompt_tokens_details": {"cached_tokens": 5200}},
            {"prompt_tokens": 5200, "prompt_tokens_details": {"cached_tokens": 0}},
            {"prompt_tokens": 5200, "prompt_tokens_details": {"cached_tokens": None, "audio_tokens": 0}},
            {"prompt_tokens": 5200, "prompt_tokens_details": None},
            {"prompt_tokens": 5200, "cached_content_token_count": 5100},
        ],
        ids=["OpenAI", "OpenAI responses", "all of it", "none of it", "not told", "no details", "Gemini"],
    )
    def test_it_is_inside_the_input_otherwise(self, usage: dict[str, Any]) -> None:
        assert usage_of(**usage).input_tokens == 5200

    @pytest.mark.parametrize(
        "usage",
        [
            {"prompt_tokens": 12, "prompt_tokens_details": {"cached_tokens": 5165}},
            {"input_tokens": 12, "input_tokens_details": {"cached_tokens": 5165}},
            {"prompt_tokens": 12, "cached_content_token_count": 5165},
            {"prompt_tokens": 12, "cached_tokens": 5165},
        ],
    )
    def test_larger_than_the_input_it_is_beside_it(self, usage: dict[str, Any]) -> None:
        assert usage_of(**usage).input_tokens == 5177

    def test_told_in_both_ways_it_is_counted_once(self) -> None:
        # As gateways report it that speak to Anthropic in OpenAI's words.
        usage = usage_of(
            prompt_tokens=5200, prompt_tokens_details={"cached_tokens": 5100}, cache_read_input_tokens=5100
        )
        assert usage.input_tokens == 5200


class TestReading:
    @pytest.mark.parametrize("meta", [{}, {"usage": None}, {"usage": "many"}, {"usage": 12}, {"usage": [1]}], ids=shown)
    def test_no_report_is_none(self, meta: dict[str, Any]) -> None:
        assert Usage.of(meta) is None

    @pytest.mark.parametrize("value", [None, "12", [1], float("nan"), float("inf"), True, {}], ids=shown)
    def test_a_number_that_is_none_counts_as_missing(self, value: Any) -> None:
        usage = usage_of(prompt_tokens=value, completion_tokens=value)
        assert (usage.input_tokens, usage.context_tokens) == (0, 0)

    @pytest.mark.parametrize("value", ["many", [5], None, 7], ids=shown)
    def test_details_that_are_none_are_passed_over(self, value: Any) -> None:
        usage = usage_of(
            prompt_tokens=100, completion_tokens=9, prompt_tokens_details=value, completion_tokens_details=value
        )
        assert (usage.input_tokens, usage.output_tokens) == (100, 9)

    def test_negative_numbers_are_not_believed(self) -> None:
        usage = usage_of(prompt_tokens=-500, completion_tokens=-9)
        assert request_size(LocalCounts(2000, 10, 0, 0), usage, 2010).tokens >= 0

    def test_what_the_agent_keeps_is_input_and_output_as_they_stand_there(self) -> None:
        usage = usage_of(prompt_tokens=12, completion_tokens=60, cache_read_input_tokens=5165)
        assert usage.context_tokens == 72

    @pytest.mark.parametrize("details", ["completion_tokens_details", "output_tokens_details"])
    def test_reasoning_is_taken_off_the_output(self, details: str) -> None:
        usage = usage_of(prompt_tokens=100, completion_tokens=9300, **{details: {"reasoning_tokens": 9000}})
        assert usage.output_tokens == 300

    def test_reasoning_larger_than_the_output_leaves_nothing_and_not_less(self) -> None:
        usage = usage_of(prompt_tokens=100, completion_tokens=10, completion_tokens_details={"reasoning_tokens": 9000})
        assert usage.output_tokens == 0


class TestBelief:
    counts = LocalCounts(before=8000, reply=100, after=500, schemas=400)

    def test_a_report_is_the_size_of_the_request_with_reply_and_what_came_after(self) -> None:
        size = size_of(self.counts, prompt_tokens=8400, completion_tokens=120)
        assert size.tokens == 8400 + 120 + 500

    @pytest.mark.parametrize(
        "usage",
        [
            {"prompt_tokens": 0, "completion_tokens": 0},
            {"prompt_tokens": 0, "completion_tokens": 60},
            {"total_tokens": 9000},
            {"prompt_tokens": 2099, "completion_tokens": 60},
        ],
        ids=["zero", "no input", "only a total", "just below a quarter"],
    )
    def test_below_a_quarter_of_the_local_count_it_is_not_believed(self, usage: dict[str, Any]) -> None:
        size = size_of(self.counts, **usage)
        assert (size.tokens, size.scale) == (9000, 1)

    def test_from_a_quarter_on_it_is_believed(self) -> None:
        assert size_of(self.counts, prompt_tokens=2101, completion_tokens=60).tokens < 3000

    def test_without_any_report_the_local_count_decides(self) -> None:
        size = request_size(self.counts, None, 0)
        assert (size.tokens, size.scale) == (9000, 1)

    def test_a_report_that_the_agent_did_not_keep_is_not_used(self) -> None:
        report = usage_of(prompt_tokens=8400, completion_tokens=120)
        assert request_size(self.counts, report, 0).tokens == 9000

    def test_after_an_earlier_hook_the_report_no_longer_counts(self) -> None:
        # It shortened 20,000 tokens to 8,100 and set `context_tokens` to that.
        report = usage_of(prompt_tokens=20_000, completion_tokens=120)
        size = request_size(self.counts, report, 8500)
        assert size.tokens == pytest.approx(9000, rel=0.01)


class TestScale:
    def test_it_is_what_the_report_makes_of_the_local_count(self) -> None:
        size = size_of(LocalCounts(4000, 50, 300, 500), prompt_tokens=8500, completion_tokens=100)
        assert size.scale == pytest.approx(2)
        assert size.tokens == 8500 + 100 + 2 * 300

    @pytest.mark.parametrize(("reported", "scale"), [(700, 0.5), (1000, 0.5), (12_000, 6), (90_000, 6)])
    def test_it_stays_between_a_half_and_six(self, reported: int, scale: float) -> None:
        size = size_of(LocalCounts(2000, 0, 100, 0), prompt_tokens=reported, completion_tokens=1)
        assert size.scale == scale

    def test_at_a_limit_the_reported_input_still_is_the_size(self) -> None:
        size = size_of(LocalCounts(2000, 0, 100, 0), prompt_tokens=90_000, completion_tokens=7)
        assert size.tokens == 90_000 + 7 + 600

    def test_schemas_that_were_not_reported_make_no_negative_scale(self) -> None:
        size = size_of(LocalCounts(2000, 0, 0, 5000), prompt_tokens=2000, completion_tokens=1)
        assert size.scale == 0.5

    def test_a_reply_without_reported_output_counts_by_scale(self) -> None:
        size = size_of(LocalCounts(4000, 50, 300, 0), prompt_tokens=8000)
        assert size.tokens == 8000 + 2 * 50 + 2 * 300

    def test_a_reply_counts_without_its_reasoning(self) -> None:
        details = {"reasoning_tokens": 9000}
        size = size_of(
            LocalCounts(8000, 300, 0, 0),
            prompt_tokens=8000,
            completion_tokens=9300,
            completion_tokens_details=details,
        )
        assert (size.tokens, size.scale) == (8300, 1)


class TestShortConversations:
    """Below 1,000 tokens the ratio says little: what is over is a constant of the request."""

    def test_the_difference_is_a_constant(self) -> None:
        size = size_of(LocalCounts(999, 50, 300, 200), prompt_tokens=2000, completion_tokens=60)
        assert size.scale == 1
        assert size.tokens == 2000 + 60 + 300
        assert size.target_tokens(5000) == 5000 - 200 - (2000 - 200 - 999)

    def test_from_a_thousand_tokens_on_it_is_a_scale(self) -> None:
        size = size_of(LocalCounts(1000, 50, 300, 200), prompt_tokens=2200, completion_tokens=60)
        assert size.scale == pytest.approx(2)
        assert size.target_tokens(5200) == 2500

    def test_a_report_below_the_count_makes_the_constant_negative(self) -> None:
        size = size_of(LocalCounts(900, 0, 0, 100), prompt_tokens=700, completion_tokens=10)
        assert size.tokens == 710
        assert size.target_tokens(1000) == 1000 - 100 - (700 - 100 - 900)


class TestTarget:
    def test_schemas_are_taken_off_and_the_rest_is_divided_by_the_scale(self) -> None:
        size = size_of(LocalCounts(4000, 50, 300, 500), prompt_tokens=8500, completion_tokens=100)
        assert size.target_tokens(4500) == 2000

    def test_without_a_report_only_the_schemas_are_taken_off(self) -> None:
        assert request_size(LocalCounts(9000, 0, 0, 400), None, 0).target_tokens(4000) == 3600

    def test_it_is_never_negative(self) -> None:
        assert request_size(LocalCounts(9000, 0, 0, 5000), None, 0).target_tokens(4000) == 0

    @pytest.mark.parametrize("factor", [0.25, 0.5, 1, 1.7])
    def test_a_counter_that_is_off_by_a_factor_leaves_the_same_of_the_conversation(self, factor: float) -> None:
        true = 12_000
        size = size_of(LocalCounts(int(true * factor), 0, 0, 0), prompt_tokens=true, completion_tokens=1)
        assert size.target_tokens(6000) / (true * factor) == pytest.approx(0.5, rel=0.01)

    def test_a_long_reasoning_reply_does_not_lower_it(self) -> None:
        counts = LocalCounts(8000, 300, 0, 0)
        details = {"completion_tokens": 9300, "completion_tokens_details": {"reasoning_tokens": 9000}}
        with_reasoning = size_of(counts, prompt_tokens=8000, **details)
        without = size_of(counts, prompt_tokens=8000, completion_tokens=300)
        assert with_reasoning.target_tokens(6400) == without.target_tokens(6400) == 6400
