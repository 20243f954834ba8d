"""The chat domain: answers that the dense parent itself gives, and a few written by us.

Learning its own answers keeps the upcycled model's conversation where the parent's was.
"""

import json
import random
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

HOUSE_TURNS = 2
CORE = 28  # first conversations of house.txt: about this model and its kind
TEMPLATES = (
    "What is {}?",
    "Explain {} to a child.",
    "Write a short paragraph about {}.",
    "Give me three interesting facts about {}.",
    "Why does {} matter?",
    "Tell me something surprising about {}.",
    "Summarize the main ideas behind {} in two sentences.",
    "What are the advantages and disadvantages of {}?",
)
TOPICS = [
    "photosynthesis",
    "gravity",
    "the ocean",
    "democracy",
    "the printing press",
    "volcanoes",
    "black holes",
    "chess",
    "vaccines",
    "the French Revolution",
    "coffee",
    "bicycles",
    "music",
    "dreams",
    "bridges",
    "electricity",
    "the water cycle",
    "dinosaurs",
    "climate change",
    "the Moon",
    "honey bees",
    "mathematics",
    "the stock market",
    "public libraries",
    "glaciers",
    "the human heart",
    "friendship",
    "steam engines",
    "bread",
    "whales",
    "the Roman Empire",
    "solar power",
    "the internet",
    "poetry",
    "earthquakes",
    "soil",
    "sleep",
    "exercise",
    "trains",
    "deserts",
    "painting",
    "the immune system",
    "evolution",
    "language",
    "trade",
    "airplanes",
    "computer memory",
    "open source software",
    "an operating system",
    "a neural network",
    "a database",
    "recycling",
    "antibiotics",
    "tides",
    "rainbows",
    "the brain",
    "cities",
    "forests",
    "history",
    "philosophy",
]
REQUESTS = (
    "Hello! How are you today?",
    "Hi, who are you?",
    "What can you help me with?",
    "Write a haiku about autumn.",
    "Write a polite email asking for a day off.",
    "Suggest a healthy breakfast.",
    "Plan a weekend trip to the mountains.",
    "Translate 'good morning' into French and Spanish.",
    "Give me a recipe for tomato soup.",
    "How do I learn to play the guitar?",
    "Tell me a short story about a lighthouse keeper.",
    "Write a Python function that reverses a string.",
    "How do I sort a list in Python?",
    "Write a SQL query that counts the rows of a table.",
    "What is the difference between a list and a tuple?",
    "What is the capital of Japan?",
    "What is 12 plus 30?",
    "List the planets of the solar system.",
    "How can I sleep better?",
    "Recommend a book for a rainy day.",
    "Write a slogan for a bakery.",
    "Explain how a rocket works.",
    "How do I write a good resume?",
    "Give me tips for public speaking.",
    "What should I cook with potatoes and eggs?",
    "Write a birthday message for my grandmother.",
    "How do plants drink water?",
    "What is the best way to save money?",
    "Describe a sunset over the sea.",
    "Rewrite this politely: give me the report now.",
    "Correct the grammar: she go to school every days.",
    "Make a to-do list for moving house.",
)


def prompts(count: int, seed: int) -> list[str]:
    """The first `count` prompts: REQUESTS, then topics and templates in a seeded order."""
    every = [t.format(topic) for topic in TOPICS for t in TEMPLATES]
    random.Random(seed).shuffle(every)
    return (list(REQUESTS) + every)[:count]


@torch.inference_mode()
def generate(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, count: int, path: Path, seed: int
) -> list[list[dict[str, str]]]:
    """Conversations of the dense model with itself as the answerer; cached at `path`."""
    if path.exists():
        return json.loads(path.read_text())
    torch.manual_seed(seed)
    chats = []
    every = prompts(count, seed)
    tokenizer.padding_side = "left"
    for start in range(0, len(every), 32):
        batch = [[{"role": "user", "content": p}] for p in every[start : start + 32]]
        inputs = tokenizer.apply_chat_template(
            batch, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
        )
        out = model.generate(
            **inputs, max_new_tokens=190, do_sample=True, temperature=0.5, top_p=0.95
        )
        answers = tokenizer.batch_decode(
            out[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True
        )
        for chat, answer in zip(batch, answers, strict=True):
            chats.append([*chat, {"role": "assistant", "content": answer.strip()}])
        print(f"chat: {len(chats)} of {len(every)} answers", flush=True)
        path.write_text(json.dumps(chats, ensure_ascii=False, indent=1))
    return chats


def house() -> list[list[dict[str, str]]]:
    """Our own question and answer pairs (house.txt) as conversations."""
    text = (Path(__file__).parent / "house.txt").read_text(encoding="utf-8")
    chats = []
    for block in text.strip().split("\nQ: "):
        question, _, answer = block.removeprefix("Q: ").partition("\nA: ")
        chats.append(_conversation(question.strip(), answer.strip()))
    return chats


def _conversation(question: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def clean(answer: str) -> bool:
    """Whether an answer is free of the slips of a small quantised parent: stutter, torn words."""
    words = answer.split()
    triples = [tuple(words[i : i + 3]) for i in range(len(words) - 2)]
    repeats = len(triples) - len(set(triples))
    return len(words) > 3 and repeats <= len(triples) // 20 and "I'" not in answer[:12]


def training(path: Path, seed: int) -> list[list[dict[str, str]]]:
    """Clean generated conversations but the held-out last eighth, and ours HOUSE_TURNS times."""
    chats = json.loads(path.read_text())
    kept = [c for c in chats[: len(chats) - len(chats) // 8] if clean(c[-1]["content"])]
    every = kept + house() * HOUSE_TURNS
    random.Random(seed).shuffle(every)
    return every


def held_out(path: Path) -> list[list[dict[str, str]]]:
    """The generated conversations that training never saw, clean or not."""
    chats = json.loads(path.read_text())
    return chats[len(chats) - len(chats) // 8 :]
