# SPDX-License-Identifier: Apache-2.0

import json

import pyarrow.parquet as pq
import pytest
from helpers.launch import launch


SCRIPT = """
import json
import sys
from pathlib import Path

from helpers.testing_utils import make_trainer
from transformers import TrainerCallback

from trl_nlac.environments.embedded import make_environment, make_tasks

output_dir, batch_size, max_steps, checkpoint = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
desk, tasks = make_tasks("rooms", 0)
config = dict(max_steps=max_steps, per_device_train_batch_size=batch_size, episodes_per_iteration=4)
config |= dict(samples_per_iteration=16, save_strategy="steps", save_steps=3, target_max_age=2)
arguments = dict(train_dataset=tasks, environment_factory=lambda: make_environment(desk))
trainer = make_trainer(output_dir, config, **arguments)


class Loaded(TrainerCallback):
    def on_train_begin(self, *args, **kwargs):
        rows = [
            [stored.episode.token_ids.tolist(), stored.priorities.tolist(), stored.targets]
            for stored in trainer.replay._items()
        ]
        loaded = {"rows": rows, "steps": trainer.num_environment_steps, "num_batches": len(trainer._batches)}
        (output_dir / f"loaded_{trainer.args.process_index}.json").write_text(json.dumps(loaded))


trainer.add_callback(Loaded())
trainer.train(resume_from_checkpoint=checkpoint[0] if checkpoint else None)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("saved", "resumed"), [(2, 1), (1, 2)])
def test_resume_on_another_number_of_processes(tmp_path, saved, resumed):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    launch(str(script), str(tmp_path), str(8 // saved), "3", processes=saved)
    checkpoint = tmp_path / "checkpoint-3"
    folders = sorted((checkpoint / "nlac").iterdir())
    assert len(folders) == saved
    rows = [row for folder in folders for row in pq.read_table(folder / "episodes.parquet").to_pylist()]

    launch(str(script), str(tmp_path), str(8 // resumed), "6", str(checkpoint), processes=resumed)
    loaded = [json.loads((tmp_path / f"loaded_{rank}.json").read_text()) for rank in range(resumed)]
    assert sorted(row for of_one in loaded for row in of_one["rows"]) == sorted(
        [row["token_ids"], row["priorities"], row["targets"]] for row in rows
    )
    assert any(target is not None for row in rows for target in row["targets"])
    for of_one in loaded:
        assert of_one["steps"] == sum(len(row["turns"]) for row in rows) and of_one["num_batches"] == 0
    assert len(sorted((tmp_path / "checkpoint-6" / "nlac").iterdir())) == resumed
