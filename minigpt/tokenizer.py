"""Byte-level BPE with 512 ids, trained on the training texts and committed as JSON.

``python -m minigpt.tokenizer`` writes the file again, byte for byte the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from minigpt.corpus import split
from minigpt.records import InputError

VOCAB_SIZE = 512
SPECIALS = ("<pad>", "<bos>", "<eos>")
PAD_ID, BOS_ID, EOS_ID = range(len(SPECIALS))
TOKENIZER_PATH = Path(__file__).with_name("tokenizer.json")


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Learn the merges of a byte-level BPE.

    Equal counts are ordered by the ids of the pair, so that the result depends on
    the multiset of texts alone.

    Args:
        texts: the sentences to learn from.

    Returns:
        A tokenizer with at most ``VOCAB_SIZE`` ids: specials, 256 bytes, merges.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def load_tokenizer(path: Path = TOKENIZER_PATH) -> Tokenizer:
    """Read the committed tokenizer.

    Raises:
        InputError: the file is missing.
    """
    if not path.is_file():
        raise InputError(f"tokenizer file: expected {path}, found no such file")
    return Tokenizer.from_file(str(path))


def encode_row(tokenizer: Tokenizer, text: str) -> np.ndarray:
    """One sentence as the model sees it: ``<bos>``, its tokens, ``<eos>``.

    Returns:
        uint16, shape (tokens + 2,).

    Raises:
        InputError: the text is empty or spells a special token.
    """
    special = next((name for name in SPECIALS if name in text), None)
    if special or not text:
        raise InputError(
            f"sentence: expected text without special tokens, found {text!r}"
        )
    ids = tokenizer.encode(text).ids
    return np.array([BOS_ID, *ids, EOS_ID], dtype=np.uint16)


def main() -> None:
    """Train on the training split and write the committed file."""
    tokenizer = train_tokenizer(row.text for row in split().train)
    tokenizer.save(str(TOKENIZER_PATH))


if __name__ == "__main__":
    main()
