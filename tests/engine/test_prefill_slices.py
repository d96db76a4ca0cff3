"""Prefill beside rows that decode: whole where nobody waits for a token, else over several steps.

A decode step takes ten seconds here, and a layer of a prompt's unit eight. So beside a row whose tokens
somebody waits for five layers are a step's work, and one if nobody waits for the prompt; the first layer of a
unit, which costs next to nothing, comes on top of that one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support.backend_runs import GREEDY, BackendRun, Outcome, generate, generate_apart
from support.tiny_models import LLAMA, VOCABULARY_SIZE, write_model

from mlxcel_trio.engine.backend import Prefilled, Row, Sampled
from mlxcel_trio.engine.decode_batch import DecodeBatch
from mlxcel_trio.engine.prefiller import Feeding, Prefiller
from mlxcel_trio.engine.row_batch import RowBatch
from mlxcel_trio.engine.weights import load_weights

if TYPE_CHECKING:
    from mlxcel_trio.engine.backend import RowEvent

LAYERS = 12
CHUNK = 16


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory = tmp_path_factory.mktemp("deep")
    return load_weights(
        write_model(directory, LLAMA | {"num_hidden_layers": LAYERS}), "auto", fast_blas=True
    ).model


class Clock:
    """Goes on as decode steps and layers are computed."""

    def __init__(self) -> None:
        self.now = 0.0
        self.layer_seconds = 8.0
        self.decode_seconds = 10.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    init, evaluate, step = RowBatch.__init__, Feeding._evaluate, DecodeBatch.step

    def init_with_clock(rows: RowBatch, *args: Any, **kwargs: Any) -> None:
        init(rows, *args, **kwargs, clock=clock)

    def evaluate_later(feeding: Feeding, count: int) -> None:
        clock.now += count * clock.layer_seconds
        evaluate(feeding, count)

    def step_later(batch: DecodeBatch) -> list[RowEvent]:
        clock.now += clock.decode_seconds
        return step(batch)

    monkeypatch.setattr(RowBatch, "__init__", init_with_clock)
    monkeypatch.setattr(Feeding, "_evaluate", evaluate_later)
    monkeypatch.setattr(DecodeBatch, "step", step_later)
    return clock


def rows_of(model: Any) -> RowBatch:
    return RowBatch(
        Prefiller(model),
        DecodeBatch(model, end_tokens=frozenset(), ahead=False),
        parallel=8,
        prefill_chunk_size=CHUNK,
        vocabulary_size=VOCABULARY_SIZE,
    )


def row(row_id: int, length: int = 10, *, background: bool = False, max_tokens: int = 40) -> Row:
    prompt = [(11 * index * index + 5 * row_id + index) % VOCABULARY_SIZE for index in range(length)]
    return Row(row_id, prompt, max_tokens, GREEDY, background=background)


def decoding(model: Any, first: Row) -> BackendRun:
    """``first`` has its first token."""
    run = BackendRun(rows_of(model))
    run.insert(first)
    run.until(lambda outcomes: bool(outcomes[first.row_id].tokens))
    return run


def steps_to_prefill(run: BackendRun, row_id: int) -> int:
    """How many steps its unit takes; in each of them row 0 gets a token."""
    for count in range(1, 100):
        events = run.step()
        assert [event.row_id for event in events if isinstance(event, Sampled)].count(0) == 1
        if prefilled(events, row_id):
            return count
    raise AssertionError("it never ends")


def prefilled(events: list[RowEvent], row_id: int) -> bool:
    return any(isinstance(event, Prefilled) and event.row_id == row_id for event in events)


def test_the_answer_does_not_depend_on_how_prefill_is_cut(model: Any) -> None:
    rows = [row(0), row(1, 50, background=True), row(2, 3), row(3, 7, background=True), row(4, 40)]
    expected = generate_apart(rows_of(model), *rows)
    run = decoding(model, rows[0])
    for joining in rows[1:]:
        run.insert(joining)
        run.step()
    assert list(run.finish().values()) == expected


@pytest.mark.parametrize(
    ("background", "layer_seconds", "steps"),
    [
        (False, 0.0, 1),
        (False, 2, 1),
        (False, 8, 3),
        (False, 100, LAYERS - 1),
        (True, 0.0, 1),
        (True, 0.5, 2),
        (True, 1.5, 6),
        (True, 8, LAYERS - 1),
    ],
)
def test_a_prompt_beside_a_row_that_is_waited_for_takes_its_share_of_each_step(
    model: Any, clock: Clock, background: bool, layer_seconds: float, steps: int
) -> None:
    clock.layer_seconds = layer_seconds
    run = decoding(model, row(0))
    run.insert(row(1, background=background))
    assert steps_to_prefill(run, 1) == steps


@pytest.mark.parametrize(("layer_seconds", "steps"), [(0.0, 1), (0.5, 4), (1, LAYERS - 1), (8, LAYERS - 1)])
def test_a_background_prompt_takes_less_of_a_step_in_which_jobs_decode(
    model: Any, clock: Clock, layer_seconds: float, steps: int
) -> None:
    clock.layer_seconds = layer_seconds
    run = decoding(model, row(0))
    run.insert(row(2, background=True))
    run.until(lambda outcomes: len(outcomes[2].tokens) > 1)
    run.insert(row(1, background=True))
    assert steps_to_prefill(run, 1) == steps


def test_a_step_ends_one_background_unit_at_most(model: Any, clock: Clock) -> None:
    clock.layer_seconds = 0.1  # 30 layers in a step, and a unit has 12
    run = decoding(model, row(0))
    run.insert(row(1, 3 * CHUNK, background=True))
    assert [prefilled(run.step(), 1) for _ in range(3)] == [True] * 3
    assert run.outcomes[1].progress == [(CHUNK, 3 * CHUNK), (2 * CHUNK, 3 * CHUNK), (3 * CHUNK, 3 * CHUNK)]


@pytest.mark.parametrize("way", ["end", "removal"])
def test_when_a_job_has_left_a_step_shows_first_what_the_others_need(
    model: Any, clock: Clock, way: str
) -> None:
    """The last step's time would be too long a measure."""
    run = decoding(model, row(0))
    run.insert(row(2, max_tokens=3 if way == "end" else 40, background=True))
    run.until(lambda outcomes: len(outcomes[2].tokens) == 3)
    if way == "removal":
        run.remove(2)
    clock.layer_seconds = 0.5  # six in a step
    run.insert(row(1, background=True))
    assert steps_to_prefill(run, 1) == 3, "two layers, six and four"


