# SPDX-License-Identifier: Apache-2.0

import pytest
from accelerate import skip_first_batches
from accelerate.data_loader import prepare_data_loader
from datasets import Dataset
from helpers.testing_utils import Countdown, make_trainer
from torch.utils.data import DataLoader

from trl_nlac.training.sampler import IterationSampler


class TestIterationSampler:
    def test_rounds_are_repeated_and_filled_up(self):
        sampler = IterationSampler(range(5), 3, 2, shuffle=False, seed=0)
        assert list(sampler) == [0, 1, 2, 0, 1, 2, 3, 4, 0, 3, 4, 0]
        assert len(sampler) == 12

    def test_epochs_differ_and_repeat(self):
        epochs = iter([0, 1, 0])
        sampler = IterationSampler(range(50), 10, 1, shuffle=True, seed=0, epoch=lambda: next(epochs))
        first, second, again = list(sampler), list(sampler), list(sampler)
        assert sorted(second) == sorted(first) and second != first and again == first

    @pytest.mark.parametrize("num_processes", [1, 2])
    def test_a_resumed_epoch_has_its_own_order(self, num_processes):
        def batches(epoch, skipped=0):
            sampler = IterationSampler(range(8), 4, 2, shuffle=True, seed=0, epoch=lambda: epoch)
            loader = DataLoader(range(8), batch_size=4 // num_processes, sampler=sampler)
            loader = prepare_data_loader(loader, num_processes=num_processes, process_index=0)
            return [batch.tolist() for batch in (skip_first_batches(loader, skipped) if skipped else loader)]

        assert batches(1, skipped=2) == batches(1)[2:] != batches(0)[2:]

    def test_the_order_is_that_of_the_options(self, tmp_path):
        tasks = Dataset.from_dict({"start": list(range(1, 21))})

        def order(**options):
            trainer = make_trainer(tmp_path, options, train_dataset=tasks, environment_factory=Countdown)
            return list(trainer._get_train_sampler())

        first, second = order(seed=1), order(seed=2)
        assert first != second and sorted(first) == sorted(second)
        assert order(seed=1, shuffle_dataset=False) == list(range(20))
