"""Log probabilities follow the text of their tokens through every parser."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mlxcel_trio.core.parsing.output import OutputParser
from mlxcel_trio.core.parsing.segments import TextDelta
from mlxcel_trio.protocol.responses import TokenLogprob

THINK = ("<think>", "</think>")


def tokens_of_text(
    texts: list[str], *, stops: tuple[str, ...] = (), markers: tuple[str, str] | None = THINK
) -> list[tuple[str, list[str]]]:
    """For each text delta: its text, and the tokens whose logprobs it carries."""
    parser = OutputParser(reasoning_markers=markers, reasoning_opened=False, stops=stops)
    segments = []
    for text in texts:
        segments += parser.feed(text, TokenLogprob(text, -1.0, (), ()))
        if parser.stopped:
            break
    else:
        segments += parser.finish()
    return [(s.text, [lp.token for lp in s.logprobs]) for s in segments if isinstance(s, TextDelta)]


def test_each_delta_carries_its_token() -> None:
    assert tokens_of_text(["a", "b"], markers=None) == [("a", ["a"]), ("b", ["b"])]


def test_bytes_of_a_character_go_with_it() -> None:
    assert tokens_of_text(["a", "", "", "é", "b"]) == [("a", ["a"]), ("é", ["", "", "é"]), ("b", ["b"])]


def test_reasoning_and_markers_carry_none() -> None:
    got = tokens_of_text(["<think>", "r", "</think>", "\n\n", "a", "b"])
    assert got == [("a", ["a"]), ("b", ["b"])]


def test_a_token_goes_with_the_first_piece_it_has_a_part_in() -> None:
    assert tokens_of_text(["<think>r</think>x", "y"]) == [("x", []), ("y", ["y"])]
    assert tokens_of_text(["</think>x", "y"]) == [("x", ["</think>x"]), ("y", ["y"])]


def test_held_text_takes_its_tokens_along() -> None:
    assert tokens_of_text(["a<", "th", "at"]) == [("a", ["a<"]), ("<that", ["th", "at"])]


def test_a_cut_stop_string_takes_its_tokens_away() -> None:
    assert tokens_of_text(["ab", "st", "op", "c"], stops=("stop",)) == [("ab", ["ab"])]
    assert tokens_of_text(["ab s", "t", "op"], stops=("stop",)) == [("ab ", ["ab s"])]


PIECES = st.lists(
    st.sampled_from(["a", "b ", "", "<think>", "</think>", "<th", "ink>", "st", "op", "\n", "xyz"])
)


@given(PIECES, st.sampled_from([(), ("stop",)]), st.booleans())
def test_tokens_come_in_order_and_once(texts: list[str], stops: tuple[str, ...], marked: bool) -> None:
    deltas = tokens_of_text(texts, stops=stops, markers=THINK if marked else None)
    carried = [token for _, tokens in deltas for token in tokens]
    remaining = iter(texts)
    assert all(token in remaining for token in carried)  # a subsequence
    if not stops and not marked:
        assert "".join(carried) == "".join(text for text, _ in deltas)