def test_ends_of_rows_that_are_waited_for_do_not_hold_a_prompt_up(model: Any, clock: Clock) -> None:
    clock.layer_seconds = 2  # 20 layers in a step, and a unit has 12
    run = decoding(model, row(0))
    run.insert(row(2, max_tokens=3))
    run.until(lambda outcomes: outcomes[2].ended)
    run.insert(row(1))
    assert steps_to_prefill(run, 1) == 1


@pytest.mark.parametrize("background", [False, True])
def test_where_only_background_rows_decode_prefill_is_whole(model: Any, background: bool) -> None:
    run = decoding(model, row(0, background=True))
    run.insert(row(1, background=background))
    assert steps_to_prefill(run, 1) == 1


@pytest.mark.parametrize("background", [False, True])
def test_where_nothing_decodes_prefill_is_whole(model: Any, background: bool) -> None:
    run = BackendRun(rows_of(model))
    run.insert(row(1, background=background))
    assert run.step() == [Prefilled(1, 10, 10)]


def test_a_prompt_that_is_waited_for_hurries_the_background_unit_in_hand(model: Any) -> None:
    run = decoding(model, row(0))
    run.insert(row(1, background=True))
    run.step()
    run.insert(row(2))
    assert steps_to_prefill(run, 1) == 2, "ten layers"


