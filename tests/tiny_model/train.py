"""Make the tiny test model: `python tests/tiny_model/train.py`.

Reads `traces.json`, which the model has to know by heart, and `chat_template.jinja`. Writes `tokenizer.json`
and `tokenizer_config.json` where the package ships them, and `config.json`, `generation_config.json` and
`model.safetensors` beside this file. The exit code is 1 unless greedy decoding with the files as written
repeats every trace token for token, alone and all in one batch.

Runs on the CPU with a fixed seed: one machine writes the same bytes again, another may differ in the last
digits.
"""

# Much of mlx.nn and mlx_lm is not annotated.
# mypy: allow-untyped-calls

from __future__ import annotations

import ctypes
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

OPENBLAS = Path("/usr/lib/x86_64-linux-gnu/openblas-pthread/libopenblas.so.0")
if OPENBLAS.exists():
    # The first BLAS in a process serves all of it, and the one inside the mlx wheel is many times slower.
    ctypes.CDLL(str(OPENBLAS), ctypes.RTLD_GLOBAL)

import mlx.core as mx  # noqa: E402
import mlx.nn as nn  # noqa: E402
import mlx.optimizers as optim  # noqa: E402
from mlx.nn.utils import value_and_grad  # noqa: E402
from mlx.utils import tree_flatten  # noqa: E402
from mlx_lm import load  # noqa: E402
from mlx_lm.generate import BatchGenerator  # noqa: E402
from mlx_lm.models import qwen3  # noqa: E402
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: E402
from transformers import PreTrainedTokenizerFast  # noqa: E402

if TYPE_CHECKING:
    from mlx.nn.layers.base import Module

HERE = Path(__file__).resolve().parent
TOKENIZER_DIR = HERE.parents[1] / "mlxcel_trio" / "testing" / "tokenizer"

SEED = 0
VOCABULARY_SIZE = 608
END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = [END_OF_TEXT, TURN_START, TURN_END]
# Added tokens, yet not special ones: decoding with special tokens skipped keeps them, as Qwen3 has it.
MARKERS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]

MAX_STEPS = 400
WARMUP_STEPS = 10
PEAK_LEARNING_RATE = 4e-3
# Training ends when the least certain answer token reaches this probability. That is far from a tie, so
# another BLAS, another batch size or a shorter float type decodes the same.
TARGET_CERTAINTY = 0.99
ROWS_PER_BATCH = 6

Batch = tuple[mx.array, mx.array, mx.array]


@dataclass(frozen=True)
class Example:
    """One trace as token ids; `answer` ends with the token that closes the turn."""

    name: str
    prompt: list[int]
    answer: list[int]


def main() -> int:
    """Train, write, check; return the exit code."""
    traces: list[dict[str, Any]] = json.loads((HERE / "traces.json").read_text(encoding="utf-8"))
    write_tokenizer(train_tokenizer(traces))
    tokenizer = PreTrainedTokenizerFast.from_pretrained(TOKENIZER_DIR)
    examples = [make_example(tokenizer, trace) for trace in traces]
    started = time.perf_counter()
    model, steps, certainty = train_model(examples)
    report(f"{steps} steps in {time.perf_counter() - started:.0f} s, least certain token {certainty:.3f}")
    write_model(model, tokenizer)
    failures = check_written_model(examples)
    for failure in failures:
        report(failure)
    report(f"{len(examples)} traces, {len(failures)} failures")
    return 1 if failures else 0


def report(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


# --- tokenizer ---


def train_tokenizer(traces: list[dict[str, Any]]) -> Tokenizer:
    """Return a byte-level BPE tokenizer: 256 bytes, then merges, then the added tokens.

    Only ASCII text is learnt from, so that every emoji and every accented letter takes several tokens.
    """
    tokenizer = Tokenizer(models.BPE())
    # Line breaks stand alone, so a prompt that ends in one is encoded the same with its answer or without.
    pieces = Regex(r"[\r\n]+| ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|[^\S\r\n]+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pieces, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE - len(SPECIAL_TOKENS) - len(MARKERS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    lines = (HERE / "chat_template.jinja").read_text(encoding="utf-8").splitlines()
    for trace in traces:
        lines += [
            trace["answer"],
            json.dumps(trace["tools"]),
            *(turn["content"] for turn in trace["messages"]),
        ]
    tokenizer.train_from_iterator([line for line in lines if line.isascii()], trainer)
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in SPECIAL_TOKENS]
    )
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in MARKERS])
    return tokenizer


