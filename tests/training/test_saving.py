# Copyright 2020-2026 The HuggingFace Team. All rights reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

import shutil
from pathlib import Path

from helpers.testing_utils import assert_same, make_trainer, weights
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_nlac import NLACPrompts
from trl_nlac.environments.embedded import COMPACT_PROMPTS


class TestSaving:
    def test_saved_model_is_complete(self, tmp_path):
        trainer = make_trainer(tmp_path)
        trainer.train()
        trainer.save_model()
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
        assert_same(weights(loaded), weights(trainer.model))
        assert AutoTokenizer.from_pretrained(tmp_path).chat_template == trainer.processing_class.chat_template
        assert NLACPrompts.from_file(tmp_path / "nlac_prompts.json") == COMPACT_PROMPTS

    def test_no_checkpoint_is_deleted_under_its_name(self, tmp_path, monkeypatch):
        """A process that is killed during a deletion leaves no part of a checkpoint under the name of one."""
        deleted, rmtree = [], shutil.rmtree

        def observed(path, *args, **kwargs):
            deleted.append([child.name for child in Path(path).iterdir()] if Path(path).is_dir() else [])
            assert not Path(path).name.startswith("checkpoint-")
            rmtree(path, *args, **kwargs)

        monkeypatch.setattr(shutil, "rmtree", observed)
        config = {"max_steps": 4, "save_strategy": "steps", "save_steps": 1, "save_total_limit": 2}
        make_trainer(tmp_path, config).train()
        assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-3", "checkpoint-4"]
        assert [names for names in deleted if names and names[0].startswith("deleted-")] == [
            ["deleted-checkpoint-1"],
            ["deleted-checkpoint-2"],
        ]
        assert not (tmp_path / "_incomplete").exists()
