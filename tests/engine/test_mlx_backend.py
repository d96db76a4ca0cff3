from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import mlx.core as mx
import pytest
from support.backend_runs import GREEDY, generate, generate_apart
from support.tiny_models import LLAMA, QWEN3, VOCABULARY_SIZE, WINDOW, write_model

from mlxcel_trio.core.messages import ChatMessage, ToolCall
from mlxcel_trio.core.sampling import SamplingParameters
from mlxcel_trio.engine import mlx_backend, weights
from mlxcel_trio.engine.backend import Backend, Row
from mlxcel_trio.engine.blas import BlasReport
from mlxcel_trio.engine.decode_batch import DecodeBatch
from mlxcel_trio.engine.mlx_backend import MlxBackend
from mlxcel_trio.engine.prefiller import Prefiller
from mlxcel_trio.engine.rotary import SharedRoPE
from mlxcel_trio.engine.tokenizer import ChatTokenizer
from mlxcel_trio.errors import CorruptModelError, ModelError, UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TRAINED = Path(__file__).parents[1] / "tiny_model"
ResultT = TypeVar("ResultT")


def backend_of(
    directory: Path, *, window: int | None = None, end_tokens: frozenset[int] = frozenset()
) -> MlxBackend:
    return MlxBackend(
        directory,
        parallel=32,
        prefill_chunk_size=64,
        context_window=window,
        dtype="auto",
        end_tokens=end_tokens,
    )


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model", LLAMA)


def test_it_is_a_backend(directory: Path) -> None:
    backend: Backend = backend_of(directory)
    assert backend.load().vocabulary_size == VOCABULARY_SIZE
    backend.close()


def test_what_is_known_of_a_loaded_model(directory: Path) -> None:
    backend = backend_of(directory, window=100)
    loaded = backend.load()
    backend.close()
    assert loaded.context_window == 100
    assert loaded.vocabulary_size == VOCABULARY_SIZE
    assert loaded.device.split()[0] in {"cpu", "gpu"}
    assert loaded.dtype == "float32"
    assert loaded.blas


@pytest.mark.parametrize("cpu", [True, False])
def test_layers_share_rotary_embeddings_where_there_is_no_kernel_for_them(
    directory: Path, monkeypatch: pytest.MonkeyPatch, cpu: bool
) -> None:
    expected: list[mx.array | None] = []
    monkeypatch.setattr(mlx_backend, "on_cpu", lambda: cpu)
    monkeypatch.setattr(SharedRoPE, "expect", lambda rope, offsets: expected.append(offsets))
    backend = backend_of(directory)
    backend.load()
    backend.close()
    assert bool(expected) == cpu


def test_matrices_lie_as_the_blas_likes_them(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[bool] = []
    load = weights.load_weights

    def recorded(*args: Any, column_major: bool, **options: Any) -> weights.LoadedWeights:
        told.append(column_major)
        return load(*args, column_major=column_major, **options)

    monkeypatch.setattr(weights, "load_weights", recorded)
    for column_major in (True, False):
        report = BlasReport("some BLAS", column_major=column_major)
        monkeypatch.setattr(mlx_backend, "import_mlx", lambda report=report: report)
        backend = backend_of(directory)
        backend.load()
        backend.close()
    assert told == [True, False]


def test_a_window_beyond_the_models_own_is_capped(directory: Path) -> None:
    backend = backend_of(directory, window=10**6)
    assert backend.load().context_window == WINDOW
    backend.close()


def on_new_thread(function: Callable[[], ResultT]) -> ResultT:
    results: list[ResultT] = []
    errors: list[BaseException] = []

    def target() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=target)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def test_two_engine_threads_one_after_the_other_live_whole_lives(directory: Path) -> None:
    rows = [
        Row(0, [1, 2, 3], 8, GREEDY),
        Row(1, list(range(60)) * 3, 8, SamplingParameters(seed=3, top_p=0.9)),
        Row(2, [4, 5], 8, SamplingParameters(temperature=1.2)),
    ]

    def life() -> list[list[int]]:
        backend = backend_of(directory)
        backend.load()
        outcomes = generate(backend, *rows)
        backend.close()
        return [outcome.tokens for outcome in outcomes]

    first, second = on_new_thread(life), on_new_thread(life)
    assert first[:2] == second[:2]
    assert [len(tokens) for tokens in first] == [8, 8, 8]


def test_closing_frees_the_model(directory: Path) -> None:
    backend = backend_of(directory)

    def life() -> int:
        backend.load()
        generate(backend, Row(0, [1, 2, 3], 4, GREEDY))
        backend.insert(Row(1, [1, 2, 3], 100, GREEDY))
        backend.step()
        held = mx.get_active_memory()
        backend.close()
        return held

    before = mx.get_active_memory()
    assert on_new_thread(life) > before + 100_000
    assert mx.get_active_memory() <= before + 10_000


