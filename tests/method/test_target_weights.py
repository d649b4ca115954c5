# SPDX-License-Identifier: Apache-2.0

import pytest
import torch
from torch import nn

from trl_nlac import TargetWeights
from trl_nlac.method.target_weights import InitialWeights, KeptWeights


def make_model(dtype=torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2)).to(dtype)


class TestTargetWeights:
    def test_is_the_moving_average(self):
        model = make_model()
        target = TargetWeights(model, update_rate=0.1)
        expected = model[0].weight.detach().clone()
        for _ in range(5):
            with torch.no_grad():
                model[0].weight.add_(torch.randn(8, 8))
            target.update(model)
            expected = 0.1 * model[0].weight.detach() + 0.9 * expected
        torch.testing.assert_close(target.state_dict()["0.weight"], expected)
        own, average = (nn.utils.parameters_to_vector(of) for of in (model.parameters(), target.state_dict().values()))
        assert target.distance(model) == pytest.approx(((own - average).norm() / average.norm()).item())

    def test_distance_from_zero(self):
        model = make_model()
        nn.utils.vector_to_parameters(torch.zeros(90), model.parameters())
        target = TargetWeights(model, update_rate=0.1)
        assert target.distance(model) == 0
        nn.utils.vector_to_parameters(torch.ones(90), model.parameters())
        assert target.distance(model) == 1
        target.update(model)
        assert target.distance(model) == pytest.approx(9)

    def test_closes_the_gap_in_bfloat16(self):
        model = make_model(torch.bfloat16)
        target = TargetWeights(model, update_rate=0.005)
        with torch.no_grad():
            model[0].weight.mul_(1.02)
        gap = target.distance(model)
        for _ in range(1000):
            target.update(model)
        assert target.distance(model) < 0.01 * gap

    @pytest.mark.parametrize("kept_weights", [TargetWeights, InitialWeights])
    def test_swap_restores_bit_for_bit(self, kept_weights: type[KeptWeights]):
        model = make_model(torch.bfloat16)
        target = kept_weights(model)
        old = [parameter.detach().clone() for parameter in model.parameters()]
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1)
        own = [parameter.detach().clone() for parameter in model.parameters()]
        with pytest.raises(RuntimeError, match="inside"), target.swapped_into(model):
            assert all(torch.equal(*pair) for pair in zip(model.parameters(), old, strict=True))
            raise RuntimeError("inside")
        assert all(torch.equal(*pair) for pair in zip(model.parameters(), own, strict=True))

    def test_tied_weights_are_swapped_together(self):
        model = make_model()
        model[1] = nn.Linear(8, 8)
        model[1].weight = model[0].weight
        target = TargetWeights(model)
        with torch.no_grad():
            model[0].weight.zero_()
        with target.swapped_into(model):
            assert model[1].weight is model[0].weight
            assert model[1].weight.abs().sum() > 0

    def test_averages_trainable_weights_only(self):
        model = make_model()
        model[0].requires_grad_(False)
        target = TargetWeights(model)
        assert sorted(target.state_dict()) == ["1.bias", "1.weight"]
        frozen = model[0].weight.data_ptr()
        with target.swapped_into(model):
            assert model[0].weight.data_ptr() == frozen

    @pytest.mark.parametrize("kept_weights", [TargetWeights, InitialWeights])
    def test_state(self, kept_weights: type[KeptWeights]):
        model = make_model()
        kept, other = kept_weights(model), kept_weights(model)
        kept.load_state_dict({name: 2 * values for name, values in kept.state_dict().items()})
        other.load_state_dict(kept.state_dict())
        with other.swapped_into(model):
            assert all(torch.equal(p, kept.state_dict()[name]) for name, p in model.named_parameters())
        with pytest.raises(ValueError, match="do not fit the model"):
            other.load_state_dict({"0.weight": torch.zeros(8, 8)})

    def test_starts_at_a_model_and_continues(self):
        model = make_model()
        target = TargetWeights(update_rate=0.1)
        assert target.state_dict() == {}
        target.start(model)
        with torch.no_grad():
            model[0].weight.add_(1)
        target.update(model)
        target.start(model)  # a second training continues the average
        expected = model[0].weight.detach() - 0.9
        torch.testing.assert_close(target.state_dict()["0.weight"], expected)

    def test_names_of_wrapped_models(self):
        model = make_model()
        target = TargetWeights(nn.DataParallel(model))
        assert target.state_dict().keys() == model.state_dict().keys()
        target.update(model)


class TestInitialWeights:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_stay_as_they_were_in_the_precision_of_the_model(self, dtype):
        model = make_model(dtype)
        old = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        initial = InitialWeights()
        assert initial.state_dict() == {}
        initial.start(model)
        with torch.no_grad():
            model[0].weight.add_(1)
        initial.start(model)  # a second training has those of the first
        kept = initial.state_dict()
        assert kept.keys() == old.keys() and {values.dtype for values in kept.values()} == {dtype}
        assert all(torch.equal(values, old[name]) for name, values in kept.items())
