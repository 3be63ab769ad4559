"""The summary of a script's run while it goes on, by the rules of its manifest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

from analysis.history import RunHistory
from analysis.summary_rules import AT, LAST, MAX, MIN, Rule, parse_rule, summary_of
from minigpt.records import InputError
from runners.script.rows import Row
from runners.script.values import check_key, check_value


@dataclass
class _Kept:
    """What was seen of one key."""

    last: float | None = None
    least: float | None = None
    most: float | None = None
    at: float | None = None

    def see(self, value: float, is_at: bool) -> None:
        """Take the next value; ``is_at`` if it is that of the rule's one step."""
        self.last = value
        if isfinite(value):
            self.least = value if self.least is None else min(self.least, value)
            self.most = value if self.most is None else max(self.most, value)
        self.at = value if is_at else self.at


class RunSummary(Mapping[str, float | str]):
    """``run.summary``: read like a dict; setting a key puts a number or text there.

    What is read here is what was logged so far. What counts in the end is computed
    from the record by the same rules.

    Args:
        manifest: whose ``summary_rules`` and ``summary`` these are.
        save: writes the manifest.

    Attributes:
        pending: gives the rows that are not recorded yet.
    """

    def __init__(self, manifest: dict[str, Any], save: Callable[[], None]) -> None:
        self._manifest, self._save = manifest, save
        self._kept: dict[str, _Kept] = {}
        self.pending: Callable[[], list[Row]] = list
        rules = manifest["summary_rules"]
        self._rules = {key: parse_rule(key, text) for key, text in rules.items()}

    def define(self, key: str, text: str) -> None:
        """Let a rule say what the summary takes of a key; written down at once.

        Raises:
            InputError: it is no rule.
            OSError: the manifest cannot be written.
        """
        self._rules[check_key(key)] = parse_rule(key, text)
        self._manifest["summary_rules"][key] = text
        self._save()

    def see(self, step: int, values: Mapping[str, float]) -> None:
        """Take the values of a row that is recorded."""
        for key, value in values.items():
            self._kept.setdefault(key, _Kept()).see(value, self._is_at(key, step))

    def _is_at(self, key: str, step: int | None) -> bool:
        rule = self._rules.get(key)
        return rule is not None and rule.kind == AT and rule.step == step

    def recall(self, history: RunHistory) -> None:
        """Take what a record holds that is gone on with."""
        for key in history.data.layout.occasional:
            there = history.measured(key)
            values, steps = history.scalar(key)[there], history.steps[there]
            found = {
                kind: summary_of(values, steps, Rule(kind)) for kind in (LAST, MIN, MAX)
            }
            rule = self._rules.get(key, Rule(LAST))
            found[AT] = summary_of(values, steps, rule) if rule.kind == AT else None
            first = {kind: pair and pair[0] for kind, pair in found.items()}
            self._kept[key] = _Kept(first[LAST], first[MIN], first[MAX], first[AT])

    def __getitem__(self, key: str) -> float | str:
        explicit = self._manifest["summary"]
        if key in explicit:
            return explicit[key]
        kept = replace(self._kept.get(key, _Kept()))
        for row in self.pending():
            if key in row.values:
                kept.see(row.values[key], self._is_at(key, row.step))
        kind = self._rules.get(key, Rule(LAST)).kind
        value = {LAST: kept.last, MIN: kept.least, MAX: kept.most, AT: kept.at}[kind]
        if value is None:
            raise KeyError(key)
        return value

    def __setitem__(self, key: str, value: Any) -> None:
        check_key(key)
        if not isinstance(value, str):
            value = check_value(f"summary.{key}", value)
            if not isfinite(value):
                raise InputError(
                    f"summary.{key}: expected a finite number or text, got {value}"
                )
        self._manifest["summary"][key] = value
        self._save()

    def __iter__(self) -> Iterator[str]:
        waiting = [key for row in self.pending() for key in row.values]
        for key in dict.fromkeys([*self._kept, *waiting, *self._manifest["summary"]]):
            try:
                self[key]
            except KeyError:
                continue  # its rule has found nothing yet
            yield key

    def __len__(self) -> int:
        return sum(1 for _ in self)
