"""Deal an epoch's rows so that a rare token occurs at most once a batch.

What could not be kept apart is found afterwards, by counting, and judged.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

SEARCH_PER_ROW = 100  # places an epoch's repairs may look at, for each of its rows
UNAVOIDABLE, HEURISTIC_MISS = "unavoidable", "heuristic_miss"


@dataclass(frozen=True)
class Violation:
    """A rare token that a stratified batch holds more than once.

    Attributes:
        epoch: 0-based.
        batch: 0-based, within the epoch.
        token: the rare token's id.
        count: its occurrences in the batch, 2 or more.
        kind: "unavoidable" if it is proven that the epoch's rows cannot be dealt
            with fewer surplus occurrences of the token, else "heuristic_miss".
    """

    epoch: int
    batch: int
    token: int
    count: int
    kind: str


def find_violations(epoch: int, batches: list[list[list[int]]]) -> list[Violation]:
    """Every rare token that a batch holds more than once.

    Args:
        epoch: 0-based.
        batches: batch -> row -> its rare tokens, as often as they occur in it.
    """
    if not any(map(_has_repetition, map(chain.from_iterable, batches))):
        return []
    held = defaultdict(list)  # rare token -> (batch, occurrences, rows with it)
    for batch, rare in enumerate(batches):
        holders = Counter(chain.from_iterable(map(set, rare)))
        for token, count in Counter(chain.from_iterable(rare)).items():
            held[token].append((batch, count, holders[token]))
    found = [
        Violation(epoch, batch, token, count, kind)
        for token, places in held.items()
        for batch, count, kind in _judged(places, len(batches))
    ]
    return sorted(found, key=lambda violation: (violation.batch, violation.token))


def _has_repetition(tokens: Iterable[int]) -> bool:
    seen = list(tokens)
    return len(set(seen)) < len(seen)


def _judged(
    places: list[tuple[int, int, int]], batches: int
) -> Iterator[tuple[int, int, str]]:
    """(batch, count, kind) of each batch that holds one token more than once.

    However the rows are dealt, the surplus over one occurrence a batch is at least
    that inside single rows, and at least occurrences - batches. So much is proven to
    be unavoidable; batches that owe theirs to a single row come first.

    Args:
        places: (batch, occurrences, rows with the token) where the token occurs.
        batches: batches of the epoch.
    """
    occurrences = sum(count for _, count, _ in places)
    proven = max(occurrences - sum(p[2] for p in places), occurrences - batches)
    for batch, count, _ in sorted(places, key=lambda p: (p[2] > 1, p[0])):
        if count > 1:
            yield batch, count, UNAVOIDABLE if count <= proven + 1 else HEURISTIC_MISS
            proven -= min(count - 1, proven)


class Spread:
    """One epoch's rows being dealt so that no two of a batch share a rare token.

    Each batch keeps as many of its rows as agree with one another. The others leave
    holes and go to holes of other batches, the most demanding row first. A row that
    fits none pushes a row that does out of its place, or failing that the least
    demanding row it can replace, which then is looked after in its stead.

    A token occurs less than ``RARE_BELOW`` times, so few batches refuse a row, and
    the pushing is limited to ``SEARCH_PER_ROW``: the time is O(N log N).
    """

    def __init__(self, order: list[int], size: int, tokens: list[set[int]]) -> None:
        self.order = order  # place -> row, -1 for a hole
        self.size = size  # rows of a batch
        self.tokens = tokens  # row -> the rare tokens to keep apart
        self.frequency = Counter(token for row in order for token in tokens[row])
        # batch -> rare token -> the place that holds it
        self.holder: list[dict[int, int]] = [{} for _ in range(len(order) // size)]
        self.holes: dict[int, list[int]] = {}  # batch -> its holes, if it has any
        self.search_left = SEARCH_PER_ROW * len(order)

    def run(self) -> list[int]:
        """The rows in their new order."""
        displaced = [row for b in range(len(self.holder)) for row in self._keep(b)]
        displaced.sort(key=self._demand, reverse=True)
        left = [row for row in displaced if not self._settle(row)]
        stuck = [row for row in map(self._repair, left) if row >= 0]
        for row in stuck:
            self._fill_hole(row, min(self.holes, key=lambda b: self._clashes(row, b)))
        return self.order

    def _keep(self, batch: int) -> list[int]:
        places = range(batch * self.size, (batch + 1) * self.size)
        rows = {place: self.order[place] for place in places}
        counts = Counter(chain.from_iterable(self.tokens[row] for row in rows.values()))
        clashes = {p: sum(counts[t] - 1 for t in self.tokens[rows[p]]) for p in places}
        displaced = []
        for place in sorted(places, key=clashes.__getitem__):
            if not self._clashes(rows[place], batch):
                self._place(rows[place], place)
            else:
                displaced.append(rows[place])
                self.order[place] = -1
                self.holes.setdefault(batch, []).append(place)
        return displaced

    def _settle(self, row: int) -> bool:
        batch = next((b for b in self.holes if not self._clashes(row, b)), None)
        if batch is not None:
            self._fill_hole(row, batch)
        return batch is not None

    def _repair(self, row: int) -> int:
        """Settle ``row`` and all it pushes; returns the row left over, or -1."""
        self._give_up_lost_tokens(row)
        placed = set()
        while not self._settle(row):
            if self.search_left <= 0:
                return row
            places = [p for p in self._replaceable(row) if self.order[p] not in placed]
            self.search_left -= len(places) * len(self.holes)
            if not places:
                return row
            movable = (p for p in places if self._fits_a_hole(self.order[p]))
            place = next(movable, None)
            if place is None:
                place = min(places, key=lambda p: self._demand(self.order[p]))
            placed.add(row)
            row = self._push(row, place)
        return -1

    def _give_up_lost_tokens(self, row: int) -> None:
        # In more rows than batches and already in each batch: cannot be kept apart.
        batches = len(self.holder)
        crowded = {t for t in self.tokens[row] if self.frequency[t] > batches}
        lost = {t for t in crowded if all(t in holder for holder in self.holder)}
        self.tokens[row] = self.tokens[row] - lost

    def _replaceable(self, row: int) -> Iterator[int]:
        for batch, holder in enumerate(self.holder):
            blocking = {holder[t] for t in self.tokens[row] if t in holder}
            if len(blocking) == 1:
                yield from blocking
            elif not blocking:
                places = range(batch * self.size, (batch + 1) * self.size)
                yield from (place for place in places if self.order[place] >= 0)

    def _push(self, row: int, place: int) -> int:
        pushed = self.order[place]
        for token in self.tokens[pushed]:
            del self.holder[place // self.size][token]
        self._place(row, place)
        return pushed

    def _place(self, row: int, place: int) -> None:
        self.order[place] = row
        self.holder[place // self.size].update(dict.fromkeys(self.tokens[row], place))

    def _fill_hole(self, row: int, batch: int) -> None:
        self._place(row, self.holes[batch].pop())
        if not self.holes[batch]:
            del self.holes[batch]

    def _fits_a_hole(self, row: int) -> bool:
        return any(not self._clashes(row, batch) for batch in self.holes)

    def _clashes(self, row: int, batch: int) -> int:
        return len(self.tokens[row] & self.holder[batch].keys())

    def _demand(self, row: int) -> int:
        return sum(self.frequency[token] for token in self.tokens[row])
