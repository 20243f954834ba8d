"""Rows of token ids for training: fixed length, one domain each, targets -100 where not learned."""

import random
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

LENGTH = 256
PER_DOCUMENT = 3  # rows taken from one document at most: variety matters more than depth


@dataclass
class Rows:
    """ids [N, LENGTH + 1]; learned [N, LENGTH + 1] is false for padding and user turns."""

    ids: Tensor
    learned: Tensor

    def __len__(self) -> int:
        return len(self.ids)

    def batch(self, index: list[int]) -> tuple[Tensor, Tensor]:
        """Inputs [n, LENGTH] and next-token targets [n, LENGTH]."""
        ids, learned = self.ids[index], self.learned[index]
        return ids[:, :-1], torch.where(learned, ids, -100)[:, 1:]


def text_rows(
    texts: list[str],
    tokenizer: PreTrainedTokenizerBase,
    count: int,
    seed: int,
    per_document: int = PER_DOCUMENT,
) -> Rows:
    """Up to `count` rows of plain text, at most `per_document` from each document."""
    rng = random.Random(seed)
    found: list[list[int]] = []
    for text in texts:
        if len(found) >= count:
            break
        ids = tokenizer.encode(text[:200_000], add_special_tokens=False)
        starts = list(range(0, len(ids) - LENGTH, LENGTH + 1))
        picked = sorted(rng.sample(starts, min(per_document, len(starts))))
        found += [ids[s : s + LENGTH + 1] for s in picked]
    found = [row for row in found if len(row) == LENGTH + 1][:count]
    ids = torch.tensor(found)
    return Rows(ids, torch.ones_like(ids, dtype=torch.bool))


def chat_rows(
    chats: list[list[dict[str, str]]], tokenizer: PreTrainedTokenizerBase, pad: int
) -> Rows:
    """Whole conversations packed into rows; only what the assistant says is learned."""
    packed: list[tuple[list[int], list[bool]]] = [([], [])]
    for chat in chats:
        head = tokenizer.apply_chat_template(chat[:-1], tokenize=False, add_generation_prompt=True)
        full = tokenizer.apply_chat_template(chat, tokenize=False)
        first = tokenizer.encode(head, add_special_tokens=False)
        ids = tokenizer.encode(full, add_special_tokens=False)[: LENGTH + 1]
        learned = [i >= len(first) for i in range(len(ids))]
        if len(packed[-1][0]) + len(ids) > LENGTH + 1:
            packed.append(([], []))
        packed[-1][0].extend(ids)
        packed[-1][1].extend(learned)
    ids_N = torch.full((len(packed), LENGTH + 1), pad)
    learned_N = torch.zeros((len(packed), LENGTH + 1), dtype=torch.bool)
    for i, (ids, learned) in enumerate(packed):
        ids_N[i, : len(ids)] = torch.tensor(ids)
        learned_N[i, : len(ids)] = torch.tensor(learned)
    return Rows(ids_N, learned_N)