def write_tokenizer(tokenizer: Tokenizer) -> None:
    """Write both tokenizer files next to the chat template, which they are useless without."""
    tokenizer.save(str(TOKENIZER_DIR / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "additional_special_tokens": [TURN_START],
        "clean_up_tokenization_spaces": False,
        "model_max_length": model_config()["max_position_embeddings"],
    }
    write_json(TOKENIZER_DIR / "tokenizer_config.json", config)


def make_example(tokenizer: PreTrainedTokenizerFast, trace: dict[str, Any]) -> Example:
    """Render and encode a trace the way a server does: the prompt without the answer.

    Raises:
        ValueError: The answer would be encoded differently as part of the conversation that follows it.
    """
    prompt = cast(
        "str",
        tokenizer.apply_chat_template(
            trace["messages"],
            tools=trace["tools"] or None,
            add_generation_prompt=True,
            tokenize=False,
            **trace["chat_template_kwargs"],
        ),
    )
    answer: str = trace["answer"] + TURN_END
    example = Example(trace["name"], tokenizer.encode(prompt), tokenizer.encode(answer))
    if tokenizer.encode(prompt + answer) != example.prompt + example.answer:
        raise ValueError(f"trace {example.name}: prompt and answer merge into other tokens where they meet")
    return example


# --- model ---


def model_config() -> dict[str, Any]:
    """Return config.json: a Qwen3 of 0.87 million parameters."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": VOCABULARY_SIZE,
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
        "dtype": "float32",
    }


def train_model(examples: list[Example]) -> tuple[Module, int, float]:
    """Teach a new model all examples by heart.

    Returns:
        The model, the optimizer steps it took, the probability of the least certain answer token.
    """
    mx.random.seed(SEED)
    model = qwen3.Model(qwen3.ModelArgs.from_dict(model_config()))
    batches = make_batches(examples)
    schedule = optim.join_schedules(
        [
            optim.linear_schedule(1e-5, PEAK_LEARNING_RATE, WARMUP_STEPS),
            optim.cosine_decay(PEAK_LEARNING_RATE, MAX_STEPS),
        ],
        [WARMUP_STEPS],
    )
    optimizer = optim.Adam(learning_rate=schedule, betas=[0.9, 0.95])
    loss_and_gradients = value_and_grad(model, lambda: answer_loss(model, batches))
    for step in range(MAX_STEPS):
        (loss, worst), gradients = loss_and_gradients()
        certainty = float(mx.exp(-worst))
        if step % 20 == 0:
            report(f"step {step}: loss {loss.item():.4f}, least certain token {certainty:.3f}")
        if certainty >= TARGET_CERTAINTY:
            return model, step, certainty
        gradients, _ = optim.clip_grad_norm(gradients, 1.0)
        optimizer.update(model, gradients)
        mx.eval(model.parameters(), optimizer.state)
    return model, MAX_STEPS, certainty


def make_batches(examples: list[Example]) -> list[Batch]:
    """Return (inputs, targets, weights), each of shape (rows, positions), rows of like length together.

    The weight is 1 where an answer token is to be predicted, else 0: prompts are given, not learnt.
    """
    by_length = sorted(examples, key=lambda example: len(example.prompt) + len(example.answer))
    return [
        pad_batch(by_length[start : start + ROWS_PER_BATCH])
        for start in range(0, len(examples), ROWS_PER_BATCH)
    ]


def pad_batch(examples: list[Example]) -> Batch:
    width = max(len(example.prompt) + len(example.answer) for example in examples)
    rows, weights = [], []
    for example in examples:
        tokens = example.prompt + example.answer
        padding = [0] * (width - len(tokens))
        rows.append(tokens + padding)
        weights.append([0] * len(example.prompt) + [1] * len(example.answer) + padding)
    tokens_array = mx.array(rows)
    return tokens_array[:, :-1], tokens_array[:, 1:], mx.array(weights, dtype=mx.float32)[:, 1:]


def answer_loss(model: Module, batches: list[Batch]) -> tuple[mx.array, mx.array]:
    """Return the mean and the largest negative log-likelihood over all answer tokens."""
    losses = [
        nn.losses.cross_entropy(model(inputs), targets, weights=weights)
        for inputs, targets, weights in batches
    ]
    total = sum((loss.sum() for loss in losses), mx.array(0.0))
    count = sum((weights.sum() for _, _, weights in batches), mx.array(0.0))
    return total / count, mx.stack([loss.max() for loss in losses]).max()


def write_model(model: Module, tokenizer: PreTrainedTokenizerFast) -> None:
    """Write the weights and both configurations beside this file."""
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(HERE / "model.safetensors"), weights, metadata={"format": "mlx"})
    vocabulary = tokenizer.get_vocab()
    turn_end, end_of_text = vocabulary[TURN_END], vocabulary[END_OF_TEXT]
    write_json(HERE / "config.json", {**model_config(), "eos_token_id": turn_end})
    write_json(
        HERE / "generation_config.json",
        {"eos_token_id": [turn_end, end_of_text], "pad_token_id": end_of_text},
    )


def write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


# --- check ---


def check_written_model(examples: list[Example]) -> list[str]:
    """Load the directory as any model and decode every example; return a line for each that differs."""
    model, tokenizer = load(str(HERE))[:2]
    together = decode_greedily(model, tokenizer.eos_token_ids, examples)
    alone = [decode_greedily(model, tokenizer.eos_token_ids, [example])[0] for example in examples]
    failures = []
    for example, *decoded in zip(examples, alone, together, strict=True):
        for label, tokens in zip(("alone", "in one batch"), decoded, strict=True):
            if tokens != example.answer:
                failures.append(f"{example.name}, {label}: {tokenizer.decode(tokens)!r}")
    return failures


def decode_greedily(model: Module, eos_token_ids: set[int], examples: list[Example]) -> list[list[int]]:
    """Return the sampled tokens of each example, the one that ends the turn included."""
    generator = BatchGenerator(
        model, stop_tokens=[[token] for token in eos_token_ids], completion_batch_size=len(examples)
    )
    uids = generator.insert([example.prompt for example in examples], [len(e.answer) + 8 for e in examples])
    decoded: dict[int, list[int]] = {uid: [] for uid in uids}
    while responses := generator.next_generated():
        for response in responses:
            decoded[response.uid].append(response.token)
    generator.close()
    return [decoded[uid] for uid in uids]


if __name__ == "__main__":
    sys.exit(main())
