"""Names that scripts give to what has a name of its own here.

The panels, the flags and the summary look for ``train/loss``; a script calls it
``loss``. The table is short on purpose: a wrong guess would draw one thing under the
name of another.
"""

from __future__ import annotations

from collections.abc import Sequence

from minigpt.records import GRAD_NORM_PRECLIP, LR, TRAIN_LOSS, VAL_LOSS

# canonical name -> other names of it, in lower case
ALIASES = {
    TRAIN_LOSS: (
        *("loss", "train_loss", "training_loss", "train.loss", "train loss"),
        *("loss/train", "train/train_loss", "trainer/loss", "training/loss"),
    ),
    LR: (
        *("lr", "learning_rate", "learning rate", "train/lr", "train/learning_rate"),
        *("optim/learning_rate", "optimizer/lr", "trainer/lr"),
    ),
    GRAD_NORM_PRECLIP: (
        *("grad_norm", "gradient_norm", "gradient norm", "train/grad_norm"),
        *("train/gradient_norm", "optim/grad_norm"),
    ),
    VAL_LOSS: (
        *("val_loss", "valid_loss", "validation_loss", "eval_loss", "val.loss"),
        *("valid/loss", "validation/loss", "eval/loss", "loss/val", "loss/eval"),
    ),
}


def alias_of(canonical: str, keys: Sequence[str]) -> str | None:
    """The key under which a script logged something that has a canonical name.

    Args:
        canonical: a key of ``ALIASES``.
        keys: what the script logged, in the order in which the keys came up. The first
            match counts, so that a key that comes later changes nothing.
    """
    names = (canonical, *ALIASES[canonical])
    return next((key for key in keys if key.lower() in names), None)
