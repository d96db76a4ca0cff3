"""The output parser: every split of a text gives what the whole text gives."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcel_trio.core.parsing.markers import find_first, held_length
from mlxcel_trio.core.parsing.output import OutputParser
from mlxcel_trio.core.parsing.segments import ReasoningDelta, Segment, TextDelta

THINK = ("<think>", "</think>")


def parse(
    pieces: list[str],
    *,
    opened: bool = False,
    stops: tuple[str, ...] = (),
    markers: tuple[str, str] | None = THINK,
) -> list[tuple[str, str]]:
    parser = OutputParser(reasoning_markers=markers, reasoning_opened=opened, stops=stops)
    segments: list[Segment] = []
    for piece in pieces:
        segments += parser.feed(piece)
        if parser.stopped:
            break
    else:
        segments += parser.finish()
    return joined(segments)


def joined(segments: list[Segment]) -> list[tuple[str, str]]:
    """Neighbouring deltas of one kind as one (kind, text)."""
    result: list[tuple[str, str]] = []
    for segment in segments:
        assert isinstance(segment, TextDelta | ReasoningDelta)
        assert segment.text
        kind = "text" if isinstance(segment, TextDelta) else "reasoning"
        if result and result[-1][0] == kind:
            result[-1] = (kind, result[-1][1] + segment.text)
        else:
            result.append((kind, segment.text))
    return result


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("plain", [("text", "plain")]),
        ("\n plain \n", [("text", "\n plain \n")]),
        (" \n", [("text", " \n")]),
        ("<think>hm</think>Hello", [("reasoning", "hm"), ("text", "Hello")]),
        ("\n<think>\nhm\n</think>\n\nHello\n", [("reasoning", "hm"), ("text", "Hello\n")]),
        ("<think>\n\n</think>\n\nHello", [("text", "Hello")]),
        ("<think>never closed \n", [("reasoning", "never closed")]),
        ("a <think>b</think> c", [("text", "a "), ("reasoning", "b"), ("text", "c")]),
        ("stray</think> end", [("text", "strayend")]),
        ("<think>a<think>b</think>c", [("reasoning", "ab"), ("text", "c")]),
        ("1 < 2, <thin air", [("text", "1 < 2, <thin air")]),
        ("<think>a</think", [("reasoning", "a</think")]),
    ],
)
def test_reasoning(text: str, expected: list[tuple[str, str]]) -> None:
    assert parse([text]) == expected
    assert parse(list(text)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("so four</think>\n\n4", [("reasoning", "so four"), ("text", "4")]),
        ("\nso four", [("reasoning", "so four")]),
        ("</think>4", [("text", "4")]),
    ],
)
def test_reasoning_that_the_prompt_opened(text: str, expected: list[tuple[str, str]]) -> None:
    assert parse([text], opened=True) == expected
    assert parse(list(text), opened=True) == expected


def test_without_markers_everything_is_text() -> None:
    assert parse(["<think>", "a</think>b"], markers=None) == [("text", "<think>a</think>b")]


@pytest.mark.parametrize(
    ("pieces", "stops", "expected"),
    [
        (["keel ma", "st h", "ull sail"], ("mast hull",), "keel "),
        (["keel mast", " hill"], ("mast hull",), "keel mast hill"),
        (["abc"], ("bc", "b"), "a"),
        (["aab"], ("ab",), "a"),
        (["xx stop"], ("stop", "stopper"), "xx "),
        (["ends with st"], ("stop",), "ends with st"),
        (["stop"], ("stop",), ""),
    ],
)
def test_stop_strings(pieces: list[str], stops: tuple[str, ...], expected: str) -> None:
    got = parse(pieces, stops=stops)
    assert got == ([("text", expected)] if expected else [])


def test_stop_strings_do_not_cut_reasoning() -> None:
    got = parse(["<think>a stop b</think>c stop d"], stops=("stop",))
    assert got == [("reasoning", "a stop b"), ("text", "c ")]


def test_a_stop_string_does_not_span_a_reasoning_block() -> None:
    got = parse(["st<think>r</think>op"], stops=("stop",))
    assert got == [("text", "st"), ("reasoning", "r"), ("text", "op")]


FRAGMENTS = [
    "<think>",
    "</think>",
    "<th",
    "ink>",
    "</",
    "think>",
    " ",
    "\n",
    "a",
    "b",
    "stop",
    "st",
    "op",
    "<",
    "é",
]
TEXTS = st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join)


@st.composite
def cut_texts(draw: st.DrawFn) -> tuple[str, list[str]]:
    text = draw(TEXTS)
    cuts = sorted(draw(st.sets(st.integers(0, len(text)))))
    edges = [0, *cuts, len(text)]
    return text, [text[a:b] for a, b in itertools.pairwise(edges)]


@given(cut_texts(), st.booleans(), st.sampled_from([(), ("stop",), ("op", "st ")]))
def test_any_split_gives_the_same(case: tuple[str, list[str]], opened: bool, stops: tuple[str, ...]) -> None:
    text, pieces = case
    whole = parse([text], opened=opened, stops=stops)
    assert parse(pieces, opened=opened, stops=stops) == whole
    assert not any(stop in value for kind, value in whole if kind == "text" for stop in stops)


@given(TEXTS, st.booleans())
def test_no_segment_holds_a_marker(text: str, opened: bool) -> None:
    # Segments side by side may spell one, where a marker stood inside another.
    parser = OutputParser(reasoning_markers=THINK, reasoning_opened=opened, stops=())
    for segment in [*parser.feed(text), *parser.finish()]:
        assert isinstance(segment, TextDelta | ReasoningDelta)
        assert not any(marker in segment.text for marker in THINK)


@given(TEXTS, st.booleans())
def test_nothing_but_markers_and_layout_is_lost(text: str, opened: bool) -> None:
    bare = text
    while "<think>" in bare or "</think>" in bare:
        at, marker = find_first(bare, THINK) or (0, "")
        bare = bare[:at] + "\0" + bare[at + len(marker) :]
    got = "".join(value for _, value in parse([text], opened=opened))
    assert "".join(got.split()) == "".join(bare.replace("\0", "").split())


def test_held_length_is_the_longest_open_beginning() -> None:
    assert held_length("ab<", THINK) == 1
    assert held_length("</thin", THINK) == 6
    assert held_length("<think>", THINK) == 0
    assert held_length("", THINK) == 0
    assert held_length("x", ()) == 0