def test_when_the_row_that_was_waited_for_leaves_the_unit_in_hand_ends_at_once(model: Any) -> None:
    run = decoding(model, row(0))
    run.insert(row(1, background=True))
    run.step()
    run.remove(0)
    assert run.step() == [Prefilled(1, 10, 10)]
    assert generate_apart(rows_of(model), row(1)) == list(run.finish().values())


def test_a_row_leaves_a_unit_in_hand_and_the_others_go_on(model: Any) -> None:
    kept = [row(0), row(1, 8), row(3, 12)]
    expected = generate_apart(rows_of(model), *kept)
    run = decoding(model, kept[0])
    run.insert(kept[1], row(2, 16), kept[2])
    run.step()
    assert run.remove(2).progress == []
    assert list(run.finish().values()) == expected


def test_a_unit_whose_rows_have_left_is_not_finished(model: Any) -> None:
    run = decoding(model, row(0))
    run.insert(row(1), row(2))
    run.step()
    run.remove(1)
    run.remove(2)
    run.insert(row(3))
    assert steps_to_prefill(run, 3) == 3


def test_another_row_of_the_same_id_is_not_taken_for_the_one_that_left(model: Any) -> None:
    first, other, again = row(0), row(1), Row(1, [5, 6, 7], 10, GREEDY)
    (expected,) = generate(rows_of(model), again)
    run = decoding(model, first)
    run.insert(other, row(2))
    run.step()
    run.remove(1)
    run.insert(again)
    assert run.finish()[1] == expected


@pytest.mark.parametrize("layer", [0, 7])
def test_a_unit_that_fails_in_any_layer_costs_only_the_row_to_blame(
    model: Any, monkeypatch: pytest.MonkeyPatch, layer: int
) -> None:
    feed, compute = Prefiller.feed, Feeding._compute
    bad: list[Feeding] = []

    def feed_and_note(prefiller: Prefiller, prompts: list[list[int]], caches: list[Any]) -> Feeding:
        feeding = feed(prefiller, prompts, caches)
        if 12 in map(len, prompts):
            bad.append(feeding)
        return feeding

    def compute_or_fail(feeding: Feeding, count: int, clock: Clock) -> None:
        if feeding in bad and len(feeding._done) + count > layer:
            raise RuntimeError("[malloc] Unable to allocate")
        compute(feeding, count, clock)

    monkeypatch.setattr(Prefiller, "feed", feed_and_note)
    monkeypatch.setattr(Feeding, "_compute", compute_or_fail)
    run = decoding(model, row(0))
    run.insert(row(1, 8), row(2, 13), row(3, 9))
    outcomes = run.finish()
    assert len(bad) == 2, "with the others, and alone"
    assert outcomes[2] == Outcome(failure="prefill failed with RuntimeError: [malloc] Unable to allocate")
    good = generate_apart(rows_of(model), row(0), row(1, 8), row(3, 9))
    assert [outcomes[0], outcomes[1], outcomes[3]] == good


def test_a_long_prompt_uses_its_share_up_also_where_one_unit_ends_and_the_next_begins(
    model: Any, clock: Clock
) -> None:
    clock.layer_seconds = 2  # 20 layers in a step, and a unit has 12
    run = decoding(model, row(0))
    run.insert(row(1, 5 * CHUNK))
    done = []
    while not run.outcomes[1].tokens:
        done.append([event.done for event in run.step() if isinstance(event, Prefilled)])
    assert done == [[16], [32, 48], [64, 80], []]


def test_a_step_that_took_long_once_does_not_lengthen_the_next(model: Any, clock: Clock) -> None:
    run = decoding(model, row(0))
    run.step()
    usual, clock.decode_seconds = clock.decode_seconds, 1000
    run.step()
    clock.decode_seconds = usual
    run.insert(row(1))
    assert steps_to_prefill(run, 1) == 3
