"""Text as it may be stored, and identifiers."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.domain.text import clean, clean_json, depth_of, is_identifier, is_storable


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("", ""),
        ("plain", "plain"),
        ("a\x00b", "a\ufffdb"),
        ("\x00\x00", "\ufffd\ufffd"),
        ("é\x00", "é\ufffd"),
        ("x\udc00", "x\ufffd"),
        ("\ud800", "\ufffd"),
        ("a\ud800b", "a\ufffdb"),
        ("\udc00\ud800", "\ufffd\ufffd"),
        ("\ud83d\ude00", "😀"),
        ("\ud83d\ude00\ud83d", "😀\ufffd"),
        ("😀 上海 \u2028\r\n\t", "😀 上海 \u2028\r\n\t"),
    ],
)
def test_what_can_not_be_stored_is_replaced_and_all_else_is_kept(text: str, cleaned: str) -> None:
    assert clean(text) == cleaned


ANY_TEXT = st.text(st.characters(exclude_categories=[]) | st.sampled_from("\x00\ud800\udbff\udc00\udfff😀a"))


@given(ANY_TEXT)
def test_clean_text_can_always_be_stored_and_cleaning_it_again_changes_nothing(text: str) -> None:
    cleaned = clean(text)
    assert is_storable(cleaned)
    assert cleaned.encode().decode() == clean(cleaned) == cleaned


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")))
def test_text_that_can_be_stored_is_left_as_it_is(text: str) -> None:
    assert clean(text) == text


@pytest.mark.parametrize(
    ("value", "cleaned"),
    [
        (math.nan, None),
        (math.inf, None),
        (-math.inf, None),
        (1.5, 1.5),
        (2**70, 2**70),
        (True, True),
        (None, None),
        ({"a\x00": ["\ud800", (math.nan, 1)]}, {"a\ufffd": ["\ufffd", [None, 1]]}),
        ({1: "x"}, {"1": "x"}),
    ],
)
def test_a_json_value_is_cleaned_all_the_way_down(value: Any, cleaned: Any) -> None:
    assert clean_json(value) == cleaned


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANY_TEXT, inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_a_clean_value_is_valid_json_in_utf8(value: Any) -> None:
    encoded = json.dumps(clean_json(value), allow_nan=False, ensure_ascii=False).encode()
    assert json.loads(encoded) == clean_json(value)


@pytest.mark.parametrize(
    ("value", "depth"),
    [(1, 0), ("x", 0), ([], 1), ({}, 1), ([1, [2]], 2), ({"a": {"b": [1]}}, 3), ([[], {"a": [[]]}], 4)],
)
def test_depth_counts_nested_lists_and_objects(value: Any, depth: int) -> None:
    assert depth_of(value) == depth


def test_the_depth_of_what_is_nested_very_deep_is_counted_without_recursion() -> None:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    assert depth_of(value) == 100_001


@pytest.mark.parametrize("text", ["a", "s-1", "user@host.example", "a:b~c+d=e,f", "_", "..", "é", "e\u0301", "上海", "x" * 255, "é" * 255])
def test_an_identifier_is_taken(text: str) -> None:
    assert is_identifier(text)


@pytest.mark.parametrize(
    "text",
    ["", "x" * 256, "a b", "a\n", "a\r", "a\t", "a/b", "a\\b", "a%b", "a?b", "a#b", "<a>", '"', "'", "a;b", "\x00", "\x7f",
     "\ud800", "\u2028", "\u00a0", "\u200b", "\ufeff", "\u202e"],
)  # fmt: skip
def test_what_is_no_identifier_is_refused(text: str) -> None:
    assert not is_identifier(text)


@pytest.mark.parametrize(("text", "storable"), [("a", True), ("😀", True), ("a\x00", False), ("\ud800", False)])
def test_a_text_is_asked_of_the_store_only_if_it_can_be_there(text: str, storable: bool) -> None:
    assert is_storable(text) is storable
