# SPDX-License-Identifier: Apache-2.0

"""Names of other packages that any version may change: each is there, and no others are used."""

import ast
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import GenerationMixin, PreTrainedConfig, Trainer

import trl_nlac
from trl_nlac import private_names


PACKAGE = Path(trl_nlac.__file__).parent
OF_TRAINER = """_determine_best_metric _evaluate _get_dataloader _get_grad_norm _get_output_dir _get_train_sampler
    _load_from_checkpoint _load_optimizer_and_scheduler _load_scaler _maybe_log_save_evaluate _move_model_to_device
    _prepare_inputs _push_from_checkpoint _run_epoch _save _save_checkpoint _save_optimizer_and_scheduler
    _track_num_input_tokens"""
# Methods and attributes that the package calls, sets or replaces, by what has them.
OWNERS = {
    Trainer: OF_TRAINER,
    private_names._BaseTrainer: "_tag_names",
    private_names._BaseConfig: "_VALID_DICT_FIELDS",
    private_names.VLLMGeneration: "_init_vllm _iter_named_params",
    GenerationMixin: "_sample _supports_default_dynamic_cache",
    PreTrainedConfig: "_attn_implementation",
    torch: "_dynamo",
    torch.nn.Module(): "_forward_pre_hooks",
    torch.ops.aten: "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward",
    torch.Tensor: "_version",
}
MEMBERS = {name: owner for owner, names in OWNERS.items() for name in names.split()}
# What only objects have, and functions take: in which source each is.
SOURCES = {
    "accelerate.state": "_set_sync_gradients",
    "deepspeed.runtime.zero.parameter_offload": "fwd_pre_hook",
    "deepspeed.runtime.zero.partition_parameters": "ds_tensor ds_numel ds_shape ds_process_group partition_numel",
    "deepspeed.runtime.zero.stage3": "_z3_optimizer _get_fp32_opt_state_partition release_swap_buffers "
    "empty_partition_cache invalidate_secondary_tensor parameter_offload",
    "deepspeed.utils.mixed_precision_linkage": "_hp_mapping _dp_group",
    "deepspeed.utils.tensor_fragment": "lp_fragment_address hp_fragment",
    "openenv.core.env_client": "_ws",
    "torch._dynamo": "reset_code",
    "torch._dynamo.config": "recompile_limit fail_on_recompile_limit_hit",
    "transformers.integrations.deepspeed": "_hf_deepspeed_config_weak_ref unset_hf_deepspeed_config",
    "transformers.trainer": "_tr_loss _total_loss_scalar _globalstep_last_logged",
    "transformers.utils.hub": "_raise_exceptions_for_missing_entries",
    "trl.generation.vllm_generation": "_dist LLM",
    "vllm.config.cache": "num_gpu_blocks block_size",
    "vllm.config.vllm": "cache_config",
    "vllm.entrypoints.llm": "llm_engine model_config sleep wake_up reset_prefix_cache",
    "vllm.v1.engine.llm_engine": "vllm_config model_executor add_request abort_request step",
    "vllm.v1.executor.uniproc_executor": "driver_worker",
    "vllm.v1.worker.gpu_model_runner": "device reload_weights weights_iterator",
    "vllm.v1.worker.worker_base": "model_runner",
}
LISTED = {*MEMBERS, *(name for names in SOURCES.values() for name in names.split())}
# Python's own, and those that an environment of a user may define.
OTHERS = set(
    """_actions _ArgumentGroup _asdict _close _exit _get_formatter _is_done _mutually_exclusive_groups
    _option_string_actions _replace _SubParsersAction""".split()
)
PUBLIC = {
    "accelerate.commands.launch",  # `python -m`
    "ray._private.worker",  # compared with the module of a function
    "transformers.integrations.deepspeed",  # documented
}
PRIVATE = re.compile(
    r"(trl|vllm)(\.\w+){2}|transformers\.(integrations|masking_utils)\.|accelerate\.commands\.|deepspeed\.runtime\."
    r"|(torch|trl|transformers|vllm|deepspeed|accelerate|peft|datasets|ray|openenv)(\.\w+)*\._"
)
OF_VLLM = re.compile(r"\b(?:llm|_engine|runner|cache)\.(\w+(?:\.\w+)*)")


def used_in(folder: Path) -> set[str]:
    """Names of others that the files of a folder use, and that are not public."""
    found, own = set(), set()
    for path in folder.rglob("*.py"):
        text = path.read_text()
        if path.parent.name == "vllm" and path.name != "server_engine.py":
            found |= {name for names in OF_VLLM.findall(text) for name in names.split(".")} - {"max_model_len", "type"}
        for node in ast.walk(ast.parse(text)):
            names = []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [f"{alias.name}." for alias in node.names]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and path.name != "private_names.py":
                names = re.findall(r"^\w+(?:\.\w+)+$", node.value)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                own.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                own.add(node.id)
            elif isinstance(node, ast.Attribute) and re.match(r"_[^_]|ds_", node.attr):
                (own if isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self" else found).add(
                    node.attr
                )
            elif isinstance(node, ast.keyword) and (node.arg or "")[:1] == "_":
                found.add(node.arg)
            found |= {name for name in names if PRIVATE.match(name) and name not in PUBLIC}
    return {name for name in found if name not in own or hasattr(Trainer, name)} - OTHERS


@pytest.mark.parametrize("name", private_names.PLACES)
def test_names(name):
    pytest.importorskip(private_names.PLACES[name].partition(".")[0])
    assert getattr(private_names, name) is not None


@pytest.mark.parametrize("name", MEMBERS)
def test_members(name):
    assert hasattr(MEMBERS[name], name)


@pytest.mark.parametrize("module", SOURCES)
def test_names_in_sources(module):
    pytest.importorskip(module.partition(".")[0])
    text = Path(find_spec(module).origin).read_text()
    assert all(re.search(rf"\b{name}\b", text) for name in SOURCES[module].split())


def test_a_name_that_is_gone(monkeypatch):
    monkeypatch.setitem(private_names.PLACES, "gone", "trl.trainer.utils")
    with pytest.raises(ImportError, match=r"`trl.trainer.utils.gone` is not in this version of trl.*pip install"):
        from trl_nlac.private_names import gone  # noqa: F401


def test_no_others_are_used():
    assert used_in(PACKAGE) <= LISTED


@pytest.mark.parametrize(
    "plant",
    [
        "from trl.trainer.utils import pad",
        "import vllm.v1.engine",
        "from torch._inductor import config",
        "from deepspeed.runtime.engine import MEMORY_OPT_ALLREDUCE_SIZE",
        "from transformers.integrations.sdpa_attention import use_gqa_in_sdpa",
        "from importlib import import_module\nimport_module('trl.trainer.utils')",
        "self.model_wrapped._inner_training_loop()",
        "cached_file(name, _commit_hash=None)",
        "parameter.ds_status",
        "self.llm.llm_engine.engine_core",
    ],
)
def test_every_use_is_seen(tmp_path, plant):
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "planted.py").write_text(plant)
    assert used_in(tmp_path) - LISTED
