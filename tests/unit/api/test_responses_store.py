"""The store of responses keeps those used last, within its bounds, against a plain model of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.api.responses_store import ResponseStore


def response(id, size=0):
    item = {"id": f"msg_{id}", "type": "message", "text": "x" * size}
    return {"id": id, "output": [item]}


def held(store):
    return [id for id in map(str, range(200)) if id in store._records]


def test_what_was_used_last_stays():
    store = ResponseStore(most_responses=2)
    store.put(response("1"), (), None)
    store.put(response("2"), (), None)
    store.get("1")
    store.put(response("3"), (), None)
    assert held(store) == ["1", "3"]
    assert store.item("msg_2") is None
    assert store.item("msg_3") == response("3")["output"][0]
    assert store.get("2") is None


def test_bytes_are_bounded_by_what_a_conversation_holds_all_in_all():
    store = ResponseStore(most_bytes=60_000)
    previous = None
    for i in range(8):
        store.put(response(str(i), 5000), (), previous)
        previous = store.get(str(i)) or previous
        assert store.nbytes <= 60_000
    # The first counts about 10 kB, the second 20 kB with the first in it, and so on.
    assert 1 <= len(store) < 5


def test_one_that_is_too_large_is_not_kept_and_drives_nothing_out():
    store = ResponseStore(most_bytes=20_000)
    store.put(response("1"), (), None)
    store.put(response("2", 50_000), (), None)
    assert held(store) == ["1"]


@given(st.lists(st.tuples(st.sampled_from("pgd"), st.integers(0, 9))))
def test_it_does_what_a_plain_list_does(steps):
    store, model = ResponseStore(most_responses=4), []
    for n, (step, number) in enumerate(steps):
        id = str(number)
        if step == "p":
            id = f"{n}:{number}"
            store.put(response(id), (), None)
            model = [*model, id][-4:]
        elif model and step == "g":
            id = model[number % len(model)]
            assert store.get(id) is not None
            model = [*(m for m in model if m != id), id]
        elif model:
            id = model.pop(number % len(model))
            assert store.delete(id)
            assert not store.delete(id)
        assert list(store._records) == model
        assert store.nbytes == sum(r.nbytes for r in store._records.values())
        assert len(store._of_item) == len(model)
