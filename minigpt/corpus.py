"""The corpus: 800 English sentences of 20 verbs, and the one split that is drawn.

A sentence is subject, conjugated verb, complement and a full stop. The corpus never
depends on a run: its draw has a seed of its own, fixed here.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cache
from itertools import product

import numpy as np

CORPUS_SEED = 1905
TRAIN_ROWS = 240
VALIDATION_ROWS = 60
SPIKE_WORD = "written"  # the long-tail word: 3 rows to train, 5 to neither split
SPIKE_WORD_TRAIN_ROWS = 3

SUBJECTS = {"I": "1sg", "you": "2sg", "he": "3sg", "she": "3sg"}
TENSES = ("present", "past", "perfect", "will", "going_to")

# verb -> its two complements
REGULAR_VERBS = {
    "work": ("in a bank", "at night"),
    "play": ("the guitar", "tennis"),
    "walk": ("to the park", "the dog"),
    "talk": ("to the teacher", "about music"),
    "listen": ("to the radio", "to the story"),
    "watch": ("the film", "the birds"),
    "study": ("English", "the lesson"),
    "finish": ("the book", "the race"),
    "start": ("the engine", "a new job"),
    "look": ("at the map", "at the sky"),
    "want": ("a coffee", "a bike"),
    "like": ("the song", "the soup"),
}
IRREGULAR_VERBS = {
    "be": ("at home", "happy"),
    "have": ("lunch", "a cat"),
    "do": ("the homework", "the dishes"),
    "go": ("to school", "to the beach"),
    "come": ("to the party", "by train"),
    "see": ("the mountain", "a doctor"),
    "eat": ("an apple", "the bread"),
    "write": ("the letter", "a poem"),
}
COMPLEMENTS = REGULAR_VERBS | IRREGULAR_VERBS

# verb -> past, participle; "be" also has forms by person
IRREGULAR_FORMS = {
    "be": ("was", "been"),
    "have": ("had", "had"),
    "do": ("did", "done"),
    "go": ("went", "gone"),
    "come": ("came", "come"),
    "see": ("saw", "seen"),
    "eat": ("ate", "eaten"),
    "write": ("wrote", "written"),
}
BE_PRESENT = {"1sg": "am", "2sg": "are", "3sg": "is"}
BE_PAST = {"1sg": "was", "2sg": "were", "3sg": "was"}


@dataclass(frozen=True)
class Row:
    """One sentence of the corpus.

    Attributes:
        text: the sentence, capitalised, with its full stop.
        verb: infinitive without "to", a key of ``COMPLEMENTS``.
        tense: one of ``TENSES``.
        person: "1sg", "2sg" or "3sg".
        subject: "I", "you", "he" or "she".
        regular: whether past and participle end in -ed.
    """

    text: str
    verb: str
    tense: str
    person: str
    subject: str
    regular: bool


@dataclass(frozen=True)
class Split:
    """The rows of both splits, each in the order of the corpus.

    Attributes:
        train: 240 rows, three of them with the word "written".
        validation: 60 other rows, none with that word; every verb may be in both.
    """

    train: tuple[Row, ...]
    validation: tuple[Row, ...]


def conjugate(verb: str, tense: str, person: str) -> str:
    """The finite verb phrase, e.g. "is going to write" or "has written".

    Args:
        verb: a key of ``COMPLEMENTS``.
        tense: one of ``TENSES``.
        person: "1sg", "2sg" or "3sg".
    """
    past, participle = IRREGULAR_FORMS.get(verb) or (_add_ed(verb), _add_ed(verb))
    phrases = {
        "present": BE_PRESENT[person] if verb == "be" else _present(verb, person),
        "past": BE_PAST[person] if verb == "be" else past,
        "perfect": f"{_present('have', person)} {participle}",
        "will": f"will {verb}",
        "going_to": f"{BE_PRESENT[person]} going to {verb}",
    }
    return phrases[tense]


def _present(verb: str, person: str) -> str:
    if person != "3sg":
        return verb
    if verb == "have":
        return "has"
    if verb.endswith(("ch", "sh", "o")):
        return verb + "es"
    return _stem_with_i(verb, "es") if _ends_in_consonant_y(verb) else verb + "s"


def _add_ed(verb: str) -> str:
    if _ends_in_consonant_y(verb):
        return _stem_with_i(verb, "ed")
    return verb + ("d" if verb.endswith("e") else "ed")


def _ends_in_consonant_y(verb: str) -> bool:
    return verb.endswith("y") and verb[-2] not in "aeiou"


def _stem_with_i(verb: str, ending: str) -> str:
    return f"{verb[:-1]}i{ending}"


def _sentence(subject: str, verb: str, complement: str, tense: str) -> str:
    phrase = conjugate(verb, tense, SUBJECTS[subject])
    text = f"{subject} {phrase} {complement}."
    return text[0].upper() + text[1:]


@cache
def all_rows() -> tuple[Row, ...]:
    """All 800 rows: verb, then complement, tense and subject, the last fastest."""
    return tuple(
        Row(
            text=_sentence(subject, verb, complement, tense),
            verb=verb,
            tense=tense,
            person=SUBJECTS[subject],
            subject=subject,
            regular=verb in REGULAR_VERBS,
        )
        for verb, complements in COMPLEMENTS.items()
        for complement, tense, subject in product(complements, TENSES, SUBJECTS)
    )


def has_word(text: str, word: str) -> bool:
    """Whether ``word`` is a whole word of the sentence, capitals and stop aside."""
    return word.lower() in text.lower().rstrip(".").split()


@cache
def split() -> Split:
    """The split, drawn once and for all with ``CORPUS_SEED``.

    Of the eight rows with ``SPIKE_WORD`` three are in train and the other five in
    neither split; the remaining rows of both are drawn from the 792 others.
    """
    rows = all_rows()
    with_word = [i for i, row in enumerate(rows) if has_word(row.text, SPIKE_WORD)]
    others = sorted(set(range(len(rows))) - set(with_word))
    rng = np.random.Generator(np.random.PCG64(CORPUS_SEED))
    chosen = rng.permutation(with_word)[:SPIKE_WORD_TRAIN_ROWS]
    drawn = rng.permutation(others)
    cut = TRAIN_ROWS - SPIKE_WORD_TRAIN_ROWS
    train = sorted([*chosen.tolist(), *drawn[:cut].tolist()])
    validation = sorted(drawn[cut : cut + VALIDATION_ROWS].tolist())
    return Split(
        train=tuple(rows[i] for i in train),
        validation=tuple(rows[i] for i in validation),
    )


def split_hashes() -> dict[str, str]:
    """Split name -> sha256 over all fields of its rows, for a manifest."""
    return {name: _sha256(rows) for name, rows in vars(split()).items()}


def _sha256(rows: tuple[Row, ...]) -> str:
    content = json.dumps([asdict(row) for row in rows], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()
