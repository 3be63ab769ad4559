"""Injection B: rows of the batch at K become copies of one rare-token sentence."""

from __future__ import annotations

from dataclasses import dataclass

from minigpt.batches import Batch, collate
from minigpt.corpus import all_rows
from minigpt.injections.base import Injection, InjectionConfig
from minigpt.records import InputError
from minigpt.tokenizer import encode_row, load_tokenizer


@dataclass(kw_only=True)
class BadBatchConfig(InjectionConfig):
    """The bad batch.

    Attributes:
        sentence: the text that is copied; a sentence of the corpus.
        rows: how many of the batch's rows it replaces; null replaces all.
    """

    sentence: str = "She has written the letter."
    rows: int | None = None


class BadBatch(Injection):
    """The first ``rows`` rows of batch K replaced by one sentence."""

    config: BadBatchConfig

    def check(self) -> None:
        """The sentence must be the corpus's; the rows must fit the batch."""
        sentence = self.config.sentence
        known = [row for row in all_rows() if row.text == sentence]
        if not known:
            raise InputError(
                "injection.sentence: expected a sentence of the corpus, such as "
                f"'She has written the letter.'; got {sentence!r}"
            )
        rows = self.config.rows
        if rows is not None and not 1 <= rows <= self.batch_size:
            raise InputError(
                f"injection.rows: expected 1 to the batch size ({self.batch_size}), "
                f"got {rows}"
            )
        self._tokens = encode_row(load_tokenizer(), sentence)
        self._regular = known[0].regular

    def on_batch(self, step: int, batch: Batch) -> Batch:
        """Replace rows at K; the loader itself does not notice."""
        if step != self.step:
            return batch
        count = self.config.rows or len(batch.rows)
        regular = batch.regular.copy()
        regular[:count] = self._regular
        rows = [self._tokens] * count + list(batch.rows[count:])
        return collate(batch.index, rows, regular)
