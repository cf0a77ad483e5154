"""Triggers: predicates on the index that compare, combine and serialise."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
from conversations import A, S, U, prose, step, steps
from naming import shown

from haystack_compaction import (
    AllOf,
    Always,
    AnyOf,
    EstimatedTokenCounter,
    GroupsExceed,
    HasToolCalls,
    MessageIndex,
    MessagesExceed,
    Never,
    Not,
    TokensBelow,
    TokensExceed,
    ToolResultPruningCompactor,
    TurnsExceed,
)

COUNTER = EstimatedTokenCounter()


def conversation() -> list[Any]:
    """Seven messages, six groups, two turns."""
    return [S("rules"), U("one"), A("hi"), U("two"), *step("a"), A("done")]


def index_of(messages: list[Any] | None = None) -> MessageIndex:
    return MessageIndex(conversation() if messages is None else messages, COUNTER)


def is_long(index: MessageIndex) -> bool:
    """A plain function as a trigger."""
    return index.included_message_count > 5


TRIGGERS = {
    "always": Always(),
    "never": Never(),
    "tokens exceed": TokensExceed(5),
    "tokens below": TokensBelow(7),
    "messages exceed": MessagesExceed(3),
    "turns exceed": TurnsExceed(2),
    "groups exceed": GroupsExceed(4),
    "has tool calls": HasToolCalls(),
    "all of": AllOf(TokensExceed(5), HasToolCalls()),
    "any of": AnyOf(TokensExceed(5), TurnsExceed(1), Never()),
    "not": Not(MessagesExceed(3)),
    "nested": AllOf(AnyOf(TokensExceed(5), Not(HasToolCalls())), Not(AllOf(TurnsExceed(1), Always()))),
}
NUMBERED = {
    trigger.__name__: trigger for trigger in (TokensExceed, TokensBelow, MessagesExceed, TurnsExceed, GroupsExceed)
}
each_trigger = pytest.mark.parametrize("name", TRIGGERS)
each_numbered = pytest.mark.parametrize("name", NUMBERED)


class TestWhatFires:
    def test_always_fires_and_never_does_not(self) -> None:
        assert Always()(index_of()) is True
        assert Never()(index_of()) is False
        assert Always()(index_of([])) is True

    def test_tokens_exceed_fires_above_its_number_not_at_it(self) -> None:
        tokens = COUNTER.count(conversation())
        assert TokensExceed(tokens - 1)(index_of()) is True
        assert TokensExceed(tokens)(index_of()) is False

    def test_tokens_below_fires_below_its_number_not_at_it(self) -> None:
        tokens = COUNTER.count(conversation())
        assert TokensBelow(tokens + 1)(index_of()) is True
        assert TokensBelow(tokens)(index_of()) is False

    @pytest.mark.parametrize(
        ("trigger", "count"), [(MessagesExceed, 7), (GroupsExceed, 6), (TurnsExceed, 2)], ids=lambda v: str(v)
    )
    def test_counts_fire_above_their_number_not_at_it(self, trigger: Callable[[int], Any], count: int) -> None:
        assert trigger(count - 1)(index_of()) is True
        assert trigger(count)(index_of()) is False

    @pytest.mark.parametrize(
        "trigger", [TokensExceed(0), MessagesExceed(0), GroupsExceed(0), TurnsExceed(0)], ids=shown
    )
    def test_nothing_exceeds_zero_in_an_empty_conversation(self, trigger: Any) -> None:
        assert trigger(index_of([])) is False
        assert trigger(index_of()) is True

    def test_only_what_is_included_counts(self) -> None:
        index = index_of()
        tokens = COUNTER.count(conversation())
        index.exclude(index.groups[4], "went")
        assert MessagesExceed(5)(index) is False
        assert GroupsExceed(5)(index) is False
        assert TokensExceed(tokens - 1)(index) is False
        assert TokensBelow(tokens)(index) is True

    def test_has_tool_calls_looks_at_included_groups_only(self) -> None:
        index = index_of()
        assert HasToolCalls()(index) is True
        index.exclude(next(group for group in index.groups if group.kind.value == "tool_call"), "went")
        assert HasToolCalls()(index) is False

    def test_has_tool_calls_does_not_fire_on_talk(self) -> None:
        assert HasToolCalls()(index_of([S("rules"), U("hi"), A("hello")])) is False

    def test_a_pending_call_is_a_tool_call(self) -> None:
        assert HasToolCalls()(index_of([U("go"), A(calls=["a"])])) is True

    def test_numbers_of_tokens_are_those_of_the_model(self) -> None:
        messages = [U(prose(2000))]
        local = COUNTER.count(messages)
        doubled = MessageIndex(messages, COUNTER, scale=2.0)
        assert TokensExceed(local + 5)(doubled) is True
        assert TokensBelow(local + 5)(doubled) is False
        assert TokensExceed(2 * local + 5)(doubled) is False


class TestCombinations:
    @pytest.mark.parametrize("left", [Always(), Never()], ids=shown)
    @pytest.mark.parametrize("right", [Always(), Never()], ids=shown)
    def test_they_follow_logic(self, left: Any, right: Any) -> None:
        index = index_of()
        assert AllOf(left, right)(index) is (left(index) and right(index))
        assert AnyOf(left, right)(index) is (left(index) or right(index))
        assert Not(left)(index) is not left(index)

    def test_operators_are_another_way_to_write_them(self) -> None:
        a, b = TokensExceed(5), HasToolCalls()
        assert a & b == AllOf(a, b)
        assert a | b == AnyOf(a, b)
        assert ~a == Not(a)

    def test_more_than_two_can_be_combined(self) -> None:
        index = index_of()
        assert (Always() & Always() & Never())(index) is False
        assert (Never() | Never() | Always())(index) is True
        assert AllOf(Always(), Always(), Always())(index) is True

    def test_a_plain_function_can_stand_in_a_combination(self) -> None:
        index = index_of()
        assert AllOf(is_long, Always())(index) is True
        assert (Always() & is_long)(index) is True
        assert (Never() | is_long)(index) is True
        assert Not(is_long)(index) is False


class TestIdentity:
    @each_trigger
    def test_a_copy_is_equal_and_hashes_alike(self, name: str) -> None:
        trigger, other = TRIGGERS[name], copy.deepcopy(TRIGGERS[name])
        assert trigger == other
        assert hash(trigger) == hash(other)

    def test_different_triggers_are_unequal(self) -> None:
        for one, trigger in TRIGGERS.items():
            for other, candidate in TRIGGERS.items():
                assert (trigger == candidate) is (one == other)

    def test_the_same_number_does_not_make_two_kinds_equal(self) -> None:
        assert TokensExceed(5) != MessagesExceed(5)
        assert AllOf(Always(), Never()) != AnyOf(Always(), Never())

    def test_they_can_be_members_of_a_set(self) -> None:
        assert {TokensExceed(5), TokensExceed(5), Always(), Always()} == {Always(), TokensExceed(5)}

    @each_trigger
    def test_they_cannot_be_changed(self, name: str) -> None:
        with pytest.raises(AttributeError):
            TRIGGERS[name].tokens = 3

    @each_trigger
    def test_the_repr_shows_what_it_is_made_of(self, name: str) -> None:
        shown = repr(TRIGGERS[name])
        assert shown.startswith(type(TRIGGERS[name]).__name__)

    def test_the_repr_shows_numbers_and_parts(self) -> None:
        assert "123" in repr(TokensExceed(123))
        shown = repr(AllOf(TokensExceed(123), Not(HasToolCalls())))
        assert all(part in shown for part in ("TokensExceed", "123", "Not", "HasToolCalls"))


class TestSerialisation:
    @each_trigger
    def test_a_round_trip_gives_an_equal_trigger(self, name: str) -> None:
        trigger = TRIGGERS[name]
        assert type(trigger).from_dict(trigger.to_dict()) == trigger

    @each_trigger
    def test_the_dictionary_names_the_class_as_haystack_does(self, name: str) -> None:
        data = TRIGGERS[name].to_dict()
        assert set(data) == {"type", "init_parameters"}
        assert data["type"].startswith("haystack_compaction.")
        assert data["type"].endswith(f".{type(TRIGGERS[name]).__name__}")

    def test_a_function_in_a_combination_comes_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HAYSTACK_DESERIALIZATION_ALLOWLIST", __name__)
        trigger = AllOf(TokensExceed(5), is_long)
        assert AllOf.from_dict(trigger.to_dict()) == trigger

    def test_a_compactor_comes_back_with_its_trigger_and_target(self) -> None:
        compactor = ToolResultPruningCompactor(
            trigger=TokensExceed(50) & ~Never(), target=TokensBelow(20) | MessagesExceed(9)
        )
        assert ToolResultPruningCompactor.from_dict(compactor.to_dict()) == compactor

    def test_a_compactor_comes_back_with_a_function_as_trigger(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HAYSTACK_DESERIALIZATION_ALLOWLIST", __name__)
        compactor = ToolResultPruningCompactor(trigger=is_long)
        loaded = ToolResultPruningCompactor.from_dict(compactor.to_dict())
        assert loaded == compactor
        assert loaded.trigger is is_long


class TestBadArguments:
    @each_numbered
    @pytest.mark.parametrize("value", ["5", 1.5, True, None, [5]], ids=shown)
    def test_a_number_of_another_type_is_refused_by_name(self, name: str, value: object) -> None:
        with pytest.raises(TypeError, match=r"`\w+` must") as failure:
            NUMBERED[name](value)
        assert repr(value) in str(failure.value)

    @each_numbered
    def test_a_negative_number_is_refused_by_name(self, name: str) -> None:
        with pytest.raises(ValueError, match=r"`\w+` must.*-1"):
            NUMBERED[name](-1)

    @pytest.mark.parametrize("value", [3, "TokensExceed", None, Always], ids=shown)
    @pytest.mark.parametrize("combine", [AllOf, AnyOf, Not])
    def test_what_is_no_trigger_cannot_be_combined(self, combine: Callable[..., Any], value: object) -> None:
        with pytest.raises(TypeError, match=r"`\w+`"):
            combine(value)

    @pytest.mark.parametrize("argument", ["trigger", "target"])
    @pytest.mark.parametrize("value", [3, "always", Always], ids=shown)
    def test_a_compactor_refuses_what_is_no_trigger_by_name(self, argument: str, value: object) -> None:
        with pytest.raises(TypeError, match=f"`{argument}`"):
            ToolResultPruningCompactor(**{argument: value})


class TestInACompactor:
    """The target is asked after each piece that goes; where there is none the caller's budget decides."""

    def messages(self) -> list[Any]:
        return [U("go"), *steps("a", "b", "c", "d")]

    def pruned(self, compactor: ToolResultPruningCompactor, target_tokens: int | None) -> list[bool] | None:
        messages = self.messages()
        after = compactor.compact(messages, target_tokens, COUNTER)
        return None if after is None else [after[n] is not messages[n] for n in (2, 4, 6, 8)]

    def test_a_trigger_that_does_not_fire_leaves_everything(self) -> None:
        assert self.pruned(ToolResultPruningCompactor(trigger=Never()), 0) is None

    def test_a_trigger_that_fires_lets_the_budget_decide(self) -> None:
        tokens = COUNTER.count(self.messages())
        assert self.pruned(ToolResultPruningCompactor(trigger=Always()), tokens - 1) == [True, False, False, False]

    def test_a_plain_function_is_a_trigger(self) -> None:
        assert self.pruned(ToolResultPruningCompactor(trigger=is_long), 0) == [True, True, True, False]
        assert self.pruned(ToolResultPruningCompactor(trigger=lambda _: False), 0) is None

    def test_a_target_comes_before_the_budget(self) -> None:
        tokens = COUNTER.count(self.messages())
        assert self.pruned(ToolResultPruningCompactor(target=TokensBelow(tokens)), 0) == [True, False, False, False]

    def test_a_target_that_is_met_already_leaves_everything(self) -> None:
        tokens = COUNTER.count(self.messages())
        assert self.pruned(ToolResultPruningCompactor(target=TokensBelow(tokens + 1)), 0) is None

    def test_a_plain_function_is_a_target(self) -> None:
        tokens = COUNTER.count(self.messages())
        target = lambda index: index.included_token_count < tokens  # noqa: E731
        assert self.pruned(ToolResultPruningCompactor(target=target), 0) == [True, False, False, False]
