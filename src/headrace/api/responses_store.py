"""Responses kept in memory, for `previous_response_id` and for retrieval.

Those used least recently go first. A record counts with all items of its conversation, although
records share them: the sum of the sizes never understates what is held.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
MOST_RESPONSES = 1000
MOST_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Record:
    """A finished response; `items` are those its request brought, `history` those before them."""

    response: Json
    items: tuple[Json, ...]
    history: tuple[Json, ...]
    nbytes: int

    @property
    def id(self) -> str:
        return str(self.response["id"])

    @property
    def all_items(self) -> tuple[Json, ...]:
        """The conversation up to the end of this response."""
        return (*self.history, *self.items, *self.response["output"])


class ResponseStore:
    """Any thread may use it."""

    def __init__(
        self, *, most_responses: int = MOST_RESPONSES, most_bytes: int = MOST_BYTES
    ) -> None:
        self._most_responses, self._most_bytes = most_responses, most_bytes
        self._records: OrderedDict[str, Record] = OrderedDict()
        self._of_item: dict[str, tuple[str, Json]] = {}  # item id -> its response and itself
        self._lock = threading.RLock()
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._records)

    def put(self, response: Json, items: tuple[Json, ...], previous: Record | None) -> None:
        """Keeps a response; the ones used least recently go. One that is too large is not kept."""
        nbytes = sum(map(_size, (response, *items))) + (previous.nbytes if previous else 0)
        if nbytes > self._most_bytes:
            return
        id = str(response["id"])
        history = previous.all_items if previous else ()
        with self._lock:
            self._records[id] = Record(response, items, history, nbytes)
            for item in (*items, *response["output"]):
                self._of_item[item["id"]] = id, item
            self.nbytes += nbytes
            while len(self._records) > self._most_responses or self.nbytes > self._most_bytes:
                self.delete(next(iter(self._records)))

    def get(self, id: str) -> Record | None:
        """And it counts as used."""
        with self._lock:
            record = self._records.get(id)
            if record is not None:
                self._records.move_to_end(id)
            return record

    def item(self, id: str) -> Json | None:
        """An input or output item of a response that is kept."""
        found = self._of_item.get(id)
        return None if found is None else found[1]

    def delete(self, id: str) -> bool:
        """Whether it was there."""
        with self._lock:
            record = self._records.pop(id, None)
            if record is None:
                return False
            self.nbytes -= record.nbytes
            for item in (*record.items, *record.response["output"]):
                if self._of_item.get(item["id"], ("",))[0] == id:
                    del self._of_item[item["id"]]
            return True


def _size(value: Json) -> int:
    """Bytes of its JSON text, and some for the objects."""
    return 2 * len(json.dumps(value, ensure_ascii=False)) + 500
