"""
Checks of arguments, so that every refusal names the argument, the rule, the value and the way out in one wording.

A wrong type is a `TypeError`, a wrong value a `ValueError`. Numbers have to be real integers: `True` is not 1 here, and
3.0 is not 3, because a count that arrives as anything else is nearly always a slip in a YAML file.
"""

import inspect
from collections.abc import Sequence
from typing import Any

from haystack.dataclasses import ChatMessage


def check_int(name: str, value: Any, *, minimum: int, why: str = "") -> None:
    """
    Refuse anything but an integer of at least `minimum`.

    :param name: The argument's name, as the caller wrote it.
    :param value: What was given.
    :param minimum: The smallest value that is allowed.
    :param why: A sentence that says what the limit protects, or what to do instead.
    :raises TypeError: If `value` is not an integer.
    :raises ValueError: If `value` is below `minimum`.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"`{name}` must be an integer of at least {minimum}, got {value!r}.{_sentence(why)}")
    if value < minimum:
        raise ValueError(f"`{name}` must be at least {minimum}, got {value}.{_sentence(why)}")


def check_optional_int(name: str, value: Any, *, minimum: int, why: str = "") -> None:
    """
    Refuse anything but `None` or an integer of at least `minimum`.

    :param name: The argument's name, as the caller wrote it.
    :param value: What was given.
    :param minimum: The smallest value that is allowed.
    :param why: A sentence that says what the limit protects, or what to do instead.
    :raises TypeError: If `value` is neither `None` nor an integer.
    :raises ValueError: If `value` is below `minimum`.
    """
    if value is not None:
        check_int(name, value, minimum=minimum, why=why)


def check_bool(name: str, value: Any) -> None:
    """
    Refuse anything but `True` and `False`.

    :param name: The argument's name, as the caller wrote it.
    :param value: What was given.
    :raises TypeError: If `value` is not a bool.
    """
    if not isinstance(value, bool):
        raise TypeError(f"`{name}` must be True or False, got {value!r}.")


def check_text(name: str, value: Any) -> None:
    """
    Refuse anything but a string.

    :param name: The argument's name, as the caller wrote it.
    :param value: What was given.
    :raises TypeError: If `value` is not a string.
    """
    if not isinstance(value, str):
        raise TypeError(f"`{name}` must be a string, got {value!r}.")


def check_names(name: str, value: Any) -> tuple[str, ...]:
    """
    Return a collection of strings as a tuple.

    :param name: The argument's name, as the caller wrote it.
    :param value: A list, tuple, set or other collection of strings.
    :returns: The strings as a tuple; those of a set sorted, so that the same set always serialises to the same text.
    :raises TypeError: If `value` is a single string or holds anything but strings. A single string is refused because
        Python would take it for its letters.
    """
    if isinstance(value, str) or not isinstance(value, Sequence | set | frozenset):
        raise TypeError(f"`{name}` must be a tuple or list of strings, got {value!r}.")
    names = tuple(value)
    if not all(isinstance(entry, str) for entry in names):
        raise TypeError(f"`{name}` must hold strings only, got {value!r}.")
    return tuple(sorted(names)) if isinstance(value, set | frozenset) else names


def check_method(name: str, value: Any, method: str, *, example: str) -> None:
    """
    Refuse an object without a callable of the given name.

    :param name: The argument's name, as the caller wrote it.
    :param value: What was given.
    :param method: The method that is going to be called.
    :param example: Something that would be right, for the message.
    :raises TypeError: If `value` has no such method, or is a class where an instance is needed.
    """
    if isinstance(value, type):
        raise TypeError(f"`{name}` must be an instance, got the class {value.__name__}. Write `{value.__name__}(...)`.")
    # A string and a list have a `count` of their own, which means something else.
    if isinstance(value, str | bytes | list | tuple) or not callable(getattr(value, method, None)):
        raise TypeError(
            f"`{name}` must have a `{method}` method, such as {example}, got {type(value).__name__}: {value!r:.80}."
        )


def check_callback(name: str, value: Any) -> None:
    """
    Refuse anything but None or a function that can be called from sync and async code alike.

    :param name: The argument's name, as the caller wrote it.
    :param value: What was given.
    :raises TypeError: If `value` cannot be called, or has to be awaited.
    """
    if value is None:
        return
    if not callable(value):
        raise TypeError(f"`{name}` must be a function that takes an `Outcome`, got {value!r}.")
    check_not_awaited(name, value)


def check_not_awaited(name: str, value: Any) -> None:
    """
    Refuse a coroutine function, which nothing would await.

    :param name: The argument's name, as the caller wrote it.
    :param value: What was given.
    :raises TypeError: If `value` is a coroutine function.
    """
    if inspect.iscoroutinefunction(value):
        raise TypeError(f"`{name}` must be a plain function, got a coroutine function: nothing would await it.")


def check_messages(name: str, value: Any) -> None:
    """
    Refuse anything but a list of `ChatMessage` objects.

    :param name: The argument's name, as the caller wrote it.
    :param value: What was given.
    :raises TypeError: If `value` is not a list, or holds anything else; the message says where.
    """
    if not isinstance(value, list):
        raise TypeError(f"`{name}` must be a list of `ChatMessage` objects, got {type(value).__name__}.")
    for position, entry in enumerate(value):
        if not isinstance(entry, ChatMessage):
            raise TypeError(
                f"`{name}` must hold `ChatMessage` objects only, but entry {position} is of type "
                f"{type(entry).__name__}. Dictionaries are read with `ChatMessage.from_dict`."
            )


def _sentence(text: str) -> str:
    return f" {text}" if text else ""
