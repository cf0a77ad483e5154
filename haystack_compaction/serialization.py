"""
Settings to and from the dictionaries that saved pipelines are made of.

Haystack's form is kept: `{"type": ..., "init_parameters": {...}}`, parts nested in the same form, functions as
importable names. What is added is that a mistake in a file is answered with the key that is wrong.
"""

import inspect
from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeVar

from haystack.core.errors import DeserializationError
from haystack.core.serialization import (
    component_from_dict,
    component_to_dict,
    default_from_dict,
    default_to_dict,
    import_class_by_name,
)
from haystack.utils import deserialize_callable, serialize_callable

T = TypeVar("T")


def settings_to_dict(instance: Any, names: Iterable[str]) -> dict[str, Any]:
    """
    Serialise an object by the settings it was built with.

    :param instance: The object; each setting is an attribute of the same name.
    :param names: The names of the constructor's parameters.
    :returns: The object in Haystack's form.
    """
    return default_to_dict(instance, **{name: value_to_dict(name, getattr(instance, name)) for name in names})


def value_to_dict(name: str, value: Any) -> Any:
    """
    Return one setting in a form that YAML can hold.

    :param name: The setting's name, for errors.
    :param value: A plain value, an object with `to_dict`, an importable function, or a list or tuple of these.
    :returns: Plain values, lists and dictionaries.
    """
    if hasattr(value, "to_dict"):
        return component_to_dict(value, name)
    if isinstance(value, list | tuple):
        return [value_to_dict(name, entry) for entry in value]
    if callable(value):
        return serialize_callable(value)
    return value


def settings_from_dict(cls: type[T], data: Mapping[str, Any], *, functions: Collection[str] = ()) -> T:
    """
    Build an object from its serialised form.

    :param cls: The class to build.
    :param data: What `settings_to_dict` returned, or the same by hand.
    :param functions: The parameters that may be the importable name of a function.
    :returns: The object.
    :raises DeserializationError: If the form is wrong, or a parameter is unknown or cannot be built; the text names it.
    """
    # Of the constructor itself, because a component's class is called through Haystack's own.
    known = list(inspect.signature(cls.__init__).parameters)[1:]
    parameters = parameters_from_dict(cls.__name__, known, data, functions=functions)
    return default_from_dict(cls, {**data, "init_parameters": parameters})


def parameters_from_dict(
    owner: str, known: Collection[str], data: Mapping[str, Any], *, functions: Collection[str] = ()
) -> dict[str, Any]:
    """
    Build the constructor's parameters from an object's serialised form.

    :param owner: The name of the class, for errors.
    :param known: The names of its parameters.
    :param data: The serialised form.
    :param functions: The parameters that may be the importable name of a function.
    :returns: The parameters by name.
    :raises DeserializationError: If a parameter is unknown or cannot be built; the text names it.
    """
    parameters = data.get("init_parameters") or {}
    for name in parameters:
        if name not in known:
            raise DeserializationError(
                f"`{name}` is not a parameter of {owner}. Its parameters are: {', '.join(known)}."
            )
    return {name: value_from_dict(name, value, function=name in functions) for name, value in parameters.items()}


def value_from_dict(name: str, value: Any, *, function: bool = False) -> Any:
    """
    Build one setting from its serialised form.

    :param name: The setting's name, for errors.
    :param value: A plain value, an object in Haystack's form, or a list of these.
    :param function: Whether a string is the importable name of a function.
    :returns: The setting.
    :raises DeserializationError: If an object or function cannot be imported or built; the text names the setting.
    """
    if isinstance(value, list):
        return [value_from_dict(f"{name}[{place}]", entry, function=function) for place, entry in enumerate(value)]
    if function and isinstance(value, str):
        try:
            return deserialize_callable(value)
        except Exception as error:
            raise DeserializationError(f"`{name}`: the function '{value}' cannot be imported: {error}") from error
    if isinstance(value, dict) and isinstance(value.get("type"), str) and "init_parameters" in value:
        try:
            return component_from_dict(import_class_by_name(value["type"]), value, name)
        except Exception as error:
            raise DeserializationError(f"`{name}`: '{value['type']}' cannot be built: {error}") from error
    return value
