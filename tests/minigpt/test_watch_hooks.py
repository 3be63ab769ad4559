"""When the hooks of ``Watch`` act, what they survive, and that they leave."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from minigpt import records as col
from minigpt.records import InputError
from minigpt.watch import ModuleReader, Watch
from tests.minigpt.test_watch import (
    CLOSE,
    Mlp,
    build,
    columns,
    gradients,
    norms,
    sgd,
    step,
    total,
)


def hooks_of(model, optimizer):
    modules = sum(len(module._forward_hooks) for module in model.modules())
    steps = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    return modules, *map(len, steps)


def test_close_takes_every_hook_off():
    model, optimizer, loss, generator = build("mlp-adamw")
    watch = Watch(model, optimizer)
    # four sites, the end of a pass, and the output
    assert hooks_of(model, optimizer) == (4 + 2, 1, 1)
    step(model, optimizer, loss, generator)
    row, norm = watch.row(), watch.norm_preclip
    watch.close()
    assert hooks_of(model, optimizer) == (0, 0, 0)
    step(model, optimizer, loss, generator)
    assert watch.row().tobytes() == row.tobytes()
    assert watch.norm_preclip == norm


def test_nothing_is_known_before_the_first_step():
    model, optimizer, *_ = build("mlp-adamw")
    watch = Watch(model, optimizer)
    assert watch.update is None
    assert math.isnan(watch.norm_preclip)
    assert math.isnan(watch.norm_postclip)
    assert np.isnan(watch.row()).all()


def test_a_validation_pass_between_steps_does_not_disturb_the_norms():
    model, optimizer, loss, generator = build("lm-adamw")
    watch = Watch(model, optimizer)
    seen = step(model, optimizer, loss, generator)
    with torch.no_grad():
        loss(model, generator)
    assert watch.norm_preclip == pytest.approx(total(seen.pre), **CLOSE)


def test_two_forward_passes_and_one_backward():
    model, optimizer, loss, generator = build("mlp-adamw")
    watch = Watch(model, optimizer)
    (loss(model, generator) + loss(model, generator)).backward()
    expected = total(norms(gradients(model)))
    assert watch.norm_preclip == pytest.approx(expected, **CLOSE)


def test_every_gradient_is_there_when_the_norm_is_taken():
    # The loss also reaches a weight past the model's output, later in the backward
    # pass than the hook on that output.
    model, optimizer, loss, generator = build("mlp-adamw")
    watch = Watch(model, optimizer)
    loss(model, generator).backward()
    expected = norms(gradients(model))
    assert expected["entry.weight"] > 0
    assert watch.norm_preclip == pytest.approx(total(expected), **CLOSE)


@dataclass
class Output:
    """As model libraries return it."""

    loss: Tensor | None
    logits: Tensor
    past: tuple = ()


@pytest.mark.parametrize(
    "wrap",
    [
        lambda y: y,
        lambda y: (y.detach(), y),
        lambda y: [{"ids": torch.ones(2), "y": y}],
        lambda y: Output(None, y),
    ],
)
def test_the_output_may_be_nested(wrap):
    class Wrapped(Mlp):
        def forward(self, x):
            self.plain = super().forward(x)
            return wrap(self.plain)

    torch.manual_seed(0)
    model = Wrapped()
    watch = Watch(model, sgd(model))
    model(torch.ones(2, 5))
    model.plain.sum().backward()
    expected = total(norms(gradients(model)))
    assert watch.norm_preclip == pytest.approx(expected, **CLOSE)


@pytest.mark.parametrize("poison", [math.nan, math.inf, 1e30])
def test_numbers_out_of_bounds_are_measured_without_a_warning(poison):
    model, optimizer, loss, generator = build("mlp-sgd")
    watch = Watch(model, optimizer)
    step(model, optimizer, loss, generator)
    with torch.no_grad():
        model.unused.weight[0, 0] = poison  # in no gradient: it stays as it is
        model.exit.weight[0, 0] = poison
    loss(model, generator).backward()
    optimizer.step()
    assert not watch.update.param_norm < 1e19  # the square overflows, or NaN
    update = columns(watch, col.TENSOR_UPDATE_NORM)["unused.weight"]
    assert update == 0.0 if math.isfinite(poison) else math.isnan(update)
    assert watch.reader.nonfinite_gradients() == sum(
        int((~g.isfinite()).sum()) for _, g in gradients(model) if g is not None
    )


def test_half_precision_and_odd_layouts_are_measured():
    model = nn.Linear(6, 4).to(torch.bfloat16)
    model.weight = nn.Parameter(model.weight.detach().T.contiguous().T)
    optimizer = sgd(model)
    watch = Watch(model, optimizer)
    model(torch.ones(2, 6, dtype=torch.bfloat16)).sum().backward()
    expected = norms(gradients(model))
    optimizer.step()
    assert columns(watch, col.GRAD_NORM) == pytest.approx(expected, **CLOSE)


def test_a_gradient_of_an_earlier_step_is_forgotten():
    model, optimizer, loss, generator = build("mlp-adamw")
    watch = Watch(model, optimizer)
    step(model, optimizer, loss, generator)
    assert columns(watch, col.GRAD_NORM)["entry.weight"] > 0
    optimizer.zero_grad()
    model.forward = model.exit.forward  # as a part that is switched off
    model(torch.randn(2, 16, generator=generator)).sum().backward()
    optimizer.step()
    found = columns(watch, col.GRAD_NORM)
    assert found["exit.weight"] > 0
    assert found["entry.weight"] == found["entry.bias"] == 0.0


def test_the_step_count_is_the_optimizers_whichever_parameters_it_steps():
    model, optimizer, _, generator = build("mlp-adamw")
    watch = Watch(model, optimizer)
    assert math.isnan(watch.reader.step_counter())
    for taken in range(3):
        model.exit(torch.randn(2, 16, generator=generator)).sum().backward()
        optimizer.step()  # the first parameter, of the entry, has no gradient
        assert watch.reader.step_counter() == taken + 1


def test_two_watchers_do_not_disturb_each_other():
    model, optimizer, loss, generator = build("mlp-adamw")
    one, two = Watch(model, optimizer), Watch(model, optimizer, sites=["exit"])
    step(model, optimizer, loss, generator)
    assert one.norm_preclip == two.norm_preclip
    assert one.update == two.update
    one.close()
    step(model, optimizer, loss, generator)
    assert one.norm_preclip != two.norm_preclip


def test_a_model_with_nothing_to_train_is_refused():
    model = nn.Linear(2, 2).requires_grad_(False)
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    with pytest.raises(InputError, match="requires_grad, found none"):
        ModuleReader(model, optimizer)


def test_an_evaluation_pass_leaves_the_activations_of_training():
    model, optimizer, loss, generator = build("lm-adamw")
    watch = Watch(model, optimizer)
    loss(model, generator).backward()
    trained = watch._observer.activations.values.copy()
    model.eval()
    with torch.no_grad():
        loss(model, generator)
    assert watch._observer.activations.values.tobytes() == trained.tobytes()
    model.train()
    with torch.no_grad():
        loss(model, generator)
    assert watch._observer.activations.values.tobytes() != trained.tobytes()


def test_the_hash_follows_the_weights_and_nothing_else():
    hashes = []
    for place, change in ((None, 0.0), ("entry", 1e-3), ("hidden", 1.0)):
        model, optimizer, loss, generator = build("mlp-adamw")
        watch = Watch(model, optimizer)
        optimizer.param_groups[0]["lr"] = 0.0
        optimizer.param_groups[0]["weight_decay"] = 0.0
        if place:
            with torch.no_grad():
                getattr(model, place).weight.view(-1)[0] += change
        step(model, optimizer, loss, generator)
        hashes.append(watch.param_hash)
    assert hashes[0] != 0
    assert hashes[1] != hashes[0]
    assert hashes[2] == hashes[0]  # frozen, so not watched


@pytest.mark.parametrize(("poison", "count"), [(math.nan, 2), (math.inf, 2), (1.0, 0)])
def test_bad_gradient_elements_are_counted_before_clipping(poison, count):
    model, optimizer, *_ = build("mlp-adamw")
    watch = Watch(model, optimizer)
    factors = torch.ones_like(model.exit.bias)
    factors[:2] = poison
    output = model(torch.ones(1, 5)).detach() * 0 + model.exit.bias * factors
    output = output + 0 * model(torch.ones(1, 5))
    output.register_hook(watch._backward_began)
    output.sum().backward()
    assert watch.nonfinite_grads == count


def test_an_output_that_contains_itself_is_not_followed_for_ever():
    loop = []
    loop.append(loop)

    class Endless(Mlp):
        def forward(self, x):
            super().forward(x)
            return loop

    model = Endless()
    optimizer = sgd(model)
    watch = Watch(model, optimizer)
    assert model(torch.ones(1, 5)) is loop
    assert math.isnan(watch.norm_preclip)