def test_after_a_failed_load_or_step_it_can_be_closed(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = backend_of(tmp_path / "nowhere")
    with pytest.raises(ModelError):
        backend.load()
    backend.close()

    backend = backend_of(directory)
    backend.load()
    backend.insert(Row(0, [1, 2], 5, GREEDY))
    monkeypatch.setattr(DecodeBatch, "step", lambda self: 1 / 0)
    backend.step()  # the prompt
    with pytest.raises(ZeroDivisionError):
        backend.step()
    backend.close()


def test_a_model_that_fails_in_its_first_step_is_a_model_error(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: DecodeBatch, *args: Any, **kwargs: Any) -> int:
        raise ValueError("shapes do not match")

    monkeypatch.setattr(DecodeBatch, "add", fail)
    with pytest.raises(ModelError, match=r"does not run: .*shapes do not match"):
        backend_of(directory).load()


def test_a_model_whose_caches_cannot_be_batched_is_refused(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Prefiller, "new_cache", lambda self: [object()])
    with pytest.raises(UnsupportedModelError, match="several sequences at once"):
        backend_of(directory).load()


def test_damage_is_reported_as_what_it_is(directory: Path) -> None:
    (directory / "config.json").write_text(json.dumps({**LLAMA, "hidden_size": 128}))
    with pytest.raises(CorruptModelError):
        backend_of(directory).load()


def test_a_slow_blas_is_mentioned_with_its_remedy(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(
        mlx_backend, "import_mlx", lambda: BlasReport("slow one", slow=True, note="get another")
    )
    monkeypatch.setattr(mlx_backend.logger, "warning", warnings.append)
    backend = backend_of(directory)
    assert backend.load().blas == "slow one"
    backend.close()
    assert warnings == ["get another"]


@pytest.mark.parametrize("method", ["step", "remove"])
def test_use_before_load_says_so(directory: Path, method: str) -> None:
    with pytest.raises(RuntimeError, match="before load"):
        getattr(backend_of(directory), method)(*([1] if method == "remove" else []))


@pytest.mark.parametrize("config", [LLAMA, QWEN3], ids=["llama", "qwen3"])
@pytest.mark.parametrize("bits", [4, 8])
def test_quantised_models_answer_the_same_in_company(
    tmp_path: Path, config: dict[str, Any], bits: int
) -> None:
    backend = backend_of(write_model(tmp_path / "quantised", config, dtype="float16", bits=bits))
    backend.load()
    rows = [Row(row_id, [row_id + 1] * (10 * row_id + 1), 12, GREEDY) for row_id in range(8)]
    assert generate(backend, *rows) == generate_apart(backend, *rows)
    backend.close()


TRACES = json.loads((TRAINED / "traces.json").read_text(encoding="utf-8"))


def message(turn: dict[str, Any]) -> ChatMessage:
    calls = tuple(
        ToolCall(f"call_{index}", call["function"]["name"], json.dumps(call["function"]["arguments"]))
        for index, call in enumerate(turn.get("tool_calls", ()))
    )
    return ChatMessage(turn["role"], turn["content"], tool_calls=calls)


@pytest.fixture(scope="module")
def trained() -> Iterator[tuple[MlxBackend, ChatTokenizer]]:
    tokenizer = ChatTokenizer.load(TRAINED)
    backend = backend_of(TRAINED, end_tokens=tokenizer.end_tokens)
    backend.load()
    yield backend, tokenizer
    backend.close()


def trace_rows(tokenizer: ChatTokenizer) -> list[Row]:
    return [
        Row(
            index,
            tokenizer.render(
                [message(turn) for turn in trace["messages"]],
                tools=trace["tools"],
                template_kwargs=trace["chat_template_kwargs"],
            ).tokens,
            1000,
            GREEDY,
        )
        for index, trace in enumerate(TRACES)
    ]


def test_the_trained_model_knows_its_answers_when_asked_all_at_once(
    trained: tuple[MlxBackend, ChatTokenizer],
) -> None:
    backend, tokenizer = trained
    outcomes = generate(backend, *trace_rows(tokenizer))
    assert {outcome.finish_reason for outcome in outcomes} == {"stop"}
    texts = [tokenizer.decode(outcome.tokens[:-1]) for outcome in outcomes]
    assert texts == [trace["answer"] for trace in TRACES]


def test_the_trained_model_says_the_same_one_by_one(trained: tuple[MlxBackend, ChatTokenizer]) -> None:
    backend, tokenizer = trained
    rows = [row for row, trace in zip(trace_rows(tokenizer), TRACES, strict=True) if trace["name"] != "story"]
    assert generate(backend, *rows) == generate_apart(backend, *rows)
