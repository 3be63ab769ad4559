from collections import Counter

import pytest

from minigpt.corpus import (
    COMPLEMENTS,
    REGULAR_VERBS,
    SUBJECTS,
    TENSES,
    all_rows,
    conjugate,
    has_word,
    split,
    split_hashes,
)


def test_800_different_sentences_one_for_each_combination():
    rows = all_rows()
    assert len({row.text for row in rows}) == len(rows) == 800
    cells = Counter((row.verb, row.tense, row.subject) for row in rows)
    assert len(cells) == 20 * len(TENSES) * len(SUBJECTS)
    assert set(cells.values()) == {2}
    assert Counter(row.person for row in rows) == {"1sg": 200, "2sg": 200, "3sg": 400}


def test_twelve_regular_and_eight_irregular_verbs():
    assert len(REGULAR_VERBS) == 12
    assert len(COMPLEMENTS) == 20
    assert {row.verb for row in all_rows() if row.regular} == set(REGULAR_VERBS)


def test_sentences_start_with_a_capital_and_end_with_one_full_stop():
    for row in all_rows():
        assert row.text[0].isupper()
        assert row.text.endswith(".")
        assert row.text.count(".") == 1
        assert "  " not in row.text


@pytest.mark.parametrize(
    "text",
    [
        "She has written the letter.",
        "She is going to write the letter.",
        "I am going to be happy.",
        "You were at home.",
        "He was at home.",
        "He goes to school.",
        "You have gone to school.",
        "She studies English.",
        "I studied English.",
        "He watches the film.",
        "She has had lunch.",
        "He does the dishes.",
        "She will eat an apple.",
        "You liked the song.",
        "He plays tennis.",
        "I played tennis.",
    ],
)
def test_expected_sentence_is_a_row(text):
    assert text in {row.text for row in all_rows()}


THIRD_PERSON = (
    "works plays walks talks listens watches studies finishes starts looks wants likes "
    "is has does goes comes sees eats writes"
)
PAST = (
    "worked played walked talked listened watched studied finished started looked "
    "wanted liked was had did went came saw ate wrote"
)
PARTICIPLE = (
    "worked played walked talked listened watched studied finished started looked "
    "wanted liked been had done gone come seen eaten written"
)


def test_every_form_against_a_list_written_by_hand():
    verbs = list(COMPLEMENTS)
    assert [conjugate(v, "present", "3sg") for v in verbs] == THIRD_PERSON.split()
    assert [conjugate(v, "past", "3sg") for v in verbs] == PAST.split()
    perfect = [conjugate(v, "perfect", "3sg") for v in verbs]
    assert perfect == [f"has {form}" for form in PARTICIPLE.split()]


def test_has_word_wants_whole_words():
    assert has_word("She has written.", "written")
    assert has_word("She has written.", "she")
    assert not has_word("She has written the letter.", "writ")


def test_split_sizes_and_no_row_in_both():
    parts = split()
    assert (len(parts.train), len(parts.validation)) == (240, 60)
    assert len(set(parts.train) | set(parts.validation)) == 300
    assert set(parts.train) | set(parts.validation) <= set(all_rows())


def test_written_is_in_three_training_rows_and_in_no_validation_row():
    assert sum(has_word(row.text, "written") for row in all_rows()) == 8
    assert sum(has_word(row.text, "written") for row in split().train) == 3
    assert not any(has_word(row.text, "written") for row in split().validation)


def test_validation_holds_out_rows_not_verbs():
    assert {row.verb for row in split().train} == set(COMPLEMENTS)
    assert {row.verb for row in split().validation} <= set(COMPLEMENTS)


TRAIN_SHA256 = "a704524d24c7b043101ad7d4113e54227ac6b5c03e42a795b33342e162b3a695"
VALIDATION_SHA256 = "559ebc780c74e68de3a4ff02d190646245cd20519a0077b4f8a43795824b67cf"


def test_split_is_the_one_every_published_number_was_measured_on():
    # The draw depends on numpy's generator; should a version change it, this fails.
    hashes = {"train": TRAIN_SHA256, "validation": VALIDATION_SHA256}
    assert split_hashes() == hashes
