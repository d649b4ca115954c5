# SPDX-License-Identifier: Apache-2.0

"""Names of TRL and transformers that any version may change: each is there, and no others are used."""

import ast
from pathlib import Path

import pytest
from transformers import GenerationMixin, PreTrainedConfig, Trainer

import trl_nlac
from trl_nlac import private_names


PACKAGE = Path(trl_nlac.__file__).parent
OF_TRAINER = """_determine_best_metric _evaluate _get_dataloader _get_grad_norm _get_output_dir _get_train_sampler
    _load_from_checkpoint _load_optimizer_and_scheduler _load_scaler _maybe_log_save_evaluate _move_model_to_device
    _prepare_inputs _push_from_checkpoint _run_epoch _save _save_checkpoint _save_optimizer_and_scheduler
    _track_num_input_tokens""".split()
# Methods and attributes that the package calls, sets or replaces.
MEMBERS = {
    **dict.fromkeys(OF_TRAINER, Trainer),
    "_tag_names": private_names._BaseTrainer,
    "_VALID_DICT_FIELDS": private_names._BaseConfig,
    "_init_vllm": private_names.VLLMGeneration,
    "_iter_named_params": private_names.VLLMGeneration,
    "_sample": GenerationMixin,
    "_supports_default_dynamic_cache": GenerationMixin,
    "_attn_implementation": PreTrainedConfig,
}


@pytest.mark.parametrize("name", private_names.PLACES)
def test_names(name):
    assert getattr(private_names, name) is not None


@pytest.mark.parametrize("name", MEMBERS)
def test_members(name):
    assert hasattr(MEMBERS[name], name)


def test_a_name_that_is_gone(monkeypatch):
    monkeypatch.setitem(private_names.PLACES, "gone", "trl.trainer.utils")
    with pytest.raises(ImportError, match=r"`trl.trainer.utils.gone` is not in this version of trl.*pip install"):
        from trl_nlac.private_names import gone  # noqa: F401


def test_no_others_are_used():
    modules, members = set(), set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("trl.", "transformers.integr")):
                modules.add(f"{path.name}: {node.module}")
            names = [node.attr] if isinstance(node, ast.Attribute) else []
            names += [node.name] if isinstance(node, ast.FunctionDef) and path.name in ("run.py", "saving.py") else []
            members |= {name for name in names if name[:1] == "_" != name[1:2] and hasattr(Trainer, name)}
    assert modules == {"shards.py: transformers.integrations"}  # public: its documentation names `deepspeed`
    assert members <= MEMBERS.keys()
