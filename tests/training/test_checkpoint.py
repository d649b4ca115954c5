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

import json
import shutil
from pathlib import Path

import pytest
import torch
from helpers.testing_utils import assert_same, make_trainer, weights
from peft import LoraConfig, PeftModel
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    TrainerCallback,
)

from trl_nlac import NLACPrompts, PrioritizedReplay
from trl_nlac.environments.embedded import (
    COMPACT_PROMPTS,
    TINY_MODEL,
    make_rehearsal_dataset,
)


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
        """A process that is killed while it deletes one leaves nothing that looks like a checkpoint and is none."""
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

    @pytest.mark.parametrize("save_steps", [4, 3])
    def test_resumed_run_is_the_same_run(self, tmp_path, save_steps):
        """Bit for bit, from between two iterations and from within one."""
        config = {
            "max_steps": 8,
            "samples_per_iteration": 8,
            "save_strategy": "steps",
            "save_steps": save_steps,
            "rehearsal_ratio": 0.5,
        }
        data = {"rehearsal_dataset": make_rehearsal_dataset("service_desk", size=50)}
        whole = make_trainer(tmp_path / "whole", config, **data)
        whole.train()
        torch.manual_seed(123)
        resumed = make_trainer(tmp_path / "resumed", config, **data)
        resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{save_steps}"))
        assert_same(weights(whole.model), weights(resumed.model))
        assert_same(whole.target_weights.state_dict(), resumed.target_weights.state_dict())
        assert (whole.replay._priorities == resumed.replay._priorities).all()
        assert whole.num_environment_steps == resumed.num_environment_steps

    def test_resume_of_two_processes(self, tmp_path):
        """As if two had saved, and in the middle of an iteration: all transitions are there, the iteration starts again."""
        config = {"max_steps": 4, "samples_per_iteration": 8, "save_strategy": "steps", "save_steps": 1}
        make_trainer(tmp_path, config).train()
        checkpoint = tmp_path / "checkpoint-1"
        path = checkpoint / "nlac" / "rank_00000" / "state.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "world_size": 2}))
        shutil.copytree(path.parent, checkpoint / "nlac" / "rank_00001")
        resumed = make_trainer(tmp_path / "resumed", config)
        saved = PrioritizedReplay(100)
        saved.load(path.parent)

        class Check(TrainerCallback):
            def on_train_begin(self, *args, **kwargs):
                tokens = [episode.token_ids.tolist() for episode in saved.episodes]
                loaded = [episode.token_ids.tolist() for episode in resumed.replay.episodes]
                assert sorted(loaded) == sorted(tokens * 2) and not resumed._batches
                assert resumed.num_environment_steps == len(saved)

        resumed.add_callback(Check())
        resumed.train(resume_from_checkpoint=str(checkpoint))
        assert resumed.state.global_step == 4

    def test_replay_buffer_memory(self, tmp_path):
        trainer = make_trainer(tmp_path, {"replay_buffer_memory": 2**-22})  # 256 bytes
        trainer.train()
        assert trainer.replay._store.memory_size <= 256 < trainer.replay._store.disk_size
        assert trainer.replay._store.directory == trainer.args.output_dir

    def test_checkpoint_holds_no_code(self, tmp_path):
        trainer = make_trainer(tmp_path, {"save_strategy": "steps", "save_steps": 2})
        trainer.train()
        folder = tmp_path / "checkpoint-2" / "nlac" / "rank_00000"
        assert {path.suffix for path in folder.iterdir()} == {".parquet", ".json"}
        assert json.loads((folder / "state.json").read_text())["environment_steps"] == 16
        assert (tmp_path / "checkpoint-2" / "README.md").exists() or (tmp_path / "README.md").exists()

    def test_save_only_model_cannot_be_resumed(self, tmp_path):
        config = {"save_strategy": "steps", "save_steps": 1, "save_only_model": True}
        make_trainer(tmp_path, config).train()
        assert not (tmp_path / "checkpoint-1" / "nlac").exists()
        with pytest.raises(FileNotFoundError, match="holds no replay buffer.*save_only_model"):
            make_trainer(tmp_path, config).train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))

    @pytest.mark.parametrize("modules_to_save", [None, ["norm"]])
    def test_lora(self, tmp_path, modules_to_save):
        peft_config = LoraConfig(
            r=4, target_modules=["q_proj", "v_proj"], modules_to_save=modules_to_save, task_type="CAUSAL_LM"
        )
        trainer = make_trainer(tmp_path, {"max_steps": 3}, peft_config=peft_config)
        before = weights(trainer.model)
        assert_same(trainer.target_weights.state_dict(), {n: before[n] for n in trainer.target_weights.state_dict()})
        trainer.train()
        changed = {name for name, value in weights(trainer.model).items() if not torch.equal(value, before[name])}
        assert changed and all("lora_" in name or "modules_to_save" in name for name in changed)
        assert set(trainer.target_weights.state_dict()) == changed
        trainer.save_model()
        base = AutoModelForCausalLM.from_pretrained(TINY_MODEL)
        loaded = PeftModel.from_pretrained(base, tmp_path)
        own, read = weights(trainer.model), weights(loaded)
        for name in changed:
            torch.testing.assert_close(read[name], own[name])

    def test_quantized_base_model(self, tmp_path):
        """QLoRA: a base model in four bits, adapters on top; without adapters it is refused."""
        bitsandbytes = pytest.importorskip("bitsandbytes")
        quantization_config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
        peft_config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
        trainer = make_trainer(tmp_path, peft_config=peft_config, quantization_config=quantization_config)
        assert trainer.model.get_base_model().model.layers[0].mlp.up_proj.weight.dtype == torch.uint8
        # Some CPUs pack the weights for inference, and cannot train with them from then on.
        for module in trainer.model.modules():
            if isinstance(module, bitsandbytes.nn.Linear4bit):
                module.support_avx512bf16_for_cpu = False
        before = {name: weights(trainer.model)[name] for name in trainer.target_weights.state_dict()}
        assert before and all("lora_" in name for name in before)
        trainer.train()
        after = weights(trainer.model)
        assert any(not torch.equal(after[name], value) for name, value in before.items())
        with pytest.raises(ValueError, match="purely quantized"):
            make_trainer(tmp_path, quantization_config=quantization_config)
